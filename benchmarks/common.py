"""What the benchmarks share: tables, silence, and fresh interpreters."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def installed(*names: str) -> bool:
    return all(find_spec(name) is not None for name in names)


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A Markdown table that also reads well in a terminal: first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = [cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))]
        return "| " + " | ".join(cells) + " |"

    rule = ["-" * widths[0], *("-" * (w - 1) + ":" for w in widths[1:])]
    print(f"\n{title}\n", *map(line, (header, rule, *rows)), sep="\n", flush=True)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Output of this process, progress bars and logs, goes nowhere. An error still shows: it comes after."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for target in (1, 2):
            os.dup2(nowhere, target)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for target, saved in zip((1, 2), kept):
            os.dup2(saved, target)
            os.close(saved)
        os.close(nowhere)


def fresh(code: str, *arguments: str, threads: int | None = None) -> Any:
    """Run Python code in a new interpreter; the JSON on the last line that it prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    if threads is not None:
        environment |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"a measurement failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def status_bytes(field: str) -> int:
    """VmRSS (memory held now) or VmHWM (the most it has been) of this process, from Linux's own books."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"this system does not tell {field}; the memory benchmarks need Linux")


def growth(run: Callable[[], Any]) -> tuple[Any, int]:
    """What a function returns, and by how much the peak of memory while it ran lay above what was held before."""
    with contextlib.suppress(OSError):  # the peak so far is forgotten, so that only this run counts
        Path("/proc/self/clear_refs").write_text("5")
    before = status_bytes("VmRSS")
    result = run()
    return result, status_bytes("VmHWM") - before
