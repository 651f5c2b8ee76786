"""Runs that oneloop begins and another program ends: 20 steps here and 20 there beside 40 here."""

import json

import pytest

from oneloop.compat.checkpoint_export import export
from tests.takeover.test_deepspeed import OTHER, SAME, run

pytestmark = pytest.mark.slow
# How it begins: processes, arguments.
HERE = {
    "alone": (1, {}),
    "two": (2, {}),
    "stage3": (2, {"sharding": "stage3"}),
    "tensors": (2, {"tensor_parallel_size": 2}),
    "epochs": (2, {"rows": 96}),  # eight updates in an epoch, in the order of transformers
    "lora": (2, {"model": "lora", "sharding": "stage2"}),
}
THERE = [("alone", "transformers", 1), ("alone", "transformers", 2), ("two", "transformers", 2)]
THERE += [("stage3", "transformers", 2), ("tensors", "transformers", 1), ("epochs", "transformers", 2)]
THERE += [("lora", "transformers", 2), ("alone", "dcp", 2), ("two", "dcp", 2), ("stage3", "dcp", 3)]
THERE += [("stage3", "dcp", 2), ("tensors", "dcp", 1)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("export")


@pytest.mark.parametrize(("name", "to", "processes"), THERE)
def test_a_run_ends_there_as_it_would_have_here(runs, tmp_path, name, to, processes):
    before, given = HERE[name]
    folder = runs / name
    argv = [f"{key}={json.dumps(value)}" for key, value in ({"rows": 12} | given).items()]
    if not (folder / "here.json").exists():
        run(before, folder, "here.py", "-", *argv)
    losses = json.loads((folder / "here.json").read_text())
    target = export(folder / "out" / "checkpoint-20", to, tmp_path / "exported").path
    more = [text for text in argv if to == "transformers" and text.startswith(("rows", "model"))]
    run(processes, tmp_path, "back.py", target, to, *more)
    found = json.loads((tmp_path / "back.json").read_text())
    assert len(losses) == 40 and len(found) == (40 if to == "transformers" else 20)  # its log is kept
    worst = max(abs(a - b) for a, b in zip(found[-20:], losses[20:], strict=True))
    assert worst <= (SAME if processes == before else OTHER), worst
    assert max(losses[20:]) - min(losses[20:]) > (0.1 if name != "lora" else 0.001)
