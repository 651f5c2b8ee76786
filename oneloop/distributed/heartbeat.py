"""Heartbeat: which process of a run has died, hangs, or has exited.

Each process has a thread that writes a note to a store that all can read (the store of the framework's launcher): an
increasing beat, how many collectives its main thread has reached, and finally that it has exited. The notes are not
read while all is well. When a collective fails, they show which process is missing.

A process that has come to no collective since its last note adds where its main thread is. So a process that hangs says
by itself where it does, and those that wait say for what; nobody has to ask one that may not answer.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ProcessLostError
from ..secrets import clean_text
from .world import World

LOST, STACKS = "lost", "stacks"
FRAMES = 20  # of a stack, the innermost ones
SHOWN = 3  # stacks of processes that wait
SEARCHERS = 8  # processes that read the notes of all when one is lost; of a thousand, the store could not answer each


class Heartbeat:
    """`write(key, text)` and `read(key)` access the store; `read` returns None for a missing key."""

    def __init__(
        self,
        rank: int,
        size: int,
        timeout: float,
        write: Callable[[str, str], None],
        read: Callable[[str], str | None],
        local_ranks: range = range(0),
    ) -> None:
        """`local_ranks`: the ranks on this machine, at which each process looks itself."""
        self.rank, self.size, self.local_ranks = rank, size, local_ranks
        self.timeout = timeout
        self.every = min(5.0, max(0.2, timeout / 10))
        self.collective_count = 0
        self._write, self._read = write, read
        self._beat = 0
        self._watched = threading.get_ident()  # the thread that trains
        self._noted_count = -1  # collectives at the last note
        self._stack = ""  # in the last note that had one
        self._explains = False  # that thread has left its place to find out who is lost
        self._place = {"host": socket.gethostname(), "pid": os.getpid(), "space": _pid_space()}
        self.place_of: Callable[[int], str] = lambda rank: ""  # in the mesh, once there is one
        self._stopped = threading.Event()
        self._note()
        self._thread = threading.Thread(target=self._run, name="oneloop-heartbeat", daemon=True)
        self._thread.start()

    def _note(self, **more: Any) -> None:
        self._beat += 1
        count = self.collective_count
        if count == self._noted_count and "left" not in more:
            if not self._explains:
                self._stack = stack_of(self._watched)
            more["stack"] = self._stack
        self._noted_count = count
        note = {"beat": self._beat, "meetings": count, **self._place, **more}
        self._write(str(self.rank), json.dumps(note))

    def _run(self) -> None:
        while not self._stopped.wait(self.every):
            try:
                self._note()
            except Exception:  # the store is gone, and with it the launcher: the next collective will fail
                return

    def stop(self) -> None:
        """Record that this process exits, and the error if there is one."""
        self._stopped.set()
        self._thread.join(2 * self.every)
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        why = clean_text(f"{type(error).__name__}: {error}")[:500] if error is not None else ""
        _within(2.0, lambda: self._note(left=why))

    def describe_lost_rank(self, cause: str) -> str:
        """The error message for a failed collective; `cause` is the framework's error."""
        self._explains = True
        name = _within((3 * self.every + 5.0) * (1 if self.reads_all_notes else 2), self._name)
        if name is None:
            name = (
                "The launcher's store cannot be reached: the machine that runs it (the rendezvous endpoint) is down, "
                "or this machine has lost its connection"
            )
        stacks = _within(2.0, lambda: self._read(STACKS)) or ""
        return (
            f"{name}. This process ({self.rank} of {self.size}) cannot continue without it and stops. Checkpoints "
            f"that were saved are complete: restart all processes with resume_from_checkpoint=True. ({cause}){stacks}"
        )

    def _name(self) -> str:
        name = self._read(LOST) or (self._find() if self.reads_all_notes else self._find_lost_nearby())
        self._write(LOST, name)  # so that all report the same process, and not one that exited because of it
        return name

    def _tell_stacks(self, notes: dict[int, dict[str, Any]], late: int | None) -> None:
        """Where processes are, for the errors of all: the one that hangs, and those that wait, alike ones together."""
        own = {"stack": self._stack}
        waiting: dict[str, list[int]] = {}
        for rank, note in sorted({**notes, self.rank: own}.items()):
            if rank != late and note.get("stack"):
                waiting.setdefault(note["stack"], []).append(rank)
        texts = []
        if late is not None:
            where = notes[late].get("stack") or "  unknown: it was on its way when it wrote its last note"
            texts.append(f"Process {late} is at (most recent call last):\n{where}")
        for stack, ranks in list(waiting.items())[:SHOWN]:
            one = len(ranks) == 1
            texts.append(
                f"{'Process' if one else 'Processes'} {_listed(ranks)} {'waits' if one else 'wait'} at:\n{stack}"
            )
        self._write(STACKS, "".join(f"\n\n{text}" for text in texts))

    @property
    def reads_all_notes(self) -> bool:
        """Whether this process reads the notes of all: one of some that are spread over the machines."""
        return self.rank % max(1, self.size // SEARCHERS) == 0

    def _find_lost_nearby(self) -> str:
        """Of many processes: who is lost on this machine, or what one that searches has found."""
        deadline = time.monotonic() + 3 * self.every + 1.0
        while time.monotonic() < deadline:
            name = self._read(LOST) or self._describe_failed(self._notes(self.local_ranks))
            if name is not None:
                return name
            time.sleep(max(self.every / 4, self.size / 1000))
        return self._find()  # those that search are lost themselves

    def _notes(self, ranks: range | None = None) -> dict[int, dict[str, Any]]:
        found = {}
        for rank in range(self.size) if ranks is None else ranks:
            text = self._read(str(rank)) if rank != self.rank else None
            if text:
                found[rank] = json.loads(text)
        return found

    def find_lost_rank(self) -> str | None:
        """A process known to have died or failed, from the notes and this machine's processes, or None."""
        return self._describe_failed(self._notes(), dead_only=True)

    def _describe_failed(self, notes: dict[int, dict[str, Any]], dead_only: bool = False) -> str | None:
        """Who has failed, died or been stopped. An error comes first, because launchers end the others after it; one
        that is about another process comes last."""
        found: list[tuple[int, int, str]] = []
        for rank, note in notes.items():
            state = _state_here(note, self._place)
            if note.get("left"):
                order = 2 if note["left"].startswith(ProcessLostError.__name__) else 0
                found.append((order, rank, f"exited after an error: {note['left']}"))
            elif state and not (dead_only and ("left" in note or "died" not in state)):
                found.append((1, rank, state))
        _, rank, what = min(found, default=(0, 0, ""))
        return f"{self._who(rank, notes[rank])} {what}" if found else None

    def _who(self, rank: int, note: dict[str, Any]) -> str:
        """A process by its number, its place in the mesh if that says more, and where it runs."""
        where = ", ".join(filter(None, (self.place_of(rank), f"pid {note['pid']} on {note['host']}")))
        return f"Process {rank} ({where})"

    def _find(self) -> str:
        first = self._notes()
        deadline = time.monotonic() + 2.5 * self.every + 0.5
        while True:
            notes = self._notes()
            gone = self._describe_failed(notes) or self._read(LOST)
            if gone is not None:
                return gone
            if time.monotonic() >= deadline:
                break
            time.sleep(max(0.1, self.size / 1000))
        for rank, note in notes.items():
            if "left" in note:
                return f"{self._who(rank, note)} exited while other processes are still running"
            if note["beat"] == first.get(rank, note)["beat"]:
                if _is_here(note, self._place):  # and not dead: that was looked at
                    return (
                        f"{self._who(rank, note)} hangs: it is alive, but none of its threads runs, such as in code "
                        "that does not release the interpreter (GIL)"
                    )
                return f"{self._who(rank, note)} has died or lost its connection: no heartbeat"
        late = min(notes, key=lambda rank: notes[rank]["meetings"], default=None)
        hangs = late is not None and notes[late]["meetings"] < self.collective_count
        self._tell_stacks(notes, late if hangs else None)
        if late is not None and hangs:
            return (
                f"{self._who(late, notes[late])} hangs: it is alive, but has not reached collective "
                f"{self.collective_count} within ddp_timeout ({self.timeout:.0f} s)"
            )
        return "The connection to another process was lost, although all of them send heartbeats"


def stack_of(thread: int) -> str:
    """Where a thread of this process is: its innermost calls, as in a traceback, without secrets."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return ""
    frames = traceback.extract_stack(frame)[-FRAMES:]
    return clean_text("".join(traceback.format_list(frames)).rstrip())


def _listed(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown} and {len(ranks) - 8} others"


def ranks_on_this_machine(world: World) -> range:
    """The ranks on this machine: launchers number them one after another."""
    first = world.rank - world.local_rank
    return range(first, min(first + world.local_size, world.size))


def _within(seconds: float, function: Callable[[], Any]) -> Any:
    """The function's result, or None if it fails or times out: an unreachable store never answers."""
    found = []

    def call() -> None:
        with contextlib.suppress(Exception):
            found.append(function())

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None


def _pid_space() -> str:
    """An id of the PID namespace."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid") + Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _is_here(note: dict[str, Any], place: dict[str, Any]) -> bool:
    """Whether a process is on this machine, where its id means the same."""
    return bool(place["space"]) and note["space"] == place["space"]


def _state_here(note: dict[str, Any], place: dict[str, Any]) -> str:
    """The state of a process on this machine: dead or stopped; empty if it is running or unknown."""
    if not _is_here(note, place):
        return ""
    try:
        state = Path(f"/proc/{note['pid']}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        state = "X"
    if state in "ZX":
        return "exited while other processes are still running" if "left" in note else "has died"
    return "is stopped (SIGSTOP)" if state in "Tt" else ""
