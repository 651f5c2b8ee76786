"""`swift pt`, `sft` and `rlhf` on transformers' Trainer and on oneloop: losses, weights, checkpoints, resumes."""

import json
from functools import partial

import pytest

from tests.distributed.launch import free_port
from tests.ecosystem import two_sides
from tests.ecosystem.by_files import differences, largest_difference, logs, weights
from tests.ecosystem.two_sides import result
from tests.swift import scenarios, tiny

RESUMED = ["pt-full", "pt-lora", "sft-full", "sft-lora", "dpo-full", "dpo-lora"]


run = partial(two_sides.run, scenarios.OFFLINE)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """FOLDER/SIDE/NAME of every scenario, and NAME-again of those that are resumed; each side in one process."""
    folder = tiny.make(tmp_path_factory.mktemp("swift") / "runs")
    again = [f"{name}:again" for name in RESUMED]
    for side, more in (("transformers", ()), ("oneloop", again)):
        run("-m", "tests.swift.scenarios", side, str(folder), *scenarios.SCENARIOS, *more)
    return folder


def checkpoints(folder):
    return sorted(path.name for path in folder.glob("checkpoint-*"))


@pytest.mark.parametrize("name", scenarios.SCENARIOS)
def test_losses_and_weights_are_those_of_transformers(name, played):
    theirs, ours = (result(played, side, name) for side in ("transformers", "oneloop"))
    assert (ours / "run.jsonl").exists() and not (theirs / "run.jsonl").exists()
    assert checkpoints(theirs) == checkpoints(ours) != []
    for last in checkpoints(ours):
        theirs_logs, ours_logs = logs(theirs / last), logs(ours / last)
        assert any("loss" in entry for entry in ours_logs) and any("eval_loss" in entry for entry in ours_logs)
        assert differences(theirs_logs, ours_logs, 1e-5) == []
        assert largest_difference(weights(theirs / last), weights(ours / last)) <= 1e-5


@pytest.mark.parametrize("name", scenarios.SCENARIOS)
def test_files_are_the_same(name, played):
    """Also logging.jsonl, which swift's own callbacks write: those that it assigns to transformers.trainer."""
    theirs, ours = (result(played, side, name) for side in ("transformers", "oneloop"))
    found = [{path.name for path in side.iterdir()} for side in (theirs, ours)]
    assert found[0] - found[1] == set() and found[1] - found[0] <= {"run.jsonl", "log.jsonl", "curve.jsonl"}
    lines = [
        [json.loads(line) for line in (side / "logging.jsonl").read_text().splitlines()] for side in (theirs, ours)
    ]
    kept = [[(line.get("global_step/max_steps"), line.get("token_acc")) for line in side] for side in lines]
    assert kept[0] == kept[1] and len(kept[0]) > 2
    last = checkpoints(ours)[-1]
    inside = [{path.name for path in (side / last).iterdir()} for side in (theirs, ours)]
    assert inside[0] - inside[1] == {"optimizer.pt", "scheduler.pt", "rng_state.pth"}


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_ends_with_the_bytes_of_an_unbroken_one(name, played):
    whole, again = result(played, "oneloop", name), result(played, "oneloop", f"{name}-again")
    events = [json.loads(line) for line in (again / "run.jsonl").read_text().splitlines()]
    assert [each["step"] for each in events if each["event"] == "resumed"] == [3]
    last = [folder / "checkpoint-6" for folder in (whole, again)]
    assert differences(logs(last[0]), logs(last[1]), 0.0) == []
    names = {path.name for path in last[0].glob("*.safetensors")}
    assert "optimizer.safetensors" in names
    assert [name for name in names if (last[0] / name).read_bytes() != (last[1] / name).read_bytes()] == []


@pytest.mark.parametrize(("command", "name"), [("pt", "pt-lora"), ("sft", "sft-lora"), ("rlhf", "dpo-lora")])
def test_the_command_line(command, name, played, tmp_path):
    given = scenarios.options(played, tmp_path / "out", name) | {"data_order": "transformers"}
    run("-m", "oneloop", "run", "-m", f"swift.cli.{command}", *scenarios.command_line(given))
    found, ours = (weights(folder / "checkpoint-6") for folder in (tmp_path / "out", result(played, "oneloop", name)))
    assert largest_difference(found, ours) == 0.0


def test_two_processes(played, tmp_path):
    """The losses of two processes are those of one with the same global batch."""
    module = ("-m", "oneloop", "run", "-m", "swift.cli.sft")
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}")
    found = []
    for processes, launcher in ((1, ()), (2, torchrun)):
        given = scenarios.options(played, tmp_path / f"of-{processes}", "sft-full")
        given["per_device_train_batch_size"] = 2 // processes
        run(*launcher, *module, *scenarios.command_line(given))
        found.append([e["loss"] for e in logs(tmp_path / f"of-{processes}" / "checkpoint-6") if "loss" in e])
    assert len(found[0]) == 6 and found[1] == pytest.approx(found[0], abs=1e-5)
