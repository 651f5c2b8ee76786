"""world_invariant=True: runs on 1, 2, 3 and 4 processes have the same bytes (invariant_job.py)."""

import json
import shutil
from pathlib import Path

import pytest

from oneloop import Trainer, TrainingArguments
from oneloop.errors import CheckpointError
from tests.backends.support import kit_module, rows
from tests.distributed.launch import outcome, results, run

JOB = Path(__file__).with_name("invariant_job.py")
SAME = ("ddp", "stage1", "verified")  # one run, in three ways
OTHERS = ("unlabelled", "weighed", "nonfinite", "by_length")
SLOW_SAME = ("buckets", "with_workers", "own_step")
SLOW_OTHERS = ("bf16", "fp16", "packed", "lora")


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """What the cases return on a number of processes; each is run once."""
    known = {}

    def of(processes, *cases):
        folder = tmp_path_factory.mktemp(f"invariant{processes}")
        missing = [each for each in cases if (processes, each) not in known]
        if missing:
            run(processes, folder, *missing, script=JOB)
            found, *others = results(folder, processes)
            if "weighed" in missing:  # what callbacks draw is the same in all processes
                assert all(other["weighed"][1] == found["weighed"][1] for other in others)
            known.update({(processes, each): found[each] for each in missing})
        return {each: known[processes, each] for each in cases}

    return of


@pytest.mark.parametrize("processes", [2, 3])
def test_a_run_has_the_same_bytes_on_any_number_of_processes(played, processes):
    one = played(1, "ddp", *OTHERS)
    found = played(processes, *SAME, *OTHERS)
    assert {found.pop(name) for name in SAME} == {one.pop("ddp")}
    assert found == one


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3, 4])
def test_with_everything_that_is_supported(played, processes):
    one = played(1, *SAME, *SLOW_SAME, *OTHERS, *SLOW_OTHERS)
    found = played(processes, *SAME, *SLOW_SAME, *OTHERS, *SLOW_OTHERS)
    assert len({found[name] for name in (*SAME, *SLOW_SAME)}) == 1
    assert found == one


def chain(folder, *legs):
    """Parts of a run, each on other processes: (processes, sharding, the step after which one is killed)."""
    for processes, sharding, step in legs:
        statuses, said = outcome(processes, folder, "leg", "run", sharding, step, script=JOB)
        assert any(statuses) == bool(step), said
    every = [found["leg"] for found in results(folder, legs[-1][0])]
    assert all(drawn == every[0][1] for _, drawn in every)  # also in a process that the checkpoint does not know
    return every[0][0]


def test_a_run_is_killed_and_continues_on_other_processes(played, tmp_path):
    found = chain(tmp_path, (2, "stage1", 3), (1, "", 7), (3, "", 0))
    assert found == played(1, "ddp")["ddp"]
    folder = tmp_path / "run"
    kept = json.loads((newest(folder) / "run.json").read_text())["world_invariant"]
    assert kept == {"micro_batches": 12, "threads": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    "legs",
    [
        ((1, "", 3), (4, "stage1", 6), (2, "", 9), (3, "", 0)),
        ((4, "", 1), (4, "", 3), (2, "stage1", 5), (1, "stage1", 7), (3, "stage1", 0)),
        ((3, "stage1", 9), (4, "stage1", 0)),
    ],
    ids=["1-4-2-3", "4-4-2-1-3", "3-4"],
)
def test_chains_of_kills(played, tmp_path, legs):
    assert chain(tmp_path, *legs) == played(1, "ddp")["ddp"]


def newest(folder):
    return max(folder.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))


# -- what is refused


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused")
    run(1, folder, "refused", script=JOB)
    return results(folder, 1)[0]["refused"]


@pytest.mark.parametrize(
    "what, words",
    [
        ("batch_norm", "the forward pass changes norm.num_batches_tracked, and other buffers of the layers norm"),
        ("sparse", "table.weight has a sparse gradient"),
        ("stream", "order of the training data is not oneloop's"),
        ("sampler", "order of the training data is not oneloop's"),
        ("loader", "order of the training data is not oneloop's"),
        ("collectives", "exchange values between processes"),
        ("processes", "compute_loss asks for the number of processes"),
        ("scaled", "loss_is_scaled_for_ga"),
    ],
)
def test_what_cannot_be_invariant_is_refused_by_name(refused, what, words):
    assert words in refused[what]
    assert "remove" in refused[what].lower()


def test_running_means_that_do_not_change_are_no_obstacle(refused):
    assert refused["frozen_norm"] == "trained"


# -- resuming


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run of 6 micro-batches in an update, on one process."""
    folder = tmp_path_factory.mktemp("saved")
    train(folder, max_steps=1)
    return folder


def train(folder, resume=False, **given):
    options = {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 6,
        "max_steps": 2,
        "save_steps": 1,
        "device": "cpu",
        "report_to": "none",
        "disable_tqdm": True,
        "world_invariant": True,
    }
    args = TrainingArguments(str(folder), **options | given)
    trainer = Trainer(kit_module("torch").Kit().classifier(), args, train_dataset=rows(40))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def copied(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "copy")


def test_another_batch_size_is_refused(saved, tmp_path):
    with pytest.raises(CheckpointError, match=r"per_device_train_batch_size is 4. Set it to 2"):
        train(copied(saved, tmp_path), resume=True, per_device_train_batch_size=4)


def test_the_micro_batches_are_those_of_the_first_run(saved, tmp_path):
    trainer = train(copied(saved, tmp_path), resume=True, gradient_accumulation_steps=2)
    assert trainer.get_total_train_batch_size() == 12


def test_processes_that_do_not_divide_the_micro_batches(saved, tmp_path):
    from oneloop.steps import accumulation_of_kept

    assert accumulation_of_kept(12, 24, 2, 3) == 4
    with pytest.raises(CheckpointError, match="12 micro-batch.* 5 processes .* Use 1 or 2 or 3 or 4 or 6 or 12"):
        accumulation_of_kept(12, 24, 2, 5)


@pytest.mark.parametrize("before", [True, False])
def test_a_resume_that_is_not_invariant_any_more_says_so(tmp_path, caplog, before):
    train(tmp_path, world_invariant=before, max_steps=1)
    train(tmp_path, resume=True, world_invariant=not before)
    assert f"world_invariant was {before}, is {not before}" in caplog.text


def test_another_kind_of_processor_is_warned_of(saved, tmp_path, caplog, monkeypatch):
    from oneloop.backends.torch import ordered_sums

    monkeypatch.setattr(ordered_sums, "_cpu", lambda: "Another")
    train(copied(saved, tmp_path), resume=True)
    assert "processor was " in caplog.text and "is Another" in caplog.text


def test_threads_are_those_of_the_environment_and_then_of_the_checkpoint(tmp_path, monkeypatch, caplog):
    import torch

    before = torch.get_num_threads()
    try:
        for given, threads in (("", 1), ("2", 2)):
            monkeypatch.setenv("OMP_NUM_THREADS", given)
            torch.set_num_threads(3)
            train(tmp_path / given, max_steps=1)
            assert torch.get_num_threads() == threads
        train(tmp_path / "", resume=True)
        assert torch.get_num_threads() == 1
        assert "computes with 1 thread(s) per process, as since its start, and not with 2" in caplog.text
    finally:
        torch.set_num_threads(before)


# -- what a sum is


def test_a_missing_gradient_is_like_a_zero():
    """As it is in another process, which has to send something: 0 + -0 is 0, and not -0."""
    import torch

    from oneloop.backends.torch.ordered_sums import _add

    values = [None, 0.0, -0.0, 1.5]
    for left in values:
        for right in values:
            filled = torch.tensor(0.0 if left is None else left) + torch.tensor(0.0 if right is None else right)
            given = [None if each is None else torch.tensor(each) for each in (left, right)]
            (found,) = _add([given[0]], [given[1]])
            if left is None and right is None:
                assert found is None
            else:
                assert found.numpy().tobytes() == filled.numpy().tobytes(), (left, right)
    for alone in (_add(None, [torch.tensor(-0.0), None]), _add([torch.tensor(-0.0), None], None)):
        assert alone[0].numpy().tobytes() == torch.tensor(0.0).numpy().tobytes() and alone[1] is None
    assert _add(None, None) is None


def test_sums_of_class_weights_do_not_depend_on_their_order():
    import random

    from oneloop.trainer.world_invariance import exact_weight

    draw = random.Random(0)
    weights = [draw.random() * 10.0 ** draw.randint(-4, 2) for _ in range(300)]
    rounded = list(map(exact_weight, weights))
    assert max(abs(one - other) for one, other in zip(weights, rounded)) <= 2.0**-31
    sums, plain = set(), set()
    for _ in range(20):
        draw.shuffle(rounded)
        draw.shuffle(weights)
        sums.add(sum(rounded))
        plain.add(sum(weights))
    assert len(sums) == 1 < len(plain)
    assert exact_weight(float("inf")) == float("inf")
