"""data_order="transformers" on two processes beside transformers' Trainer, in the same processes."""

from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("transformers")
if find_spec("accelerate") is None:  # not imported here: tests of arguments would find it
    pytest.skip("transformers' Trainer needs accelerate", allow_module_level=True)

import oneloop
from oneloop.data.torch_randperm import randperm
from tests.backends.order_runs import RUN, Run, Seen, mlp
from tests.backends.support import rows
from tests.distributed.launch import results, run

JOB = Path(__file__).with_name("order_job.py")
CASES = ("filled", "lengths", "resumed")
SLOW = ("fewer than a batch of all", "dropped", "lengths, dropout", "stream", "evaluated")


def of_two(folder, *names):
    run(2, folder, *names, script=JOB)
    return results(folder, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("order")


@pytest.fixture(scope="module")
def two(folder):
    return of_two(folder, *CASES)


def assert_same(each, case):
    ours, theirs = each[case]["oneloop"], each[case]["transformers"]
    assert ours["samples"] == theirs["samples"]
    assert ours["losses"] == theirs["losses"]
    assert ours["weights"] == theirs["weights"]


@pytest.mark.parametrize("case", CASES)
def test_samples_losses_and_weights_of_each_process_are_those_of_transformers(case, two):
    for each in two:
        assert_same(each, case)


@pytest.mark.slow
def test_the_same_for_other_data(tmp_path):
    for each in of_two(tmp_path, *SLOW):
        for case in SLOW:
            assert_same(each, case)


def test_the_last_batches_are_filled_with_the_first_samples(two):
    first, second = (each["filled"]["oneloop"]["samples"] for each in two)
    order = [i for k in range(6) for half in (first, second) for i in half[4 * k : 4 * k + 4]]
    assert sorted(order[:43]) == list(range(43)) and order[43:] == order[:5]


def test_a_resume_on_as_many_processes_is_exact(two):
    own, theirs = two[0]["resumed"]["own"], two[0]["resumed"]["transformers"]
    assert own["weights"] == theirs["weights"] and own["losses"] == theirs["losses"]


def test_one_process_goes_on_with_the_samples_that_two_have_not_seen(two, folder, tmp_path, caplog):
    data, path = Seen(rows(43)), folder / "of-oneloop" / "checkpoint-9"
    Run(oneloop, tmp_path, lambda: mlp(0.3), data, resume=str(path), max_steps=12)
    epoch = randperm(43, RUN["seed"] + 1).tolist()
    assert data.indices == epoch[24:], "step 9 is the third of the second epoch; one process needs no filling"
    assert "The checkpoint was written by 2 process(es), this run has 1" in caplog.text
