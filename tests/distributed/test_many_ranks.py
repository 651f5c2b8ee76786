"""A thousand processes, simulated: see many.py. The default tests take fewer, the slow ones all of them."""

import math
import os

import pytest

from oneloop.distributed import heartbeat
from tests.distributed import many

MANY = pytest.param(1024, marks=pytest.mark.slow)


@pytest.mark.parametrize("world", [64, MANY])
@pytest.mark.parametrize("left", [0, 1, 100])
def test_every_sample_comes_exactly_once_in_an_epoch(world, left):
    """The samples that are left are fewer than the processes, or more, or none."""
    length = 3 * 4 * world + left
    epoch = many.epoch(world, length)
    assert {len(batches) for batches in epoch} == {math.ceil(length / (4 * world))}
    seen = [sample for batches in epoch for batch in batches for sample in batch]
    assert sorted(seen) == list(range(length))


def test_more_processes_change_who_has_a_sample_and_not_when():
    def updates(world):
        epoch = many.epoch(world, 4 * 256, batch=256 // world)
        return [sorted(sample for batches in epoch for sample in batches[number]) for number in range(4)]

    assert updates(256) == updates(1) == updates(32)


@pytest.mark.parametrize("world", [64, 1024])
def test_what_one_process_says_all_are_told(world):
    messages = [many.message(rank, items=rank) for rank in range(world)]
    messages[world // 2] = many.message(
        world // 2, items=0, num_micro_batches=0, may_change_control=True, signals=(False, True)
    )
    messages[0] = many.message(0, items=5, has_batch=False, has_dummy_batch=False, num_micro_batches=0)
    told, received, _ = many.step(messages)
    assert len(set(told)) == 1
    summary = told[0]
    assert summary.items == sum(message.items for message in messages)
    assert (summary.has_batch, summary.first_rank_with_batch, summary.all_have_dummy_batch) == (True, 1, False)
    assert (summary.min_micro_batches, summary.max_micro_batches) == (0, 1)
    assert (summary.save_ended, summary.may_change_control, summary.signals) == (False, True, (False, True))
    assert received == world * 64


@pytest.mark.parametrize("dead", [{5}, set(range(8)), {0, 16, 32, 48}], ids=["one", "a machine", "who searches, half"])
def test_survivors_name_one_that_is_lost_and_few_ask_the_store(dead):
    world = 128
    said, reads, _ = many.lose(world, dead)
    names = {each.partition(". ")[0] for each in said}
    assert len(said) == world - len(dead) and len(names) == 1
    (name,) = names
    assert any(name.startswith(f"Process {rank} (") for rank in dead) and "no heartbeat" in name
    assert reads < 3 * world, "all of them read the notes of all"


@pytest.mark.slow
def test_if_all_that_search_are_lost_the_others_do():
    world = 64
    dead = {rank for rank in range(world) if rank % (world // heartbeat.SEARCHERS) == 0}
    said, _, _ = many.lose(world, dead)
    assert all(any(each.startswith(f"Process {rank} (") for rank in dead) for each in said)


@pytest.mark.slow
def test_a_thousand_survivors_agree():
    said, reads, _ = many.lose(1024, {700})
    assert {each.partition(" (")[0] for each in said} == {"Process 700"} and reads < 1024


@pytest.mark.parametrize("world", [64, MANY])
def test_a_commit_has_the_files_of_all(world, tmp_path):
    facts, _ = many.commit(tmp_path, world, stragglers={3: 0.2, world - 1: 0.3})
    files = {name for name in os.listdir(tmp_path) if name.startswith("model-")}
    assert len(files) == world and files <= facts.keys()
    assert len(set(many.index_of(tmp_path).values())) == world
    assert not [name for name in os.listdir(tmp_path) if "note" in name or name.startswith(".")]


def test_a_process_that_dies_before_it_has_written_is_named(tmp_path):
    with pytest.raises(OSError, match="process 41 has not written its shard"):
        many.commit(tmp_path, 64, dead={41}, timeout=1.0)
