"""Reads files that torch.save wrote, without torch: archives with a pickle, and the elements of tensors beside it.

The pickle is read by plain_pickle, so nothing of it is called or imported; tensors are described, and their elements
are read when they are asked for. What else a file has (classes of DeepSpeed or of a user) is kept as `Unknown`.
"""

import io
import math
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..formats.reading import open_file
from ..formats.safetensors_io import numpy_type
from . import plain_pickle
from .plain_pickle import Extras, Kept, NotPlain, Unknown
from .stored_tensors import StoredTensor, StridedTensor, Tensor

LARGEST_PICKLE = 1 << 30  # bytes; that of a model with a million tensors has some 300 MB
MOST_DIMENSIONS = 32
_TYPES = {
    "torch.DoubleStorage": "F64",
    "torch.FloatStorage": "F32",
    "torch.HalfStorage": "F16",
    "torch.BFloat16Storage": "BF16",
    "torch.LongStorage": "I64",
    "torch.IntStorage": "I32",
    "torch.ShortStorage": "I16",
    "torch.CharStorage": "I8",
    "torch.ByteStorage": "U8",
    "torch.BoolStorage": "BOOL",
}
DTYPES = {
    "torch.float64": "F64",
    "torch.float32": "F32",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
    "torch.float8_e4m3fn": "F8_E4M3",
    "torch.float8_e5m2": "F8_E5M2",
    "torch.int64": "I64",
    "torch.int32": "I32",
    "torch.int16": "I16",
    "torch.int8": "I8",
    "torch.uint8": "U8",
    "torch.bool": "BOOL",
}
_PLAIN_CLASSES = ("torch.Tensor", "torch._tensor.Tensor", "torch.nn.parameter.Parameter")


def read(path: Path, start: int = 0, length: int | None = None) -> Any:
    """The value in a file, or in a part of one: plain data, Tensor, and Unknown."""
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = size - start if length is None else length
            if start < 0 or length <= 0 or start + length > size:
                raise NotPlain("it is empty" if not size else "it is truncated")
            with zipfile.ZipFile(_Window(file, start, length)) as archive:
                return _Archive(path, start, length, archive, file).value()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except (NotPlain, zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError) as error:
        raise CheckpointError(
            f"{path} cannot be read as a file of torch.save: {error}. It is corrupt, or was written by torch before "
            "1.6. Save the checkpoint again, or start a new run from its weights."
        ) from None


def problem(path: Path, start: int, length: int) -> str | None:
    """What is wrong with the checksums of an archive in a part of a file; None if they are right."""
    try:
        with open_file(path) as file, zipfile.ZipFile(_Window(file, start, length)) as archive:
            if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
                return f"{path.name} has a compressed archive"
            broken = archive.testzip()
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError) as error:
        return f"{path.name} cannot be read at byte {start}: {error}"
    return f"{path.name} has changed since it was written (checksum of {broken} at byte {start})" if broken else None


class _Window(io.RawIOBase):
    """A part of a file as a file."""

    def __init__(self, file: Any, start: int, length: int) -> None:
        self._file, self._start, self._length, self._at = file, start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._length)[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._start + self._at)
        data = self._file.read(min(len(buffer), max(self._length - self._at, 0)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


class _Storage(Kept):
    """The elements of tensors: the bytes of a record, of one type or of none."""

    def __init__(self, dtype: str | None, start: int, size: int) -> None:
        self.dtype, self.start, self.size = dtype, start, size


class _Archive:
    def __init__(self, path: Path, start: int, length: int, archive: zipfile.ZipFile, file: Any) -> None:
        self.path, self.start, self.length, self.archive, self.file = path, start, length, archive, file
        names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(names) != 1:
            raise NotPlain("it has no data.pkl")
        self.prefix = names[0].removesuffix("data.pkl")
        self.records = {info.filename: info for info in archive.infolist()}
        self._starts: dict[str, int] = {}

    def value(self) -> Any:
        order = self.records.get(f"{self.prefix}byteorder")
        if order is not None and (order.file_size > 16 or self.archive.read(order) != b"little"):
            raise NotPlain("it has numbers in another order of bytes")
        info = self.records[f"{self.prefix}data.pkl"]
        # Memory for as many bytes as it says is taken before it is read.
        if info.file_size > min(LARGEST_PICKLE, self.length) or info.compress_type != zipfile.ZIP_STORED:
            raise NotPlain(f"its data.pkl has {info.file_size} bytes, or is compressed")
        made: dict[tuple[str, str], Callable[..., Any]] = {
            ("torch._utils", "_rebuild_tensor_v2"): self.tensor,
            ("torch._utils", "_rebuild_tensor_v3"): self.typed_tensor,
            ("torch._utils", "_rebuild_parameter"): _parameter,
            ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
            ("torch._tensor", "_rebuild_from_type_v2"): self.tensor_of_type,
            ("torch", "Size"): size,
        }
        return plain_pickle.loads(self.archive.read(info), extras=Extras(made, self.storage))

    def storage(self, key: Any) -> _Storage:
        kind, cls, name, _, count = key
        known = _TYPES.get(cls.name) if isinstance(cls, Unknown) else None
        if kind != "storage" or type(name) is not str or type(count) is not int or count < 0:
            raise NotPlain("it has a tensor whose elements are not described")
        if known is None and not (isinstance(cls, Unknown) and cls.name == "torch.storage.UntypedStorage"):
            raise NotPlain(f"it has a tensor of the type {getattr(cls, 'name', cls)!s:.80}")
        info = self.records.get(f"{self.prefix}data/{name}")
        if info is None or info.compress_type != zipfile.ZIP_STORED:
            raise NotPlain(f"it has no record for the tensor {name[:80]!r}, or a compressed one")
        if info.file_size < count * (numpy_type(known).itemsize if known else 1):
            raise NotPlain(f"a tensor of {count} elements has {info.file_size} bytes")
        return _Storage(known, self._place(info), info.file_size)

    def _place(self, info: zipfile.ZipInfo) -> int:
        """Where the bytes of a record begin in the file."""
        if info.filename not in self._starts:
            self.file.seek(self.start + info.header_offset)
            header = self.file.read(30)
            if header[:4] != b"PK\x03\x04" or len(header) < 30:
                raise NotPlain("a record has no header")
            names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
            begin = info.header_offset + 30 + names
            if begin + info.file_size > self.length:
                raise NotPlain("it is truncated")
            self._starts[info.filename] = self.start + begin
        return self._starts[info.filename]

    def tensor(self, storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> Tensor | Unknown:
        return self._tensor(storage, getattr(storage, "dtype", None), offset, shape, strides)

    def typed_tensor(self, storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> Tensor | Unknown:
        """Of a type that has no storage of its own: the type is the fourth of the rest."""
        dtype = rest[2] if len(rest) > 2 else None
        return self._tensor(storage, DTYPES.get(getattr(dtype, "name", "")), offset, shape, strides)

    def tensor_of_type(self, function: Any, cls: Any, arguments: Any, *_: Any) -> Any:
        """A tensor with attributes, or of a subclass, whose elements may mean something else."""
        known = (self.tensor, self.typed_tensor, _parameter)
        if getattr(cls, "name", None) not in _PLAIN_CLASSES or function not in known or type(arguments) is not tuple:
            return Unknown(f"a tensor of the class {getattr(cls, 'name', cls)!s:.80}", ())
        return function(*arguments)

    def _tensor(self, storage: Any, dtype: str | None, offset: Any, shape: Any, strides: Any) -> Tensor | Unknown:
        if not isinstance(storage, _Storage):
            raise NotPlain("it has a tensor without elements")
        if dtype is None:
            return Unknown("a tensor of a type that is not known", ())
        shape, strides = tuple(shape), tuple(strides)
        if len(shape) > MOST_DIMENSIONS or not all(type(n) is int and 0 <= n < 2**48 for n in (offset, *shape)):
            raise NotPlain("it has a tensor whose shape is not one")
        if len(strides) != len(shape) or not all(type(n) is int and 0 <= n < 2**48 for n in strides):
            raise NotPlain("it has a tensor whose strides are none")
        width, count = numpy_type(dtype).itemsize, math.prod(shape)
        span = sum((size - 1) * stride for size, stride in zip(shape, strides)) + 1 if count else 0
        if count > max(span, 1) or (span and (offset + span) * width > storage.size):
            raise NotPlain(f"a tensor of shape {shape} and strides {strides} has {storage.size} bytes")
        start = storage.start + offset * width
        if not count or _strides(shape) == tuple(n if size > 1 else 0 for n, size in zip(strides, shape)):
            return StoredTensor(self.path, start, dtype, shape)
        return StridedTensor(StoredTensor(self.path, start, dtype, (span,)), dtype, shape, strides)


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of a tensor that is stored row by row; 0 where a dimension has one element."""
    found, step = [], 1
    for size in reversed(shape):
        found.append(step if size > 1 else 0)
        step *= size
    return tuple(reversed(found))


def _parameter(data: Any, *_: Any) -> Any:
    if not isinstance(data, Tensor):
        raise NotPlain("it has a parameter that is not a tensor")
    return data


def size(items: Any = ()) -> tuple[Any, ...]:
    """torch.Size, which is a tuple."""
    if type(items) is not tuple:
        raise NotPlain("it has a shape that is not one")
    return items
