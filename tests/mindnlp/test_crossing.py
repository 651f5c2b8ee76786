"""A run that begins on PyTorch and goes on under mindnlp, and the other way round."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from oneloop.errors import CheckpointError
from tests.internals import backend_of

HERE = Path(__file__).parent
HALF, WHOLE = 10, 20
OPTIONS = {
    "max_steps": WHOLE,
    "per_device_train_batch_size": 8,
    "learning_rate": 1e-3,
    "weight_decay": 0.1,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 4,
    "logging_steps": 1,
    "save_strategy": "steps",
    "save_steps": HALF,
    "report_to": "none",
    "disable_tqdm": True,
    "seed": 3,
}


@pytest.fixture
def on_torch(bert, rows, tmp_path):
    """on_torch(folder, resume): the losses of a run in a process where torch is PyTorch."""

    def run(folder, resume=None):
        config = bert(dropout=0.0).config.to_diff_dict()
        plain = [{"input_ids": row["input_ids"].tolist(), "labels": row["labels"]} for row in rows]
        job = {"config": config, "rows": plain, "resume": resume and str(resume)}
        job["arguments"] = OPTIONS | {"output_dir": str(folder), "device": "cpu"}
        path = tmp_path / "job.json"
        path.write_text(json.dumps(job))
        known = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])}
        done = subprocess.run(
            [sys.executable, str(HERE / "on_torch.py"), str(path)], env=known, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found = json.loads(done.stdout.splitlines()[-1])
        assert found["framework"] == "torch"
        return np.array(found["losses"])

    return run


@pytest.fixture
def under_mindnlp(trained, bert):
    def run(folder, resume=None, seed=1):
        trainer = trained(bert(dropout=0.0, seed=seed), resume=resume, **OPTIONS, output_dir=str(folder))
        assert backend_of(trainer).NAME == "mindtorch"
        return np.array([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])

    return run


def is_one_curve(joined, whole):
    """The first half came with the checkpoint; the second is the other framework's own arithmetic."""
    assert len(joined) == len(whole) == WHOLE
    assert joined[:HALF].tobytes() == whole[:HALF].tobytes()
    assert joined[HALF:].tobytes() != whole[HALF:].tobytes()
    assert np.abs(joined - whole).max() < 1e-5
    assert np.ptp(whole[HALF:]) > 1e-3  # and there is something to follow


def test_a_run_of_torch_goes_on_under_mindnlp(on_torch, under_mindnlp, tmp_path):
    whole = on_torch(tmp_path / "torch")
    joined = under_mindnlp(tmp_path / "joined", resume=str(tmp_path / "torch" / f"checkpoint-{HALF}"))
    is_one_curve(joined, whole)


def test_a_run_under_mindnlp_goes_on_on_torch(on_torch, under_mindnlp, tmp_path):
    whole = under_mindnlp(tmp_path / "mindnlp")
    joined = on_torch(tmp_path / "joined", resume=tmp_path / "mindnlp" / f"checkpoint-{HALF}")
    is_one_curve(joined, whole)


def test_weights_that_do_not_fit_are_listed(under_mindnlp, trained, bert, tmp_path):
    under_mindnlp(tmp_path / "mindnlp")
    checkpoint = tmp_path / "mindnlp" / f"checkpoint-{HALF}"
    with pytest.raises(CheckpointError, match="bert.encoder.layer.1"):
        trained(bert(layers=2), resume=str(checkpoint), **OPTIONS)
