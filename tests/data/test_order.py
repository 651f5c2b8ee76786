"""The order of the data: one-to-one, well mixed, the same from any position and for any number of processes."""

from functools import partial
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from oneloop.data.feistel import MAX_LENGTH, SMALL, permute
from oneloop.data.length_grouping import LengthGroups, SortishOrder, measure_lengths
from oneloop.data.order import BatchSampler, Order
from oneloop.errors import ArgumentError, DataError

seeds = st.integers(-(2**63), 2**64)
epochs = st.integers(0, 10**6)


# The permutation


@given(st.one_of(st.integers(1, 300), st.integers(SMALL - 5, 3 * SMALL)), seeds, epochs)
@settings(deadline=None, max_examples=60)
def test_every_sample_comes_once(length, seed, epoch):
    assert np.array_equal(np.sort(permute(np.arange(length), length, seed, epoch)), np.arange(length))


@given(st.integers(1, MAX_LENGTH), seeds, epochs, st.data())
@settings(deadline=None, max_examples=100)
def test_the_inverse_leads_back_for_any_length(length, seed, epoch, data):
    positions = np.array(data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=20)))
    samples = permute(positions, length, seed, epoch)
    assert samples.dtype == np.int64 and samples.min() >= 0 and samples.max() < length
    assert np.array_equal(permute(samples, length, seed, epoch, inverse=True), positions)


@pytest.mark.parametrize("length", [MAX_LENGTH, MAX_LENGTH - 1, 2**61 + 1, 2**32, 2**32 + 1, SMALL, SMALL + 1])
def test_both_ends_of_an_epoch(length):
    ends = np.array([0, 1, length // 2, length - 2, length - 1])
    assert np.array_equal(permute(permute(ends, length, 1, 2), length, 1, 2, inverse=True), ends)


def test_the_order_is_part_of_the_format():
    """Checkpoints rely on these very numbers: a change here breaks every resumed run."""
    assert permute(np.arange(8), 8, 42, 0).tolist() == [3, 4, 7, 0, 1, 6, 2, 5]
    assert permute(np.arange(5), 10**6, 42, 3).tolist() == [237602, 530271, 521841, 127375, 324158]


@pytest.mark.parametrize("length", range(2, 11))
def test_small_sets_have_no_favourite_place(length):
    orders = np.stack([permute(np.arange(length), length, seed, 0) for seed in range(4000)])
    counts = np.stack([np.bincount(orders[:, place], minlength=length) for place in range(length)])
    assert chisquare(counts, axis=1).pvalue.min() > 1e-4
    # Who follows whom: every ordered pair of different samples is as likely as any other.
    pairs = np.bincount((orders[:, :-1] * length + orders[:, 1:]).ravel(), minlength=length**2)
    pairs = np.delete(pairs, np.arange(length) * (length + 1))
    assert chisquare(pairs).pvalue > 1e-4


def test_all_arrangements_of_a_small_set_occur_alike():
    orders = [tuple(permute(np.arange(4), 4, seed, epoch)) for seed in range(120) for epoch in range(50)]
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 24 and chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("length", [SMALL + 1, 5000, 40_000])
def test_large_sets_are_mixed(length):
    cells = 16
    cell = np.arange(length) * cells // length
    size = np.bincount(cell)
    independent = np.outer(size, size).ravel() / length
    places, epochs_, seeds_, steps = (np.zeros(cells * cells) for _ in range(4))
    rounds = 1_000_000 // length
    for seed in range(rounds):
        first, second = (permute(np.arange(length), length, seed, epoch) for epoch in (0, 1))
        other = permute(np.arange(length), length, seed + 1, 0)
        places += np.bincount(cell * cells + cell[first], minlength=cells**2)
        epochs_ += np.bincount(cell[first] * cells + cell[second], minlength=cells**2)
        seeds_ += np.bincount(cell[first] * cells + cell[other], minlength=cells**2)
        steps += np.bincount(np.diff(first) % length * cells**2 // length, minlength=cells**2)
    for counts in (places, epochs_, seeds_):
        assert chisquare(counts, independent * rounds).pvalue > 1e-4
    every_step = np.bincount(np.arange(1, length) * cells**2 // length, minlength=cells**2)
    assert chisquare(steps, every_step * rounds).pvalue > 1e-4


def test_neighbours_do_not_correlate():
    for length in (10, SMALL, SMALL + 1, 10**12):
        taken = min(length, 20_000)
        values = np.concatenate([permute(np.arange(taken), length, seed, 7) for seed in range(-(-20_000 // taken))])
        ends = np.arange(taken - 1, len(values) - 1, taken)
        before, after = np.delete(values[:-1], ends), np.delete(values[1:], ends)
        # Drawing without replacement makes neighbours differ by -1/(length - 1).
        expected = -1 / (length - 1)
        assert abs(np.corrcoef(before, after)[0, 1] - expected) < 4 / np.sqrt(len(before))


def test_positions_out_of_range_are_refused():
    with pytest.raises(IndexError, match="0 to 9"):
        permute(np.array([10]), 10, 0, 0)
    with pytest.raises(IndexError):
        permute(np.array([-1]), 10**6, 0, 0)
    with pytest.raises(ValueError, match="2\\*\\*62"):
        permute(np.array([0]), MAX_LENGTH + 1, 0, 0)


# An order


def test_far_positions_are_as_good_as_near_ones():
    order = Order(2**60, seed=3, epoch=1)
    far = 10**15
    whole = order.take(far, far + 20_000)
    assert np.array_equal(whole[5_000:5_100], order[far + 5_000 : far + 5_100])
    assert order[far + 17_777] == whole[17_777]
    assert len(set(whole.tolist())) == 20_000


@given(st.integers(1, 3 * SMALL), st.integers(0, 100), st.data())
@settings(deadline=None, max_examples=30)
def test_slices_agree_with_the_full_order(length, seed, data):
    order = Order(length, seed, 0)
    start = data.draw(st.integers(0, length))
    stop = data.draw(st.integers(start, length))
    assert np.array_equal(order.take(start, stop), order[:][start:stop])


def test_seed_and_epoch_change_the_order():
    for length in (100, 10_000):
        orders = {tuple(Order(length, seed, epoch)[:50]) for seed in range(5) for epoch in range(5)}
        assert len(orders) == 25


def test_without_shuffling_samples_keep_their_places():
    assert Order(7, seed=1, epoch=4, shuffle=False)[:].tolist() == list(range(7))
    assert Order(7, shuffle=False)[-1] == 6


def test_an_order_refuses_what_lies_outside():
    with pytest.raises(IndexError, match="5 samples"):
        Order(5)[5]
    with pytest.raises(IndexError):
        Order(5, shuffle=False).take(3, 6)
    with pytest.raises(ArgumentError, match="2\\*\\*62"):
        Order(-1)


# Batches


def deal(orders, batch, world, drop_last=False, start=0, epoch=0):
    """All micro-batches of an epoch: for each global micro-batch, those of every process."""
    samplers = [BatchSampler(orders, batch, world, rank, drop_last) for rank in range(world)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
        sampler.start_at(start)
    return list(zip(*samplers, strict=True))


@given(st.integers(0, 500), st.integers(1, 8), st.integers(1, 6), st.booleans(), seeds, st.data())
@settings(deadline=None, max_examples=100)
def test_processes_share_the_one_sequence(length, world, batch, drop_last, seed, data):
    orders = partial(Order, length, seed)
    together = deal(orders, batch, world, drop_last, epoch=2)
    alone = list(chain.from_iterable(deal(orders, batch * world, 1, drop_last, epoch=2)))
    assert [list(chain.from_iterable(parts)) for parts in together] == alone
    assert len(together) == len(BatchSampler(orders, batch, world, drop_last=drop_last))
    sizes = [[len(part) for part in parts] for parts in together]
    assert all(size == [batch] * world for size in sizes[:-1])
    assert all(max(size) - min(size) <= 1 and size == sorted(size, reverse=True) for size in sizes)
    if drop_last:
        assert all(size == [batch] * world for size in sizes)
    else:
        assert sorted(chain.from_iterable(alone)) == list(range(length))
    start = data.draw(st.integers(0, len(together)))
    assert deal(orders, batch, world, drop_last, start, epoch=2) == together[start:]


@pytest.mark.parametrize("world", range(1, 9))
def test_resuming_across_blocks_gives_the_tail(world):
    orders = partial(Order, 70_001, 5)
    together = deal(orders, 3, world)
    for start in (1, 2730, 2731, len(together) - 1, len(together)):
        if start <= len(together):
            assert deal(orders, 3, world, start=start) == together[start:]


def test_updates_hold_the_same_samples_on_any_number_of_processes():
    orders = partial(Order, 1003, 5)
    by_world = {}
    for world, batch, accumulation in ((1, 4, 6), (2, 4, 3), (3, 8, 1), (6, 2, 2)):
        flat = [list(chain.from_iterable(parts)) for parts in deal(orders, batch, world)]
        updates = [flat[i : i + accumulation] for i in range(0, len(flat), accumulation)]
        by_world[world] = [list(chain.from_iterable(update)) for update in updates]
    assert by_world[1] == by_world[2] == by_world[3] == by_world[6]


def test_a_start_holds_for_one_epoch():
    sampler = BatchSampler(partial(Order, 20, 0), 4)
    whole = list(sampler)
    sampler.start_at(3)
    assert len(sampler) == 5
    assert list(sampler) == whole[3:]
    assert list(sampler) == whole


def test_an_iteration_keeps_the_epoch_it_began_with():
    sampler = BatchSampler(partial(Order, 20, 0), 4)
    sampler.set_epoch(1)
    expected = list(sampler)
    sampler.start_at(1)
    under_way = iter(sampler)
    sampler.set_epoch(2)
    sampler.start_at(4)
    assert list(under_way) == expected[1:]
    assert len(list(sampler)) == 1


def test_batches_are_plain_lists_of_ints():
    batch = next(iter(BatchSampler(partial(Order, 10, 0), 4)))
    assert type(batch) is list and all(type(sample) is int for sample in batch)


def test_a_start_far_away():
    sampler = BatchSampler(partial(Order, 2**60, 1), 8, num_shards=4, shard_id=3)
    sampler.start_at(10**15)
    position = 10**15 * 32 + 24
    assert next(iter(sampler)) == Order(2**60, 1, 0)[position : position + 8].tolist()


def test_fewer_samples_than_processes_leave_empty_lists():
    assert deal(partial(Order, 2, shuffle=False), 4, 3) == [([0], [1], [])]
    assert deal(partial(Order, 0), 4, 2) == []


def test_a_sampler_refuses_invalid_values():
    orders = partial(Order, 10, 0)
    with pytest.raises(ArgumentError, match="at least 1"):
        BatchSampler(orders, 0)
    with pytest.raises(ArgumentError, match="rank 2"):
        BatchSampler(orders, 1, num_shards=2, shard_id=2)
    with pytest.raises(ArgumentError, match="cannot start at micro-batch 4"):
        BatchSampler(orders, 4).start_at(4)


# Lengths

some_lengths = st.lists(st.integers(0, 50), max_size=300)


@given(some_lengths, st.integers(1, 12), seeds, epochs, st.data())
@settings(deadline=None, max_examples=100)
def test_groups_are_a_permutation_from_any_position(lengths, batch, seed, epoch, data):
    order = LengthGroups(lengths, batch, seed, epoch)
    whole = order[:]
    assert sorted(whole.tolist()) == list(range(len(lengths)))
    start = data.draw(st.integers(0, len(lengths)))
    stop = data.draw(st.integers(start, len(lengths)))
    assert np.array_equal(order.take(start, stop), whole[start:stop])
    if len(lengths) >= 4 * batch and len(lengths) % batch == 0:
        assert max(lengths) == max(lengths[sample] for sample in whole[:batch])


@pytest.mark.parametrize(("world", "batch"), [(2, 16), (4, 8), (8, 4)])
def test_groups_do_not_depend_on_the_processes(world, batch):
    lengths = np.random.default_rng(0).integers(1, 200, 30_011)
    orders = partial(LengthGroups, lengths, 32, 7)
    alone = [batches[0] for batches in deal(orders, 32, 1, epoch=1)]
    together = deal(orders, batch, world, epoch=1)
    assert [list(chain.from_iterable(parts)) for parts in together] == alone
    start = len(alone) // 2
    assert deal(orders, batch, world, start=start, epoch=1) == together[start:]


def padding(lengths, order, batch):
    rows = lengths[order[: len(lengths) // batch * batch]].reshape(-1, batch)
    return 1 - rows.sum() / (rows.max(axis=1) * batch).sum()


def test_groups_save_padding_without_a_ramp():
    lengths = np.random.default_rng(1).integers(1, 512, 20_000)
    grouped = LengthGroups(lengths, 16, 0, 0)[:]
    assert padding(lengths, Order(20_000, 0, 0)[:], 16) > 0.4
    assert padding(lengths, grouped, 16) < 0.05
    longest = lengths[grouped].reshape(-1, 16).max(axis=1)
    assert abs(np.corrcoef(longest[:-1], longest[1:])[0, 1]) < 0.1
    assert lengths[grouped[:16]].max() == lengths.max()


def test_groups_change_with_seed_and_epoch():
    lengths = np.random.default_rng(2).integers(1, 512, 1_000)
    batches = [
        frozenset(frozenset(row) for row in LengthGroups(lengths, 10, seed, epoch)[:].reshape(-1, 10).tolist())
        for seed, epoch in ((0, 0), (0, 1), (1, 0))
    ]
    assert len(batches[0] & batches[1]) < 5 and len(batches[0] & batches[2]) < 5
    assert np.array_equal(LengthGroups(lengths, 10, 0, 1)[:], LengthGroups(lengths.tolist(), 10, 0, 1)[:])


def test_sortish_groups_to_train_and_sorts_to_evaluate():
    lengths = np.random.default_rng(3).integers(1, 512, 1_000)
    train = SortishOrder(lengths, 10, 0, 1)[:]
    assert np.array_equal(train, LengthGroups(lengths, 10, 0, 1)[:])
    evaluation = SortishOrder(lengths, 10, shuffle=False)
    assert (np.diff(lengths[evaluation[:]]) <= 0).all()
    assert sorted(evaluation[:].tolist()) == list(range(1_000))
    assert SortishOrder([3, 5, 5, 1], 2, shuffle=False)[:].tolist() == [1, 2, 0, 3]


def test_groups_of_nothing_and_of_one():
    assert LengthGroups([], 4)[:].tolist() == []
    assert LengthGroups([9], 4)[:].tolist() == [0]
    with pytest.raises(ArgumentError, match="at least 1"):
        LengthGroups([1, 2], 0)


class Table:
    """As much of a column-wise data set as measuring needs; counts what is read."""

    def __init__(self, **columns):
        self.columns = columns
        self.column_names = list(columns)
        self.rows_read = 0

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        if isinstance(key, str):
            return self.columns[key]
        self.rows_read += 1
        return {name: column[key] for name, column in self.columns.items()}


def test_lengths_come_from_the_column():
    table = Table(length=[3, 1, 2], input_ids=[[0]] * 3)
    assert measure_lengths(table, "length").tolist() == [3, 1, 2]
    assert measure_lengths(Table(size=np.array([4, 5])), "size").dtype == np.int64
    assert table.rows_read == 0


def test_lengths_are_measured_by_column_or_by_sample():
    ids = [[0] * (row % 5) for row in range(2_345)]
    table = Table(input_ids=ids)
    expected = [row % 5 for row in range(2_345)]
    assert measure_lengths(table, "length", progress=False).tolist() == expected
    assert table.rows_read == 0
    rows = [{"input_ids": value} for value in ids]
    assert measure_lengths(rows, "length", progress=False).tolist() == expected
    assert measure_lengths([{"x": np.zeros((1, 4))}, {"x": "abc"}], "length", "x", progress=False).tolist() == [4, 3]
    assert measure_lengths([{"length": np.int64(7)}, {"length": 2}], "length", progress=False).tolist() == [7, 2]


def test_measuring_shows_its_progress(capsys):
    measure_lengths([{"input_ids": [1]}] * 3, "length")
    assert "Measuring lengths" in capsys.readouterr().err
    measure_lengths([{"input_ids": [1]}] * 3, "length", progress=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (iter([{"input_ids": [1]}]), "is an iterable dataset"),
        ([{"text": "a"}], "neither 'length' nor 'input_ids' in sample 0.*'text'.*length_column_name"),
        ([{"input_ids": [1]}, (1, 2)], "sample 1, a tuple with no keys"),
        ([{"input_ids": 3}], "sample 0 has an int in 'input_ids'"),
        (Table(input_ids=[[1], None]), "sample 1 has a NoneType"),
        (Table(length=[1, None, 2]), "sample 1 has the length None"),
        (Table(length=[1, -2]), "sample 1 has the length -2"),
        (Table(length=[1.0, 2.5]), "sample 0 has the length 1.0"),
        ([{"length": 1}, {"length": "x"}], "sample 1 has the length 'x'"),
    ],
)
def test_unusable_lengths_say_what_to_do(dataset, message):
    with pytest.raises(DataError, match=message):
        measure_lengths(dataset, "length", progress=False)


def test_columns_of_a_real_data_set():
    datasets = pytest.importorskip("datasets", exc_type=ImportError)
    ids = [[1] * (row % 7 + 1) for row in range(1_100)]
    expected = [len(row) for row in ids]
    table = datasets.Dataset.from_dict({"length": expected, "input_ids": ids})
    for dataset in (table, table.remove_columns("length"), table.with_format("numpy")):
        assert measure_lengths(dataset, "length", progress=False).tolist() == expected


@pytest.mark.parametrize("size", [2**40, 2**62, 2**63 - 1])
def test_a_batch_that_is_larger_than_any_memory_has_all_samples(size):
    shares = [list(BatchSampler(partial(Order, 8, 3), size, 2, rank)) for rank in range(2)]
    assert [len(share) for share in shares] == [1, 1] and sorted(shares[0][0] + shares[1][0]) == list(range(8))
