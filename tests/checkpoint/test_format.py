"""docs/details/checkpoint-format.md says what is in a checkpoint; here it is held to it."""

import json
import re
from pathlib import Path

import pytest

from oneloop.checkpoint import store
from oneloop.state import TrainerState
from tests.backends.support import rows

PAGE = (Path(__file__).parents[2] / "docs" / "details" / "checkpoint-format.md").read_text(encoding="utf-8")


@pytest.fixture
def checkpoint(trained, backend, tmp_path):
    trained(backend.classifier(norm=True), rows(8), save_strategy="steps", save_steps=2, max_steps=2)
    return tmp_path / "out" / "checkpoint-2"


def test_the_version_is_the_one_described():
    assert f"**format {store.FORMAT}**" in PAGE


def test_every_file_and_field_is_described(checkpoint):
    described = set(re.findall(r"`([\w.]+)`", PAGE))
    manifest, run = (json.loads((checkpoint / name).read_text()) for name in ("manifest.json", "run.json"))
    assert set(manifest["files"]) <= described
    assert set(manifest) | {"bytes", "sha256"} <= described
    assert set(run) | set(run["position"]) | set(run["course"]) <= described
    assert set(run["work"]) | set(run["losses"]) | set(run["engine"]) | set(run["optimizer"]) <= described
    assert set(vars(TrainerState())) <= described


def test_the_random_state_is_as_described(checkpoint):
    from safetensors import safe_open

    described = dict(re.findall(r"^\| `([\w.]+)` \| (\w+(?: \[\d+\])?) \|", PAGE, re.M))
    with safe_open(checkpoint / "random.safetensors", framework="np") as file:
        for name in file.keys():  # noqa: SIM118 - no mapping
            part = file.get_slice(name)
            kind = f"{part.get_dtype()} {part.get_shape()}"
            assert kind.startswith(described[name]), name


def test_the_reader_in_a_few_lines_reads(checkpoint, trained, backend):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    names: dict = {}
    exec(code, names)
    weights = names["read_weights"](checkpoint)
    model = backend.classifier(norm=True, seed=1)
    assert set(weights) == set(backend.weights(model))
    (checkpoint / "model.safetensors").write_bytes(b"other")
    with pytest.raises(AssertionError, match="model.safetensors"):
        names["read_weights"](checkpoint)
