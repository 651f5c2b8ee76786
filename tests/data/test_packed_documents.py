"""Packing: every token once in a pass, a pure function of the position, the same on any number of processes."""

import pickle
from collections import Counter
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oneloop import Mixture
from oneloop.data.collators.packs import PackCollator
from oneloop.data.length_grouping import measure_lengths
from oneloop.data.order import BatchSampler
from oneloop.data.packed_documents import (
    LAYOUTS,
    BestFit,
    EndToEnd,
    PackedDocuments,
    PackOrder,
    Unpacked,
    best_fit,
    layouts_of,
    pack_of,
    token_columns,
)
from oneloop.errors import DataError

lengths_of_all = st.lists(st.integers(0, 40), min_size=1, max_size=60).filter(any)
layouts = st.sampled_from(sorted(LAYOUTS))


def tokens_of(pieces):
    return [(document, place) for document, start, stop in pieces for place in range(start, stop)]


def documents_of(lengths, first=0):
    """Every token of all documents is another number."""
    ends = np.cumsum(lengths)
    return [{"input_ids": list(range(first + end - n, first + end))} for end, n in zip(ends.tolist(), lengths)]


@given(layouts, lengths_of_all, st.integers(1, 50), st.integers(0, 3), st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_token_is_in_one_pack_of_a_pass(how, lengths, width, number_of_pass, shuffle):
    layout = LAYOUTS[how](np.array(lengths), width, seed=5, shuffle=shuffle)
    packs = [layout.pieces(number_of_pass * layout.packs + pack) for pack in range(layout.packs)]
    found = Counter(token for pieces in packs for token in tokens_of(pieces))
    assert found == Counter((i, place) for i, n in enumerate(lengths) for place in range(n))
    sizes = [len(tokens_of(pieces)) for pieces in packs]
    assert min(sizes) > 0 and max(sizes) <= width
    if how != "best_fit":
        assert sizes[:-1] == [width] * (len(packs) - 1)
    else:  # only documents that are longer than a pack are cut
        assert all((stop - start) in (width, lengths[i] % width) for pack in packs for i, start, stop in pack)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=80), st.integers(20, 30))
@settings(max_examples=60, deadline=None)
def test_best_fit_is_that_of_one_document_after_the_other(lengths, width):
    ranked = np.array(sorted(lengths, reverse=True))
    rooms = []
    for length in ranked:
        fitting = [room for room in rooms if room >= length]
        if fitting:
            rooms[rooms.index(min(fitting))] -= length
        else:
            rooms.append(width - length)
    found = best_fit(ranked, width)
    filled = np.bincount(found, weights=ranked)
    assert Counter(width - filled.astype(int)) == Counter(rooms)


def test_passes_differ_and_are_computed_in_any_order():
    lengths = np.random.RandomState(0).randint(1, 30, 50)
    for kind in (EndToEnd, BestFit):
        layout = kind(lengths, 32, seed=1)
        numbers = list(range(3 * layout.packs))
        packs = [layout.pieces(number) for number in numbers]
        assert packs[: layout.packs] != packs[layout.packs : 2 * layout.packs]
        again = pickle.loads(pickle.dumps(kind(lengths, 32, seed=1)))
        assert [again.pieces(number) for number in reversed(numbers)] == packs[::-1]
        assert kind(lengths, 32, seed=2).pieces(0) != packs[0]


def test_the_layout_is_part_of_the_format():
    """Checkpoints rely on these very packs."""
    lengths = np.array([3, 9, 2, 5, 1, 4, 7])
    assert [EndToEnd(lengths, 8, seed=42).pieces(number) for number in (0, 3, 5)] == END_TO_END
    assert [BestFit(lengths, 8, seed=42).pieces(number) for number in (0, 3, 5)] == BEST_FIT


END_TO_END = [[(4, 0, 1), (1, 0, 7)], [(6, 0, 7)], [(5, 0, 4), (1, 0, 4)]]
BEST_FIT = [[(1, 0, 8)], [(5, 0, 4), (2, 0, 2), (1, 8, 9)], [(6, 0, 7), (4, 0, 1)]]


# -- the order


def global_batches(orders, batch, world, epochs=2):
    """For each global micro-batch, what all processes have of it together."""
    samplers = [BatchSampler(orders, batch, world, rank) for rank in range(world)]
    found = []
    for epoch in range(epochs):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        found += [[number for part in parts for number in part] for parts in zip(*samplers)]
    return found


def test_each_epoch_is_a_pass_of_its_own():
    for epoch in (0, 3):
        assert sorted(PackOrder(6, 1, epoch).take(0, 6).tolist()) == list(range(6 * epoch, 6 * epoch + 6))


def test_the_documents_of_each_source_have_an_order_of_their_own():
    lengths = np.arange(1, 30)
    for how in LAYOUTS:
        first, second = layouts_of(how, [lengths % 5 + 1] * 2, 8, 1, True)
        packs = [[layout.pieces(number) for number in range(layout.packs)] for layout in (first, second)]
        assert packs[0] != packs[1]


@given(layouts, lengths_of_all, st.integers(1, 50), st.sampled_from([2, 3, 4, 8]))
@settings(max_examples=40, deadline=None)
def test_any_number_of_processes_sees_the_same_batches(how, lengths, width, world):
    layout = LAYOUTS[how](np.array(lengths), width, seed=3)

    def orders(epoch):
        return PackOrder(layout.packs, 3, epoch)

    alone = global_batches(orders, 2 * world, 1)
    assert global_batches(orders, 2, world) == alone
    tokens = Counter(token for batch in alone for number in batch for token in tokens_of(layout.pieces(number)))
    assert tokens == Counter({(i, place): 2 for i, n in enumerate(lengths) for place in range(n)})


@given(
    layouts,
    st.lists(lengths_of_all, min_size=1, max_size=4),
    st.lists(st.integers(1, 9), min_size=4, max_size=4),
    st.integers(1, 40),
    st.sampled_from(["first_exhausted", "all_exhausted", 17]),
    st.integers(1, 8),
)
@settings(max_examples=30, deadline=None)
def test_packs_of_a_mixture(how, sources, weights, width, stop, world):
    """Proportions are those of packs; no token repeats inside a pass of its dataset; processes agree."""
    mixture = Mixture([documents_of(lengths) for lengths in sources], weights[: len(sources)], stop=stop)
    made = layouts_of(how, [np.array(lengths) for lengths in sources], width, 7, True)
    packed = PackedDocuments(mixture, made)
    orders = mixture.orders(7, 2 * world, packs=packed.sizes)
    alone = [number for batch in global_batches(orders, 2 * world, 1) for number in batch]
    together = [number for batch in global_batches(orders, 2, world) for number in batch]
    assert together == alone
    counts = Counter()
    shares = np.array(weights[: len(sources)]) / sum(weights[: len(sources)])
    seen = {source: [] for source in range(len(sources))}
    for place, number in enumerate(alone, 1):
        source = packed.source_of(number)
        counts[source] += 1
        assert all(abs(counts[s] - share * place) < 1 for s, share in enumerate(shares))
        seen[source].append(packed.pieces(number))
    firsts = np.concatenate(([0], np.cumsum([len(lengths) for lengths in sources])))
    for source, packs in seen.items():
        for start in range(0, len(packs), made[source].packs):
            of_pass = packs[start : start + made[source].packs]
            tokens = Counter(token for pieces in of_pass for token in tokens_of(pieces))
            assert not tokens or max(tokens.values()) == 1
            assert all(firsts[source] <= document < firsts[source + 1] for document, _ in tokens)
            if len(of_pass) == made[source].packs:
                assert tokens.total() == sum(sources[source])


def test_a_pack_far_into_a_run_costs_the_same():
    lengths = np.random.RandomState(0).randint(1, 30, 1000)
    mixture = Mixture({"a": documents_of(lengths[:500]), "b": documents_of(lengths[500:])}, [0.8, 0.2])
    packed = PackedDocuments(mixture, layouts_of("end_to_end", [lengths[:500], lengths[500:]], 64, 1, True))
    order = mixture.orders(1, 8, packs=packed.sizes)(10**8)
    numbers = order.take(0, 20)
    assert min(numbers) > 10**9
    assert len(packed.__getitems__(numbers.tolist())) == 20


# -- packs and batches


@given(layouts, lengths_of_all, st.integers(1, 50))
@settings(max_examples=60, deadline=None)
def test_tokens_labels_and_lengths_of_packs(how, lengths, width):
    documents = documents_of(lengths, first=1)
    packed = PackedDocuments(documents, layouts_of(how, [np.array(lengths)], width, 3, True))
    for number in range(len(packed)):
        pack = packed[number]
        pieces = [documents[i]["input_ids"][start:stop] for i, start, stop in packed.pieces(number)]
        assert pack["input_ids"].tolist() == sum(pieces, [])
        assert pack["labels"].tolist() == sum(([-100, *piece[1:]] for piece in pieces), [])
        assert pack["lengths"].tolist() == [len(piece) for piece in pieces]
    assert packed.fill == pytest.approx(sum(lengths) / (len(packed) * width))
    assert [document["input_ids"] for document in documents_of(lengths, first=1)] == [
        document["input_ids"] for document in documents
    ]


def test_labels_of_the_documents_are_kept():
    documents = [{"input_ids": [1, 2, 3], "labels": [-100, 7, 8]}, {"input_ids": [4, 5], "labels": [6, -100]}]
    layout = [EndToEnd(np.array([3, 2]), 5, shuffle=False)]
    assert PackedDocuments(documents, layout)[0]["labels"].tolist() == [-100, 7, 8, -100, -100]
    assert PackedDocuments(documents, layout, keeps_first_label=True)[0]["labels"].tolist() == [-100, 7, 8, 6, -100]
    assert documents[1]["labels"] == [6, -100]
    tokens = [{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}]  # which are the labels
    for keeps_first_label in (False, True):
        labels = PackedDocuments(tokens, layout, keeps_first_label=keeps_first_label)[0]["labels"]
        assert labels.tolist() == [-100, 2, 3, -100, 5]


def test_the_columns_that_keep_documents_apart():
    pieces = [{"input_ids": np.arange(n) + 1, "labels": np.arange(n) + 1} for n in (2, 1, 3)]
    packs = [pack_of(pieces), pack_of(pieces[:1])]
    columns = ("position_ids", "document_ids", "attention_mask", "attn_mask_startend_row_indices")
    batch = PackCollator(None, columns, pad_token_id=9)(packs)
    assert batch["input_ids"].tolist() == [[1, 2, 1, 1, 2, 3], [1, 2, 9, 9, 9, 9]]
    assert batch["labels"].tolist() == [[-100, 2, -100, -100, 2, 3], [-100, 2, -100, -100, -100, -100]]
    assert batch["position_ids"].tolist() == [[0, 1, 0, 0, 1, 2], [0, 1, 0, 1, 2, 3]]
    assert batch["document_ids"].tolist() == [[0, 0, 1, 2, 2, 2], [0, 0, 1, 1, 1, 1]]
    assert batch["attn_mask_startend_row_indices"][:, 0, :, 0].tolist() == [[2, 2, 3, 6, 6, 6], [2, 2, 6, 6, 6, 6]]
    assert batch["attention_mask"].shape == (2, 1, 6, 6)
    assert batch["attention_mask"][0, 0].astype(int).tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 0],
        [0, 0, 0, 1, 0, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 1, 1, 1],
    ]
    assert batch.useful_tokens.tolist() == [6, 2]
    both_ways = PackCollator(None, columns, causal=False)(packs)["attention_mask"][0, 0]
    assert np.array_equal(both_ways, both_ways.T) and both_ways.sum() == 4 + 1 + 9


def test_flash_attention_has_all_documents_in_one_row():
    pieces = [{"input_ids": np.arange(n) + 1, "labels": np.arange(n) + 1} for n in (2, 1, 3)]
    batch = PackCollator(None, ("position_ids", "cu_seq_lens_q"))([pack_of(pieces), pack_of(pieces[:1])])
    assert batch["input_ids"].tolist() == [[1, 2, 1, 1, 2, 3, 1, 2]]
    assert batch["position_ids"].tolist() == [[0, 1, 0, 0, 1, 2, 0, 1]]
    assert batch["cu_seq_lens_q"].tolist() == batch["cu_seq_lens_k"].tolist() == [0, 2, 3, 6, 8]
    assert batch["max_length_q"] == batch["max_length_k"] == 3


def test_a_document_in_each_row():
    packed = PackedDocuments(documents_of([3, 1, 2]), [Unpacked(np.array([3, 1, 2]))])
    assert [pack["input_ids"].tolist() for pack in packed.__getitems__([0, 1, 2])] == [[0, 1, 2], [3], [4, 5]]


@pytest.mark.parametrize(
    "sample, message",
    [
        ({"text": "a"}, r"a document is a dict with the columns \['text'\]"),
        ("a", "is a str with no columns"),
        ({"input_ids": [[1, 2]]}, r"has shape \(1, 2\)"),
        ({"input_ids": [1, 2], "attention_mask": [1, 0]}, "without padding"),
        ({"input_ids": [1, 2], "labels": [1]}, r"'labels' of a document has the shape \(1,\), but 'input_ids' \(2,\)"),
    ],
)
def test_documents_that_cannot_be_packed(sample, message):
    with pytest.raises(DataError, match=message):
        token_columns(sample)


def test_a_length_that_has_changed():
    packed = PackedDocuments(documents_of([3, 4]), [EndToEnd(np.array([3, 5]), 8, shuffle=False)])
    with pytest.raises(DataError, match="document 1 has 4 tokens, but 5 when its length was measured"):
        packed[0]


def test_datasets_of_the_hub():
    """The same packs from Arrow tables, also where rows were selected; lengths are read without the tokens."""
    datasets = pytest.importorskip("datasets")
    lengths = [3, 9, 2, 5, 1, 4, 7]
    documents = [document | {"text": "x"} for document in documents_of(lengths, first=1)]
    data = datasets.Dataset.from_list(documents[::-1]).select(range(6, -1, -1))
    assert measure_lengths(data, progress=False).tolist() == lengths
    layout = layouts_of("end_to_end", [np.array(lengths)], 8, 3, True)
    for each in (data, data.with_format("numpy"), data.with_format("torch") if find_spec("torch") else data):
        packed = PackedDocuments(each, layout)
        for number in range(len(packed)):
            found, expected = packed[number], PackedDocuments(documents, layout)[number]
            assert {name: values.tolist() for name, values in found.items()} == {
                name: values.tolist() for name, values in expected.items()
            }
