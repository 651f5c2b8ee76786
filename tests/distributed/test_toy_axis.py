"""An axis that is added from outside (toy_axis.py): runs with it are those without it, in every byte."""

import json
from pathlib import Path

import pytest

from tests.backends.support import names
from tests.distributed.launch import run_script

SCRIPT = Path(__file__).with_name("toy_axis.py")
SAME = ("weights", "losses", "norms", "metrics", "predictions", "samples", "saved", "tokens")
FILES = ("model.safetensors", "optimizer.safetensors", "random.safetensors")


class Runs:
    """Runs of toy_axis.py in one folder, by name."""

    def __init__(self, framework, folder):
        self.framework, self.folder = framework, folder

    def play(self, name, processes, toy_size, checkpoint="-", *options):
        run_script(self.framework, processes, self.folder, SCRIPT, name, toy_size, checkpoint, *options)
        return [json.loads((self.folder / f"{name}-rank{rank}.json").read_text()) for rank in range(processes)]

    def fail(self, name, processes, toy_size, *options):
        """What is said by a run that ends with an error."""
        given = (self.framework, processes, self.folder, SCRIPT, name, toy_size, "-", *options)
        return run_script(*given, succeeds=False)

    def path(self, name, step):
        return self.folder / name / f"checkpoint-{step}"


def assert_same_checkpoints(left, right):
    for name in FILES:
        assert (left / name).read_bytes() == (right / name).read_bytes(), name
    stored = [json.loads((path / "run.json").read_text()) | {"run_id": None} for path in (left, right)]
    assert stored[0] == stored[1]
    assert sorted(path.name for path in left.iterdir()) == sorted(path.name for path in right.iterdir())


@pytest.fixture(scope="module", params=names())
def runs(request, tmp_path_factory):
    return Runs(request.param, tmp_path_factory.mktemp(f"toy_{request.param}"))


@pytest.fixture(scope="module")
def single(runs):
    return runs.play("single", 1, 1)[0]


@pytest.fixture(scope="module")
def pair(runs):
    """Two processes along the axis."""
    return runs.play("pair", 2, 2)


def test_processes_of_the_same_batch_are_one_process(single, pair):
    for each in pair:
        assert {key: each[key] for key in SAME} == {key: single[key] for key in SAME}
        assert each["asked"] == single["asked"] and each["drawn"] == single["drawn"]
    assert pair[0]["saved"] == [2, 4, 6], "the last process has asked for the first one"
    assert pair[0]["computed"] == single["computed"] and pair[1]["computed"] == [], "the main process computes metrics"


def test_checkpoints_are_those_of_one_process(runs, single, pair):
    for step in (2, 4, 6):
        assert_same_checkpoints(runs.path("pair", step), runs.path("single", step))


def test_a_run_is_resumed_with_the_axis_and_without(runs, single, pair):
    again = runs.play("pair_again", 2, 2, runs.path("pair", 2))
    alone = runs.play("alone", 1, 1, runs.path("pair", 2))
    for each in (*again, *alone):
        assert each["weights"] == single["weights"] and each["losses"] == single["losses"][2:]
        assert each["asked"] == single["asked"][16:] and each["drawn"] == single["drawn"]
        assert each["predictions"] == single["predictions"] and each["metrics"] == single["metrics"]
    for name in ("pair_again", "alone"):
        assert_same_checkpoints(runs.path(name, 6), runs.path("single", 6))


def test_a_process_that_dies_is_named_by_its_place(runs):
    if runs.framework != "torch":
        pytest.skip("slow on the others: gloo of Paddle waits for 30 seconds, msrun ends the other process")
    assert "Process 1 (toy 1, pid " in runs.fail("dying", 2, 2)


@pytest.mark.slow
def test_two_by_two_processes_are_two(runs):
    if runs.framework == "mindspore":
        said = runs.fail("four", 4, 2)
        assert "UnsupportedError: processes in groups of 2, of 4, are not supported on MindSpore" in said
        return
    two, four = runs.play("two", 2, 1), runs.play("four", 4, 2)
    assert [each["place"] for each in four] == [f"rank {rank} (data {rank // 2}, toy {rank % 2})" for rank in range(4)]
    for rank, each in enumerate(four):
        expected = two[rank // 2]
        assert {key: each[key] for key in SAME} == {key: expected[key] for key in SAME}
        assert each["asked"] == expected["asked"] and each["drawn"] == expected["drawn"]
    assert two[0]["asked"] != two[1]["asked"]
    for step in (2, 4, 6):
        assert_same_checkpoints(runs.path("four", step), runs.path("two", step))
    for rank, each in enumerate(four):
        data, toy = [rank % 2, rank % 2 + 2], [rank // 2 * 2, rank // 2 * 2 + 1]
        assert each["groups"]["data"] == [data] * 3 + [data if rank < 2 else None, data[0], rank // 2]
        assert each["groups"]["toy"] == [toy] * 3 + [None if rank % 2 else toy, toy[0], rank % 2]
        assert each["groups"].get("gathered", data) == data
    again = runs.play("four_again", 4, 2, runs.path("two", 4))
    assert [each["weights"] for each in again] == [two[0]["weights"]] * 4
    assert again[3]["drawn"] == two[1]["drawn"]
    assert_same_checkpoints(runs.path("four_again", 6), runs.path("two", 6))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("workers", ("dataloader_num_workers=1",)),
        ("buffers", ("ddp_broadcast_buffers=False",)),
        ("drawn", ()),
        ("loader", ()),
        ("plain", ()),
        ("seeded", ("seed_each_sample=True",)),
    ],
)
def test_two_by_two_processes_are_two_with(runs, name, options):
    """Workers, buffers of each process, and orders that are drawn from the streams of the processes."""
    if runs.framework != "torch":
        pytest.skip("the same code on every framework")
    two, four = runs.play(f"{name}_two", 2, 1, "-", *options), runs.play(f"{name}_four", 4, 2, "-", *options)
    again = runs.play(f"{name}_again", 4, 2, runs.path(f"{name}_two", 4), *options)
    for rank, each in enumerate(four):
        compared = (*SAME, "asked", "drawn", "buffers")
        assert {key: each[key] for key in compared} == {key: two[rank // 2][key] for key in compared}
        compared = ("weights", "drawn", "buffers")
        assert {key: again[rank][key] for key in compared} == {key: each[key] for key in compared}
    assert (two[0]["buffers"] == two[1]["buffers"]) == (name != "buffers")
    for step in (4, 6):
        assert_same_checkpoints(runs.path(f"{name}_four", step), runs.path(f"{name}_two", step))


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["stage1", "stage2", "stage3"])
def test_shards_by_toys_are_shards(runs, stage):
    """Each tensor is written by a process of the first copy, and read by all."""
    if runs.framework == "mindspore":
        pytest.skip("MindSpore shards nothing")
    if runs.framework == "paddle":
        said = runs.fail(f"four_{stage}", 4, 2, f"sharding={stage}")
        assert "UnsupportedError: sharding on Paddle divides the batch over all processes" in said
        return
    two = runs.play(f"two_{stage}", 2, 1, "-", f"sharding={stage}")
    four = runs.play(f"four_{stage}", 4, 2, "-", f"sharding={stage}")
    for rank, each in enumerate(four):
        assert {key: each[key] for key in SAME} == {key: two[rank // 2][key] for key in SAME}
    again = runs.play(f"again_{stage}", 4, 2, runs.path(f"two_{stage}", 4), f"sharding={stage}")
    assert [each["weights"] for each in again] == [two[0]["weights"]] * 4
    for name in (f"four_{stage}", f"again_{stage}"):
        for path in sorted(runs.path(f"two_{stage}", 6).glob("*.safetensors")):
            assert path.read_bytes() == (runs.path(name, 6) / path.name).read_bytes(), path.name
