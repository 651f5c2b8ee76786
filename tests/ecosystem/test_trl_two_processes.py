"""TRL's trainers on two processes, on oneloop beside transformers' Trainer, under both launchers."""

import json
import sys

import numpy as np
import pytest

from tests.distributed.launch import free_port
from tests.ecosystem import compare
from tests.ecosystem.needs import needs
from tests.ecosystem.trl_two_processes import (
    ALONE,
    DIVIDED,
    GENERATED,
    GRID,
    OFF_POLICY,
    SHARDED,
    WEIGHTED,
)

needs("torch", "transformers", "accelerate", "peft", "trl", "datasets")

MODULE = "tests.ecosystem.trl_two_processes"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port"]
ACCELERATE = [
    sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
    "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port",
]  # fmt: skip


def played(folder, scenarios, launcher, sides=compare.SIDES):
    for side in sides:
        names = [each.name for each in scenarios]
        compare.play(side, MODULE, folder / side, names, [*launcher, str(free_port())])
    return folder


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return played(tmp_path_factory.mktemp("trl"), GRID, TORCHRUN, ["transformers"])


@pytest.fixture(scope="module", params=[TORCHRUN, ACCELERATE], ids=["torchrun", "accelerate"])
def grid(request, reference, tmp_path_factory):
    folder = played(tmp_path_factory.mktemp("trl"), GRID, request.param, ["oneloop"])
    (folder / "transformers").symlink_to(reference / "transformers")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("scenario", GRID, ids=lambda each: each.name)
def test_as_on_transformers(scenario, grid):
    found = compare.compare(scenario, grid)
    print(found.line())
    assert not found.problems


@pytest.mark.slow
def test_resumed_runs_end_as_unbroken_ones(grid):
    """With the same bytes; a run that logs rarely also with the same logs."""
    names = [each.name for each in GRID if each.resume]
    found = {name: json.loads((grid / "oneloop" / f"{name}.json").read_text()) for name in names}
    assert len(names) == 21 and [name for name in names if not found[name]["unbroken"]] == []
    whole = json.loads((grid / "oneloop" / "grpo-rounds.json").read_text())["logs"]
    assert len(whole) > 2
    for entry, again in zip(whole, found["grpo-rounds-resume"]["logs"], strict=True):
        times = {key for key in entry if compare.TIMES.search(key)}
        assert {key: entry[key] for key in entry.keys() - times} == {key: again[key] for key in again.keys() - times}


# -- what differs


@pytest.fixture(scope="module")
def differences(tmp_path_factory):
    folder = played(tmp_path_factory.mktemp("trl"), [*DIVIDED, OFF_POLICY, GENERATED, WEIGHTED], TORCHRUN)
    for side in compare.SIDES:
        compare.play(side, MODULE, folder / side, [ALONE.name])
    return lambda name: [json.loads((folder / side / f"{name}.json").read_text()) for side in compare.SIDES]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", DIVIDED, ids=lambda each: each.name)
def test_losses_that_are_divided_by_the_items_of_all_processes(scenario, differences):
    """On transformers gradients are averaged as well, and an update is half of that on one process. Apart from this
    factor the runs are equal: test_as_on_transformers has it taken out."""
    theirs, ours = (each["logs"][0] for each in differences(scenario.name))
    for key in ("loss", "grad_norm"):
        assert ours[key] == pytest.approx(2 * theirs[key], rel=1e-6)


@pytest.mark.slow
def test_the_gradient_on_two_processes_and_on_one(differences):
    two, one = ([each["logs"][0]["grad_norm"] for each in differences(of.name)] for of in (OFF_POLICY, ALONE))
    assert two == pytest.approx([one[0] / 2, one[1]], rel=1e-5) and one[0] == pytest.approx(one[1], rel=1e-5)


@pytest.mark.slow
def test_evaluations_that_generate(differences):
    """Four prompts with two completions each are a batch of each process. transformers takes the second for padding,
    since the data have four samples: its eval_loss is the first process's."""
    theirs, ours = differences(GENERATED.name)
    assert theirs["logs"][0]["loss"] == ours["logs"][0]["loss"]
    first, second = ([loss for loss, _ in of_process] for of_process in ours["outcome"])
    assert [entry["eval_loss"] for entry in theirs["logs"] if "eval_loss" in entry] == pytest.approx(first, rel=1e-6)
    mean = np.mean([first, second], axis=0)
    assert [entry["eval_loss"] for entry in ours["logs"] if "eval_loss" in entry] == pytest.approx(mean, rel=1e-6)
    assert first != pytest.approx(second, rel=1e-4)


@pytest.mark.slow
def test_evaluations_of_batches_with_different_numbers_of_labels(differences):
    """transformers weighs the batches that the processes evaluate at a time by their labels; oneloop all batches by
    their samples, so that the result does not depend on the number of processes."""
    theirs, ours = differences(WEIGHTED.name)
    (first, second), (few, many) = zip(*(of_process[0] for of_process in ours["outcome"]))
    assert few != many
    theirs, ours = (next(log["eval_loss"] for log in side["logs"] if "eval_loss" in log) for side in (theirs, ours))
    assert theirs == pytest.approx((first * few + second * many) / (few + many), rel=1e-4)
    assert ours == pytest.approx((first + second) / 2, rel=1e-6)


@pytest.mark.slow
def test_a_sharded_model_that_generates_by_turns(tmp_path):
    """GKD draws whether a batch is generated: all processes of a sharded model have to draw the same."""
    plain = next(each for each in GRID if each.name == "gkd-plain")
    played(tmp_path, [plain, SHARDED], TORCHRUN, ["oneloop"])
    whole, sharded = (json.loads((tmp_path / f"oneloop/{each.name}.json").read_text()) for each in (plain, SHARDED))
    losses = [[entry["loss"] for entry in each["logs"] if "loss" in entry] for each in (whole, sharded)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5) and len(losses[0]) == 4
