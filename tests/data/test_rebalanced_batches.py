"""The samples of an update in micro-batches of about equal cost."""

from functools import partial
from itertools import combinations

import numpy as np
import pytest

from oneloop.data.cost_batches import padded_tokens
from oneloop.data.order import Order
from oneloop.data.rebalanced_batches import RebalancedBatches, equal_runs
from oneloop.data.update_batches import UpdateBatches

LENGTHS = np.minimum(1 + np.random.RandomState(0).gamma(1.5, 70, 500).astype(int), 512)


def samplers(processes, accumulation, size=4, lengths=LENGTHS, cls=RebalancedBatches, **given):
    given |= {"lengths": lengths} if cls is RebalancedBatches else {}
    orders = partial(Order, len(lengths), 5)
    return [cls(orders, size, processes, rank, accumulation=accumulation, **given) for rank in range(processes)]


def updates(found, epoch=0, start=0):
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


def samples_in(update):
    return sorted(sample for batch in update for sample in batch)


@pytest.mark.parametrize("given", [{}, {"drop_last": True}, {"placed": True}], ids=lambda given: "-".join(given))
def test_an_update_has_the_samples_of_random_order(given):
    found, plain = updates(samplers(4, 3, **given), 1), updates(samplers(4, 3, cls=UpdateBatches, **given), 1)
    assert list(map(samples_in, found)) == list(map(samples_in, plain))
    assert found != plain


@pytest.mark.parametrize("samples", [1, 5, 11, 12, 13, 500])
def test_any_number_of_processes_has_the_same_micro_batches(samples):
    whole = as_sets(updates(samplers(1, 12, lengths=LENGTHS[:samples]), 1))
    assert all(all(update) for update in whole[: samples // 48]), "a micro-batch without a sample in a full update"
    for processes in (2, 3, 4, 12):
        assert as_sets(updates(samplers(processes, 12 // processes, lengths=LENGTHS[:samples]), 1)) == whole


@pytest.mark.parametrize("processes, accumulation", [(1, 2), (3, 2), (4, 1)])
def test_an_epoch_that_is_continued(processes, accumulation):
    found = samplers(processes, accumulation)
    whole = updates(found, 2)
    for start in (0, 1, len(whole)):
        assert updates(found, 2, start) == whole[start:]
    found[0].start_at(1)
    assert list(found[0]) == [batch for update in whole for batch in update[:accumulation]][1:]
    assert len(list(found[0])) == len(found[0]), "the start is for one iteration"


def test_positions_are_those_of_the_batches():
    begins = []
    for sampler in samplers(3, 2, placed=True):
        sampler.set_epoch(3)
        for number, batch in enumerate(sampler):
            assert sampler.orders(3).at(sampler.positions(number)).tolist() == list(batch)
            epoch, place, begin = batch.position
            assert (epoch, place) == (3, number)
            begins += range(begin, begin + len(batch))
    assert sorted(begins) == list(range(500)), "each sample has a seed of its own"


@pytest.mark.parametrize("size, accumulation", [(32, 1), (8, 4)])
def test_four_processes_have_equal_work(size, accumulation):
    costs = np.array(
        [
            [len(batch) * LENGTHS[batch].max() for batch in sampler][: 500 // (4 * size * accumulation) * accumulation]
            for sampler in samplers(4, accumulation, size)
        ]
    )
    per_update = costs.reshape(4, -1, accumulation).sum(2)
    assert per_update.max(0).sum() <= 1.05 * per_update.mean(0).sum()


def test_micro_batches_come_by_decreasing_cost():
    """So they are dealt out by cost, and the first one needs the most memory."""
    costs = [[padded_tokens(len(b), LENGTHS[b].max()) for b in update] for update in updates(samplers(1, 6))]
    assert all(each == sorted(each, reverse=True) for each in costs)


def cost_of(lengths, borders, cost):
    return max(cost(b - a, lengths[a]) for a, b in zip(borders, borders[1:]) if b > a)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("cost", [padded_tokens, lambda n, longest: n * longest * (1 + longest / 50)])
def test_the_most_expensive_run_is_as_cheap_as_can_be(seed, cost):
    lengths = np.sort(np.random.RandomState(seed).randint(0, 90, 11))[::-1]
    for count in (1, 2, 3, 4, 11):
        borders = equal_runs(lengths, count, cost)
        assert len(borders) == count + 1 and borders == sorted(set(borders)) and borders[0] == 0 and borders[-1] == 11
        every = ([0, *inner, 11] for inner in combinations(range(1, 11), count - 1))
        best = min(cost_of(lengths, each, cost) for each in every)
        assert cost_of(lengths, borders, cost) <= 1.005 * best


@pytest.mark.parametrize("lengths", [[0, 0, 0, 0], [7] * 5, [9], [5, 0, 0, 0]])
def test_lengths_that_are_equal_or_nothing(lengths):
    for count in (1, 2, 3, 6):
        borders = equal_runs(np.array(lengths), count, padded_tokens)
        sizes = np.diff(borders)
        assert len(sizes) == count and sizes.sum() == len(lengths) and (sizes >= 0).all()
        assert (sizes > 0).sum() == min(count, len(lengths))


def test_the_digest_is_that_of_what_decides():
    one = samplers(2, 2)[0].digest
    assert one == samplers(2, 2)[1].digest == samplers(4, 1)[3].digest
    changed = LENGTHS.copy()
    changed[7] += 1
    assert one != samplers(2, 2, lengths=changed)[0].digest
    assert one != samplers(2, 2, cost=lambda n, longest: n * longest**2)[0].digest
