"""Two resumes of a run of two processes, the first of which has a pending evaluation, end as the run without any."""

import json
from pathlib import Path

import pytest

from oneloop.distributed.preemption import EXIT_STATUS
from tests.distributed.launch import outcome, run

SCRIPT = Path(__file__).with_name("interrupted_job.py")
IN_SECOND_EPOCH = json.dumps(["on_step_end", 5, "signal"])
AGAIN = json.dumps(["on_step_begin", 1, "abort"])


def ended(folder):
    found = json.loads((folder / "result.json").read_text())
    return {name: value for name, value in found.items() if name != "run_id"}


@pytest.mark.parametrize(
    "kind",
    [
        "torch generator",
        pytest.param("torch DataLoader", marks=pytest.mark.slow),
        pytest.param("sampler of data with state", marks=pytest.mark.slow),
        pytest.param("stream with state", marks=pytest.mark.slow),
    ],
)
def test_second_resume_after_a_pending_evaluation(kind, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(2, whole, kind, "null", "start", script=SCRIPT)
    statuses, said = outcome(2, broken, kind, IN_SECOND_EPOCH, "start", script=SCRIPT)
    assert EXIT_STATUS in statuses, said  # whoever is not quick enough to leave after the other is killed
    run(2, broken, kind, AGAIN, "resume", script=SCRIPT)
    assert not (broken / "result.json").exists()
    run(2, broken, kind, "null", "resume", script=SCRIPT)
    assert ended(broken) == ended(whole)
