"""Divided state on two processes, by every strategy, against one process with the same global batch."""

from pathlib import Path

import numpy as np
import pytest

from tests.processes.launch import results, run

JOB = Path(__file__).with_name("sharding_job.py")
EQUAL = ("sgd", "few_left", "tokens_accumulated", "odd", "adamw")
STRATEGIES = ("ddp", "stage1", "stage2", "stage3")


def difference(left, right):
    return float(np.abs(np.array(left, dtype=np.float64) - np.array(right, dtype=np.float64)).max())


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {size: tmp_path_factory.mktemp(f"sharding{size}") for size in (1, 2)}


@pytest.fixture(scope="module")
def one(folders):
    run(1, folders[1], *EQUAL, "evaluated", "saved", script=JOB)
    return results(folders[1], 1)[0]


@pytest.fixture(scope="module")
def two(folders):
    run(2, folders[2], *EQUAL, "evaluated", "saved", "held", script=JOB)
    return results(folders[2], 2)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("case", EQUAL)
def test_the_update_is_that_of_the_undivided_batch(case, strategy, one, two):
    alone, together = one[case]["alone"], two[0][case][strategy]
    assert together["steps"] == alone["steps"]
    assert together["weights"].keys() == alone["weights"].keys()
    if case != "adamw":
        for name, weights in alone["weights"].items():
            assert difference(weights, together["weights"][name]) <= 1e-6, name
    assert difference(alone["losses"], together["losses"]) <= (1e-5 if case == "adamw" else 1e-6)
    assert difference(alone["norms"], together["norms"]) <= 1e-5
    assert abs(alone["train_loss"] - together["train_loss"]) <= 1e-6


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_evaluation_counts_every_sample_once(strategy, one, two):
    alone = one["evaluated"]["alone"]
    for each in two:
        found = each["evaluated"][strategy]
        assert difference(found["metrics"], alone["metrics"]) <= 1e-6
        assert difference(found["one"], alone["one"]) <= 1e-6


PROMISES = {
    "stage1": {"optimizer": 2, "gradients": 1, "parameters": 1},
    "stage2": {"optimizer": 2, "gradients": 2},
    "stage3": {"optimizer": 2, "gradients": 2, "parameters": 2},
}


@pytest.mark.parametrize("strategy", PROMISES)
def test_each_process_holds_its_part_alone(strategy, two):
    for each in two:
        for what, parts in PROMISES[strategy].items():
            whole, found = each["held"]["ddp"][what], each["held"][strategy][what]
            assert abs(found * parts / whole - 1) <= 0.15, (what, found, whole)


def test_nothing_whole_stays_behind(two):
    """All live tensors together: each stage holds less than the one before it."""
    for each in two:
        held = [each["held"][strategy]["everything"] for strategy in ("ddp", "stage1", "stage3")]
        assert held == sorted(held, reverse=True) and len(set(held)) == 3, held


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_goes_on_to_the_same_bits(strategy, two):
    whole, again = two[0]["saved"][strategy]["whole"], two[0]["saved"][strategy]["again"]
    assert again["weights"] == whole["weights"]
    assert again["losses"] == whole["losses"][3:]


@pytest.mark.parametrize("processes", [1, 2])
def test_any_strategy_goes_on_from_any_other(processes, folders, one, two, tmp_path):
    for size, count in ((1, 1), (2, 4)):
        folder = tmp_path / f"from{size}"
        folder.mkdir()
        (folder / "sources").write_text(str(folders[size]))
        run(processes, folder, "crossed", script=JOB)
        expected = one["saved"]["alone"]["whole"]
        found = results(folder, processes)[0]["crossed"]
        assert len(found) == count * (1 if processes == 1 else 4)
        for name, course in found.items():
            assert difference(course["losses"], expected["losses"][3:]) <= 1e-5, name
            assert difference(course["norms"], expected["norms"][3:]) <= 1e-4, name
