"""Runs of Lightning's Trainer that oneloop ends: 20 steps there and 20 here beside 40 there."""

import json

import pytest

from oneloop.arguments.packages import installed
from tests.takeover.test_deepspeed import OTHER, SAME, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not installed("lightning"), reason="needs lightning: bash scripts/takeover"),
]
THERE = {"file": 1, "ddp": 2, "sharded": 2, "whole": 2}
HERE = [("file", 1, {}), ("file", 2, {"sharding": "stage3"}), ("ddp", 2, {}), ("ddp", 3, {"sharding": "stage2"})]
HERE += [("sharded", n, more) for n, more in ((1, {}), (2, {}), (2, {"sharding": "stage3"}), (3, {}))]
HERE += [("sharded", 2, {"tensor_parallel_size": 2}), ("whole", 2, {}), ("whole", 1, {})]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("lightning")


@pytest.mark.parametrize(("way", "processes", "more"), HERE, ids=lambda value: str(value).replace(" ", ""))
def test_a_run_ends_as_it_would_have_there(runs, tmp_path, way, processes, more):
    folder = runs / way
    if not (folder / "there.json").exists():
        run(THERE[way], folder, "lightning_there.py", way)
    losses = json.loads((folder / "there.json").read_text())
    (checkpoint,) = (folder / "saved").glob("*step=20.ckpt")
    assert checkpoint.is_dir() == (way == "sharded")
    given = {"rows": 12} | more
    run(processes, tmp_path, "here.py", checkpoint, *[f"{name}={json.dumps(value)}" for name, value in given.items()])
    found = json.loads((tmp_path / "here.json").read_text())
    assert len(found) == 20
    worst = max(abs(a - b) for a, b in zip(found, losses[20:], strict=True))
    assert worst <= (SAME if processes == THERE[way] else OTHER), worst
    assert losses[20] - losses[39] > 0.3
