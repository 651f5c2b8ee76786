"""Batches that tell their place: the epoch, their number, and the position of their first sample in the epoch.

Seeds are made of them, so that a sample draws the same numbers on any number of processes.
"""

from functools import partial

import numpy as np
import pytest

from oneloop.data.order import BatchSampler, Order
from oneloop.data.samplers import SamplerBatches
from oneloop.distributed.collectives import ProcessGroup
from oneloop.distributed.mesh import Mesh

SAMPLES = [16, 17, 19, 21, 23]  # in batches of four: some epochs end with a short one, or with fewer than processes


class Member(ProcessGroup):
    """One of several processes, which are told the main one's order."""

    def __init__(self, rank, size, order):
        self.rank, self.size, self.order = rank, size, np.array(order, np.int64)

    def broadcast_object(self, value):
        return self.order


def of_order(samples, world, rank, epoch):
    sampler = BatchSampler(partial(Order, samples, 7), 4, world, rank, placed=True)
    sampler.set_epoch(epoch)
    return sampler


def of_users_sampler(samples, world, rank, epoch):
    order = Order(samples, 7, epoch)[:].tolist()
    made = SamplerBatches(
        order, 4, False, placed=True, processes=Member(rank, world, order), mesh=Mesh.of_batches(world, rank)
    )
    made.set_epoch(epoch)
    return made


@pytest.mark.parametrize("make", [of_order, of_users_sampler])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("samples", SAMPLES)
def test_the_place_of_a_batch_is_where_its_samples_stand(make, world, samples):
    for epoch in (0, 2):
        order = Order(samples, 7, epoch)[:].tolist()
        covered = []
        for rank in range(world):
            for number, batch in enumerate(make(samples, world, rank, epoch)):
                assert batch.position[:2] == (epoch, number)
                positions = range(batch.position[2], batch.position[2] + len(batch))
                assert [order[position] for position in positions] == list(batch)
                covered += positions
        assert sorted(covered) == list(range(samples))


@pytest.mark.parametrize("samples", SAMPLES)
def test_places_are_the_same_from_the_middle_of_an_epoch(samples):
    for rank in (0, 1):
        whole, resumed = of_order(samples, 2, rank, 1), of_order(samples, 2, rank, 1)
        resumed.start_at(1)
        assert [batch.position for batch in resumed] == [batch.position for batch in whole][1:]


def test_a_start_is_used_up_by_the_iteration_and_not_by_iter():
    """Loaders with workers call iter() twice, and use the second."""
    whole, sampler = list(of_order(23, 1, 0, 0)), of_order(23, 1, 0, 0)
    sampler.start_at(3)
    iter(sampler)
    assert list(sampler) == whole[3:]
    assert list(sampler) == whole
