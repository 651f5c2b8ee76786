"""Reads pickles that hold arrays and plain data only: PaddleNLP, PaddleFormers and MindNLP write their checkpoints so,
and those of PyTorch (torch_archive.py) contain one.

A pickle is a program. Python's unpickler runs it, and can be made to call anything. This reader knows the instructions
that build numbers, strings, lists, tuples, dicts and NumPy arrays, and a table of what these may be made with; nothing
of a file is imported or called, and any other instruction is an error. Lengths are compared with what is left of the
file before anything is allocated, and the number of instructions is limited, so memory is too.

Where a file also has objects that do not matter, they are kept as `Unknown`: the name of what made them, with their
plain data.
"""

import math
import mmap
import os
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError, a_type
from ..formats.reading import open_file

DEEPEST = 40  # levels of nested containers
MOST = 10_000_000  # instructions; a tensor takes about thirty
_TYPES = ("b1", "f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
_MARK = object()


class NotPlain(ValueError):
    """What is wrong with a pickle."""


Classes = frozenset[tuple[str, str]]


def read(path: Path, records: Classes = frozenset()) -> Any:
    """The value in a pickled file. Tensors of Paddle are tuples (name, array), as they are stored. Objects of the
    classes `records`, by module and name, become dicts of their attributes; the classes themselves are not imported."""
    try:
        with open_file(path) as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise NotPlain("it is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return loads(data, records)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except NotPlain as error:
        raise CheckpointError(
            f"{path} cannot be read as arrays and plain data: {error}. It is corrupt, or contains objects that could "
            "only be loaded by executing code, which oneloop never does. Save the checkpoint again, or start a new run "
            "from its weights."
        ) from None


def loads(data: bytes | mmap.mmap, records: Classes = frozenset(), extras: "Extras | None" = None) -> Any:
    """The value in the bytes of a pickle."""
    try:
        return _plain(_Machine(data, records, extras).run(), _Done(extras is not None), 0)
    except NotPlain:
        raise
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, AttributeError, struct.error) as error:
        raise NotPlain(f"damaged ({type(error).__name__}: {str(error)[:120]})") from None


@dataclass
class Extras:
    """What the pickles of one library may contain beside plain data."""

    made: dict[tuple[str, str], Callable[..., Any]]  # by module and name; they check what they are called with
    persistent: Callable[[Any], Any]  # for what is stored beside the pickle


class Kept:
    """Base class of what these make."""


# -- what a file may make beside containers


class Unknown:
    """A class or a function of a file, or what the file makes with it: nothing is imported or called."""

    def __init__(self, name: str, arguments: tuple[Any, ...] | None = None) -> None:
        self.name = name  # with its module
        self.arguments = arguments  # None for the class or function itself
        self.state: Any = None  # of an object: its attributes

    def __call__(self, *arguments: Any) -> "Unknown":
        return Unknown(self.name, arguments)

    def get(self, key: str, default: Any = None) -> Any:
        """An attribute, if its class stores them as usual."""
        return self.state.get(key, default) if isinstance(self.state, dict) else default


class _Type:
    """numpy.dtype: its arguments, then its state."""

    def __init__(self, name: Any, align: Any = False, copy: Any = False) -> None:
        if name not in _TYPES or align is True:
            raise NotPlain(f"it has an array of type {str(name)[:40]}")
        self.dtype = np.dtype(f"<{name}")

    def build(self, state: Any) -> None:
        _, order, sub, names, fields, *_ = state
        if order not in ("<", "|") or not (sub is names is fields is None):
            raise NotPlain("it has an array of a structured type, or with its bytes in another order")


class _Array:
    """numpy.ndarray: made empty, then given its shape, type and bytes."""

    def __init__(self, cls: Any, shape: Any, kind: Any) -> None:
        if cls is not _ndarray:
            raise NotPlain("it has an array of another class")
        self.value: np.ndarray | None = None

    def build(self, state: Any) -> None:
        _, shape, kind, is_fortran, data = state
        self.value = _array(shape, kind, data, "F" if is_fortran else "C")


class _Record:
    """An object that is read as the dict of its attributes. A tensor of MindSpore is one with a `value`; older releases
    stored a tuple with it."""

    def __init__(self) -> None:
        self.value: dict[str, Any] | None = None

    def build(self, state: Any) -> None:
        if type(state) is tuple and len(state) == 1:
            state = {"value": state[0]}
        if type(state) is not dict:
            raise NotPlain("it has an object with another state than its attributes")
        self.value = state


def _array(shape: Any, kind: Any, data: Any, order: str) -> np.ndarray:
    if type(shape) is not tuple or len(shape) > 32 or not all(type(n) is int and 0 <= n < 2**48 for n in shape):
        raise NotPlain("it has an array whose shape is not one")
    if not isinstance(kind, _Type) or type(data) not in (bytes, bytearray):
        raise NotPlain("it has an array of objects")
    if math.prod(shape) * kind.dtype.itemsize != len(data):
        raise NotPlain(f"it has an array of shape {shape} with {len(data)} bytes")
    return np.frombuffer(data, kind.dtype).reshape(shape, order="F" if order == "F" else "C")


def _ndarray(*_: Any) -> Any:
    raise NotPlain("it makes an array in a way that is not known")


def _scalar(kind: Any, data: Any) -> Any:
    return _array((), kind, data, "C").item()


def _from_buffer(data: Any, kind: Any, shape: Any, order: Any) -> np.ndarray:
    """Arrays of protocol 5."""
    return _array(shape, kind, data, order)


def _encode(text: Any, encoding: Any) -> bytes:
    """Bytes in protocol 2."""
    if type(text) is not str or encoding != "latin1":
        raise NotPlain("it has bytes in another encoding")
    return text.encode("latin1")


def _no_bytes(*given: Any) -> bytes:
    """No bytes, in protocol 2."""
    if given:
        raise NotPlain("it makes bytes of something else")
    return b""


def _ordered(*items: Any) -> dict[Any, Any]:
    if items:
        raise NotPlain("it has an OrderedDict with arguments")
    return {}


def _tuple(items: Any) -> tuple[Any, ...]:
    """Tensors of Paddle."""
    if type(items) is not tuple:
        raise NotPlain("it makes a tuple of something else")
    return items


_NUMPY: dict[str, Callable[..., Any]] = {"_reconstruct": _Array, "scalar": _scalar}
_MADE: dict[tuple[str, str], Callable[..., Any]] = {
    **{(f"numpy.{core}.multiarray", name): made for core in ("core", "_core") for name, made in _NUMPY.items()},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _from_buffer for core in ("core", "_core")},
    ("numpy", "ndarray"): _ndarray,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): _ordered,
    **{(module, "tuple"): _tuple for module in ("builtins", "__builtin__")},
    **{(module, "bytes"): _no_bytes for module in ("builtins", "__builtin__")},
}


# -- instructions


class _Machine:
    """Executes the instructions of one pickle on a stack."""

    def __init__(self, data: bytes | mmap.mmap, records: Classes, extras: Extras | None = None) -> None:
        self.data, self.at, self.extras = data, 0, extras
        self.known = _MADE | dict.fromkeys(records, _Record) | ({} if extras is None else extras.made)
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.encoded = 0  # bytes that were made of strings

    def run(self) -> Any:
        for _ in range(MOST):
            code = self.read(1)
            if code == pickle.STOP:
                (value,) = self.stack
                return value
            act = _ACTS.get(code)
            if act is None:
                raise NotPlain(f"it has the instruction {code!r}")
            act(self)
        raise NotPlain(f"it has more than {MOST} instructions")

    def read(self, count: int) -> bytes:
        if count < 0 or count > len(self.data) - self.at:
            raise NotPlain("it is truncated")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form: str) -> int:
        return struct.unpack(f"<{form}", self.read(struct.calcsize(f"<{form}")))[0]

    def line(self) -> str:
        end = self.data.find(b"\n", self.at, self.at + 4096)
        if end < 0:
            raise NotPlain("it is truncated")
        text = self.read(end - self.at).decode("utf-8")
        self.at += 1
        return text

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def marked(self) -> list[Any]:
        """What has been pushed since the last mark."""
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise NotPlain("damaged (no mark)")
        items = self.stack[place + 1 :]
        del self.stack[place:]
        return items

    def text(self, length: int) -> None:
        self.push(self.read(length).decode("utf-8", "surrogatepass"))

    def push_integer(self, length: int) -> None:
        """An integer of any size; those of plain data have at most 64 bits."""
        if length > 9:
            if self.extras is None:
                raise NotPlain("it has an integer of more than 64 bits")
            self.read(length)
            self.push(Unknown("int", ()))
            return
        self.push(int.from_bytes(self.read(length), "little", signed=True))

    def made(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str:
            raise NotPlain("it needs something without a name")
        if (module, name) in self.known:
            self.push(self.known[module, name])
        elif self.extras is not None:
            self.push(Unknown(f"{module[:80]}.{name[:80]}"))
        else:
            raise NotPlain(f"it needs {module[:80]}.{name[:80]}")

    def of_extras(self, value: Unknown) -> None:
        if self.extras is None:
            raise NotPlain(f"it needs {value.name}")
        self.push(value)

    def persistent(self) -> None:
        if self.extras is None:
            raise NotPlain("it has the instruction b'Q'")
        self.push(self.extras.persistent(self.stack.pop()))

    def reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if type(arguments) is not tuple or not callable(function):
            raise NotPlain("it calls something that is not known")
        value = function(*arguments)
        self.encoded += len(value) if type(value) is bytes else 0
        if self.encoded > len(self.data):
            raise NotPlain("it makes more bytes than it has")
        self.push(value)

    def new(self) -> None:
        arguments, cls = self.stack.pop(), self.stack.pop()
        if isinstance(cls, Unknown) and type(arguments) is tuple:
            self.push(cls(*arguments))
            return
        if cls is not _Record or arguments != ():
            raise NotPlain("it makes an object that is not known")
        self.push(_Record())

    def build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if self.extras is not None and type(target) is dict:  # attributes of an OrderedDict
            return
        if isinstance(target, Unknown) and target.arguments is not None:
            target.state = state
            return
        if not isinstance(target, (_Type, _Array, _Record)):
            raise NotPlain(f"it sets the state of {a_type(target)}")
        target.build(state)

    def append(self, items: list[Any]) -> None:
        if isinstance(self.stack[-1], Unknown):
            return
        if type(self.stack[-1]) is not list:
            raise NotPlain("it appends to something that is no list")
        self.stack[-1].extend(items)

    def set(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, Unknown):
            return
        if type(target) is not dict or len(items) % 2:
            raise NotPlain("it sets items of something that is no dict")
        for key, value in zip(items[::2], items[1::2]):
            # Hashing tuples of tuples that share their items can take for ever; an Unknown has the hash of its place.
            if type(key) not in (str, int) and not isinstance(key, Unknown):
                if self.extras is not None:
                    continue  # part of an object that does not matter
                raise NotPlain(f"it has {a_type(key)} as a key")
            target[key] = value

    def keep(self, place: int) -> None:
        self.memo[place] = self.stack[-1]

    def last(self, count: int) -> None:
        """The last items of the stack as a tuple."""
        if len(self.stack) < count or any(item is _MARK for item in self.stack[-count:]):
            raise NotPlain("damaged (no items)")
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        self.push(items)


_ACTS: dict[bytes, Callable[[_Machine], Any]] = {
    pickle.PROTO: lambda m: m.read(1),
    pickle.FRAME: lambda m: m.read(8),
    pickle.MARK: lambda m: m.push(_MARK),
    pickle.NONE: lambda m: m.push(None),
    pickle.NEWTRUE: lambda m: m.push(True),
    pickle.NEWFALSE: lambda m: m.push(False),
    pickle.BININT: lambda m: m.push(m.number("i")),
    pickle.BININT1: lambda m: m.push(m.number("B")),
    pickle.BININT2: lambda m: m.push(m.number("H")),
    pickle.LONG1: lambda m: m.push_integer(m.number("B")),
    pickle.BINFLOAT: lambda m: m.push(struct.unpack(">d", m.read(8))[0]),
    pickle.BINUNICODE: lambda m: m.text(m.number("I")),
    pickle.SHORT_BINUNICODE: lambda m: m.text(m.number("B")),
    pickle.BINUNICODE8: lambda m: m.text(m.number("Q")),
    pickle.BINBYTES: lambda m: m.push(m.read(m.number("I"))),
    pickle.SHORT_BINBYTES: lambda m: m.push(m.read(m.number("B"))),
    pickle.BINBYTES8: lambda m: m.push(m.read(m.number("Q"))),
    pickle.BYTEARRAY8: lambda m: m.push(bytearray(m.read(m.number("Q")))),
    pickle.EMPTY_LIST: lambda m: m.push([]),
    pickle.EMPTY_DICT: lambda m: m.push({}),
    pickle.EMPTY_TUPLE: lambda m: m.push(()),
    pickle.TUPLE: lambda m: m.push(tuple(m.marked())),
    pickle.TUPLE1: lambda m: m.last(1),
    pickle.TUPLE2: lambda m: m.last(2),
    pickle.TUPLE3: lambda m: m.last(3),
    pickle.APPEND: lambda m: m.append([m.stack.pop()]),
    pickle.APPENDS: lambda m: m.append(m.marked()),
    pickle.SETITEM: lambda m: m.set([m.stack.pop(-2), m.stack.pop()]),
    pickle.SETITEMS: lambda m: m.set(m.marked()),
    pickle.BINGET: lambda m: m.push(m.memo[m.number("B")]),
    pickle.LONG_BINGET: lambda m: m.push(m.memo[m.number("I")]),
    pickle.BINPUT: lambda m: m.keep(m.number("B")),
    pickle.LONG_BINPUT: lambda m: m.keep(m.number("I")),
    pickle.MEMOIZE: lambda m: m.keep(len(m.memo)),
    pickle.GLOBAL: lambda m: m.made(m.line(), m.line()),
    pickle.STACK_GLOBAL: lambda m: m.made(m.stack.pop(-2), m.stack.pop()),
    pickle.REDUCE: lambda m: m.reduce(),
    pickle.NEWOBJ: lambda m: m.new(),
    pickle.BUILD: lambda m: m.build(),
    pickle.BINPERSID: lambda m: m.persistent(),
    pickle.EMPTY_SET: lambda m: m.of_extras(Unknown("builtins.set", ())),
    pickle.ADDITEMS: lambda m: m.append(m.marked()),
    pickle.FROZENSET: lambda m: m.of_extras(Unknown("builtins.frozenset", tuple(m.marked()))),
}


# -- the result


class _Done(dict[int, Any]):
    """What has been visited, by identity."""

    def __init__(self, keeps_unknown: bool) -> None:
        super().__init__()
        self.keeps_unknown = keeps_unknown


def _plain(value: Any, done: _Done, depth: int) -> Any:
    """The value with its arrays in their places. Each container is visited once, however often it is referred to."""
    if value is None or type(value) in (bool, int, float, str, bytes) or isinstance(value, (np.ndarray, Kept)):
        return value
    if done.keeps_unknown and type(value) not in (list, tuple, dict, _Array, _Record, Unknown):
        return Unknown(getattr(value, "__name__", type(value).__name__))
    if isinstance(value, Unknown):
        return _unknown(value, done, depth)
    if isinstance(value, (_Array, _Record)):
        if value.value is None:
            raise NotPlain("it has an array or an object without values")
        return value.value if isinstance(value, _Array) else _plain(value.value, done, depth)
    if type(value) not in (list, tuple, dict):
        raise NotPlain(f"it contains a {type(value).__name__.strip('_')}")
    if depth > DEEPEST:
        raise NotPlain(f"it is nested more than {DEEPEST} levels deep, or contains itself")
    if id(value) not in done:
        if type(value) is dict:
            found: Any = {_key(key, done, depth): _plain(inner, done, depth + 1) for key, inner in value.items()}
        else:
            found = type(value)(_plain(inner, done, depth + 1) for inner in value)
        done[id(value)] = found
    return done[id(value)]


def _key(key: Any, done: _Done, depth: int) -> Any:
    return _unknown(key, done, depth) if isinstance(key, Unknown) else key


def _unknown(value: Unknown, done: _Done, depth: int) -> Unknown:
    """The same object with plain contents, as far as they are."""
    if id(value) not in done:
        if depth > DEEPEST:
            raise NotPlain(f"it is nested more than {DEEPEST} levels deep, or contains itself")
        found = Unknown(value.name, None)
        done[id(value)] = found
        if value.arguments is not None:
            found.arguments = tuple(_plain(inner, done, depth + 1) for inner in value.arguments)
        found.state = _plain(value.state, done, depth + 1)
    return done[id(value)]
