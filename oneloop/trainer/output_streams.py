"""stdout and stderr during a run, which outlives them: a reader of the pipe that died, a terminal that was closed.

`python train.py 2>&1 | tee log` and Ctrl-C end `tee` as well, and every later line of the run fails. Such a stream is
replaced by the null device, so that the run, and the save after a signal, go on.
"""

import contextlib
import os
import select
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

NAMES = ("stdout", "stderr")


class SurvivingStream:
    """A stream whose writes never fail: once one does, this and all later ones are dropped."""

    def __init__(self, name: str, stream: Any, lost: Callable[[str], None]) -> None:
        self._name, self._stream, self._lost = name, stream, lost

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, text: Any) -> int:
        try:
            return self._stream.write(text)
        except (OSError, ValueError) as error:
            self._replace(error)
            return len(text)

    def writelines(self, lines: Iterable[Any]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._replace(error)

    def _replace(self, error: Exception) -> None:
        if isinstance(error, UnicodeError):  # text that the stream's encoding has not: a mistake of the writer
            raise error
        _point_at_nothing(self._stream)
        self._lost(self._name)


@contextlib.contextmanager
def surviving(lost: Callable[[str], None]) -> Iterator[None]:
    """A context in which a dead or closed stdout or stderr stops nothing; `lost` is called with the name of each,
    once. A process that was started without them has streams that lead nowhere: tqdm needs one."""
    told: set[str] = set()

    def tell(name: str) -> None:
        if name not in told:
            told.add(name)
            lost(name)

    before = {name: getattr(sys, name) for name in NAMES}
    with open(os.devnull, "w") as nowhere:
        ours = {name: SurvivingStream(name, each or nowhere, tell) for name, each in before.items()}
        for name, stream in ours.items():
            setattr(sys, name, stream)
        try:
            yield
        finally:
            told.update(NAMES)  # a logging handler may keep one of ours; what it meets is no event of this run
            for name, stream in ours.items():
                if getattr(sys, name) is stream:  # nobody else has replaced it meanwhile
                    setattr(sys, name, before[name])
            for stream in before.values():
                if _is_dead(stream):  # the interpreter flushes it at its end, and fails with its own status
                    _point_at_nothing(stream)


def _descriptor(stream: Any) -> int | None:
    try:
        return stream.fileno()
    except (AttributeError, OSError, ValueError):
        return None


def _is_dead(stream: Any) -> bool:
    """Whether nobody can read any more what is written."""
    descriptor = _descriptor(stream)
    if descriptor is None or not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & (select.POLLERR | select.POLLNVAL) for _, events in poll.poll(0))


def _point_at_nothing(stream: Any) -> None:
    """Let the descriptor of a stream lead to the null device; a closed one has none."""
    descriptor = _descriptor(stream)
    if descriptor is None:
        return
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, descriptor)
        finally:
            os.close(null)
