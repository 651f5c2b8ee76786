"""Every service for real, in its local or offline mode: one run, killed and gone on with, read back.

A package that is not installed is refused in words instead. `scripts/writers` has an environment with all of them.
"""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oneloop import TrainingArguments
from oneloop.arguments.packages import WRITERS, installed
from oneloop.errors import MissingPackageError
from tests.integrations.writers.services import SERVICES

ROOT = Path(__file__).parents[3]


def run(service, folder, *options, **environment):
    """One run in a process of its own; its exit status."""
    for name in ("home", "cwd", "wandb"):
        (folder / name).mkdir(exist_ok=True)
    given = SERVICES[service].environment if service in SERVICES else {}
    own = {name: value.replace("FOLDER", str(folder)) for name, value in given.items()}
    usual = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    paths = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-m", "tests.integrations.writers.job", service, str(folder / "out"), *options],
        cwd=folder / "cwd",
        env=usual | {"HOME": str(folder / "home"), "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"} | own | environment,
        input="hf_verysecret",
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode in (0, -9), done.stderr[-4000:]
    return done


def refused(service):
    """A service whose package is missing says so, and which to install."""
    if installed(WRITERS[service].module):
        return False
    with pytest.raises(MissingPackageError, match=f"pip install {WRITERS[service].package}"):
        TrainingArguments("out", report_to=service).check_backend("torch", "cpu")
    return True


@pytest.mark.parametrize("service", SERVICES)
def test_a_killed_run_resumes_as_the_same_run(service, tmp_path):
    """Steps 1 to 5, SIGKILL after the checkpoint of step 3, and on to 8: every value once, in one run."""
    if refused(service):
        return
    assert run(service, tmp_path, "--die-at", "5").returncode == -9
    run(service, tmp_path, "--resume")
    check(service, tmp_path)


def check(service, folder):
    found = SERVICES[service].read(folder)
    history = json.loads((folder / "out" / "state.json").read_text())
    assert len(found.runs) == 1
    bare = SERVICES[service].bare
    for name, key in (("train/loss", "loss"), ("eval/loss", "eval_loss"), ("train/learning_rate", "learning_rate")):
        logged = [(entry["step"], entry[key]) for entry in history if key in entry]
        assert found.curves[key if bare else name] == [(step, pytest.approx(value)) for step, value in logged]
    assert [step for step, _ in found.curves["epoch" if bare else "train/epoch"]] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(found.curves["test_loss" if bare else "test/loss"]) == 1
    assert "max_steps" in found.text and "verysecret" not in found.text
    everything = b"".join(
        path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.stat().st_size < 2**24
    )
    assert b"hf_verysecret" not in everything


@pytest.mark.slow
@pytest.mark.parametrize("service", SERVICES)
def test_a_failed_run_resumes_as_the_same_run(service, tmp_path):
    """Here the service has had time to write what lies after the checkpoint."""
    if refused(service):
        return
    run(service, tmp_path, "--die-at", "5", "--softly")
    run(service, tmp_path, "--resume")
    check(service, tmp_path)


def test_codecarbon(tmp_path):
    """A row for each start, all with the id of the run."""
    if refused("codecarbon"):
        return
    run("codecarbon", tmp_path, "--steps", "3")
    run("codecarbon", tmp_path, "--steps", "4", "--resume")
    with open(tmp_path / "out" / "emissions.csv", newline="") as f:
        rows = list(csv.DictReader(f))
    assert len(rows) == 2 and len({row["experiment_id"] for row in rows}) == 1
    assert all(float(row["duration"]) > 0 and row["project_name"] == "the-run" for row in rows)


def test_mlflow_artifacts(tmp_path):
    if refused("mlflow"):
        return
    run("mlflow", tmp_path, "--steps", "3", HF_MLFLOW_LOG_ARTIFACTS="TRUE")
    stored = {path.parent.name for path in (tmp_path / "cwd").rglob("model.safetensors")}
    assert stored == {"checkpoint-3", "model"}


def test_wandb_artifacts(tmp_path):
    if refused("wandb"):
        return
    run("wandb", tmp_path, "--steps", "3", WANDB_LOG_MODEL="checkpoint")
    text = SERVICES["wandb"].read(tmp_path).text
    assert "checkpoint_global_step_3" in text and "final_model" in text


@pytest.mark.parametrize("service", ["azure_ml", *SERVICES, "codecarbon"])
def test_a_missing_package_is_named(service, monkeypatch):
    from oneloop.arguments import packages

    monkeypatch.setattr(packages, "installed", lambda name: False)
    with pytest.raises(MissingPackageError, match=f"pip install {WRITERS[service].package}"):
        TrainingArguments("out", report_to=service).check_backend("torch", "cpu")
