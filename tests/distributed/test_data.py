"""Data that is not simply indexed: each sample goes to one process, and global batches are those of one process."""

import pytest

BATCH, SAMPLES = 8, 29
DROPOUT = ("indexed", "walked", "positioned")


@pytest.fixture(params=[2, pytest.param(4, marks=pytest.mark.slow)], ids=["two", "four"])
def many(request, shared):
    return shared(request.param)


def global_batches(numbers):
    """Batches by rank -> the samples of each turn, over all ranks."""
    turns = max(map(len, numbers))
    return [[n for of_rank in numbers if turn < len(of_rank) for n in of_rank[turn]] for turn in range(turns)]


@pytest.mark.parametrize("case", ["iterable", "iterable_with_generator"])
def test_an_iterable_data_set_gives_each_sample_to_one_process(case, many):
    batches = global_batches([each[case] for each in many])
    assert [len(batch) for batch in batches] == [8, 8, 8, 5] * 2
    first, second = sum(batches[:4], []), sum(batches[4:], [])
    assert sorted(first) == sorted(second) == list(range(SAMPLES))
    assert first != second


def test_a_generator_gives_the_order_of_one_process(many, shared):
    """The generator of an iterable data set is seeded alike everywhere, as the guide has it."""
    case = "iterable_with_generator"
    assert global_batches([each[case] for each in many]) == shared(1)[0][case]


def test_an_iterable_data_set_is_evaluated_in_order(many, shared):
    alone = shared(1)[0]["iterable_evaluated"]
    for each in many:
        assert each["iterable_evaluated"]["labels"] == alone["labels"]
        assert abs(each["iterable_evaluated"]["loss"] - alone["loss"]) <= 1e-6


def test_a_sampler_of_the_users_is_dealt_out(many, shared):
    """Its order is that of the main process, which draws it from the streams of the run."""
    for each in many:
        assert each["own_sampler"]["steps"] == 8
        assert each["own_sampler"]["losses"] == many[0]["own_sampler"]["losses"]
    half = [len(each["own_sampler"]["asked"]) // 2 for each in many]
    for part in (0, 1):
        asked = [n for each, size in zip(many, half) for n in each["own_sampler"]["asked"][part * size :][:size]]
        assert sorted(asked) == list(range(SAMPLES))
    assert shared(1)[0]["own_sampler"]["steps"] == 8


def test_a_distributed_sampler_deals_out_itself(many):
    """Each process has its own samples, all of them once an epoch; a resumed run goes on at its place."""
    whole = [each["distributed_sampler"]["whole"] for each in many]
    assert all(each["steps"] == 8 for each in whole)
    for epoch in (0, 1):
        asked = [n for each in whole for batch in each["numbers"][4 * epoch : 4 * epoch + 4] for n in batch]
        assert sorted(asked) == list(range(32))
    for each, mine in zip(many, whole):
        again = each["distributed_sampler"]["again"]
        assert again["losses"] == mine["losses"][6:] and again["weights"] == mine["weights"]
        assert again["numbers"][-2:] == mine["numbers"][-2:]


def test_a_loader_of_the_users_is_dealt_out_by_batches(many):
    """All walk through it in the same order, and an epoch has one n-th of its batches for each of n processes."""
    size = len(many)
    batches = many[0]["own_loader"]["numbers"]
    assert all(each["own_loader"]["numbers"] == batches for each in many)
    half = len(batches) // 2
    assert sorted(sum(batches[:half], [])) == sorted(sum(batches[half:], [])) == list(range(SAMPLES))
    assert batches[:half] != batches[half:]
    for each in many:
        assert each["own_loader"]["steps"] == 2 * -(-half // size)
        assert each["own_loader"]["losses"] == many[0]["own_loader"]["losses"]
        assert each["own_loader"]["count"] == 31


@pytest.mark.parametrize("case", ["loader_of_shards", "sampler_of_shards"])
def test_a_loader_of_the_users_over_shards_is_used_as_it_is(case, many):
    for rank, each in enumerate(many):
        assert sum(each[case], []) == list(range(32))[rank :: len(many)]


@pytest.mark.parametrize("data", DROPOUT)
def test_dropout_differs_between_processes(data, many):
    check_dropout(data, [each["dropout_of_each"] for each in many])


def check_dropout(data, runs):
    """`runs`: the case of all ranks. No two ranks, and no two halves of a rank's run, have dropped the same, while all
    ranks walk alike through what they walk through; a resumed run goes on. Single micro-batches of two samples may have
    dropped the same by chance."""
    halves = [str(half) for of_rank in runs for half in (of_rank[data]["logits"][:2], of_rank[data]["logits"][2:])]
    assert all(len(of_rank[data]["logits"]) == 4 for of_rank in runs) and len(set(halves)) == len(halves)
    assert all(of_rank[data]["drawn"] == runs[0][data]["drawn"] for of_rank in runs)
    for of_rank in runs if data != "indexed" else ():
        whole, resumed = of_rank[data], of_rank[f"{data}_on"]
        assert resumed["logits"] == whole["logits"][2:]
        assert len(whole["drawn"]) == 32 and resumed["drawn"] == whole["drawn"][16 if data == "positioned" else 0 :]
