"""Micro-batches within a budget: the same ones on any number of processes, and from any position."""

from functools import partial

import numpy as np
import pytest

from oneloop.data import cost_batches
from oneloop.data.cost_batches import CostBatches, CostLayout, CostOrder
from oneloop.data.order import BatchSampler, Order
from oneloop.errors import ArgumentError, DataError


def lengths_of(kind, samples=2000):
    random = np.random.RandomState(0)
    return {
        "like texts": np.minimum(1 + random.gamma(1.5, 70, samples).astype(int), 512),
        "equal": np.full(samples, 100),
        "two": np.where(np.arange(samples) % 10, 7, 500),
        "many empty": np.where(np.arange(samples) % 3, 0, 40),
    }[kind]


KINDS = ("like texts", "equal", "two", "many empty")


def samplers(lengths, budget, processes, accumulation, cost=lambda samples, longest: samples * longest, **given):
    layout = CostLayout(np.asarray(lengths), budget, processes * accumulation, cost)
    orders = partial(CostOrder, layout, 5)
    return [CostBatches(orders, 8, processes, rank, accumulation=accumulation, **given) for rank in range(processes)]


def updates(found, epoch=0, start=0):
    """The micro-batches of each update, of all processes."""
    every = []
    for sampler in found:
        sampler.set_epoch(epoch)
        sampler.start_at(start * sampler.accumulation)
        batches = list(sampler)
        assert len(batches) == len(sampler) - start * sampler.accumulation
        every.append([batches[i : i + sampler.accumulation] for i in range(0, len(batches), sampler.accumulation)])
    return [[batch for own in of_all for batch in own] for of_all in zip(*every)]


def as_sets(found):
    return [sorted(map(sorted, update)) for update in found]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("per_update", [1, 6, 24])
def test_an_epoch_has_every_sample_once_and_no_batch_above_the_budget(kind, per_update):
    lengths = lengths_of(kind)
    counts = set()
    for epoch in range(3):
        found = updates(samplers(lengths, 2048, 1, per_update), epoch)
        batches = [batch for update in found for batch in update]
        assert sorted(sample for batch in batches for sample in batch) == list(range(len(lengths)))
        assert max(len(batch) * lengths[batch].max() for batch in batches) <= 2048
        counts.add(len(batches))
    assert len(counts) == 1, "steps are planned before training"


def test_there_is_little_padding_and_few_batches():
    lengths = lengths_of("like texts")
    batches = [batch for update in updates(samplers(lengths, 2048, 4, 1)) for batch in update]
    padded = sum(len(batch) * lengths[batch].max() for batch in batches)
    assert lengths.sum() > 0.93 * padded
    assert padded > 0.85 * 2048 * len(batches)
    drawn = list(BatchSampler(partial(Order, len(lengths), 5), 16))
    assert lengths.sum() < 0.5 * sum(len(batch) * lengths[batch].max() for batch in drawn)


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_processes_has_the_same_batches_in_an_update(kind):
    lengths = lengths_of(kind)
    whole = as_sets(updates(samplers(lengths, 2048, 1, 12), 1))
    for processes in (2, 3, 4, 12):
        assert as_sets(updates(samplers(lengths, 2048, processes, 12 // processes), 1)) == whole


@pytest.mark.parametrize("processes, accumulation", [(1, 1), (1, 4), (3, 2)])
def test_an_epoch_that_is_continued(processes, accumulation):
    found = samplers(lengths_of("like texts"), 2048, processes, accumulation)
    whole = updates(found, 2)
    for start in (0, 1, len(whole) // 2, len(whole)):
        assert updates(found, 2, start) == whole[start:]
    found[0].start_at(1)
    assert list(found[0]) == [batch for update in whole for batch in update[:accumulation]][1:]
    assert len(list(found[0])) == len(found[0]), "the start is for one iteration"


@pytest.mark.parametrize("first", [0, 1, 3, 7, 20])
def test_an_epoch_in_several_blocks(monkeypatch, first):
    sampler = samplers(lengths_of("like texts", 400), 600, 2, 3)[1]
    whole = list(sampler)
    monkeypatch.setattr(cost_batches, "BLOCK", 60)
    sampler.start_at(first)
    assert list(sampler) == whole[first:]


def test_all_that_is_shuffled_depends_on_seed_and_epoch():
    layout = CostLayout(lengths_of("two"), 2048, 4)
    every = np.arange(layout.updates)
    for draw in (
        lambda seed, epoch: layout.samples_at(np.arange(2000), seed, epoch),
        lambda seed, epoch: np.array(sorted(layout.batches_of(every, seed, epoch).tolist())),  # which are together
        # The update of the cheapest batches, which are always the same ones.
        lambda seed, epoch: np.flatnonzero((layout.batches_of(every, seed, epoch) == len(layout) - 1).any(axis=1)),
    ):
        drawn = {draw(seed, 0).tobytes() for seed in range(5)}, {draw(1, epoch).tobytes() for epoch in range(5)}
        assert min(map(len, drawn)) > 2


def test_what_does_not_fill_a_batch_has_other_samples_in_each_epoch():
    found = samplers(np.full(2005, 100), 1000, 1, 1)
    smallest = {frozenset(min((update[0] for update in updates(found, epoch)), key=len)) for epoch in range(4)}
    assert len(smallest) == 4


def test_micro_batches_are_dealt_out_by_cost():
    layout = CostLayout(np.random.RandomState(0).randint(1, 1000, 3000), 2048, 8)
    costs = layout.costs[layout.batches_of(np.arange(layout.updates), 1, 1)]
    assert (np.diff(costs, axis=1) <= 0).all() and (costs.min(1) < costs.max(1)).any()
    shares = [cost_batches.shares_of(4, rank, 6) for rank in range(4)]
    assert sorted(np.concatenate(shares).tolist()) == list(range(24))
    assert {int(share.sum()) for share in shares} == {69}, "of costs that fall evenly"


def test_batches_of_other_costs_are_in_other_updates():
    """Two long samples in a batch are far from the budget: as much work as those of all others."""
    lengths = np.random.RandomState(0).randint(1, 1000, 6000)
    found = samplers(lengths, 2048, 4, 1)
    costs = np.array([[len(batch) * lengths[batch].max() for batch in sampler] for sampler in found])
    assert costs.max(0).sum() <= 1.03 * costs.mean(0).sum()


def test_none_is_dropped():
    lengths = lengths_of("like texts", 301)
    assert updates(samplers(lengths, 600, 2, 3, drop_last=True)) == updates(samplers(lengths, 600, 2, 3))


def test_epochs_differ_in_batches_and_in_what_they_hold():
    found = samplers(lengths_of("like texts", 300), 1024, 1, 1)
    one, other = updates(found, 0), updates(found, 1)
    assert one == updates(found, 0) != other
    together = {frozenset(batch) for update in one for batch in update if len(batch) > 1}
    again = {frozenset(batch) for update in other for batch in update if len(batch) > 1}
    assert len(together & again) <= 0.05 * len(together)


@pytest.mark.parametrize("epoch", range(5))
def test_the_longest_sample_is_in_the_first_update(epoch):
    lengths = lengths_of("like texts")
    lengths[77] = 600
    assert 77 in [sample for batch in updates(samplers(lengths, 2048, 2, 2), epoch)[0] for sample in batch]


def test_batches_of_an_update_have_lengths_of_all_kinds():
    """An update of one length only would not be of the data."""
    lengths = lengths_of("like texts", 9000)
    spans = [np.ptp([lengths[batch].max() for batch in update]) for update in updates(samplers(lengths, 8192, 4, 2))]
    assert np.mean(spans) > 100


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("epoch", [0, 1])
def test_four_processes_have_equal_work(accumulation, epoch):
    lengths = lengths_of("like texts", 9600)
    found = samplers(lengths, 4096, 4, accumulation)
    for sampler in found:
        sampler.set_epoch(epoch)
    costs = np.array([[len(batch) * lengths[batch].max() for batch in sampler] for sampler in found])
    per_update = costs.reshape(4, -1, accumulation).sum(2)
    assert per_update.max(0).sum() <= 1.02 * per_update.mean(0).sum()
    assert np.median(per_update.max(0) / per_update.mean(0)) <= 1.02


@pytest.mark.parametrize("samples", [1, 3, 7, 8, 9, 15, 40])
@pytest.mark.parametrize("processes, accumulation", [(1, 4), (4, 2)])
def test_few_samples(samples, processes, accumulation):
    found = samplers(1 + np.arange(samples), 100, processes, accumulation)
    epoch = updates(found)
    assert sorted(sample for update in epoch for batch in update for sample in batch) == list(range(samples))
    for number, update in enumerate(epoch):
        everyone_has_samples = found[0].remaining((number + 1) * accumulation) >= 0
        assert not everyone_has_samples or all(update), "what is not asked for must be there"
        assert found[0].remaining(number * accumulation) > 0
    assert found[0].remaining(len(epoch) * accumulation) <= 0


def test_the_others_are_asked_only_where_a_batch_can_be_empty():
    found = samplers(lengths_of("like texts"), 2048, 4, 2)[0]
    assert all(found.remaining((number + 1) * 2) >= 0 for number in range(len(found) // 2))


@pytest.mark.parametrize("accumulation", [1, 3])
def test_positions_are_those_of_the_batches(accumulation):
    seen = []
    for sampler in samplers(lengths_of("like texts", 200), 600, 2, accumulation, placed=True):
        sampler.set_epoch(3)
        for number, batch in enumerate(sampler):
            positions = sampler.positions(number)
            assert sampler.orders(3).at(positions).tolist() == list(batch)
            assert batch.position == (3, number, positions[0])
            seen += positions.tolist()
    assert sorted(seen) == list(range(200)), "each sample has a seed of its own"


def test_a_running_iteration_keeps_its_epoch():
    sampler = samplers(lengths_of("like texts", 200), 600, 1, 1, placed=True)[0]
    sampler.set_epoch(1)
    expected, running = list(sampler), iter(sampler)
    sampler.set_epoch(2)
    found = list(running)
    assert found == expected and {batch.position[0] for batch in found} == {1}


@pytest.mark.parametrize("processes, accumulation", [(1, 3), (3, 1)])
def test_the_samples_of_an_update(processes, accumulation):
    found = samplers(lengths_of("like texts", 200), 600, processes, accumulation)
    for number, update in enumerate(updates(found, 1)):
        expected = sorted(sample for batch in update for sample in batch)
        assert sorted(found[-1].samples_of_update(1, number, accumulation).tolist()) == expected


def test_a_cost_of_ones_own():
    lengths = lengths_of("like texts")

    def cost(samples, longest):
        return samples * longest * (1 + longest / 100)

    batches = [batch for update in updates(samplers(lengths, 4000, 1, 2, cost)) for batch in update]
    costs = [cost(len(batch), lengths[batch].max()) for batch in batches]
    assert max(costs) <= 4000 and np.median(costs) > 3200
    assert max(len(batch) * lengths[batch].max() for batch in batches) > 2 * min(
        len(batch) * lengths[batch].max() for batch in batches
    )


def test_a_sample_above_the_budget():
    with pytest.raises(DataError, match="sample 4 has 30 tokens and a cost of 30, more than max_tokens_per_batch=29"):
        samplers([1, 2, 3, 4, 30, 5], 29, 1, 1)
    assert sum(map(len, samplers([1, 2, 3, 4, 30, 5], 30, 1, 1)[0])) == 6


def test_batches_of_another_number_of_processes():
    layout = CostLayout(lengths_of("equal"), 1000, 4)
    with pytest.raises(ArgumentError, match="updates of 4 micro-batches cannot be divided by 3 process"):
        CostBatches(partial(CostOrder, layout), 8, 3, 0, accumulation=1)


def test_the_digest_is_that_of_the_batches():
    lengths = lengths_of("like texts")
    digest = CostLayout(lengths, 2048, 4).digest
    assert digest == CostLayout(lengths.copy(), 2048, 4).digest
    changed = lengths.copy()
    changed[5] += 40
    others = [CostLayout(changed, 2048, 4), CostLayout(lengths, 2000, 4), CostLayout(lengths, 2048, 5)]
    assert len({digest, *(other.digest for other in others)}) == 4


@pytest.mark.slow
def test_a_million_samples_are_divided_in_seconds():
    from time import perf_counter

    lengths = np.minimum(1 + np.random.RandomState(0).gamma(1.5, 70, 10**6).astype(int), 2048)
    started = perf_counter()
    sampler = samplers(lengths, 16384, 16, 4)[3]
    next(iter(sampler))
    assert perf_counter() - started < 10
