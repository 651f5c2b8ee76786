"""Reads a long log in part: evenly spaced sections, plus the important lines between them."""

import mmap
import re
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

STRETCH = 1 << 12
PIECE = 1 << 20  # bytes between two sections that are searched at once
RARE = b'_runtime"'  # in evaluations and at the end of a run, but not in the logs of steps
LOSS = re.compile(rb'loss(?<="loss)": ?([^,}]+)')  # twice as fast as a pattern that starts with a common character


def sections(f: BinaryIO, start: int, budget: int) -> Iterator[tuple[bytes, int]]:
    """(complete lines, their end position in the file) from `start` on: sections of `budget` bytes in total, including
    the last line, and between them every evaluation and, per megabyte, the lines with the lowest, the highest and a
    non-finite loss. Those are found by searching the text, which is much faster than parsing it."""
    with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as text:
        end = text.rfind(b"\n") + 1  # the rest is still being written
        last = text.rfind(b"\n", start, max(start, end - 1)) + 1 or start
        count, done = max(2, budget // STRETCH), start
        for i in range(count):
            if done >= end:
                return
            begin = max(done, min(last, start + (end - start - STRETCH) * i // (count - 1)))
            if begin > done:
                begin = text.find(b"\n", begin - 1) + 1
                yield from _pieces(text, done, begin)
            done = text.rfind(b"\n", begin, begin + STRETCH) + 1 or text.find(b"\n", begin) + 1
            yield text[begin:done], done


def _pieces(text: mmap.mmap, start: int, end: int) -> Iterator[tuple[bytes, int]]:
    while start < end:
        stop = end if end - start <= PIECE else text.find(b"\n", start + PIECE) + 1
        yield _important_lines(text[start:stop]), stop
        start = stop


def _important_lines(piece: bytes) -> bytes:
    """The lines worth parsing."""
    places, place = set(), -1
    while (place := piece.find(RARE, place + 1)) >= 0:
        places.add(piece.rfind(b"\n", 0, place) + 1)
    for loss in _extremes(LOSS.findall(piece)):
        spellings = (key + loss + end for key in (b'"loss": ', b'"loss":') for end in (b",", b"}"))
        place = next(found for spelling in spellings if (found := piece.find(spelling)) >= 0)
        places.add(piece.rfind(b"\n", 0, place) + 1)
    return b"\n".join(piece[place : piece.find(b"\n", place)] for place in sorted(places))


def _extremes(losses: list[bytes]) -> set[bytes]:
    """The lowest, the highest, and one non-finite loss."""
    if not losses:
        return set()
    try:
        values = np.array(list(map(float, losses)))
    except ValueError:  # a non-finite value is logged by name, in quotes
        values = np.array(list(map(_number, losses)))
    finite = np.flatnonzero(np.isfinite(values))
    found = set()
    if len(finite):
        found |= {losses[finite[values[finite].argmin()]], losses[finite[values[finite].argmax()]]}
    if len(finite) < len(losses):
        found.add(losses[int(np.isfinite(values).argmin())])
    return found


def _number(text: bytes) -> float:
    try:
        return float(text.strip(b' "'))
    except ValueError:
        return float("nan")
