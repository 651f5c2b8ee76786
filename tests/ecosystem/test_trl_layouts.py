"""TRL's trainers with divided sequences (sequence_trl_job.py): packing, label smoothing, LoRA and preferences."""

import json
from pathlib import Path

import pytest

from tests.distributed.launch import run_launched
from tests.ecosystem.needs import needs

needs("torch", "transformers", "accelerate", "peft", "trl", "datasets")

SCRIPT = Path(__file__).with_name("sequence_trl_job.py")


def play(folder, processes, size):
    folder.mkdir()
    run_launched(processes, folder, size, script=SCRIPT)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(processes)]


@pytest.mark.slow
def test_trainers_of_trl_are_those_of_one_process(tmp_path):
    """TRL sees none of it: it would refuse packing, and label smoothing."""
    (one,), two = play(tmp_path / "one", 1, 1), play(tmp_path / "two", 2, 2)
    assert len(one) == 7
    for each in two:
        for name, expected in one.items():
            steps = len(expected["loss"])
            assert steps == 4 and each[name].keys() == expected.keys()
            for key in expected.keys() - {"messages"}:
                assert each[name][key] == pytest.approx(expected[key], rel=0, abs=1e-5), (name, key)
            # Two layers, two all-to-alls each, forward and backward; the check before the first step has four.
            assert each[name]["messages"] >= 4 + 8 * steps and expected["messages"] == 0, name
