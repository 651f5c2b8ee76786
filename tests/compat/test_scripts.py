"""Scripts as the guides of transformers, PaddleNLP and MindNLP teach them, unmodified under `oneloop run`."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.compat import local, plans
from tests.compat.support import PYTHON, environment
from tests.distributed.launch import free_port

HERE = Path(__file__).parent


def check_oneloop(folder):
    """The model there was saved by oneloop's Trainer, which writes its arguments as JSON, with one of its own."""
    assert "nonfinite" in json.loads((folder / "training_args.json").read_text())
    assert not (folder / "training_args.bin").exists()


@pytest.fixture(scope="module")
def outcomes(ran):
    """What came of the scripts for transformers, by name."""
    commands = [plans.command(name) for name in plans.TRANSFORMERS] + [[str(HERE / "facts.py")]]
    return dict(zip((*plans.TRANSFORMERS, "facts"), ran(*commands, models=True), strict=True))


@pytest.fixture
def results(outcomes, place):
    """results(name): the script came to its end on oneloop; its metrics."""

    def read(name):
        assert outcomes[name]["code"] == 0, outcomes[name]["stderr"][-4000:]
        folder = place / "out" / ("classification" if name == "resumed" else name)
        assert "created no Trainer" not in outcomes[name]["stderr"]
        check_oneloop(folder)
        return folder, json.loads((folder / "all_results.json").read_text())

    return read


def test_classification_with_a_full_command_line(results, outcomes):
    folder, metrics = results("classification")
    assert {"train_loss", "train_samples", "eval_accuracy", "eval_samples"} <= metrics.keys()
    assert metrics["train_samples"] == 40
    assert len((folder / "predict_results.txt").read_text().splitlines()) == 17
    assert "text-classification" in (folder / "README.md").read_text()
    assert (folder / "model.safetensors").exists() and (folder / "tokenizer.json").exists()
    assert "***** train metrics *****" in outcomes["classification"]["stdout"]
    assert "INFO - __main__ - *** Evaluate ***" in outcomes["classification"]["stdout"]


def test_the_second_run_resumes_from_the_last_checkpoint(results):
    folder, _ = results("resumed")
    state = json.loads((folder / "trainer_state.json").read_text())
    assert state["global_step"] == 15
    assert {2, 4, 6, 8, 10} <= {entry["step"] for entry in state["log_history"] if "loss" in entry}
    assert json.loads((folder / "script.json").read_text()) == {"trainer": "oneloop.public", "steps": 15}


def test_a_json_file_as_the_only_argument(results):
    folder, metrics = results("json")
    assert json.loads((folder / "script.json").read_text())["steps"] == 3
    assert metrics["eval_samples"] == 16


def test_causal_language_modelling(results):
    folder, metrics = results("language")
    assert metrics["perplexity"] > 1 and 0 <= metrics["eval_accuracy"] <= 1
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]


def test_token_classification(results):
    folder, metrics = results("tokens")
    assert {"eval_accuracy", "eval_PER_recall", "predict_LOC_recall"} <= metrics.keys()
    lines = (folder / "predictions.txt").read_text().splitlines()
    assert len(lines) == 16 and all(len(line.split()) == 5 for line in lines)


def test_translation_with_generation(results):
    folder, metrics = results("translation")
    assert {"eval_exact", "eval_gen_len", "predict_exact"} <= metrics.keys()
    assert metrics["predict_samples"] == 5 and metrics["predict_gen_len"] <= 8
    assert len((folder / "generated_predictions.txt").read_text().splitlines()) == 5


def test_a_trainer_derived_in_a_module_beside_the_script(results):
    _, metrics = results("answers")
    assert {"eval_exact_match", "test_exact_match", "eval_samples_per_second"} <= metrics.keys()


def test_masked_language_modelling_with_derived_arguments(results):
    _, metrics = results("masked")
    assert metrics["rate"] == 1e-3 and metrics["perplexity"] > 1


def test_names_are_oneloops_or_the_librarys(outcomes):
    assert outcomes["facts"]["code"] == 0, outcomes["facts"]["stderr"][-4000:]
    assert "all facts hold" in outcomes["facts"]["stdout"]


def test_paddlenlp(ran, place):
    (outcome,) = ran(plans.command("paddle"))
    assert outcome["code"] == 0, outcome["stderr"][-4000:]
    folder = place / "out" / "paddle"
    metrics = json.loads((folder / "all_results.json").read_text())
    assert {"train_loss", "eval_accuracy"} <= metrics.keys()
    assert "***** Model arguments *****" in outcome["stdout"]
    check_oneloop(folder)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "library"), [("ernie", "paddlenlp"), ("mindnlp", "mindnlp")])
def test_models_of_the_library_itself(ran, place, name, library):
    """Run where the library is installed (see ONELOOP_SCRIPTS_PYTHON); elsewhere it is missed in words."""
    local.tokenizer(place / "bert")
    (outcome,) = ran(plans.command(name))
    find = f"from importlib.util import find_spec as f; raise SystemExit(f({library!r}) is None)"
    if subprocess.run([PYTHON, "-c", find]).returncode:
        assert outcome["code"] == 1
        missed = {"paddlenlp": "pip install paddlenlp", "mindnlp": "No module named 'mindnlp'"}
        assert missed[library] in outcome["stderr"]
        return
    assert outcome["code"] == 0, outcome["stderr"][-4000:]
    assert "eval_loss" in json.loads((place / "out" / name / "eval_results.json").read_text())
    assert (place / "out" / name / "log.jsonl").exists()


@pytest.mark.slow
def test_two_processes_under_torchrun(place, ran):
    ran(models=True)
    script, *words = plans.command("classification")
    words[words.index("out/classification")] = "out/two"
    launcher = [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]
    done = subprocess.run(
        [*launcher, "-m", "oneloop", "run", script, *words],
        cwd=place,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    state = json.loads((place / "out" / "two" / "trainer_state.json").read_text())
    assert state["global_step"] == 6  # 40 samples, twice, 16 of them an update
    assert len((place / "out" / "two" / "predict_results.txt").read_text().splitlines()) == 17


def test_mindnlp_engine(ran, place):
    (outcome,) = ran(plans.command("mindspore"))
    assert outcome["code"] == 0, outcome["stderr"][-4000:]
    assert "eval_accuracy" in json.loads((place / "out" / "mindspore" / "eval_results.json").read_text())


@pytest.mark.slow
def test_two_processes_under_msrun(place, tmp_path):
    script, _ = plans.command("mindspore")
    count = ["--worker_num=2", "--local_worker_num=2", "--join=True", f"--master_port={free_port()}"]
    home = Path(PYTHON).parent
    starter = tmp_path / "oneloop"
    starter.write_text("import sys\nfrom oneloop.cli.main import main\nsys.exit(main())\n")
    done = subprocess.run(
        [str(home / "msrun"), *count, f"--log_dir={tmp_path / 'logs'}", str(starter), "run", script, "out/msrun"],
        cwd=place,
        env=environment() | {"PATH": f"{home}{os.pathsep}{os.environ.get('PATH', '')}"},  # msrun calls `python`
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    state = json.loads((place / "out" / "msrun" / "checkpoint-12" / "trainer_state.json").read_text())
    assert state["global_step"] == 12  # 64 samples, three times, 16 of them an update
