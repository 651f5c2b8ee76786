"""sentence-transformers on oneloop, beside the same scripts on transformers' own Trainer."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ecosystem.needs import needs

needs("torch", "transformers", "accelerate", "datasets", "sentence_transformers")

QUICK = ("several_datasets", "sparse", "cross")
SLOW = (
    "best_model",
    "reranking",
    "lora",
    "no_duplicates",
    "too_short_a_length",
    "group_by_label",
    "round_robin",
    "several_labels",
    "multi_vector",
    "texts_alone",
    "dropout",
    "half",
)
TOLERANCE = 1e-5
# Files of a checkpoint: pickles there, safetensors and JSON here.
THEIRS = {"optimizer.pt", "scheduler.pt", "rng_state.pth", "rng_state_0.pth", "rng_state_1.pth"}
OURS = {
    "optimizer.safetensors",
    "random.safetensors",
    "run.json",
    "manifest.json",
    "run.jsonl",
    "log.jsonl",
    "curve.jsonl",
}


def play(trainer, folder, *names, launcher=(), status=0, **variables):
    """Run scenarios in a process of their own; what they wrote."""
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | variables
    command = [*(launcher or [sys.executable]), "-m", "tests.ecosystem.sentence_transformers_job", trainer, folder]
    done = subprocess.run([*map(str, command), *names], env=environment, cwd=root, capture_output=True, text=True)
    assert done.returncode == status, done.stderr[-3000:]
    return status or {name: json.loads((Path(folder) / name / "result.json").read_text()) for name in names}


def both(folder, names):
    return play("transformers", folder / "transformers", *names), play("oneloop", folder / "oneloop", *names)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return both(tmp_path_factory.mktemp("quick"), QUICK)


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    return both(tmp_path_factory.mktemp("slow"), SLOW)


def without_speed(values):
    return {key: value for key, value in values.items() if not key.endswith(("_runtime", "_per_second"))}


def assert_close(theirs, ours, where, without=()):
    """The same keys, and numbers that are equal within the tolerance."""
    assert theirs.keys() == ours.keys(), where
    for key in theirs.keys() - set(without):
        if isinstance(theirs[key], (int, float)):
            assert math.isclose(theirs[key], ours[key], rel_tol=TOLERANCE, abs_tol=TOLERANCE), (where, key)
        else:
            assert theirs[key] == ours[key], (where, key)


def assert_same_run(name, theirs, ours, without=()):
    assert ours["steps"] == theirs["steps"]
    assert [set(log) for log in ours["history"]] == [set(log) for log in theirs["history"]]
    for before, after in zip(theirs["history"], ours["history"]):
        assert_close(without_speed(before), without_speed(after), f"{name}, step {before['step']}", without)
    assert ours["metrics"].keys() == theirs["metrics"].keys()
    assert_close(without_speed(theirs["metrics"]), without_speed(ours["metrics"]), f"{name}, evaluate()")
    for parameter, sums in theirs["weights"].items():
        assert ours["weights"][parameter] == pytest.approx(sums, rel=TOLERANCE, abs=TOLERANCE), (name, parameter)
    assert ours["weights"].keys() == theirs["weights"].keys()
    assert (ours["best_step"], ours["best_metric"]) == (theirs["best_step"], pytest.approx(theirs["best_metric"]))
    for result, own in ((theirs, THEIRS), (ours, OURS)):
        result["common"] = [file for file in result["files"] if file.rpartition("/")[2] not in own]
    assert ours["common"] == theirs["common"]


@pytest.mark.parametrize("name", QUICK)
def test_the_run_is_that_of_transformers(quick, name):
    theirs, ours = (side[name] for side in quick)
    # The norm is of all that is trained; transformers leaves out the parameters of the loss, and does not clip them.
    assert_same_run(name, theirs, ours, without={"grad_norm"} if name == "several_datasets" else ())


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_more_runs_are_those_of_transformers(slow, name):
    assert_same_run(name, *(side[name] for side in slow))


@pytest.mark.slow
def test_the_older_fit(tmp_path):
    theirs, ours = (side["fitted"] for side in both(tmp_path, ["fitted"]))
    assert ours["checkpoints"] == theirs["checkpoints"] and len(ours["checkpoints"]) == 4
    assert len(ours["seen"]) == len(theirs["seen"]) > 0
    for before, after in zip(theirs["seen"], ours["seen"]):
        assert after == pytest.approx(before, rel=TOLERANCE, abs=TOLERANCE)
    assert_close(theirs["weights"], ours["weights"], "fit")


def test_what_the_runs_show(quick):
    """That the scenarios are about what they are meant for."""
    _, ours = quick
    several = ours["several_datasets"]
    assert {"loss entailed classifier.weight", "loss entailed classifier.bias"} <= several["weights"].keys()
    assert any("eval_sequential_score" in log for log in several["history"])
    assert {"eval_pairs_loss", "eval_scored_loss"} <= several["metrics"].keys()
    assert any(text.startswith("query: ") for batch in several["batches"] for text in batch)
    logs = [log for log in ours["sparse"]["history"] if "loss" in log]
    assert all({"base_loss", "document_regularizer_loss", "query_regularizer_loss"} <= log.keys() for log in logs)
    assert any("eval_base_loss" in log for log in ours["sparse"]["history"])
    assert ours["cross"]["best_step"] != "0" and "eval_loss" in ours["cross"]["metrics"]


@pytest.mark.slow
def test_the_best_model_is_loaded_at_the_end(slow):
    best = slow[1]["best_model"]
    assert 0 < int(best["best_step"]) < best["steps"], "the last model is not the best"
    assert best["metrics"]["eval_sts_spearman_cosine"] == pytest.approx(best["best_metric"])


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["batch_sampler", "no_duplicates"])
@pytest.mark.parametrize("step", [5, 8])
def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path, sampler, step):
    """In the first and in another epoch, with several data sets, accumulation, evaluations and the best model."""
    whole = play("oneloop", tmp_path / "whole", "interrupted", SAMPLER=sampler)["interrupted"]
    play("oneloop", tmp_path / "killed", "interrupted", SAMPLER=sampler, KILL_AT=str(step), status=9)
    assert not (tmp_path / "killed/interrupted/final").exists()
    resumed = play("oneloop", tmp_path / "killed", "interrupted", SAMPLER=sampler, RESUME="1")["interrupted"]
    assert [without_speed(log) for log in resumed["history"]] == [without_speed(log) for log in whole["history"]]
    assert resumed["weights"] == whole["weights"] and resumed["best_step"] == whole["best_step"]
    last = f"interrupted/out/checkpoint-{whole['steps']}/"
    for file in ("interrupted/final/model.safetensors", last + "model.safetensors", last + "optimizer.safetensors"):
        assert (tmp_path / "killed" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes(), file


ON_TWO = ("interrupted", "best_model", "sparse", "cross", "several_labels", "lora", "multi_vector")


@pytest.fixture(scope="module")
def on_two(tmp_path_factory):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    folder = tmp_path_factory.mktemp("two")
    return [
        play(trainer, folder / trainer, *ON_TWO, launcher=launcher, DROPOUT="0.0")
        for trainer in ("transformers", "oneloop")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_TWO)
def test_two_processes_train_as_on_transformers(on_two, name):
    """Of each kind of model; `interrupted` has several data sets, accumulation, evaluations and the best model."""
    assert_same_run(f"{name} on two processes", *(side[name] for side in on_two))
