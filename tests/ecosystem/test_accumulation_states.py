"""The state of accumulation that scripts read, on oneloop beside transformers' Trainer, at every moment of a run."""

import json

import pytest

from tests.ecosystem import two_sides
from tests.ecosystem.accumulation_states import GRID, LOADER, OFFLINE
from tests.ecosystem.needs import needs

needs("torch", "transformers", "accelerate")


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("states")
    for side in ("transformers", "oneloop"):
        two_sides.run(OFFLINE, "-m", "tests.ecosystem.accumulation_states", side, str(folder))
    return folder


def read(records, side, name):
    return json.loads(two_sides.result(records, side, f"{name}.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in GRID if name not in ("called", "failing", "streamed")])
def test_as_on_transformers(name, records):
    theirs, ours = ([moment[:LOADER] for moment in read(records, side, name)] for side in ("transformers", "oneloop"))
    assert len(ours) > 20 and ours == theirs
    assert len({tuple(moment[3:5]) for moment in ours}) == (1 if GRID[name]["gradient_accumulation_steps"] == 1 else 2)


@pytest.mark.slow
def test_what_is_different(records):
    """After an error accelerate's state stays in the middle of an update; an epoch without a length ends there with an
    update of nothing; and accelerate's loader tells accumulate() that it ends, which sets its count to 0."""
    for name in ("called", "failing", "streamed"):
        theirs, ours = (read(records, side, name) for side in ("transformers", "oneloop"))
        assert [moment[0] for moment in ours] == [moment[0] for moment in theirs]
        pairs = [(a[:LOADER], b[:LOADER]) for a, b in zip(theirs, ours, strict=True) if a[:LOADER] != b[:LOADER]]
        columns = {i for a, b in pairs for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y}
        assert columns == {"called": {10}, "failing": {3, 4}, "streamed": {12}}[name]
        if name == "called":
            assert all(a[1] >= 2 and (a[10], b[10]) == (0, 7) for a, b in pairs)
        elif name == "failing":
            assert all(b[3] and not a[3] for a, b in pairs) and len(pairs) == 10
        else:
            assert [(a[0], a[12], b[12]) for a, b in pairs] == [("epoch_end", 0, 3), ("epoch_begin", 0, 3)]
