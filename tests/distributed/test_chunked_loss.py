"""The loss without whole logits on two processes: data-parallel, sharded, and with a head whose words are divided."""

import json
from pathlib import Path

import pytest

from tests.distributed.launch import run_launched

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.mark.slow
def test_runs_are_those_with_whole_logits(tmp_path):
    run_launched(2, tmp_path, script=Path(__file__).with_name("chunked_loss_job.py"))
    found = [json.loads((tmp_path / f"found-{rank}.json").read_text()) for rank in range(2)]
    assert len(found[0]) == 10
    assert {name: value for each in found for name, value in each.items() if value > 1e-6} == {}
