"""Differences from transformers that the docs list, as they are with the versions that are installed."""

import json

import pytest

from tests.ecosystem import two_sides
from tests.ecosystem.needs import needs

needs("torch", "transformers", "accelerate")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("side", "calls", "share", "hides_bar", "widths", "weight"),
    [("transformers", 0, 3 / 4, False, [20, 20], 1 / 2), ("oneloop", 1, 1, True, [4, 3], 2 / 6)],
)
def test_what_the_page_says(side, calls, share, hides_bar, widths, weight, tmp_path):
    said = two_sides.run(
        {"HF_HUB_OFFLINE": "1"}, "-m", "tests.ecosystem.documented_differences", side, str(tmp_path / "out")
    )
    (line,) = (line for line in said.splitlines() if line.startswith("found:"))
    found = json.loads(line.removeprefix("found:"))
    assert (found["calls"], found["disable_tqdm"], found["widths"]) == (calls, hides_bar, widths)
    assert found["share of the mean"] == pytest.approx(share, rel=1e-4)
    assert found["weight of the last batch"] == pytest.approx(weight, rel=1e-3)
