"""SetFit on oneloop, beside the same scripts on transformers' own Trainer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ecosystem.needs import needs
from tests.ecosystem.test_sentence_transformers import assert_same_run, play

needs("setfit", "optuna")

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_run_is_that_of_transformers(tmp_path):
    theirs, ours = (play(trainer, tmp_path / trainer, "setfit")["setfit"] for trainer in ("transformers", "oneloop"))
    assert_same_run("setfit", theirs, ours)
    assert ours["predictions"] == theirs["predictions"] and len(set(ours["predictions"])) == 2
    # SetFit hands its own arguments and its own model to callbacks.
    assert ours["heard"] == theirs["heard"] == [["setfit.training_args", "SetFitModel", 4]] * ours["steps"]
    assert any("embedding_loss" in log for log in ours["history"])


@pytest.mark.slow
def test_a_search_trains_the_model_of_each_trial(tmp_path):
    """The best trial, trained again, is the run with its hyperparameters on transformers."""
    found = play("oneloop", tmp_path / "oneloop", "setfit_search")["setfit_search"]
    search = found["search"]
    assert search["parameters"].keys() == {"body_learning_rate", "max_steps"}
    assert found["steps"] == search["parameters"]["max_steps"]
    words = json.dumps(search["parameters"])
    alone = play("transformers", tmp_path / "alone", "setfit_parameters", PARAMETERS=words)["setfit_parameters"]
    for name, sums in alone["weights"].items():
        assert found["weights"][name] == pytest.approx(sums, rel=1e-5, abs=1e-5), name
    assert found["predictions"] == alone["predictions"]


SCRIPT = """
import sys
from datasets import Dataset
from setfit import SetFitModel, Trainer, TrainingArguments

words = ["red apple today", "green pear here", "red stone there", "old dog sees", "red fish eats", "new cat likes"]
data = Dataset.from_dict({"text": words, "label": [int("red" in text) for text in words]})
args = TrainingArguments("out", batch_size=4, num_epochs=1, max_steps=3, logging_steps=1, save_strategy="steps",
                         save_steps=2, report_to="none")
def accuracy(predicted, labels):
    return {"accuracy": sum(int(a) == int(b) for a, b in zip(predicted, labels)) / len(labels)}

trainer = Trainer(model=SetFitModel.from_pretrained("body", device="cpu"), args=args, train_dataset=data,
                  eval_dataset=data, metric=accuracy)
trainer.train()
print("bases:", *(base.__module__ for base in type(trainer.st_trainer).__mro__))
print("accuracy:", trainer.evaluate()["accuracy"])
trainer.model.save_pretrained("final")
"""


@pytest.mark.slow
def test_a_script_under_oneloop_run(tmp_path):
    play("oneloop", tmp_path, "setfit_body")
    folder = tmp_path / "setfit_body"
    (folder / "train.py").write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "oneloop", "run", "train.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "cannot be stored" not in done.stderr
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines() if line.startswith(("bases", "accuracy")))
    assert "oneloop.public" in said["bases"].split() and 0 <= float(said["accuracy"]) <= 1
    logs = [json.loads(line) for line in (folder / "out" / "log.jsonl").read_text().splitlines()]
    assert sum("embedding_loss" in log for log in logs) == 3
    assert (folder / "out/checkpoint-3/manifest.json").exists() and (folder / "final/model_head.pkl").exists()
