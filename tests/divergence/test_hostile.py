"""Recordings that were cut off, damaged or made by an enemy: an error, and never a traceback or a wrong answer."""

import copy
import json
import random

import numpy as np
import pytest

from oneloop.cli.main import main
from oneloop.divergence import compare_runs
from oneloop.divergence.report import to_html, to_text
from oneloop.divergence.runs import to_json
from oneloop.errors import CheckpointError
from oneloop.formats import digests, trace_file
from oneloop.formats.trace_file import KINDS, Record, Trace

VALUES = [
    None, True, "", "a\nb", "\ud800", "\x00", "../../x", "NaN", "<script>", "x" * 1000, 0, -1, 7, 2**48, 2**53, 10**400,
    0.5, -0.0, 1e-320, 1e59, 1e300, float("nan"), float("inf"), [], [[]], [1e9] * 8, {}, {"": {}}, [[[[1]]]],
]  # fmt: skip


def a_trace(step=0):
    chance = np.random.default_rng(0)
    settings = {
        "processes": 2, "mesh": {"data": 2}, "micro_batches": 1, "half": "", "loss_scale": 1.0, "max_grad_norm": 1.0,
        "grad_norm": 0.5, "learning_rate": 1e-3, "optimizer": "AdamW", "groups": [{"beta1": 0.9, "eps": 1e-8}],
    }  # fmt: skip

    def record(kind, name, shape):
        numbers = chance.standard_normal(8).tolist()
        parts = [0.5, 0.25] if kind == "output_gradient" else None
        turned = numbers[::-1] if kind == "weight" else None
        item, has_samples = "0" if "put" in kind else "", "put" in kind
        return Record(kind, name, item, 0, "Linear", shape, "float32", has_samples, 2.0, 1.0, 0, numbers, 0.1, 1e-6,
                      turned, parts)  # fmt: skip

    records = [record(kind, "norm.bias" if "put" not in kind else "norm", [4, 4]) for kind in KINDS]
    return Trace("run", step, "torch", settings, {"x": "1f"}, ["a1", "b2"], {"x": [2, 4]}, True, records)


def written(folder, content):
    """As a file with the right checksum."""
    body = json.dumps(content).encode()
    path = trace_file.path_of(folder, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body + b"\n" + trace_file._checksum(body) + b"\n")
    return folder


@pytest.fixture
def clean(tmp_path):
    """The folder of a recording, and what is in its file."""
    path = trace_file.write(tmp_path / "clean", a_trace(), digests.VERSION)
    return tmp_path / "clean", path.read_bytes()


def test_every_length_and_every_byte(clean, tmp_path):
    folder, content = clean
    path = trace_file.path_of(tmp_path / "torn", 0)
    path.parent.mkdir(parents=True)
    chance = random.Random(0)
    torn = [content[:length] for length in range(len(content))]
    flipped = [bytearray(content) for _ in range(0, len(content), 3)]
    for place, one in enumerate(flipped):
        one[3 * place] ^= 1 << chance.randrange(8)
    for data in (*torn, *map(bytes, flipped), content + b"\n", content + content, b"\n" + content):
        path.write_bytes(data)
        with pytest.raises(CheckpointError):
            compare_runs(folder, tmp_path / "torn")
    path.write_bytes(content)
    assert compare_runs(folder, tmp_path / "torn").agrees


def places(value, path=()):
    """The path of every value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def changed(content, chance):
    """Something of it replaced, removed, repeated or added."""
    content = copy.deepcopy(content)
    *parents, last = chance.choice([path for path in places(content) if path])
    parent = content
    for key in parents:
        parent = parent[key]
    how = chance.randrange(6)
    if how == 0:
        del parent[last]
    elif how == 1 and isinstance(parent, list):
        parent.insert(last, copy.deepcopy(parent[last]))
    elif how == 1:
        parent[chance.choice(["", "extra", "\ud800", "../x"])] = chance.choice(VALUES)
    else:
        parent[last] = copy.deepcopy(chance.choice(VALUES))
    return content


@pytest.mark.parametrize("seed", [0, pytest.param(range(1, 20), marks=pytest.mark.slow)])
def test_an_enemy_with_the_right_checksum(clean, tmp_path, seed):
    """Whatever is accepted can be compared and shown; whatever is shown of it is one line of text, and no HTML."""
    folder, content = clean
    content = json.loads(content.splitlines()[0])
    accepted = 0
    for each in [seed] if isinstance(seed, int) else seed:
        chance = random.Random(each)
        for _ in range(300):
            wrong = content
            for _ in range(chance.choice((1, 1, 2, 3))):
                wrong = changed(wrong, chance)
            try:
                found = compare_runs(folder, written(tmp_path / "b", wrong))
            except CheckpointError:
                continue
            accepted += 1
            page = to_html(found).encode("utf-8", "backslashreplace")
            assert b"<script" not in page and to_text(found) and json.loads(to_json(found))
    assert accepted > 10


def test_what_an_enemy_cannot_say(clean, tmp_path, capsys):
    folder, content = clean
    content = json.loads(content.splitlines()[0])

    def refused(change):
        wrong = copy.deepcopy(content)
        change(wrong)
        written(tmp_path / "b", wrong)
        assert main(["diff", str(folder), str(tmp_path / "b")]) == 2
        error = capsys.readouterr().err
        assert "Traceback" not in error and "step-000000.json" in error

    refused(lambda data: data["records"][0].update(shape=[2**60]))
    refused(lambda data: data["records"][0].update(norm=1e200))
    refused(lambda data: data["records"][0].update(name="\ud800"))
    refused(lambda data: data["settings"].update(groups=[{"eps": "1"}]))
    refused(lambda data: data["settings"].update(mesh=["tensor"]))
    refused(lambda data: data["settings"].pop("groups"))


def test_numbers_at_the_bounds_are_a_difference(clean, tmp_path):
    """Neither overflow nor huge sizes make two runs agree, or take long."""
    folder, content = clean
    content = json.loads(content.splitlines()[0])
    output = next(record for record in content["records"] if record["kind"] == "output")
    output.update(projections=[1e60, -1e60] * 4, norm=1e60)
    found = compare_runs(folder, written(tmp_path / "b", content))
    assert found.first is not None and found.first.pair.a.kind == "output"
    other = tmp_path / "other"
    for record in content["records"]:
        record["shape"] = [2**48, 4, 2]
    output.update(projections=[2.0] * 8, norm=2.0)
    plain = copy.deepcopy(content)
    next(record for record in plain["records"] if record["kind"] == "output").update(projections=[1.0] * 8)
    found = compare_runs(written(other, plain), written(tmp_path / "b", content))
    assert found.first is not None and found.first.kind == "activation"
