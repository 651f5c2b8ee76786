"""Signs of life: which process of a run has died, hangs, or has left, told by name.

Each process has a thread that writes a note on a board all can read (the store of the framework's launcher): a beat
that counts on, how many meetings its main thread has come to, and in the end that it has left. Nobody reads the notes
while all goes well. When a meeting fails, the notes say who is missing.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ProcessLostError

LOST = "lost"


class Heartbeat:
    """`write(key, text)` and `read(key)`, None when there is nothing, are those of the board."""

    def __init__(
        self,
        rank: int,
        size: int,
        timeout: float,
        write: Callable[[str, str], None],
        read: Callable[[str], str | None],
    ) -> None:
        self.rank, self.size = rank, size
        self.timeout = timeout
        self.every = min(5.0, max(0.2, timeout / 10))
        self.meetings = 0
        self._write, self._read = write, read
        self._beat = 0
        self._place = {"host": socket.gethostname(), "pid": os.getpid(), "space": _pid_space()}
        self._stopped = threading.Event()
        self._note()
        self._thread = threading.Thread(target=self._run, name="oneloop-heartbeat", daemon=True)
        self._thread.start()

    def _note(self, **more: Any) -> None:
        self._beat += 1
        note = {"beat": self._beat, "meetings": self.meetings, **self._place, **more}
        self._write(str(self.rank), json.dumps(note))

    def _run(self) -> None:
        while not self._stopped.wait(self.every):
            try:
                self._note()
            except Exception:  # the board is gone, and with it the launcher: the next meeting will say so
                return

    def stop(self) -> None:
        """Say that this process leaves, and why when an error drives it out."""
        self._stopped.set()
        self._thread.join(2 * self.every)
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        why = f"{type(error).__name__}: {error}"[:500] if error is not None else ""
        _within(2.0, lambda: self._note(left=why))

    def who_is_lost(self, cause: str) -> str:
        """The sentence about a meeting that failed; `cause` is what the framework said of it."""
        name = _within(3 * self.every + 5.0, self._name)
        if name is None:
            name = (
                "The launcher's store cannot be reached, so the machine that holds it (the rendezvous endpoint) has "
                "gone, or this one is cut off"
            )
        return (
            f"{name}. This process ({self.rank} of {self.size}) cannot go on alone and leaves. What was saved before "
            f"is whole: start all processes again with resume_from_checkpoint=True. ({cause})"
        )

    def _name(self) -> str:
        name = self._read(LOST) or self._find()
        self._write(LOST, name)  # so that all say the same, and nobody is named who left because of it
        return name

    def _notes(self) -> dict[int, dict[str, Any]]:
        found = {}
        for rank in range(self.size):
            text = self._read(str(rank)) if rank != self.rank else None
            if text:
                found[rank] = json.loads(text)
        return found

    def seen_lost(self) -> str | None:
        """Who has plainly died or failed, by a look at the notes and at this machine's processes; None when nobody."""
        return self._gone(self._notes(), dead_only=True)

    def _gone(self, notes: dict[int, dict[str, Any]], dead_only: bool = False) -> str | None:
        """Who has failed, died or been stopped. An error comes first, because launchers end the others after it; one
        that is about another process comes last."""
        found: list[tuple[int, int, str]] = []
        for rank, note in notes.items():
            state = _state_here(note, self._place)
            if note.get("left"):
                order = 2 if note["left"].startswith(ProcessLostError.__name__) else 0
                found.append((order, rank, f"has left after an error: {note['left']}"))
            elif state and not (dead_only and ("left" in note or "died" not in state)):
                found.append((1, rank, state))
        _, rank, what = min(found, default=(0, 0, ""))
        return f"Process {rank} ({_where(notes[rank])}) {what}" if found else None

    def _find(self) -> str:
        first = self._notes()
        deadline = time.monotonic() + 2.5 * self.every + 0.5
        while True:
            notes = self._notes()
            gone = self._gone(notes)
            if gone is not None:
                return gone
            if time.monotonic() >= deadline:
                break
            time.sleep(0.1)
        for rank, note in notes.items():
            if "left" in note:
                return f"Process {rank} ({_where(note)}) has ended while others still work"
            if note["beat"] == first.get(rank, note)["beat"]:
                return f"Process {rank} ({_where(note)}) has died or is cut off: it gives no sign of life"
        late = min(notes, key=lambda rank: notes[rank]["meetings"], default=None)
        if late is not None and notes[late]["meetings"] < self.meetings:
            return (
                f"Process {late} ({_where(notes[late])}) hangs: it lives, but has not come to meeting "
                f"{self.meetings} within ddp_timeout ({self.timeout:.0f} s)"
            )
        return "The connection to another process was lost, though all of them give signs of life"


def _within(seconds: float, function: Callable[[], Any]) -> Any:
    """What a function returns, or None when it fails or takes longer: a board that is cut off never answers."""
    found = []

    def call() -> None:
        with contextlib.suppress(Exception):
            found.append(function())

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None


def _where(note: dict[str, Any]) -> str:
    return f"pid {note['pid']} on {note['host']}"


def _pid_space() -> str:
    """Where the numbers of processes mean the same."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid") + Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _state_here(note: dict[str, Any], place: dict[str, Any]) -> str:
    """What can be seen of a process on this machine: that it is dead or stopped; empty when nothing."""
    if not place["space"] or note["space"] != place["space"]:
        return ""
    try:
        state = Path(f"/proc/{note['pid']}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "has ended while others still work" if "left" in note else "has died"
    if state in "ZX":
        return "has died"
    return "is stopped (SIGSTOP)" if state in "Tt" else ""
