"""Checkpoints that cannot be those of the run, on two processes: both raise a CheckpointError, and none waits for the
other."""

from pathlib import Path

import pytest

from tests.backends.support import names
from tests.distributed import launch

JOB = Path(__file__).with_name("strict_job.py")


GRID = [("torch", "in_parts"), ("torch", "by_main", "divided"), ("paddle", "by_main"), ("mindspore", "by_main")]
SHOWN = [given if i == 0 else pytest.param(given, marks=pytest.mark.slow) for i, given in enumerate(GRID)]


@pytest.mark.parametrize("given", SHOWN, ids=" ".join)
def test_both_processes_refuse_it(given, tmp_path, monkeypatch):
    framework, *cases = given
    if framework not in names():
        pytest.skip(f"{framework} is not installed")
    monkeypatch.setattr(launch, "CASES", JOB)
    launch.run_cases(framework, 2, tmp_path, *cases)
    for found in launch.results(tmp_path, 2):
        for case in cases:
            outcomes = dict(found[case])
            assert outcomes.pop("nothing") == "resumed to 4"
            assert outcomes.pop("reads") == [1, 1, 1], "each process reads each file once"
            assert len(outcomes) == 6
            wrong = {what: result for what, result in outcomes.items() if not result.startswith("CheckpointError: ")}
            assert not wrong
            assert "is that of AdamW, but this run's optimizer is" in outcomes["another optimizer"]
