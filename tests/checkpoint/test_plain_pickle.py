"""The reader of pickles: what it reads, and that a hostile file is an error before it can do anything."""

import collections
import os
import pickle
import struct

import numpy as np
import pytest

from oneloop.converters import plain_pickle
from oneloop.errors import CheckpointError

VALUE = {
    "turned": np.arange(6.0).reshape(2, 3).T,
    "ints": np.arange(3, dtype=np.int32),
    "empty": np.zeros((0, 3), np.float16),
    "flag": np.array(True),
    "list": [1, -5, 300, 70000, 2**40, -(2**62), 1.5, None, True, False],
    "inner": collections.OrderedDict(a=np.float32(3), b=("é", b"x" * 300)),
    "none": (),
}


def same(a, b):
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return a == b and type(a) in (type(b), np.float32)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_arrays_and_plain_data(protocol):
    assert same(VALUE, plain_pickle.loads(pickle.dumps(VALUE, protocol)))


def test_what_is_shared_is_read_once():
    row = np.arange(4)
    found = plain_pickle.loads(pickle.dumps({"a": row, "b": [row, row]}))
    assert found["a"] is found["b"][0] is found["b"][1]


class Calls:
    def __init__(self, function, *arguments):
        self.what = function, arguments

    def __reduce__(self):
        return self.what


class Own:
    pass


def array_with(shape, kind, data):
    """A pickle of an array with any state."""
    made = np.zeros(0).__reduce__()[0]

    class Array:
        def __reduce__(self):
            return made, (np.ndarray, (0,), b"b"), (1, shape, kind, False, data)

    return pickle.dumps(Array())


def nested(levels):
    return pickle.PROTO + b"\x02" + pickle.EMPTY_LIST * levels + pickle.APPEND * (levels - 1) + pickle.STOP


def laughs(levels):
    """Instructions for a tuple of two tuples of two tuples, ... which share their items: hashing or copying it takes
    for ever."""
    return b")" + b"q\x00h\x00\x86" * levels


FLOATS = np.dtype("f4")
HOSTILE = {
    "a command": (pickle.dumps(Calls(os.system, "touch hacked")), "needs (posix|nt).system"),
    "a command in protocol 0": (b"cos\nsystem\n(S'touch hacked'\ntR.", "needs os.system"),
    "eval": (pickle.dumps(Calls(eval, "1")), "needs builtins.eval"),
    "getattr": (pickle.dumps(Calls(getattr, [], "append")), "needs builtins.getattr"),
    "a name inside of one that is admitted": (
        pickle.PROTO + b"\x04" + b"\x8c\x05numpy\x8c\x0bndarray.sum\x93.",
        "needs numpy.ndarray.sum",
    ),
    "an object": (pickle.dumps(Own()), "needs .*Own"),
    "a class": (pickle.dumps(np.ndarray), "contains a function"),
    "an array of objects": (pickle.dumps(np.array([[], {}], dtype=object)), "array of type O8"),
    "a structured array": (pickle.dumps(np.zeros(2, dtype="i4,i4")), "array of type V8"),
    "another class of arrays": (pickle.dumps(np.ma.zeros(2)), "needs numpy.ma"),
    "bytes in another order": (pickle.dumps(np.zeros(2, dtype=">i4")), "in another order"),
    "calling a string": (pickle.PROTO + b"\x02" + b"X\x01\x00\x00\x00a)R.", "calls something"),
    "the state of a list": (pickle.PROTO + b"\x02" + b"]}b.", "sets the state of a list"),
    "an external number": (pickle.PROTO + b"\x02" + b"X\x01\x00\x00\x00aQ.", "the instruction b'Q'"),
    "an extension": (pickle.PROTO + b"\x02" + pickle.EXT1 + b"\x01.", "the instruction"),
    "a shape that is larger than its bytes": (array_with((2**40,), FLOATS, b"1234"), "with 4 bytes"),
    "a shape that overflows": (array_with((2**40, 2**40), FLOATS, b""), "with 0 bytes"),
    "a negative shape": (array_with((-1,), FLOATS, b"1234"), "shape is not one"),
    "an array without values": (
        pickle.dumps(np.zeros(3))[: pickle.dumps(np.zeros(3)).index(b"(K\x01K\x03")] + b".",
        "",
    ),
    "a string of four petabytes": (b"\x80\x04\x8d" + struct.pack("<Q", 2**52) + b"a.", "truncated"),
    "bytes of two gigabytes": (b"\x80\x04B" + struct.pack("<I", 2**31) + b"a.", "truncated"),
    "a number of gigabytes": (b"\x80\x02\x8b" + struct.pack("<i", 2**30) + b"a.", "the instruction"),
    "a place of two billion": (b"\x80\x02Nr" + struct.pack("<I", 2**31) + b"X", "truncated"),
    "nested lists": (nested(100_000), "nested more than"),
    "a list in itself": (b"\x80\x02]q\x00h\x00a.", "contains itself"),
    "shared tuples as a key": (b"\x80\x02}" + laughs(200) + b"Ns.", "tuple as a key"),
    "no mark": (b"\x80\x02Nt.", "no mark"),
    "an empty stack": (b"\x80\x02.", "damaged"),
    "two values": (b"\x80\x02NN.", "damaged"),
    "text that is none": (b"\x80\x02X\x01\x00\x00\x00\xff.", "damaged"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_refused(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data, reason = HOSTILE[kind]
    (tmp_path / "optimizer.pdopt").write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"optimizer.pdopt cannot be read as arrays and plain data: .*{reason}"):
        plain_pickle.read(tmp_path / "optimizer.pdopt")
    assert not (tmp_path / "hacked").exists()


def test_objects_of_named_classes_are_dicts_of_their_attributes():
    value = Own()
    value.step, value.inner = 3, {"a": np.arange(2)}
    data, name = pickle.dumps([value, value]), (Own.__module__, "Own")
    found = plain_pickle.loads(data, frozenset({name}))
    assert found[0]["step"] == 3 and found[0]["inner"]["a"].tolist() == [0, 1] and type(found[0]) is dict
    with pytest.raises(plain_pickle.NotPlain, match="needs .*Own"):
        plain_pickle.loads(data, frozenset({(Own.__module__, "Other")}))
    of_class = f"c{name[0]}\nOwn\n".encode()
    for hostile in (b"(K\x01t\x81.", b")\x81K\x01b.", b")\x81."):  # with arguments, with another state, without one
        with pytest.raises(plain_pickle.NotPlain, match="object"):
            plain_pickle.loads(b"\x80\x02" + of_class + hostile, frozenset({name}))


def test_shared_tuples_are_copied_once():
    value = plain_pickle.loads(b"\x80\x02" + laughs(35) + b".")
    assert value[0] is value[1] and value[0][0] is value[0][1]


def test_strings_cannot_be_multiplied():
    """Each of these encodes the same string again."""
    text = b"X" + struct.pack("<I", 1000) + b"a" * 1000
    call = b"c_codecs\nencode\n" + b"h\x00" + b"X\x06\x00\x00\x00latin1" + b"\x86R"
    with pytest.raises(plain_pickle.NotPlain, match="makes more bytes than it has"):
        plain_pickle.loads(b"\x80\x02" + text + b"q\x00" + call * 100 + b".")


def test_the_number_of_instructions_is_limited(monkeypatch):
    monkeypatch.setattr(plain_pickle, "MOST", 100)
    assert plain_pickle.loads(b"\x80\x02(" + b"N" * 50 + b"t.") == (None,) * 50
    with pytest.raises(plain_pickle.NotPlain, match="more than 100 instructions"):
        plain_pickle.loads(b"\x80\x02(" + b"N" * 150 + b"t.")


def nested(levels, kind=lambda inner: [inner]):
    value = 1
    for _ in range(levels):
        value = kind(value)
    return value


# Whatever may be stored, at every width of a length or a number and one beyond.
PLAIN = {
    "integers": [sign * 2**bits + more for bits in range(71) for sign in (1, -1) for more in (-1, 0, 1)],
    "numbers": [0.0, -0.0, 1e-320, 1.5, -1e308, float("inf")],
    "texts": ["", "a", "é" * 127, "a" * 255, "a" * 256, "a" * 65535, "a" * 65536, "\ud800"],
    "bytes": [b"", b"a" * 255, b"a" * 256, b"\xff" * 65536],
    "tuples": [tuple(range(length)) for length in range(6)],
    "lists": [list(range(length)) for length in (0, 1, 2, 1000, 1001, 2001)],
    "dicts": [{str(i): i for i in range(length)} for length in (0, 1, 2, 1000, 1001)] + [{1: "a", -5: None}],
    "nested lists": nested(plain_pickle.DEEPEST + 1),
    "nested dicts": nested(plain_pickle.DEEPEST + 1, lambda inner: {"a": inner}),
    "arrays": [np.arange(6).reshape(2, 3).astype(kind) for kind in plain_pickle._TYPES],
    "columns": [np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)), np.arange(6).reshape(2, 3)[:, ::2]],
    "ranks": [np.full((1,) * rank, rank) for rank in range(33)],
    "scalars": [np.float64(1.5), np.int64(-3), np.bool_(True)],
    "many": list(map(str, range(300))) * 2,
}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("kind", PLAIN)
def test_a_round_trip_of_every_kind_and_width(kind, protocol):
    value = PLAIN[kind]
    expected = [each.item() for each in value] if kind == "scalars" else value
    if kind == "columns":
        expected = [value[0], np.ascontiguousarray(value[1])]
    assert same(expected, plain_pickle.loads(pickle.dumps(value, protocol)))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "value",
    [2**72, -(2**73), nested(plain_pickle.DEEPEST + 2), nested(plain_pickle.DEEPEST + 2, lambda inner: {"a": inner})],
    ids=["integer", "negative integer", "nested lists", "nested dicts"],
)
def test_one_beyond_is_an_error(value, protocol):
    with pytest.raises(plain_pickle.NotPlain):
        plain_pickle.loads(pickle.dumps(value, protocol))


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="its arrays have at most 32 axes")
def test_more_axes_than_are_read():
    with pytest.raises(plain_pickle.NotPlain, match="whose shape is not one"):
        plain_pickle.loads(pickle.dumps(np.zeros((1,) * 33)))


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_truncated_file_is_an_error_at_every_byte(protocol):
    whole = pickle.dumps(VALUE, protocol)
    for length in range(len(whole)):
        with pytest.raises(plain_pickle.NotPlain):
            plain_pickle.loads(whole[:length])


def test_a_changed_byte_is_an_error_or_plain_data():
    whole = pickle.dumps({"a": np.arange(3.0), "b": [1, 2.5]}, 4)
    for place in range(len(whole)):
        for bit in (0, 3, 7):
            changed = bytearray(whole)
            changed[place] ^= 1 << bit
            try:
                found = plain_pickle.loads(bytes(changed))
            except plain_pickle.NotPlain:
                continue
            assert found is None or isinstance(found, (dict, list, tuple, str, bytes, int, float, np.ndarray))


@pytest.mark.parametrize("make", [lambda p: p.mkdir(), lambda p: os.mkfifo(p), lambda p: p.write_bytes(b"")])
def test_only_regular_files_are_read(make, tmp_path):
    path = tmp_path / "scheduler.pdparams"
    make(path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        plain_pickle.read(path)
