"""Callbacks that others ship for their own trainers work as they are; one whose package is missing is not there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oneloop import Trainer, TrainingArguments
from oneloop.arguments.packages import installed
from tests.backends_support import rows
from tests.writers.services import SERVICES

ROOT = Path(__file__).parents[2]
RUN = {"learning_rate": 0.1, "optim": "sgd", "per_device_train_batch_size": 4, "max_steps": 4, "logging_steps": 1}
RUN |= {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2, "save_async": False}

# The callback of transformers, the service that it writes to, and how that calls the curve of the losses.
OF_TRANSFORMERS = {
    "WandbCallback": ("wandb", "train/loss"),
    "MLflowCallback": ("mlflow", "loss"),
    "TrackioCallback": ("trackio", "train/loss"),
    "DVCLiveCallback": ("dvclive", "loss"),
}


@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_callbacks_of_transformers(name, tmp_path):
    """Where the service is not installed, what the callback says about it is not swallowed."""
    integrations = pytest.importorskip("transformers.integrations")
    service, curve = OF_TRANSFORMERS[name]
    if not installed(SERVICES[service].module):
        from tests.kits.torch_kit import Kit

        args = TrainingArguments(str(tmp_path), report_to="none")
        with pytest.raises((RuntimeError, ImportError), match=f"(?i){service}"):
            Trainer(Kit().classifier(), args, callbacks=[getattr(integrations, name)])
        return
    for folder in ("home", "cwd", "wandb"):
        (tmp_path / folder).mkdir()
    own = {key: value.replace("FOLDER", str(tmp_path)) for key, value in SERVICES[service].environment.items()}
    paths = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-m", "tests.writers.foreign_job", name, str(tmp_path / "out")],
        cwd=tmp_path / "cwd",
        env=os.environ | {"HOME": str(tmp_path / "home"), "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"} | own,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    history = json.loads((tmp_path / "out" / "state.json").read_text())
    values = [value for _, value in SERVICES[service].read(tmp_path).curves[curve]]
    assert values == [pytest.approx(entry["loss"]) for entry in history if "loss" in entry]


def test_optuna_prunes_a_run(backend, arguments):
    """A callback as Optuna's documents show it for transformers: report, and stop by an exception."""
    optuna = pytest.importorskip("optuna")
    from transformers import TrainerCallback

    class Prunes(TrainerCallback):
        def __init__(self, trial):
            self.trial = trial

        def on_evaluate(self, args, state, control, metrics=None, **kwargs):
            self.trial.report(metrics["eval_loss"], state.global_step)
            if self.trial.should_prune():
                raise optuna.TrialPruned

    def objective(trial):
        rate = trial.suggest_categorical("rate", [1e-9, 1.0])
        args = arguments(**RUN | {"save_strategy": "no", "learning_rate": rate})
        trainer = Trainer(backend.classifier(), args, None, rows(16), rows(8, 1), callbacks=[Prunes(trial)])
        return trainer.train().training_loss

    pruner = optuna.pruners.ThresholdPruner(upper=1e-6)
    study = optuna.create_study(pruner=pruner)
    study.optimize(objective, n_trials=2)
    assert [trial.state.name for trial in study.trials] == ["PRUNED", "PRUNED"]
    assert all(list(trial.intermediate_values) == [2] for trial in study.trials)
