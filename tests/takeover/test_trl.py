"""Runs of TRL's trainers that transformers began and oneloop ends: 20 steps there and 20 here beside 40 there, and the
way back."""

import json

import pytest

from oneloop.compat.checkpoint_export import export
from tests.takeover.test_deepspeed import SAME, run

pytestmark = pytest.mark.slow
pytest.importorskip("trl")


@pytest.mark.parametrize("kind", ["SFT", "DPO"])
def test_a_run_of_trl_ends_as_it_would_have(tmp_path, kind):
    there, here, back = tmp_path / "there", tmp_path / "here", tmp_path / "back"
    run(1, there, "trl_run.py", kind, "-")
    losses = json.loads((there / "losses.json").read_text())
    run(1, here, "trl_run.py", kind, there / "out" / "checkpoint-20", "here")
    found = json.loads((here / "losses.json").read_text())
    assert len(found) == len(losses) == 40
    assert max(abs(a - b) for a, b in zip(found, losses)) <= SAME
    assert max(losses[20:]) - min(losses[20:]) > 0.01
    # And back: what oneloop saved at the end there has the steps of both; its middle is the checkpoint of a new run.
    run(1, here, "trl_run.py", kind, "-", "here")
    done = export(here / "out" / "checkpoint-20", "transformers", tmp_path / "exported")
    run(1, back, "trl_run.py", kind, done.path)
    found = json.loads((back / "losses.json").read_text())
    assert max(abs(a - b) for a, b in zip(found, losses)) <= SAME
