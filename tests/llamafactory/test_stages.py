"""Stages of `llamafactory-cli train` on transformers' Trainer and on oneloop: losses, weights, checkpoints, resumes."""

import json
from functools import partial

import pytest
import yaml

from tests.distributed.launch import free_port
from tests.ecosystem import two_sides
from tests.ecosystem.by_files import differences, largest_difference, logs, weights
from tests.ecosystem.two_sides import result
from tests.llamafactory import scenarios, tiny

# Not rm: see test_a_reward_model_is_not_resumed.
RESUMED = [f"{stage}-{kind}" for stage in ("pt", "sft", "dpo") for kind in ("full", "lora")] + [
    "sft-freeze",
    "kto-lora",
]
SHIFTED = ["pt-full", "pt-lora"]  # where all labels of a row count
UNRESUMED = ["rm-full", "rm-lora"]
OVER = ["sft-full", "sft-lora"]  # checkpoints of transformers that oneloop continues


run = partial(two_sides.run, scenarios.OFFLINE)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """FOLDER/SIDE/NAME of every scenario, and NAME-again of those that are resumed; each side in one process."""
    folder = tiny.make(tmp_path_factory.mktemp("llamafactory") / "runs")
    again, over = [f"{name}:again" for name in (*RESUMED, *UNRESUMED)], [f"{name}:over" for name in OVER]
    theirs = [f"{name}:shifted" for name in SHIFTED] + [f"{name}:again" for name in UNRESUMED]
    for side, more in (("transformers", theirs), ("oneloop", (*again, *over))):
        run("-m", "tests.llamafactory.scenarios", side, str(folder), *scenarios.SCENARIOS, *more)
    return folder


@pytest.mark.parametrize("name", scenarios.SCENARIOS)
def test_losses_and_weights_are_those_of_transformers(name, played):
    reference = f"{name}-shifted" if name in SHIFTED else name
    theirs, ours = result(played, "transformers", reference), result(played, "oneloop", name)
    assert (ours / "run.jsonl").exists() and not (theirs / "run.jsonl").exists()
    assert any("loss" in entry for entry in logs(ours)) and any("eval_loss" in entry for entry in logs(ours))
    assert differences(logs(theirs), logs(ours), 1e-5) == []
    assert largest_difference(weights(theirs), weights(ours)) <= 1e-5


@pytest.mark.parametrize("name", SHIFTED)
def test_the_first_label_of_a_row_does_not_count(name, played):
    """Rows of 64 tokens have 63 predictions, by which oneloop divides; transformers 5.6 divides by 64."""
    theirs, ours = (logs(result(played, side, name))[0]["loss"] for side in ("transformers", "oneloop"))
    assert theirs * 64 / 63 == pytest.approx(ours, rel=1e-6)


@pytest.mark.parametrize("name", scenarios.SCENARIOS)
def test_files_of_the_output_directory_are_the_same(name, played):
    theirs, ours = (result(played, side, name) for side in ("transformers", "oneloop"))
    found = [{path.name for path in side.iterdir()} for side in (theirs, ours)]
    assert found[0] - found[1] == {"training_args.bin"}
    assert found[1] - found[0] <= {"training_args.json", "run.jsonl", "log.jsonl", "curve.jsonl", "config.json"}


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_ends_with_the_bytes_of_an_unbroken_one(name, played):
    whole, again = result(played, "oneloop", name), result(played, "oneloop", f"{name}-again")
    events = [json.loads(line) for line in (again / "run.jsonl").read_text().splitlines()]
    assert [each["step"] for each in events if each["event"] == "resumed"] == [3]
    assert differences(logs(whole), logs(again), 0.0) == []
    last = [folder / "checkpoint-6" for folder in (whole, again)]
    names = {path.name for path in last[0].glob("*.safetensors")}
    assert "optimizer.safetensors" in names
    assert [name for name in names if (last[0] / name).read_bytes() != (last[1] / name).read_bytes()] == []


@pytest.mark.parametrize(("side", "error"), [("transformers", "ValueError"), ("oneloop", "CheckpointError")])
def test_a_reward_model_is_not_resumed(side, error, played):
    """LLaMA-Factory starts full training anew, and replaces the model's file in its checkpoints."""
    again = result(played, side, "rm-full-again")
    assert differences(logs(result(played, side, "rm-full")), logs(again), 0.0) == []
    if side == "oneloop":
        events = [json.loads(line)["event"] for line in (again / "run.jsonl").read_text().splitlines()]
        assert "resumed" not in events
    said = (played / side / "rm-lora-again.error").read_text().splitlines()[-1]
    assert said.split(":")[0].endswith(error), said
    files = {path.name for path in (result(played, side, "rm-lora") / "checkpoint-3").iterdir()}
    assert "value_head.safetensors" in files and "model.safetensors" not in files


@pytest.mark.parametrize("name", OVER)
def test_a_run_of_transformers_is_continued(name, played):
    theirs, ours = result(played, "transformers", name), result(played, "oneloop", f"{name}-over")
    # A checkpoint of transformers does not have the sum of the losses: the mean at the end is that of the later steps.
    theirs_logs, ours_logs = ([entry | {"train_loss": 0} for entry in logs(side)] for side in (theirs, ours))
    assert differences(theirs_logs, ours_logs, 1e-5) == []
    assert largest_difference(weights(theirs), weights(ours)) <= 1e-5


def test_the_command_line(played, tmp_path):
    """As the guide has it: a YAML file, and `oneloop run` before the command."""
    name = "sft-lora"
    given = scenarios.configuration(played, tmp_path / "out", name) | {"data_order": "transformers"}
    (tmp_path / "sft.yaml").write_text(yaml.safe_dump(given))
    run("-m", "oneloop", "run", "llamafactory-cli", "train", str(tmp_path / "sft.yaml"))
    ours = result(played, "oneloop", name)
    assert weights(tmp_path / "out").keys() == weights(ours).keys()
    assert largest_difference(weights(tmp_path / "out"), weights(ours)) == 0.0


def test_two_processes(played, tmp_path):
    """The losses of two processes are those of one with the same global batch."""
    module = ("-m", "oneloop", "run", "-m", "llamafactory.launcher")
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}")
    found = []
    for processes, launcher in ((1, ()), (2, torchrun)):
        given = scenarios.configuration(played, tmp_path / f"of-{processes}", "sft-full")
        given["per_device_train_batch_size"] = 2 // processes
        (tmp_path / "sft.yaml").write_text(yaml.safe_dump(given))
        run(*launcher, *module, str(tmp_path / "sft.yaml"))
        found.append([entry["loss"] for entry in logs(tmp_path / f"of-{processes}") if "loss" in entry])
    assert len(found[0]) == 6 and found[1] == pytest.approx(found[0], abs=1e-5)
