"""Runs the checks one after the other, each in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..backends import registry
from ..errors import ArgumentError, MissingPackageError
from . import machine
from .checks import BY_NAME, CHECKS, Check
from .outcome import FAILED, NOT_RUN, Outcome
from .private import cleaned

TOTAL = 20 * 60.0  # seconds after which no further check is begun


def run(
    framework: str,
    device: str | None = None,
    names: Sequence[str] = (),
    say: Callable[[str], None] = print,
    total: float = TOTAL,
) -> dict[str, Any]:
    """The result as plain data: the machine, and the outcome of each check."""
    if unknown := [name for name in names if name not in BY_NAME]:
        raise ArgumentError(f"no check is called {', '.join(unknown)}; there are {', '.join(BY_NAME)}")
    if framework not in registry.acceptable():
        raise ArgumentError(f"no framework is called {framework}; there are {', '.join(registry.acceptable())}")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="oneloop-accept-") as folder:
        found = _child({"machine": True, "framework": framework}, Path(folder), 120.0)
        if "devices" not in found:
            raise MissingPackageError(
                f"{framework} cannot be used here: {found['why']}. Install it, or see oneloop doctor."
            )
        chosen = device or machine.best_device(found)
        if chosen not in found["devices"]:
            raise ArgumentError(
                f"this machine has no {chosen} that {framework} can use; it has {', '.join(found['devices'])}"
            )
        say(f"{framework} on {found['devices'][chosen]} x {chosen}, at most {total / 60:.0f} minutes")
        outcomes = []
        for check in CHECKS:
            if names and check.name not in names:
                continue
            left = total - (time.monotonic() - started)
            place = {"framework": framework, "device": chosen, "count": found["devices"][chosen]}
            outcome = _outcome(check, Path(folder), place, left)
            outcomes.append(asdict(outcome))
            say(line_of(asdict(outcome)))
    whole = {"format": 1, "device": chosen, "machine": found, "checks": outcomes}
    return cleaned(whole | {"minutes": round((time.monotonic() - started) / 60, 1)})


def _outcome(check: Check, folder: Path, place: dict[str, Any], left: float) -> Outcome:
    if left <= 0:
        return Outcome(check.name, check.title, NOT_RUN, "the time is over; select it by its name")
    own = folder / check.name
    own.mkdir()
    found = _child({"name": check.name, "folder": str(own), **place}, own, min(check.limit, max(left, 30.0)))
    if "state" not in found:
        return Outcome(check.name, check.title, FAILED, found["why"])
    return Outcome(**found)


def _child(options: dict[str, Any], folder: Path, limit: float) -> dict[str, Any]:
    """What the child reports, or {"why": ...} if it does not."""
    words = [sys.executable, "-m", "oneloop.accept.child", json.dumps(options)]
    child = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, start_new_session=True
    )
    try:
        out, err = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        _kill(child)
        return {"why": f"it did not end within {limit:.0f} s"}
    found = [each for each in out.splitlines() if each.startswith("RESULT ")]
    if found:
        return json.loads(found[-1].removeprefix("RESULT "))
    lines = err.strip().splitlines() or ["it said nothing"]
    return {"why": cleaned(f"the process ended with status {child.returncode}: {lines[-1]}", folder)}


def _kill(child: Any) -> None:
    """The child and the processes that it has started."""
    if hasattr(os, "killpg"):
        os.killpg(child.pid, signal.SIGKILL)
    child.kill()
    child.communicate()


def line_of(outcome: dict[str, Any]) -> str:
    figures = ", ".join(f"{name} {number(value)}" for name, value in outcome["figures"].items())
    return f"{outcome['state']:>8}  {outcome['name']:<13} {outcome['seconds']:>6.1f} s  {outcome['why'] or figures}"


def number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
