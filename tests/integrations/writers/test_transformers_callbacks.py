"""Callbacks that others ship for their own trainers work as they are; one whose package is missing is not there."""

import copy
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from oneloop import Trainer, TrainerCallback, TrainingArguments
from oneloop.arguments.packages import installed
from oneloop.compat import service_callbacks
from tests.backends.support import rows
from tests.integrations.writers.services import SERVICES

ROOT = Path(__file__).parents[3]
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
        from tests.backends.kits.torch_kit import Kit

        args = TrainingArguments(str(tmp_path), report_to="none")
        with pytest.raises((RuntimeError, ImportError), match=f"(?i){service}"):
            Trainer(Kit().classifier(), args, callbacks=[getattr(integrations, name)])
        return
    for folder in ("home", "cwd", "wandb"):
        (tmp_path / folder).mkdir()
    own = {key: value.replace("FOLDER", str(tmp_path)) for key, value in SERVICES[service].environment.items()}
    own |= {"WANDB_LOG_MODEL": "end", "HF_DVCLIVE_LOG_MODEL": "true"}  # which makes them save the model at the end
    paths = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-m", "tests.integrations.writers.transformers_callbacks_job", name, str(tmp_path / "out")],
        cwd=tmp_path / "cwd",
        env=os.environ | {"HOME": str(tmp_path / "home"), "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"} | own,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert (tmp_path / "out" / "last" / "model.safetensors").exists() == (service == "dvclive")
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


def keeps_the_model(place, trainer_module, **attributes):
    """A callback as transformers and PaddleNLP write them: at the end it saves the model by a Trainer that it makes."""

    def on_train_end(self, args, state, control, model=None, processing_class=None, **kwargs):
        if state.is_world_process_zero:
            trainer = import_module(trainer_module).Trainer
            made = trainer(args=copy.deepcopy(args), model=model, processing_class=processing_class, eval_dataset=["?"])
            made.save_model(os.path.join(args.output_dir, "kept"))

    return type("Keeps", (TrainerCallback,), {"__module__": place, "on_train_end": on_train_end} | attributes)()


@pytest.mark.parametrize(
    ("place", "trainer_module"),
    [
        ("transformers.integrations.integration_utils", "transformers.trainer"),
        ("paddlenlp.trainer.integrations", "paddlenlp.trainer"),
    ],
)
def test_a_callback_that_saves_the_model_saves_that_of_the_run(place, trainer_module, backend, trained, tmp_path):
    callback = keeps_the_model(place, trainer_module, _log_model="end")
    before = sys.modules.get(trainer_module)
    trainer = trained(
        backend.classifier(), rows(16), output_dir=tmp_path, callbacks=[callback], max_steps=3, optim="sgd"
    )
    assert sys.modules.get(trainer_module) is before
    trainer.save_model(tmp_path / "own")
    names = sorted(path.name for path in (tmp_path / "own").iterdir())
    assert "model.safetensors" in names and names == sorted(path.name for path in (tmp_path / "kept").iterdir())
    for name in names:
        assert (tmp_path / "own" / name).read_bytes() == (tmp_path / "kept" / name).read_bytes()


@pytest.mark.parametrize("kept", [None, False, "", "false", "off"])
def test_a_callback_that_keeps_no_model_finds_its_own_trainer(kept, arguments):
    class Word(str):
        is_enabled = False  # as the enum of transformers

    class Looks(TrainerCallback):
        __module__ = "transformers.integrations.integration_utils"
        _log_model = Word(kept) if kept == "off" else kept

    class Derived(Looks):
        __module__ = "script"
        _log_model = "checkpoint"

    assert service_callbacks.modules_asked_for_trainer([Looks()]) == []
    assert service_callbacks.modules_asked_for_trainer([Looks(), Derived()]) == ["transformers.trainer"]
    assert service_callbacks.modules_asked_for_trainer([TrainerCallback()]) == []
