"""Safetensors files, written in one pass with their checksum.

The safetensors library creates a second copy of everything before it writes. Here each tensor is written from its
buffer without a copy, in blocks so that other threads can run, and the checksum is computed from the same bytes.
Files are read with the library.
"""

import hashlib
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError
from .reading import open_file, parse_json
from .schema import anything, check, integer, listing, mapping, record, text

LONGEST_HEADER = 100_000_000  # bytes, as in the safetensors library
_METADATA = "__metadata__"
_BITS = {"BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "BF16": 16} | {
    f"{kind}{bits}": bits for kind in "FIU" for bits in (8, 16, 32, 64) if kind + str(bits) != "F8"
}
# In NumPy: a type that it lacks, such as BF16, is unsigned integers with the same bits.
_NUMPY_TYPES = {
    dtype: np.dtype({"F": "f", "I": "i"}.get(dtype.rstrip("0123456789"), "u") + str(bits // 8))
    for dtype, bits in _BITS.items()
} | {"BOOL": np.dtype(bool)}
# By which tensors are ordered in a file: the digits of the type, so that wide elements come first (and F8 before all).
_WIDTHS = {dtype: int("".join(c for c in dtype if c.isdigit()) or 8) for dtype in _BITS}
_ENTRY = record(
    {
        "dtype": text("|".join(_BITS), "a type of the format"),
        "shape": listing(integer()),
        "data_offsets": listing(integer(), 2),
    }
)
BLOCK = 1 << 22  # bytes written at once, so that other threads can run in between


@dataclass(frozen=True)
class Raw:
    """A tensor as it is stored: the format's name of its type, its shape, and its bytes in row-major order."""

    dtype: str
    shape: tuple[int, ...]
    data: Any  # anything with the buffer protocol, contiguous

    @property
    def size(self) -> int:
        return memoryview(self.data).nbytes

    def array(self) -> np.ndarray:
        """The tensor in NumPy; a type that NumPy lacks, such as BF16, as unsigned integers with the same bits."""
        return np.frombuffer(self.data, dtype=_NUMPY_TYPES[self.dtype]).reshape(self.shape)


def numpy_type(dtype: str) -> np.dtype:
    """NumPy's type for one of the format; unsigned integers for a type that NumPy lacks."""
    return _NUMPY_TYPES[dtype]


_NUMPY = {"f": "F", "i": "I", "u": "U"}


def from_numpy(array: np.ndarray) -> Raw:
    """An array without a copy, if it is contiguous."""
    # The format is little-endian, like the supported machines.
    array = np.asarray(array, array.dtype.newbyteorder("="), order="C")
    dtype = "BOOL" if array.dtype.kind == "b" else f"{_NUMPY[array.dtype.kind]}{array.dtype.itemsize * 8}"
    return Raw(dtype, array.shape, array.reshape(-1).view(np.uint8))


def header(tensors: dict[str, Raw], metadata: dict[str, str]) -> bytes:
    """The header of the file, padded so that the data starts at a multiple of eight."""
    table: dict[str, Any] = {_METADATA: metadata} if metadata else {}
    start = 0
    for name, raw in tensors.items():
        table[name] = {"dtype": raw.dtype, "shape": list(raw.shape), "data_offsets": [start, start + raw.size]}
        start += raw.size
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write(path: Path, tensors: dict[str, Raw], metadata: dict[str, str] | None = None) -> dict[str, Any]:
    """Write a file, flush it to the disk, and return its entry for the manifest."""
    # Types with wide elements come first, so that every tensor is aligned, as readers expect.
    ordered = dict(sorted(tensors.items(), key=lambda item: (-_WIDTHS[item[1].dtype], item[0])))
    return write_bytes(path, [header(ordered, metadata or {}), *(raw.data for raw in ordered.values())])


def write_bytes(path: Path, parts: list[Any]) -> dict[str, Any]:
    """Write buffers one after the other; {"bytes", "sha256"} of the file."""
    digest, size = hashlib.sha256(), 0
    with open(path, "wb", buffering=0) as f:
        for part in parts:
            view = memoryview(part).cast("B") if memoryview(part).nbytes else memoryview(b"")
            for start in range(0, view.nbytes, BLOCK):
                block = view[start : start + BLOCK]
                digest.update(block)
                written = 0
                while written < block.nbytes:  # a write to a nearly full disk may be partial
                    written += f.write(block[written:])
                size += block.nbytes
        os.fsync(f.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


def _open(path: Path) -> tuple[np.ndarray, dict[str, Any], int]:
    """The mapped file, its header, and the offset of its data; a CheckpointError if they do not fit together."""
    try:
        with open_file(path) as f:
            if not os.fstat(f.fileno()).st_size:
                raise CheckpointError(f"{path.name} is empty")
            data = np.memmap(f, dtype=np.uint8, mode="r")
    except (OSError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CheckpointError(f"{path.name} cannot be read: {reason}") from error
    length = int.from_bytes(data[:8].tobytes(), "little")
    start = 8 + length
    if len(data) < 8 or length > min(len(data) - 8, LONGEST_HEADER):
        raise CheckpointError(f"{path.name} cannot be read as safetensors: it is truncated, or has no header")
    table = parse_json(data[8:start].tobytes(), f"the header of {path.name}")
    _check_header(table, len(data) - start, path.name)
    return data, table, start


def _check_header(table: Any, size: int, name: str) -> None:
    """Types, shapes and offsets: the tensors follow each other without gaps, to the end of the file."""
    source = f"{name} cannot be read as safetensors: its header"
    check(table, mapping(anything), source)
    check(table.get("__metadata__", {}), mapping(text()), f"{source}, at __metadata__,")
    end = 0
    entries = {key: check(entry, _ENTRY, f"{source}, at {key!a},") for key, entry in table.items() if key != _METADATA}
    for key, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        first, last = entry["data_offsets"]
        bits = math.prod(entry["shape"]) * _BITS[entry["dtype"]]
        if first != end or (last - first) * 8 != bits:
            raise CheckpointError(f"{source} has wrong offsets for {key!a}")
        end = last
    if end != size:
        raise CheckpointError(f"{name} has {size} bytes of tensors, but its header describes {end}")


def read_header(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of each tensor in a file."""
    _, table, _ = _open(path)
    return {key: (entry["dtype"], tuple(entry["shape"])) for key, entry in table.items() if key != _METADATA}


def places(path: Path) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """Type and shape of each tensor in a file, and where its bytes begin."""
    _, table, start = _open(path)
    return {
        key: (entry["dtype"], tuple(entry["shape"]), start + entry["data_offsets"][0])
        for key, entry in table.items()
        if key != _METADATA
    }


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a file."""
    return _open(path)[1].get(_METADATA, {})


def read(path: Path) -> dict[str, Raw]:
    """The tensors of a file, mapped into memory."""
    data, table, start = _open(path)
    return {
        name: Raw(
            entry["dtype"],
            tuple(entry["shape"]),
            data[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]],
        )
        for name, entry in table.items()
        if name != _METADATA
    }
