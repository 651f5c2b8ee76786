"""The samples of an update, computed from its number."""

import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from oneloop.data.cost_batches import CostBatches, CostLayout, CostOrder
from oneloop.data.order import BatchSampler, Order
from oneloop.trainer.step_samples import SHOWN, positions_of, samples_of


def plan_of(samples, batch, world, accumulation, drop_last=False):
    sampler = BatchSampler(partial(Order, samples, 42), batch, world, shard_id=world - 1, drop_last=drop_last)
    steps = -(-len(sampler) // accumulation)
    return SimpleNamespace(
        loader=SimpleNamespace(batch_sampler=sampler), steps_per_epoch=steps, accumulation=accumulation
    )


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_they_are_those_of_all_processes(world, drop_last):
    plan = plan_of(47, 3, world, 2, drop_last)
    for step in range(1, 2 * plan.steps_per_epoch + 1):
        epoch, place = divmod(step - 1, plan.steps_per_epoch)
        expected = []
        for rank in range(world):
            sampler = BatchSampler(partial(Order, 47, 42), 3, world, rank, drop_last)
            sampler.set_epoch(epoch)
            expected += [index for batch in list(sampler)[2 * place : 2 * place + 2] for index in batch]
        found_epoch, first, end = positions_of(plan, step)
        assert found_epoch == epoch
        assert sorted(Order(47, 42, epoch).take(first, end).tolist()) == sorted(expected)
        assert sorted(json.loads(samples_of(plan, step))) == sorted(expected)


def test_those_by_cost_are_not_consecutive():
    orders = partial(CostOrder, CostLayout(np.arange(1, 48), 200, 2), 42)
    sampler = CostBatches(orders, 1, accumulation=2)
    loader = SimpleNamespace(batch_sampler=sampler)
    plan = SimpleNamespace(loader=loader, steps_per_epoch=len(sampler) // 2, accumulation=2)
    assert positions_of(plan, 2) is None
    sampler.set_epoch(1)
    expected = sorted(sum(list(sampler)[2:4], []))
    assert sorted(json.loads(samples_of(plan, plan.steps_per_epoch + 2))) == expected


def test_a_message_has_a_limited_number_of_them():
    assert samples_of(plan_of(SHOWN, SHOWN, 1, 1), 1) == str(Order(SHOWN, 42).take(0, SHOWN).tolist())
    text = samples_of(plan_of(100, 100, 1, 1), 1)
    assert text == f"{str(Order(100, 42).take(0, SHOWN).tolist())[:-1]}, ... 100 in all]"


def test_other_orders_are_not_known():
    plan = SimpleNamespace(loader=SimpleNamespace(), steps_per_epoch=3, accumulation=1)
    assert positions_of(plan, 1) is None and samples_of(plan, 1).startswith("unknown")
