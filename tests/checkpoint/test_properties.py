"""Whatever lies in a directory, looking for checkpoints does not crash, and reads nothing outside of it."""

import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors import safe_open
from safetensors.numpy import load_file

from oneloop import get_last_checkpoint
from oneloop.checkpoint import store
from oneloop.formats import safetensors_io

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(
    ["../outside", "/etc/hostname", "a/../../outside", "..", ".", "", "model.safetensors", "a/b", "x" * 300]
    + ["\0", "a\0b", "\ud800", "manifest.json", "~", "a//b", "./c", "line\nfeed"]
) | st.text(max_size=10)
FACTS = st.fixed_dictionaries(
    {
        "bytes": JSON | st.integers(-1, 4),
        "sha256": JSON | st.text(alphabet="0123456789abcdef", min_size=64, max_size=64),
    }
)
NEARLY_MANIFESTS = st.fixed_dictionaries(
    {"files": JSON | st.dictionaries(NAMES, JSON | FACTS, max_size=4)},
    optional={
        "format": JSON | st.just(store.FORMAT),
        "run_id": JSON | st.text(max_size=5),
        "written": JSON | st.floats() | st.integers(),
        "step": JSON,
        "reason": JSON,
    },
)


@pytest.fixture
def looked_at(monkeypatch):
    """The files whose bytes were read for their checksum."""
    seen = []
    checksum = store.checksum
    monkeypatch.setattr(store, "checksum", lambda path: seen.append(Path(path).resolve()) or checksum(path))
    return seen


def look_everywhere(folder):
    """All that reads what lies in a directory of checkpoints."""
    manifest = store.read_manifest(folder / "checkpoint-3")
    problems = store.problems(folder / "checkpoint-3")
    store.problems(folder / "checkpoint-3", contents=False)
    found = store.find(folder)
    newest = store.newest_first(folder)
    assert {c.path for c in newest} == {c.path for c in found}
    assert get_last_checkpoint(folder) in {str(c.path) for c in found}
    assert all(math.isfinite(c.written) for c in found)
    json.dumps(problems).encode()
    "\n".join(problems).encode()  # for a terminal or a log
    return manifest, problems


@pytest.fixture
def directory():
    with TemporaryDirectory() as place:
        folder = Path(place) / "run"
        (folder / "checkpoint-3" / "a").mkdir(parents=True)
        (folder / "outside").write_text("abc")
        (Path(place) / "outside").write_text("abc")
        (folder / "checkpoint-3" / "model.safetensors").write_text("abc")
        (folder / "checkpoint-3" / "a" / "b").write_text("abc")
        yield folder


@pytest.mark.parametrize("kind", ["bytes", "json", "nearly"])
def test_a_manifest_can_be_anything(kind, directory, looked_at):
    source = {
        "bytes": st.binary(max_size=300),
        "json": JSON.map(lambda value: json.dumps(value).encode()),
        "nearly": NEARLY_MANIFESTS.map(lambda value: json.dumps(value).encode()),
    }[kind]

    @settings(max_examples=300, deadline=None)
    @given(source)
    def check(text):
        (directory / "checkpoint-3" / store.MANIFEST).write_bytes(text)
        manifest, problems = look_everywhere(directory)
        assert manifest is not None or problems
        inside = (directory / "checkpoint-3").resolve()
        assert all(path.is_relative_to(inside) for path in looked_at)

    check()


def test_a_deeply_nested_manifest(directory):
    (directory / "checkpoint-3" / store.MANIFEST).write_text("[" * 200_000)
    assert look_everywhere(directory)[0] is None


def test_a_manifest_that_is_a_directory(directory):
    (directory / "checkpoint-3" / store.MANIFEST).mkdir()
    assert look_everywhere(directory)[0] is None


@pytest.mark.parametrize("name", ["../outside", "a/../../outside", "/etc/hostname", "", ".", "..", "a\0b", "\ud800"])
def test_names_that_leave_the_checkpoint_make_it_none(name, directory):
    facts = {"bytes": 3, "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}
    manifest = {"format": 1, "step": 3, "run_id": "a", "reason": "save", "written": 1.0}
    path = directory / "checkpoint-3" / store.MANIFEST
    state = path.with_name("trainer_state.json")
    state.write_text('{"global_step": 3}')
    files = {state.name: {"bytes": state.stat().st_size, "sha256": store.checksum(state)}, "a/b": facts}
    path.write_text(json.dumps(manifest | {"files": files}))
    assert store.problems(path.parent) == []
    path.write_text(json.dumps(manifest | {"files": files | {name: facts}}))
    assert store.read_manifest(path.parent) is None
    (problem,) = store.problems(path.parent)
    assert problem.startswith("manifest.json is missing or cannot be read: manifest.json ")


@pytest.mark.parametrize("written", [10**400, -(10**400), math.nan, math.inf, -math.inf, -1, None, "1"])
def test_times_that_are_none_make_it_none(written, directory):
    manifest = {"format": 1, "step": 3, "run_id": "a", "reason": "save", "written": written, "files": {}}
    (directory / "checkpoint-3" / store.MANIFEST).write_text(json.dumps(manifest))
    assert look_everywhere(directory)[0] is None


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["checkpoint-", ".checkpoint-", "checkpoint", "Checkpoint-"]),
            st.sampled_from(["1", "007", "-1", "٣", "1\n", "1.5", "9" * 200, "", "2.0123abcd.partial", "x.partial"])
            | st.text(alphabet="0123456789.abcd-", max_size=12),
            st.booleans(),
        ),
        max_size=6,
    )
)
def test_directories_can_have_any_name(names):
    with TemporaryDirectory() as place:
        folder = Path(place)
        for prefix, rest, is_folder in names:
            path = folder / f"{prefix}{rest}"
            if not path.exists():
                path.mkdir() if is_folder else path.touch()
        found = store.find(folder)
        assert [c.step for c in found] == sorted(c.step for c in found)
        assert all(c.path.name.isascii() and c.path.name[11:].isdigit() for c in found)
        store.newest_first(folder)
        get_last_checkpoint(folder)
        before = {path.name for path in folder.iterdir()}
        store.remove_leftovers(folder)
        gone = before - {path.name for path in folder.iterdir()}
        assert all(name.startswith(".checkpoint-") and name.endswith(".partial") for name in gone)


# -- safetensors

DTYPES = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64"]
ARRAYS = st.sampled_from([*DTYPES, "bool", ">f4", ">i8"]).flatmap(
    lambda dtype: arrays.arrays(np.dtype(dtype), arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
)
TENSOR_NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda name: name != "__metadata__"
)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(TENSOR_NAMES, ARRAYS, max_size=5), st.dictionaries(st.text("abc", min_size=1), st.text('xyz"\\é'))
)
def test_the_safetensors_library_reads_what_is_written(values, metadata):
    with TemporaryDirectory() as place:
        path = Path(place) / "a.safetensors"
        facts = safetensors_io.write(
            path, {name: safetensors_io.from_numpy(value) for name, value in values.items()}, metadata
        )
        assert facts == {"bytes": path.stat().st_size, "sha256": store.checksum(path)}
        read = load_file(path)
        with safe_open(path, framework="np") as f:
            assert (f.metadata() or {}) == metadata
    assert read.keys() == values.keys()
    for name, value in values.items():
        native = value.astype(value.dtype.newbyteorder("="))
        assert (read[name].dtype, read[name].shape) == (native.dtype, native.shape)
        assert read[name].tobytes() == native.tobytes()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_types_that_numpy_lacks(dtype, tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file as load

    from oneloop.backends.torch.weights import raw

    values = {"a": torch.randn(3, 4).to(getattr(torch, dtype)), "t": torch.randn(4, 2).to(getattr(torch, dtype)).T}
    values |= {"none": torch.empty(0, 3, dtype=getattr(torch, dtype)), "one": torch.ones((), dtype=torch.bool)}
    safetensors_io.write(tmp_path / "a.safetensors", {name: raw(value) for name, value in values.items()})
    read = load(tmp_path / "a.safetensors")
    for name, value in values.items():
        assert (read[name].dtype, read[name].shape) == (value.dtype, value.shape)
        assert torch.equal(read[name].float(), value.float())
