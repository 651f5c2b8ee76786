"""pytest in a fork of this process, which has imported the frameworks: that takes longer than most tests."""

import contextlib
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path


def import_frameworks(names: list[str]) -> None:
    for name in ("pytest", "numpy", *names):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def in_fork(work: Callable[[], int], seconds: float, log: Path) -> int | None:
    """The exit status of a fork that does this, with all that it starts; None if it took longer."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            os.setsid()
            with open(log, "wb") as out:
                os.dup2(out.fileno(), 1)
                os.dup2(out.fileno(), 2)
            status = int(work())
            sys.stdout.flush()
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(status)
    deadline, status = time.monotonic() + seconds, None
    while status is None and time.monotonic() < deadline:
        ended, found = os.waitpid(pid, os.WNOHANG)
        status = os.waitstatus_to_exitcode(found) if ended else None
        if not ended:
            time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    if status is None:
        os.waitpid(pid, 0)
    return status


def pytest_in(tree: Path, tests: list[str], plugins: Callable[[], list[object]] = list, **environment: str) -> int:
    """Run tests of the tree; for a fork."""
    import pytest

    os.chdir(tree)
    os.environ |= {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    sys.dont_write_bytecode = True
    made = plugins()
    sys.path[:] = [str(tree), *(each for each in sys.path if each not in ("", os.environ.get("MUTANTS_ROOT")))]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("oneloop", "tests", "conftest")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=no", *tests], plugins=made))
