"""The files in which wandb and SwanLab store an offline run.

Both are LevelDB logs: after a seven-byte header, blocks of 32 KB with records of a checksum, a length and a type (full,
first, middle, last). A reassembled record is one message of the service.
"""

from collections.abc import Iterator
from pathlib import Path

BLOCK = 32 * 1024
HEADER = 7
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(path: Path) -> Iterator[bytes]:
    """The records of a file, up to one left incomplete by a killed process."""
    data = path.read_bytes()
    place, pieces = HEADER, b""
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:  # too short for a header: the rest of the block is padding
            place += BLOCK - place % BLOCK
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        piece = data[place + HEADER : place + HEADER + size]
        if len(piece) < size or kind not in (WHOLE, FIRST, MIDDLE, LAST):
            return
        place += HEADER + size
        pieces = piece if kind in (WHOLE, FIRST) else pieces + piece
        if kind in (WHOLE, LAST):
            yield pieces
