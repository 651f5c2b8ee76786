"""The parts of transformers' order, beside torch, transformers and accelerate where they are installed."""

from functools import partial

import numpy as np
import pytest

from oneloop.data.order import BatchSampler
from oneloop.data.torch_randperm import randperm
from oneloop.data.transformers_order import DrawnOrders, Lookahead, ShardedBatches, by_length, random_orders
from oneloop.distributed.collectives import SINGLE_PROCESS
from oneloop.errors import UnsupportedError


def test_the_permutation_is_frozen():
    """Of torch 2.13; its documentation does not promise it, but seeds would mean nothing otherwise."""
    assert randperm(16, 42).tolist() == [6, 3, 0, 7, 10, 15, 2, 12, 14, 9, 8, 5, 4, 13, 11, 1]


@pytest.mark.parametrize("length", [0, 1, 2, 3, 17, 1000, 70001])
@pytest.mark.parametrize("seed", [0, 42, 2**32 - 1, 2**32 + 7])
def test_the_permutation_is_torchs(length, seed):
    torch = pytest.importorskip("torch")
    from oneloop.backends.torch import randomness

    expected = torch.randperm(length, generator=torch.Generator().manual_seed(seed)).tolist()
    assert randperm(length, seed).tolist() == randomness.randperm(length, seed).tolist() == expected


def test_what_needs_torch_is_refused():
    with pytest.raises(UnsupportedError, match="only torch has the default generator"):
        randperm(5, None)
    with pytest.raises(UnsupportedError, match="without torch is limited to 214748363 samples"):
        randperm(2**32 // 20, 3)


@pytest.mark.parametrize("count, batch", [(1, 4), (7, 4), (43, 4), (400, 3), (1000, 2), (64, 16)])
def test_blocks_by_length_are_those_of_transformers(count, batch):
    torch = pytest.importorskip("torch")
    utils = pytest.importorskip("transformers.trainer_pt_utils")
    lengths = np.random.RandomState(count).randint(1, 9, count)  # many are equal
    torch.manual_seed(3)
    theirs = utils.get_length_grouped_indices(lengths.tolist(), batch)
    assert by_length(randperm(count, 3), lengths, batch).tolist() == theirs


def all_batches(length, size, world, drop_last, rank=0, kind=ShardedBatches, start=0):
    sampler = kind(random_orders(length, 5, randperm), size, world, rank, drop_last)
    sampler.set_epoch(2)
    sampler.start_at(start)
    batches = list(sampler)
    assert len(batches) + start == len(sampler)
    return batches


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("length", [1, 3, 8, 11, 24, 29])
def test_the_batches_of_a_process_are_those_of_accelerate(length, size, world, drop_last):
    pytest.importorskip("torch")
    loaders = pytest.importorskip("accelerate.data_loader")
    from torch.utils.data import BatchSampler as Plain

    for rank in range(world):
        sampler = loaders.SeedableRandomSampler(range(length), data_seed=5)
        sampler.set_epoch(2)
        plain = Plain(sampler, size, drop_last)
        theirs = list(loaders.BatchSamplerShard(plain, world, rank) if world > 1 else plain)
        assert all_batches(length, size, world, drop_last, rank) == theirs
        for start in range(len(theirs) + 1):
            assert all_batches(length, size, world, drop_last, rank, start=start) == theirs[start:]


def test_in_one_process_nothing_is_filled():
    assert all_batches(11, 4, 1, False) == all_batches(11, 4, 1, False, kind=BatchSampler)


def drawn_sampler(draws):
    """Orders that are drawn from `draws`, one after the other."""
    lengths = np.ones(4, np.int64)
    orders = DrawnOrders(lengths, 2, lambda length, seed: np.array(next(draws)), SINGLE_PROCESS)
    return ShardedBatches(orders, 2)


def test_an_order_is_drawn_once_an_epoch_and_the_one_before_is_kept():
    draws = iter([[3, 1, 0, 2], [0, 1, 2, 3], [2, 3, 1, 0]])
    sampler = drawn_sampler(draws)
    assert next(draws) == [3, 1, 0, 2], "nothing was drawn to find the length"
    for epoch, expected in enumerate(([0, 1, 2, 3], [2, 3, 1, 0])):
        sampler.set_epoch(epoch)
        sampler.begin()
        assert epoch in sampler.orders.drawn, "before callbacks can draw random numbers"
        sampler.start_at(1)
        assert list(sampler) == [expected[2:]]
    assert sampler.orders(0)[:].tolist() == [0, 1, 2, 3] and sampler.orders(1)[:].tolist() == [2, 3, 1, 0]


def test_an_order_is_drawn_at_the_first_batch_if_nobody_has():
    drawn = []
    lengths = np.ones(4, np.int64)
    sampler = ShardedBatches(
        DrawnOrders(lengths, 2, lambda length, seed: drawn.append(seed) or np.arange(length), SINGLE_PROCESS), 2
    )
    batches = iter(sampler)
    assert drawn == [], "the loader draws its seed in between"
    assert next(batches) == [0, 1] and drawn == [None]


def test_one_batch_is_fetched_ahead():
    fetched = []

    def source():
        for number in range(4):
            fetched.append(number)
            yield number

    ahead = Lookahead(source(), partial(len, fetched))
    assert fetched == [] and ahead.before is None
    assert next(ahead) == 0 and fetched == [0, 1] and ahead.before == 1
    ahead.fetch()
    assert fetched == [0, 1, 2]
    assert next(ahead) == 1 and fetched == [0, 1, 2] and ahead.before == 2, "one is waiting already"
    assert next(ahead) == 2 and ahead.before == 3
    assert next(ahead) == 3 and ahead.before is None, "nothing is waiting"
    assert list(ahead) == []
