"""Safetensors files, written in one pass with their checksum.

The safetensors library creates a second copy of everything before it writes. Here each tensor is written from its
buffer without a copy, in blocks so that other threads can run, and the checksum is computed from the same bytes.
Files are read with the library.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

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
        return np.frombuffer(self.data, dtype=_as_numpy(self.dtype)).reshape(self.shape)


_NUMPY = {"f": "F", "i": "I", "u": "U"}


def from_numpy(array: np.ndarray) -> Raw:
    """An array without a copy, if it is contiguous."""
    # The format is little-endian, like the supported machines.
    array = np.asarray(array, array.dtype.newbyteorder("="), order="C")
    dtype = "BOOL" if array.dtype.kind == "b" else f"{_NUMPY[array.dtype.kind]}{array.dtype.itemsize * 8}"
    return Raw(dtype, array.shape, array.reshape(-1).view(np.uint8))


def _as_numpy(dtype: str) -> np.dtype:
    if dtype == "BOOL":
        return np.dtype(bool)
    letters, width = dtype.rstrip("0123456789"), _width(dtype)
    known = {"F": "f", "I": "i", "U": "u"}
    if dtype.startswith("F8"):
        return np.dtype(np.uint8)
    return np.dtype(f"{known.get(letters, 'u')}{width // 8}")


def header(tensors: dict[str, Raw], metadata: dict[str, str]) -> bytes:
    """The header of the file, padded so that the data starts at a multiple of eight."""
    table: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
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
    ordered = dict(sorted(tensors.items(), key=lambda item: (-_width(item[1].dtype), item[0])))
    return write_bytes(path, [header(ordered, metadata or {}), *(raw.data for raw in ordered.values())])


def _width(dtype: str) -> int:
    digits = "".join(c for c in dtype if c.isdigit())
    return int(digits) if digits else 8


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
    """The mapped file, its header, and the offset of its data."""
    data = np.memmap(path, dtype=np.uint8, mode="r")
    start = 8 + int.from_bytes(data[:8].tobytes(), "little")
    return data, json.loads(data[8:start].tobytes()), start


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a file."""
    return _open(path)[1].get("__metadata__", {})


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
        if name != "__metadata__"
    }
