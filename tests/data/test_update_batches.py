"""The micro-batches of an update are the same ones, on any number of processes."""

from functools import partial

import numpy as np
import pytest

from oneloop.data.order import Order
from oneloop.data.update_batches import UpdateBatches

MICRO_BATCHES = 12


def samplers(length, processes, size=2, **given):
    orders = partial(Order, length, 5)
    accumulation = MICRO_BATCHES // processes
    return [
        UpdateBatches(orders, size, processes, rank, accumulation=accumulation, **given) for rank in range(processes)
    ]


def updates(length, processes, start=0, epoch=1, **given):
    """The micro-batches of each update, in the order of their numbers."""
    found, accumulation = [], MICRO_BATCHES // processes
    for sampler in samplers(length, processes, **given):
        sampler.set_epoch(epoch)
        sampler.start_at(start * accumulation)
        batches = list(sampler)
        assert len(batches) == len(sampler) - start * accumulation
        for place, batch in enumerate(batches):
            update = place // accumulation
            while len(found) <= update:
                found.append([])
            found[update].append(batch)
    return found


@pytest.mark.parametrize("length", [1, 5, 24, 25, 101, 48 * 3])
@pytest.mark.parametrize("given", [{}, {"drop_last": True}, {"placed": True}], ids=lambda given: "-".join(given))
def test_processes_share_the_micro_batches_of_an_update(length, given):
    whole = updates(length, 1, **given)
    for processes in (2, 3, 4, 6, 12):
        assert updates(length, processes, **given) == whole
    samples = [sample for update in whole for batch in update for sample in batch]
    assert samples == Order(length, 5, 1).take(0, len(samples)).tolist()
    assert len(samples) == (length // 24 * 24 if given.get("drop_last") else length)
    assert all(len(update) == MICRO_BATCHES for update in whole)


@pytest.mark.parametrize("processes", [1, 3, 4])
def test_an_epoch_that_is_continued(processes):
    whole = updates(101, processes)
    for start in range(len(whole) + 1):
        assert updates(101, processes, start) == whole[start:]


def test_positions_are_those_of_the_batches():
    for sampler in samplers(101, 3, placed=True):
        for number, batch in enumerate(sampler):
            positions = sampler.positions(number)
            assert Order(101, 5, 0).at(positions).tolist() == list(batch)
            epoch, place, first = batch.position
            assert (epoch, place) == (0, number) and (not len(positions) or first == positions[0])


def test_a_batch_larger_than_the_data():
    assert updates(5, 2, size=10**9)[0][:2] == [Order(5, 5, 1).take(0, 5).tolist(), []]
    assert np.concatenate([s.positions(0) for s in samplers(5, 2, size=10**9)]).tolist() == list(range(5))
