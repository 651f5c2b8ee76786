"""TRL's trainers on oneloop beside the same scripts on transformers' Trainer."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.ecosystem import compare, tiny
from tests.ecosystem.needs import needs
from tests.ecosystem.trl_scenarios import SCENARIOS

needs("torch", "transformers", "accelerate", "peft", "trl", "datasets")

MODULE = "tests.ecosystem.trl_scenarios"
QUICK = [each for each in SCENARIOS if each.quick]
REST = [each for each in SCENARIOS if not each.quick]
ROUNDS = ("grpo-rounds", "grpo-rounds-resume")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port"]


def _played(folder, scenarios):
    for side in compare.SIDES:
        compare.play(side, MODULE, folder / side, [each.name for each in scenarios])
    return folder


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return _played(tmp_path_factory.mktemp("trl"), QUICK)


@pytest.fixture(scope="module")
def rest(tmp_path_factory):
    return _played(tmp_path_factory.mktemp("trl"), REST)


@pytest.mark.parametrize("scenario", QUICK, ids=lambda each: each.name)
def test_as_on_transformers(scenario, quick):
    found = compare.compare(scenario, quick)
    print(found.line())
    assert not found.problems


@pytest.mark.slow
@pytest.mark.parametrize("scenario", REST, ids=lambda each: each.name)
def test_everything_else_as_on_transformers(scenario, rest):
    found = compare.compare(scenario, rest)
    print(found.line())
    assert not found.problems


def _is_unbroken(folder):
    """A resume within a round of generated completions, and between two logs, goes on as if nothing had happened."""
    whole, resumed = (json.loads((folder / f"{name}.json").read_text()) for name in ROUNDS)
    logs = [[{k: v for k, v in entry.items() if not compare.TIMES.search(k)} for entry in each["logs"]]
            for each in (whole, resumed)]  # fmt: skip
    assert logs[0] == logs[1] and logs[0][1]["step"] == 6 and logs[0][1]["num_tokens"] > 0
    weights, again = (np.load(folder / f"{name}.npz") for name in ROUNDS)
    assert all(weights[name].tobytes() == again[name].tobytes() for name in weights.files)


def test_resuming_between_generated_completions(quick):
    _is_unbroken(quick / "oneloop")


def _killed(folder, seed, processes, *names):
    command = [sys.executable, "-m", "tests.ecosystem.trl_kills", str(folder), seed, processes, *names]
    environment = {**os.environ, "PYTHONPATH": str(compare.ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=compare.ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    for name, found in json.loads((folder / "result.json").read_text()).items():
        print(name, found["kills"])
        assert found["broken"] == found["unbroken"], name
        assert len(found["unbroken"]["tensors"]) == 3 and any(place != "ended" for place in found["kills"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["1", "2"])
def test_killed_at_random_moments(seed, tmp_path):
    """Twice each, and resumed: the same bytes and logs as those of an unbroken run."""
    _killed(tmp_path, seed, "1")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sft", "dpo", "grpo", "sdpo"])
def test_two_processes_killed_at_random_moments(name, tmp_path):
    _killed(tmp_path, "3", "2", name)


@pytest.mark.slow
def test_a_process_without_a_batch_joins_in_what_the_others_exchange(tmp_path):
    """13 samples on two processes: the last update of an epoch has a batch in one alone, and TRL gathers in each."""
    compare.play("oneloop", MODULE, tmp_path / "two", ["sft-uneven"], [*TORCHRUN, "29643"])
    compare.play("oneloop", MODULE, tmp_path / "one", ["sft-uneven-whole"])
    two, one = (np.load(tmp_path / name) for name in ("two/sft-uneven.npz", "one/sft-uneven-whole.npz"))
    assert max(float(np.abs(two[name] - one[name]).max()) for name in one.files) < 1e-5


# -- the command line


@pytest.fixture
def settings(tmp_path):
    """A configuration file for `trl sft`, with a model and data on disk."""
    (tmp_path / "model").mkdir()
    tiny.save(tiny.causal(), tmp_path / "model")
    (tmp_path / "train.jsonl").write_text("\n".join(json.dumps({"text": tiny.sentence(i)}) for i in range(16)))
    (tmp_path / "sft.yaml").write_text(
        f"datasets:\n  - path: json\n    data_files: {tmp_path}/train.jsonl\n    split: train\n"
        f"model_name_or_path: {tmp_path}/model\noutput_dir: {tmp_path}/out\nmax_steps: 2\nreport_to: none\n"
        "bf16: false\nlogging_steps: 1\ngradient_accumulation_steps: 2\nlr_scheduler_kwargs: '{}'\n"
    )
    return tmp_path / "sft.yaml"


def _run(settings, *words):
    environment = {
        **os.environ, "PYTHONPATH": str(compare.ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CI": "1",
        "HF_HOME": str(settings.parent / "cache"),
    }  # fmt: skip
    command = [sys.executable, "-m", "oneloop", "run", *words]
    done = subprocess.run(command, cwd=settings.parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    logs = [json.loads(line) for line in (settings.parent / "out" / "log.jsonl").read_text().splitlines()]
    assert sum("loss" in entry for entry in logs) == 2
    arguments = json.loads((settings.parent / "out" / "training_args.json").read_text())
    assert (arguments["device"], arguments["gradient_accumulation_steps"]) == ("cpu", 2)
    return arguments


def test_the_script_of_trl_sft(settings):
    """The command line overrides the file; TRL's own parser reads oneloop's fields."""
    words = ("--use_cpu", "--per_device_train_batch_size", "2", "--learning_rate", "3e-3")
    arguments = _run(settings, "-m", "trl.scripts.sft", "--config", str(settings), *words)
    assert (arguments["per_device_train_batch_size"], arguments["learning_rate"]) == (2, 3e-3)
    assert arguments["max_length"] == 1024  # TRL's own


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["1", "2"])
def test_the_command_trl_sft(settings, processes):
    # Without GPUs, accelerate starts several processes only if it is told to; with --cpu it starts one.
    several = "--multi_gpu" if processes == "2" else "--cpu"
    launch = ("--num_processes", processes, "--num_machines", "1", "--mixed_precision", "no", several)
    arguments = _run(settings, "trl", "sft", "--config", str(settings), "--use_cpu", "True", *launch)
    assert arguments["use_liger_kernel"] is False
    written = json.loads((settings.parent / "out" / "checkpoint-2" / "run.json").read_text())
    assert written["course"]["processes"] == int(processes)


# -- the launchers, as docs/migrate.md has them

SCRIPT = """
import json, sys
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

texts = [json.loads(line) for line in open("train.jsonl")]
args = SFTConfig(
    output_dir="out", max_steps=4, logging_steps=1, per_device_train_batch_size=int(sys.argv[1]), learning_rate=1e-2,
    save_steps=2, report_to="none", use_cpu=True, bf16=False,
)
trainer = SFTTrainer("model", args=args, train_dataset=Dataset.from_list(texts))
trainer.train(resume_from_checkpoint=sys.argv[2] if len(sys.argv) > 2 else None)
trainer.save_model("final")
"""


def _launched(folder, launcher, *words):
    """The losses, and the bytes of the final weights."""
    (folder / "train.py").write_text(SCRIPT)
    environment = {
        **os.environ, "PYTHONPATH": str(compare.ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CI": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    command = [*launcher, "-m", "oneloop", "run", "train.py", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    state = json.loads((folder / "out" / "checkpoint-4" / "trainer_state.json").read_text())
    written = json.loads((folder / "out" / "checkpoint-4" / "run.json").read_text())["course"]["processes"]
    return written, [entry["loss"] for entry in state["log_history"]], (folder / "final/model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        "torchrun --nproc_per_node 2 --master_port 29644",
        "accelerate launch --multi_gpu --num_processes 2 --main_process_port 29645",
    ],
    ids=["torchrun", "accelerate"],
)
def test_a_script_on_two_processes(launcher, settings):
    """The losses are those of one process with the same samples in an update; a resume ends with the same bytes."""
    folder = settings.parent
    one, alone, _ = _launched(folder, ["python"], "4")
    shutil.rmtree(folder / "out")
    two, losses, weights = _launched(folder, launcher.split(), "2")
    assert (one, two) == (1, 2) and len(losses) == 4
    assert np.abs(np.subtract(losses, alone)).max() < 1e-5
    shutil.rmtree(folder / "final")
    assert _launched(folder, launcher.split(), "2", "out/checkpoint-2") == (two, losses, weights)
