"""TRL's trainers with models or sequences that are divided (layouts_trl_job.py): packing, label smoothing, LoRA,
preferences and rewards."""

import json
from pathlib import Path

import pytest

from tests.distributed.launch import run_launched
from tests.ecosystem.needs import needs

needs("torch", "transformers", "accelerate", "peft", "trl", "datasets")

SCRIPT = Path(__file__).with_name("layouts_trl_job.py")
STEPS = 4


@pytest.fixture(scope="module")
def play(tmp_path_factory):
    """What each process wrote, for a number of processes and a layout."""
    known = {}

    def played(processes, layout):
        if (processes, layout) not in known:
            folder = tmp_path_factory.mktemp("trl")
            run_launched(processes, folder, layout, script=SCRIPT)
            known[processes, layout] = [
                json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(processes)
            ]
        return known[processes, layout]

    return played


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "layout", "batches", "held"), [(2, "sp2", 1, 1.0), (2, "tp2", 1, 0.52), (4, "tp2 x shard2", 2, 0.28)]
)
def test_trainers_of_trl_are_those_of_whole_models(play, processes, layout, batches, held):
    """TRL sees none of it: it would refuse packing, label smoothing and GRPO with divided sequences."""
    expected = play(batches, "whole")[0]
    assert len(expected) == 10
    for each in play(processes, layout):
        assert each.keys() == expected.keys()
        for name, whole in expected.items():
            assert len(whole["loss"]) == STEPS and each[name].keys() == whole.keys()
            for key in whole.keys() - {"messages", "held"}:
                assert each[name][key] == pytest.approx(whole[key], rel=0, abs=1e-5), (name, key)
            assert whole["held"] == 1.0 and each[name]["held"] <= held, name
            # Two layers, two all-to-alls each, forward and backward; the check before the first step has four.
            assert (each[name]["messages"] >= 4 + 8 * STEPS) == ("sp" in layout) and whole["messages"] == 0, name
