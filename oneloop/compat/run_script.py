"""`oneloop run`: runs a script like `python script.py`, with its Trainer imports redirected."""

import builtins
import importlib.machinery
import importlib.util
import io
import os
import runpy
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from ..errors import ArgumentError
from .check.syntax import imports_itself, libraries_of
from .redirect import redirect


def run(script: str, arguments: Sequence[str], library: str | None = None) -> int:
    """Run the script and return its exit code; its exceptions are shown as by plain Python."""
    path = _path_of(script)
    with io.open_code(str(path.resolve())) as file:
        source = file.read()
    chosen = [library] if library else libraries_of(path, source)
    redirect(*chosen, stand_in=[each for each in chosen if each != "mindnlp" or not imports_itself(path, source, each)])
    sys.argv = [str(path) if path != Path(script) else script, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(path.resolve().parent)
    # It stays __main__ until the interpreter exits: threads and exit handlers still need it.
    place = os.path.abspath(path)
    main = _main_module(place)
    _KEPT.append(sys.modules["__main__"])
    sys.modules["__main__"] = main
    return _run(lambda: exec(compile(source, place, "exec"), main.__dict__), script, chosen)


def run_module(module: str, arguments: Sequence[str], library: str | None = None) -> int:
    """Run a module like `python -m module`; by default its Trainer is taken for transformers'."""
    chosen = [library or "transformers"]
    redirect(*chosen)
    sys.argv = [module, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.getcwd()
    if importlib.util.find_spec(module) is None:
        raise ArgumentError(f"module {module} not found; it is imported as by python -m.")
    _KEPT.append(sys.modules["__main__"])
    return _run(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True), module, chosen)


def _run(execute: Callable[[], Any], name: str, chosen: list[str]) -> int:
    """Execute a program; its errors are shown without the frames of oneloop. Returns the exit status."""
    try:
        execute()
    except SystemExit as left:
        if not left.code:
            _warn_if_bypassed(name, chosen)
        raise
    except Exception as error:
        _show(error)
        return 1
    except KeyboardInterrupt as error:
        raise error.with_traceback(_script_traceback(error.__traceback__)) from error.__cause__
    _warn_if_bypassed(name, chosen)
    return 0


def _path_of(script: str) -> Path:
    """The script; for a bare name that is no file, the command of that name, if it is written in Python."""
    path = Path(script)
    if path.is_file():
        return path
    found = shutil.which(script) if path.name == script else None
    beside = Path(sys.executable).with_name(script)
    command = beside if path.name == script and beside.is_file() else Path(found) if found else None
    if command is not None:
        with command.open("rb") as file:
            first = file.readline()
        if first.startswith(b"#!") and b"python" in first:
            return command
    raise ArgumentError(f"script {script} not found; pass its path before its arguments.")


_KEPT: list[ModuleType] = []


def _main_module(path: str) -> ModuleType:
    main = ModuleType("__main__")
    main.__file__ = path
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    main.__spec__ = None
    main.__dict__.update(__builtins__=builtins, __cached__=None)
    return main


def _script_traceback(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that starts in the script; all of it if the script did not start (a syntax error)."""
    here = os.path.abspath(__file__)
    while trace is not None and os.path.abspath(trace.tb_frame.f_code.co_filename) == here:
        trace = trace.tb_next
    return trace


def _show(error: Exception) -> None:
    trace: Any = _script_traceback(error.__traceback__)
    sys.excepthook(type(error), error.with_traceback(trace), trace)


def _warn_if_bypassed(script: str, libraries: list[str]) -> None:
    """Warn at the end if the script created no Trainer: its own or another library's loop is not redirected."""
    used = any(name.startswith("oneloop.backends.") and name.endswith(".engine") for name in sys.modules)
    if not used and any(library in sys.modules for library in libraries):
        print(f"oneloop run: {script} created no Trainer, so none of it ran on oneloop.", file=sys.stderr)
