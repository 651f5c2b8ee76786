"""Runs by hand, with FSDP or accelerate, that oneloop ends: 20 steps there and 20 here beside 40 there."""

import json

import pytest

from tests.takeover.by_hand import LORA, WAYS
from tests.takeover.test_deepspeed import OTHER, SAME, run

pytestmark = pytest.mark.slow
HERE = [
    (1, {}),
    (2, {}),
    (3, {}),
    (2, {"sharding": "stage1"}),
    (2, {"sharding": "stage3"}),
    (3, {"sharding": "stage2"}),
]
HERE += [(2, {"tensor_parallel_size": 2})]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("by_hand")


CASES = [(way, *here) for way in WAYS for here in HERE]
CASES += [(way, *here) for way in LORA for here in ((1, {}), (2, {}), (2, {"sharding": "stage3"}), (3, {}))]


@pytest.mark.parametrize(("way", "processes", "more"), CASES, ids=lambda value: str(value).replace(" ", ""))
def test_a_run_ends_as_it_would_have_there(runs, tmp_path, way, processes, more):
    folder = runs / way
    if not (folder / "there.json").exists():
        run(2, folder, "by_hand.py", way)
    losses = json.loads((folder / "there.json").read_text())
    given = {"rows": 12} | more | ({"model": "lora"} if way in LORA else {})
    argv = [f"{name}={json.dumps(value)}" for name, value in given.items()]
    run(processes, tmp_path, "here.py", folder / "saved", *argv)
    found = json.loads((tmp_path / "here.json").read_text())
    assert len(found) == 20
    worst = max(abs(a - b) for a, b in zip(found, losses[20:], strict=True))
    assert worst <= (SAME if processes == 2 else OTHER), worst
    assert losses[20] - losses[39] > (0.3 if way not in LORA else 0.001)
