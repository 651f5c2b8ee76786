"""Packing of streams: every token once, and a resume in the middle of a document."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oneloop.backends.loading import load
from oneloop.data.packed_streams import OPEN, PACKERS, PackedStream, SinglePacker
from oneloop.data.process_sharding import ProcessShard
from oneloop.errors import DataError
from oneloop.trainer.dataloaders import _with_source
from tests.backends.support import names

lengths_of_all = st.lists(st.integers(0, 40), min_size=1, max_size=60).filter(any)
packers = st.sampled_from(sorted(PACKERS))


class Documents:
    """Tokens that are all different, with a position that can be stored."""

    def __init__(self, lengths):
        self.lengths = lengths
        self.position = 0

    def __iter__(self):
        while self.position < len(self.lengths):
            first = 1 + sum(self.lengths[: self.position])
            self.position += 1
            yield {"input_ids": list(range(first, first + self.lengths[self.position - 1]))}

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def stream(how, lengths, width):
    return PackedStream(Documents(lengths), PACKERS[how](width), (), False)


def plain(pack):
    return {name: values.tolist() for name, values in pack.items()}


@pytest.mark.parametrize("joins", [False, True])
def test_a_stream_of_other_documents_is_packed_alike(joins):
    """Those of a process that reads its own shards."""
    given = PACKERS["wrapped"](4), ("input_ids",), False, joins
    divided = _with_source(PackedStream(Documents([9]), *given), Documents([2, 3, 3]))
    assert [plain(pack)["lengths"] for pack in divided] == ([[4], [4]] if joins else [[2, 2], [1, 3]])
    assert divided.accepted == ("input_ids",)


@given(packers, lengths_of_all, st.integers(1, 50))
@settings(max_examples=50, deadline=None)
def test_every_token_is_in_one_pack(how, lengths, width):
    packs = [plain(pack) for pack in stream(how, lengths, width)]
    tokens = [token for pack in packs for token in pack["input_ids"]]
    assert Counter(tokens) == Counter(range(1, sum(lengths) + 1))
    starts = {1 + sum(lengths[:i]) for i in range(len(lengths))}
    for pack in packs:
        ids, labels = pack["input_ids"], pack["labels"]
        assert 0 < len(ids) <= width and sum(pack["lengths"]) == len(ids)
        borders = [sum(pack["lengths"][:i]) for i in range(len(pack["lengths"]))]
        assert [i for i, label in enumerate(labels) if label == -100] == borders
        assert all(i in borders for i, token in enumerate(ids) if token in starts)
    if how != "best_fit":
        assert tokens == sorted(tokens) and [len(pack["input_ids"]) for pack in packs[:-1]] == [width] * (
            len(packs) - 1
        )


@given(packers, lengths_of_all, st.integers(1, 50), st.data())
@settings(max_examples=50, deadline=None)
def test_a_stream_continues_at_any_pack(how, lengths, width, data):
    whole = [plain(pack) for pack in stream(how, lengths, width)]
    done = data.draw(st.integers(0, len(whole)))
    first = stream(how, lengths, width)
    packs = iter(first)
    for _ in range(done):
        next(packs)
    state = json.loads(json.dumps(first.state_dict()))
    again = stream(how, lengths, width)
    again.load_state_dict(state)
    assert [plain(pack) for pack in again] == whole[done:]


def test_best_fit_keeps_few_packs_open():
    packed = stream("best_fit", [30] * 500, 50)
    for _ in packed:
        assert len(packed.packer.waiting) <= OPEN


def test_the_fullest_of_too_many_open_packs_is_complete(monkeypatch):
    monkeypatch.setattr("oneloop.data.packed_streams.OPEN", 2)
    packs = [pack["lengths"].tolist() for pack in stream("best_fit", [6, 7, 5, 4], 10)]
    assert packs == [[7], [6, 4], [5]]


def test_a_state_keeps_the_types_of_columns():
    class Weighted(Documents):
        def __iter__(self):
            for document in super().__iter__():
                yield document | {"weights": np.full(len(document["input_ids"]), 0.5, np.float32)}

    def packed(source):
        return PackedStream(source, PACKERS["end_to_end"](2), ("weights",), False)

    first = packed(Weighted([3]))
    next(iter(first))
    again = packed(Weighted([3]))
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [pack["weights"].dtype for pack in again] == [np.float32]


def test_the_next_epoch_starts_anew():
    packed = stream("end_to_end", [3, 4], 5)
    first = [plain(pack) for pack in packed]
    packed.source.position = 0
    assert [plain(pack) for pack in packed] == first


def test_documents_alone():
    packed = PackedStream(Documents([3, 1]), SinglePacker(8), (), False)
    assert [pack["input_ids"].tolist() for pack in packed] == [[1, 2, 3], [4]]


def test_a_stream_without_a_state_has_none():
    packed = PackedStream(iter([{"input_ids": [1, 2]}]), SinglePacker(8), (), False)
    assert not hasattr(packed, "state_dict") and not hasattr(packed, "load_state_dict")


def test_further_columns_of_the_model():
    documents = [{"input_ids": [1, 2], "token_type_ids": [0, 1], "other": [5, 6], "label": 3}] * 2
    packed = PackedStream(documents, PACKERS["end_to_end"](4), ("input_ids", "token_type_ids", "label"), False)
    (pack,) = packed
    assert sorted(pack) == ["input_ids", "labels", "lengths", "token_type_ids"]
    assert pack["token_type_ids"].tolist() == [0, 1, 0, 1]


def test_a_document_without_tokens_is_named():
    with pytest.raises(DataError, match="document 1 of the stream is a dict with the columns"):
        list(PackedStream([{"input_ids": [1]}, {"text": "a"}], SinglePacker(8), (), False))


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_the_packs_of_one(world):
    lengths = [7, 3, 11, 2, 30, 1, 8] * 3
    alone = [plain(pack) for pack in stream("end_to_end", lengths, 8)]
    backend = load(names()[0])
    shards = [
        ProcessShard(stream("end_to_end", lengths, 8), 2, world, rank, False, 0, backend) for rank in range(world)
    ]
    parts = [[plain(pack) for pack in shard] for shard in shards]
    together = []
    while any(parts):
        for part in parts:
            together += part[:2]
            del part[:2]
    assert sorted(pack["input_ids"] for pack in together) == sorted(pack["input_ids"] for pack in alone)
    assert together[: 2 * world] == alone[: 2 * world]
