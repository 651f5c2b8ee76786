"""Checkpoints that several processes write, and runs that go on from them, also on another number of processes."""

import json

import pytest
from safetensors import safe_open

from tests.distributed.launch import results, run


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_resume_to_the_same_bits(processes, shared):
    for each in shared(processes):
        for found in (each["resumed"], each["frozen"], each["own_means"], *each["resumed_otherwise"].values()):
            assert found["again"]["weights"] == found["whole"]["weights"]
            assert found["again"]["losses"] == found["whole"]["losses"][-len(found["again"]["losses"]) :]
            assert len(found["again"]["losses"]) * 2 == len(found["whole"]["losses"])


@pytest.mark.slow
def test_each_process_has_its_own_running_means(shared):
    """With ddp_broadcast_buffers=False, before and after a resume."""
    for when in ("whole", "again"):
        weights = [each["own_means"][when]["weights"] for each in shared(2)]
        apart = {name for name in weights[0] if weights[0][name] != weights[1][name]}
        assert apart and all("running" in name for name in apart)


@pytest.mark.slow
def test_a_layer_that_is_frozen_for_a_while(shared):
    alone = shared(1)[0]["frozen"]["whole"]
    for each in (*shared(2), *shared(4)):
        assert each["frozen"]["whole"]["losses"] == pytest.approx(alone["losses"], rel=1e-5)


def test_a_checkpoint_of_several_processes_has_the_same_files(shared):
    assert shared(2)[0]["resumed"]["files"] == shared(1)[0]["resumed"]["files"]


def test_every_process_brings_its_random_state(shared):
    shared(4)
    folder = shared.folders[4] / "whole" / "checkpoint-4"
    with safe_open(folder / "random.safetensors", framework="np") as f:
        names = set(f.keys())
        states = [f.get_tensor(f"rank{rank}/torch.cpu" if rank else "torch.cpu").tobytes() for rank in range(4)]
    assert {"python", "rank1/python", "rank3/torch.cpu"} <= names
    assert len(set(states)) == 4
    position = json.loads((folder / "run.json").read_text())["position"]
    assert len(position["ranks"]) == 3


def test_global_batches_are_the_same_on_any_number_of_processes(shared):
    alone = shared(1)[0]["elastic"]
    for processes in (2, 4):
        assert shared(processes)[0]["elastic"]["losses"] == pytest.approx(alone["losses"], rel=1e-6)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (4, 3)])
def test_a_run_goes_on_with_another_number_of_processes(before, after, shared, tmp_path):
    shared(before)
    said = run(after, tmp_path, f"from:{shared.folders[before] / 'elastic' / 'checkpoint-4'}")
    assert f"was written by {before} process(es), this run has {after}: an update keeps its 12 samples" in said
    assert "seed_each_sample" in said
    alone = shared(1)[0]["elastic"]
    every = results(tmp_path, after)
    for each in every:
        assert each["from:elastic"]["losses"] == pytest.approx(alone["losses"][4:], rel=1e-6)
    # The epoch has 44 samples, and updates of 12: the resumed run has those of the second epoch alone.
    asked = sorted(n for each in every for n in each["from:elastic"]["asked"])
    assert asked == list(range(44))


def test_numbers_that_data_draw_do_not_depend_on_the_processes(shared):
    alone = shared(1)[0]["noisy"]
    for processes in (2, 4):
        assert shared(processes)[0]["noisy"]["losses"] == pytest.approx(alone["losses"], rel=1e-6)
