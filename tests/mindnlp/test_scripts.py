"""Scripts as MindNLP's guides teach them, unmodified under `oneloop run`, each in a process of its own."""

import json
import subprocess
import sys

import pytest

from tests.compat import local, plans
from tests.compat.support import environment


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripts")
    local.data(folder)
    local.tokenizer(folder / "bert")
    local.tokenizer(folder / "t5", end="only")
    return folder


@pytest.fixture
def ran(place):
    """ran(name): the directory of a script's output, and what it printed; it came to its end on oneloop."""

    def run(name):
        words = [sys.executable, "-m", "oneloop", "run", "--as", "mindnlp", *plans.command(name)]
        surroundings = environment() | {"HF_DATASETS_CACHE": str(place / "cache")}
        done = subprocess.run(words, cwd=place, env=surroundings, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-4000:]
        assert "created no Trainer" not in done.stderr
        return place / "out" / name, done.stdout

    return run


def read(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


def test_text_classification(ran):
    folder, said = ran("mindnlp")
    assert "trained by oneloop.public with oneloop.trainer.trainer" in said
    assert read(folder / "checkpoint-12", "trainer_state")["global_step"] == 12


def test_language_modelling(ran):
    folder, _ = ran("mindnlp_language")
    metrics = read(folder, "eval_results")
    assert metrics["eval_loss"] < metrics["before"] - 0.5
    state = read(folder, "trainer_state")
    assert state["global_step"] == 9 and state["best_metric"] == pytest.approx(metrics["eval_loss"], rel=1e-6)
    assert len(list(folder.glob("checkpoint-*"))) == 2 and (folder / "model.safetensors").exists()


def test_token_classification(ran):
    folder, said = ran("mindnlp_tokens")
    assert read(folder, "predict_results")["predict_accuracy"] == 1.0
    assert "first ['PER', 'O', 'O', 'LOC', 'O']" in said
    assert (folder / "tokenizer.json").exists() and "nonfinite" in read(folder, "training_args")


def test_translation_with_generation(ran):
    folder, _ = ran("mindnlp_translation")
    losses = [e["loss"] for e in read(folder / "checkpoint-12", "trainer_state")["log_history"] if "loss" in e]
    assert len(losses) == 12 and losses[-1] < losses[0] - 0.5
    assert {"eval_exact", "eval_gen_len"} <= read(folder, "eval_results").keys()
    assert read(folder, "predict_results")["test_gen_len"] <= 8


def test_a_script_of_0_4_with_pipelines_a_map_function_and_an_adapter(ran):
    folder, _ = ran("mindnlp_pipelines")
    metrics = read(folder, "eval_results")
    assert metrics["steps"] == 16 and metrics["logs"] == 2  # 48 samples, twice, 6 at a time as the data have them
    best = [e["eval_loss"] for e in read(folder / "checkpoint-16", "trainer_state")["log_history"] if "eval_loss" in e]
    assert metrics["eval_loss"] == pytest.approx(min(best), rel=1e-5)
    assert (folder / "adapter" / "adapter_model.safetensors").exists()
    assert not (folder / "adapter" / "model.safetensors").exists()
