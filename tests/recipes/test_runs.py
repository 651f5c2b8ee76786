"""Recipes with a search, on two processes, interrupted, and through TRL."""

import contextlib
import json
import os
import runpy
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file

from oneloop.cli.main import main
from oneloop.recipes import read_rows, searching, split_rows, training
from tests.recipes import kitchen

FAST = "--report_to none --device cpu --disable_tqdm true --eval_split 0.2 --seed 3".split()
ANSWERS = "--task sft --model llama --data answers.jsonl --learning_rate 1e-2".split()


def train(folder, *words):
    assert main(["train", *words, *FAST, "--output_dir", str(folder)]) == 0
    return load_file(folder / "model.safetensors")


def same(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def test_a_search_and_its_script_find_the_same(at, tmp_path, capsys):
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = {"learning_rate": [1e-9, 1e-2], "weight_decay": {"low": 0.01, "high": 0.1, "log": True}}
    words = [*ANSWERS[:-2], "--search", json.dumps(space), "--trials", "3", "--max_steps", "3", "--eval_steps", "3"]
    with fixed_sampler(optuna):
        found = train(tmp_path / "recipe", *words)
    said = capsys.readouterr().out
    assert "search: the best of 3 trials has eval_loss" in said and "'learning_rate': 0.01" in said
    assert main(["train", *words, *FAST, "--output_dir", str(tmp_path / "script"), "--script"]) == 0
    (tmp_path / "script.py").write_text(capsys.readouterr().out)
    with fixed_sampler(optuna):
        runpy.run_path(str(tmp_path / "script.py"), run_name="__main__")
    assert same(load_file(tmp_path / "script" / "model.safetensors"), found)


@contextlib.contextmanager
def fixed_sampler(optuna):
    """Optuna draws from the clock by default."""
    with pytest.MonkeyPatch.context() as patch:
        create = optuna.create_study
        sampler = optuna.samplers.RandomSampler(seed=2)
        patch.setattr(optuna, "create_study", lambda **options: create(**{**options, "sampler": sampler}))
        yield


def test_an_interrupted_run_goes_on(at, tmp_path):
    words = [*ANSWERS, "--save_steps", "2", "--save_total_limit", "9"]
    whole = train(tmp_path / "whole", *words, "--max_steps", "6")
    folder = tmp_path / "parts"
    train(folder, *words, "--max_steps", "6")
    for path in (folder / "checkpoint-6").iterdir():
        path.unlink()
    (folder / "checkpoint-6").rmdir()
    (folder / "model.safetensors").unlink()
    assert same(train(folder, *words, "--max_steps", "6", "--resume_from_checkpoint", "true"), whole)


def test_a_run_without_evaluation(at, tmp_path, capsys):
    (tmp_path / "README.md").write_text("written by hand\n")
    words = [*ANSWERS, *FAST, "--eval_split", "0", "--max_steps", "2", "--max_new_tokens", "2"]
    assert main(["train", *words, "--output_dir", str(tmp_path)]) == 0
    assert "0 to evaluate" in capsys.readouterr().out
    assert not (tmp_path / "eval_results.json").exists()
    assert len(kitchen.read_jsonl(tmp_path / "samples.jsonl")) == 3
    assert (tmp_path / "README.md").read_text() == "written by hand\n"
    assert json.loads((tmp_path / "recipe.json").read_text())["max_new_tokens"] == 2


def test_samples_are_of_the_rows_to_evaluate_and_a_large_loss_has_a_perplexity(at, tmp_path, monkeypatch):
    monkeypatch.setattr(training.Trainer, "evaluate", lambda trainer: {"eval_loss": 800.0})
    given = ["--eval_strategy", "no", "--max_steps", "1", "--samples", "2", "--output_dir", str(tmp_path)]
    assert main(["train", *ANSWERS, *FAST, *given]) == 0
    rows = read_rows("answers.jsonl", {"prompt": "prompt", "completion": "completion"})
    written = [{**row, "prediction": ""} for row in split_rows(rows, 0.2)[1][:2]]
    assert [{**row, "prediction": ""} for row in kitchen.read_jsonl(tmp_path / "samples.jsonl")] == written
    assert 1e300 < json.loads((tmp_path / "eval_results.json").read_text())["eval_perplexity"] < float("inf")


def test_values_that_a_search_suggests():
    asked = []

    class Trial:
        def __getattr__(self, name):
            return lambda *given, **options: asked.append((name.removeprefix("suggest_"), *given, options)) or given[0]

    space = {"a": [1, 2], "b": {"low": 1e-5, "high": 1e-3, "log": True}, "c": {"low": 1, "high": 9}}
    assert searching.suggest(Trial(), space) == {"a": "a", "b": "b", "c": "c"}
    assert asked == [
        ("categorical", "a", [1, 2], {}),
        ("float", "b", 1e-5, 1e-3, {"log": True}),
        ("int", "c", 1, 9, {"log": False}),
    ]


@pytest.mark.parametrize(
    ("given", "sharded"),
    [
        ({}, False),
        ({"is_fsdp_enabled": True}, False),
        ({"is_fsdp_enabled": True, "world_size": 2}, True),
        ({"is_deepspeed_enabled": True, "world_size": 2}, True),
        ({"tensor_parallel_size": 2, "world_size": 2}, True),
        ({"world_size": 2}, False),
    ],
)
def test_the_main_process_writes_no_texts_with_a_part_of_the_weights(given, sharded):
    args = SimpleNamespace(**{"world_size": 1} | {k: v for k, v in given.items() if k.endswith("size")})
    enabled = {name: given.get(name, False) for name in ("is_fsdp_enabled", "is_deepspeed_enabled")}
    assert training._is_sharded(SimpleNamespace(args=args, **enabled)) == sharded


def run(words, folder, **more):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **more}
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_two_processes_train_as_one(at, tmp_path):
    words = [*ANSWERS, "--max_steps", "4", "--samples", "1"]
    one = train(tmp_path / "one", *words, "--per_device_train_batch_size", "8")
    launcher = ["torch.distributed.run", "--nproc_per_node", "2", "--master_port", "0", "--rdzv_backend", "c10d"]
    launcher += ["--rdzv_endpoint", "localhost:0", "-m", "oneloop"]
    folder = tmp_path / "two"
    more = ["--per_device_train_batch_size", "4", "--output_dir", str(folder)]
    said = run([*launcher, "train", *words, *FAST, *more], at)
    assert said.count("The first, as the model sees it") == 1 and said.count("samples:") == 1
    two = load_file(folder / "model.safetensors")
    assert all(np.allclose(one[name], two[name], atol=1e-5) for name in one)
    assert {"recipe.json", "README.md", "report.html", "eval_results.json"} <= {path.name for path in folder.iterdir()}


needs_trl = pytest.mark.skipif(find_spec("trl") is None, reason="needs TRL")
PREFERENCES = "--task dpo --model llama --data preferences.jsonl --max_steps 3 --learning_rate 1e-3".split()


@pytest.mark.slow
@needs_trl
def test_preferences_are_learned_by_trl(at, tmp_path):
    words = [*PREFERENCES, *FAST, "--trl", '{"beta": 0.3}', "--output_dir", str(tmp_path / "dpo")]
    said = run(["oneloop", "train", *words], at)
    assert "The first, as the model sees it" in said and "samples:" in said
    names = {path.name for path in (tmp_path / "dpo").iterdir()}
    assert {"model.safetensors", "recipe.json", "README.md", "report.html", "samples.jsonl", "run.jsonl"} <= names
    metrics = json.loads((tmp_path / "dpo" / "eval_results.json").read_text())
    assert {"eval_loss", "eval_rewards/margins"} <= set(metrics)
    assert main(["predict", str(tmp_path / "dpo"), "--data", "answers.jsonl", "--device", "cpu"]) == 0


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--lora"]], ids=["all weights", "LoRA"])
def test_the_script_for_trl_gives_the_same_weights(more, at, tmp_path, capsys):
    run(["oneloop", "train", *PREFERENCES, *FAST, *more, "--output_dir", str(tmp_path / "recipe")], at)
    words = ["train", *PREFERENCES, *FAST, *more, "--output_dir", str(tmp_path / "script"), "--script"]
    assert main(words) == 0
    (tmp_path / "script.py").write_text(capsys.readouterr().out)
    run(["oneloop", "run", str(tmp_path / "script.py")], at)
    name = "adapter_model.safetensors" if more else "model.safetensors"
    assert (tmp_path / "script" / name).read_bytes() == (tmp_path / "recipe" / name).read_bytes()


@needs_trl
def test_the_script_for_trl(at, capsys):
    given = ["--trl", '{"beta": 0.3}', "--lora", "--bad_rows", "skip", "--eval_data", "preferences.jsonl"]
    assert main(["train", *PREFERENCES, *given, "--script"]) == 0
    text = capsys.readouterr().out
    compile(text, "script.py", "exec")
    assert 'held_out = read_rows(["preferences.jsonl"], COLUMNS, bad_rows="skip")' in text and "0.0)" in text
    assert text.count('bad_rows="skip"') == 2
    assert "beta=0.3" in text and "DPOTrainer(" in text and "peft_config=LoraConfig(" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--search", '{"learning_rate": [1]}'], "a trainer of TRL, which cannot search"),
        (
            ["--data", "a=preferences.jsonl", "b=preferences.jsonl"],
            "TRL's trainers take one dataset. Pass the files as a list.",
        ),
        (["--packing", "true"], "packing is for language models"),
        (["--task", "sft", "--trl", '{"beta": 1}'], "sft does not use TRL"),
    ],
)
def test_what_trl_does_not_do(words, message, at, capsys):
    pytest.importorskip("trl")
    assert main(["train", *PREFERENCES, *words, "--script"]) == 2
    assert message in capsys.readouterr().err
