"""Language modelling by the collator: causal, masked, by whole words, permuted; and packing without padding."""

import functools
import multiprocessing
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from oneloop.data.collators import (  # noqa: E402
    DataCollatorForLanguageModeling,
    DataCollatorForPermutationLanguageModeling,
    DataCollatorForSOP,
    DataCollatorForWholeWordMask,
    DataCollatorWithFlattening,
)
from oneloop.errors import ArgumentError, DataError  # noqa: E402

IDS = [[2, 5, 6, 3], [2, 8, 9, 10, 11, 3]]
CLS, SEP, MASK = 2, 3, 4


def assert_same(ours, theirs):
    assert set(ours) == set(theirs)
    for key, value in theirs.items():
        if isinstance(value, int):
            assert ours[key] == value
            continue
        assert ours[key].dtype == value.dtype, key
        assert torch.equal(ours[key], value), key


def long_rows(rows=200, width=102):
    """Rows of [CLS], 100 ordinary tokens above 13, [SEP]."""
    body = np.random.default_rng(0).integers(14, 100, (rows, width - 2))
    return [{"input_ids": [CLS, *row, SEP]} for row in body.tolist()]


@pytest.mark.parametrize("side", ["right", "left"])
def test_causal_equals_transformers(tokenizer, side):
    tokenizer.padding_side = side
    options = {"mlm": False, "pad_to_multiple_of": 4}
    theirs = transformers.DataCollatorForLanguageModeling(tokenizer, **options)
    ours = DataCollatorForLanguageModeling(tokenizer, **options, return_tensors="pt")
    for samples in (
        [{"input_ids": ids} for ids in IDS],
        [{"input_ids": ids, "attention_mask": [1] * len(ids), "special_tokens_mask": [0] * len(ids)} for ids in IDS],
        IDS,
        [np.array(ids) for ids in IDS],
        [torch.tensor(ids) for ids in IDS],
    ):
        assert_same(ours(samples), theirs([dict(s) if isinstance(s, dict) else s for s in samples]))
    assert ours(IDS)["labels"].tolist()[0].count(-100) == 4


def test_causal_labels_replace_those_of_the_sample_and_need_no_pad_token(bare_tokenizer):
    collator = DataCollatorForLanguageModeling(bare_tokenizer, mlm=False, return_tensors="np")
    batch = collator(
        [{"input_ids": [5, 6], "labels": [1], "label": 0}, {"input_ids": [7, 8], "labels": [], "label": 1}]
    )
    assert set(batch) == {"input_ids", "attention_mask", "labels"}
    assert batch["labels"].tolist() == [[5, 6], [7, 8]]
    assert not np.shares_memory(batch["labels"], batch["input_ids"])


def test_masking_statistics(tokenizer):
    samples = long_rows()
    ids = np.array([sample["input_ids"] for sample in samples])
    batch = DataCollatorForLanguageModeling(tokenizer, seed=1, return_tensors="np")(samples)
    inputs, labels = batch["input_ids"], batch["labels"]
    chosen = labels != -100
    # 20,000 ordinary tokens: five standard deviations are 0.013 for the first share and about 0.04 for the others.
    assert abs(chosen[:, 1:-1].mean() - 0.15) < 0.013
    assert abs((inputs[chosen] == MASK).mean() - 0.8) < 0.04
    assert abs((inputs[chosen] == ids[chosen]).mean() - 0.1) < 0.03
    swapped = inputs[chosen & (inputs != MASK) & (inputs != ids)]
    assert abs(len(swapped) / chosen.sum() - 0.1) < 0.03
    assert len(np.unique(swapped)) > 80
    assert swapped.min() >= 0
    assert swapped.max() < len(tokenizer)
    np.testing.assert_array_equal(labels[chosen], ids[chosen])
    np.testing.assert_array_equal(inputs[~chosen], ids[~chosen])
    assert not chosen[:, [0, -1]].any()
    assert labels.dtype == inputs.dtype == np.int64


def test_shares_are_those_that_were_asked_for(tokenizer):
    samples = long_rows(50)
    ids = np.array([sample["input_ids"] for sample in samples])
    make = functools.partial(DataCollatorForLanguageModeling, tokenizer, return_tensors="np", seed=0)
    batch = make(mlm_probability=1.0, mask_replace_prob=1.0, random_replace_prob=0.0)(samples)
    assert (batch["input_ids"][:, 1:-1] == MASK).all()
    np.testing.assert_array_equal(batch["labels"][:, 1:-1], ids[:, 1:-1])
    batch = make(mlm_probability=1.0, mask_replace_prob=0.0, random_replace_prob=1.0)(samples)
    assert (batch["input_ids"][:, 1:-1] != ids[:, 1:-1]).mean() > 0.95
    counts = np.bincount(batch["input_ids"][:, 1:-1].ravel(), minlength=100)
    assert counts.min() > 15  # 50 expected of each of the 100 entries
    assert counts.max() < 95
    batch = make(mlm_probability=0.0)(samples)
    assert (batch["labels"] == -100).all()


def test_special_tokens_padding_and_given_masks_are_never_chosen(tokenizer):
    make = functools.partial(DataCollatorForLanguageModeling, tokenizer, mlm_probability=1.0, return_tensors="np")
    assert (make()(IDS)["labels"] != -100).tolist() == [
        [False, True, True, False, False, False],
        [False, True, True, True, True, False],
    ]
    tokenizer.get_special_tokens_mask = lambda row, already_has_special_tokens: [0] * len(row)
    assert (make()(IDS)["labels"] != -100).sum(axis=1).tolist() == [4, 6]  # padding, all the same
    given = [{"input_ids": ids, "special_tokens_mask": [0] + [1] * (len(ids) - 1)} for ids in IDS]
    batch = make()(given)
    assert set(batch) == {"input_ids", "attention_mask", "labels"}
    assert (batch["labels"] != -100).tolist() == [[True] + [False] * 5] * 2


def test_a_batch_always_has_something_to_predict(tokenizer):
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=1e-9, return_tensors="np", seed=0)
    assert ((collator(IDS)["labels"] != -100).sum(), (collator([[CLS, SEP]])["labels"] != -100).sum()) == (1, 0)


def test_the_seed_and_the_global_stream_decide_the_draws(tokenizer):
    samples = long_rows(4)
    make = functools.partial(DataCollatorForLanguageModeling, tokenizer, return_tensors="np")
    one, two, other = make(seed=3), make(seed=3), make(seed=4)
    first = one(samples)["input_ids"]
    np.random.seed(0)
    np.testing.assert_array_equal(first, two(samples)["input_ids"])
    assert (first != one(samples)["input_ids"]).any()
    assert (first != other(samples)["input_ids"]).any()
    # A seed of its own leaves the global stream alone; without one, that stream repeats the draws.
    expected = np.random.RandomState(0).random(2)
    np.testing.assert_array_equal(np.random.random(2), expected)
    np.random.seed(5)
    drawn = make()(samples)["input_ids"]
    np.random.seed(5)
    np.testing.assert_array_equal(drawn, make()(samples)["input_ids"])
    np.random.seed(6)
    assert (drawn != make()(samples)["input_ids"]).any()


def test_workers_and_ranks_draw_differently(tokenizer, monkeypatch):
    samples = long_rows(4)
    collator = DataCollatorForLanguageModeling(tokenizer, return_tensors="np", seed=3)
    collator(samples)
    before = collator(samples)["labels"]
    drawn = [DataCollatorForLanguageModeling(tokenizer, return_tensors="np", seed=3)(samples)["labels"]]
    for identity in [(1,), (2,)]:
        # A worker is handed a copy of a collator that may already have drawn.
        monkeypatch.setattr(multiprocessing.current_process(), "_identity", identity)
        drawn.append(pickle.loads(pickle.dumps(collator))(samples)["labels"])
    monkeypatch.setattr(multiprocessing.current_process(), "_identity", ())
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    drawn.append(DataCollatorForLanguageModeling(tokenizer, return_tensors="np", seed=3)(samples)["labels"])
    drawn.append(before)
    for i, labels in enumerate(drawn):
        assert all((labels != earlier).any() for earlier in drawn[:i])


def test_real_workers_draw_differently(tokenizer):
    collator = DataCollatorForLanguageModeling(tokenizer, return_tensors="pt", seed=3)
    same = long_rows(1) * 4
    first, second, *_ = torch.utils.data.DataLoader(same, batch_size=2, num_workers=2, collate_fn=collator)
    assert not torch.equal(first["labels"], second["labels"])


def test_torch_gets_the_same_masks_as_numpy(tokenizer):
    samples = long_rows(4)
    collator = DataCollatorForLanguageModeling(tokenizer, seed=2, return_tensors="np")
    twin = DataCollatorForLanguageModeling(tokenizer, seed=2, return_tensors="pt")
    assert_same(twin(samples), {key: torch.from_numpy(value) for key, value in collator(samples).items()})


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("by", ["offsets", "tokens", "chinese_ref"])
def test_words_are_masked_as_a_whole(tokenizer, side, by):
    tokenizer.padding_side = side
    rng = np.random.default_rng(0)
    samples, sizes = [], []
    for _ in range(300):
        size = rng.integers(1, 4, rng.integers(10, 20))
        sizes.append(size)
        inner = 8 if by == "chinese_ref" else 6  # "the" or "##ing"
        body = [token for count in size for token in [5] + [inner] * (count - 1)]
        sample = {"input_ids": [CLS, *body, SEP]}
        later = [i + 1 for i, token in enumerate(body) if token == inner]
        if by == "offsets":
            # Words of one space between, tokens of two characters.
            edges, place = [(0, 0)], 0
            for count in size:
                edges += [(place + 2 * i, place + 2 * i + 2) for i in range(count)]
                place += 2 * count + 1
            sample["input_ids"] = [CLS, *([9] * len(body)), SEP]
            sample["offset_mapping"] = [*edges, (0, 0)]
        if by == "chinese_ref":
            sample["chinese_ref"] = later
        samples.append(sample)
    options = {"mask_replace_prob": 1.0, "random_replace_prob": 0.0, "seed": 0, "return_tensors": "np"}
    batch = DataCollatorForLanguageModeling(tokenizer, whole_word_mask=True, **options)(samples)
    assert set(batch) == {"input_ids", "attention_mask", "labels"}
    picked = []
    for row, size, mask in zip(batch["labels"], sizes, batch["attention_mask"], strict=True):
        chosen = (row != -100)[mask == 1][1:-1]
        assert not (row != -100)[mask == 0].any()
        for word in np.split(chosen, np.cumsum(size)[:-1]):
            assert word.all() or not word.any()
            picked.append(word[0])
    assert abs(np.mean(picked) - 0.15) < 0.03
    np.testing.assert_array_equal(batch["input_ids"] == MASK, batch["labels"] != -100)


def test_whole_word_class_masks_80_10_10(tokenizer):
    samples = [{"input_ids": [CLS, *([5, 6, 7] * 30), SEP]} for _ in range(200)]
    ids = np.array([sample["input_ids"] for sample in samples])
    collator = DataCollatorForWholeWordMask(tokenizer, seed=0, return_tensors="np")
    batch = collator(samples)
    chosen = batch["labels"] != -100
    triples = chosen[:, 1:-1].reshape(200, 30, 3)
    assert (triples.all(axis=2) == triples.any(axis=2)).all()
    assert abs(chosen[:, 1:-1].mean() - 0.15) < 0.025
    assert abs((batch["input_ids"][chosen] == MASK).mean() - 0.8) < 0.04
    assert abs((batch["input_ids"][chosen] == ids[chosen]).mean() - 0.1) < 0.03


def test_a_special_token_within_a_word_parts_it(tokenizer):
    # Two tokens, a special one, two tokens, with no gap in the text between any of them.
    sample = {"input_ids": [9, 9, 1, 9, 9], "offset_mapping": [(i, i + 1) for i in range(5)]}
    sample["special_tokens_mask"] = [0, 0, 1, 0, 0]
    options = {"whole_word_mask": True, "mlm_probability": 0.5, "seed": 0, "return_tensors": "np"}
    chosen = DataCollatorForLanguageModeling(tokenizer, **options)([sample] * 50)["labels"] != -100
    assert (chosen[:, 0] == chosen[:, 1]).all()
    assert (chosen[:, 3] == chosen[:, 4]).all()
    assert 0.2 < (chosen[:, 0] == chosen[:, 3]).mean() < 0.8


def test_a_subword_after_a_special_token_is_a_separate_word(tokenizer):
    collator = DataCollatorForWholeWordMask(tokenizer, mlm_probability=1.0, return_tensors="np")
    assert (collator([[6, CLS, 6, 7, SEP, 6]])["labels"] != -100).tolist() == [[True, False, True, True, False, True]]


def test_sentence_order(tokenizer):
    collator = DataCollatorForSOP(tokenizer, seed=0, return_tensors="np")
    samples = [
        {"input_ids": ids, "token_type_ids": [0] * len(ids), "sentence_order_label": order}
        for ids, order in zip(IDS, (0, 1), strict=True)
    ]
    batch = collator(samples)
    assert set(batch) == {"input_ids", "token_type_ids", "attention_mask", "labels", "sentence_order_label"}
    assert batch["sentence_order_label"].tolist() == [0, 1]
    assert batch["token_type_ids"].shape == (2, 6)
    with pytest.raises(DataError, match="'sentence_order_label'"):
        collator([{"input_ids": ids} for ids in IDS])


def test_permutation_statistics_and_masks(tokenizer):
    collator = DataCollatorForPermutationLanguageModeling(tokenizer, seed=0, return_tensors="np")
    samples = long_rows(40)
    ids = np.array([sample["input_ids"] for sample in samples])
    batch = collator(samples)
    labels, hidden = batch["labels"], batch["perm_mask"]
    chosen = labels != -100
    assert 0.1 < chosen[:, 1:-1].mean() < 0.2
    assert not chosen[:, [0, -1]].any()
    np.testing.assert_array_equal(batch["input_ids"], np.where(chosen, MASK, ids))
    np.testing.assert_array_equal(labels[chosen], ids[chosen])
    np.testing.assert_array_equal(batch["target_mapping"], np.broadcast_to(np.eye(102), (40, 102, 102)))
    assert hidden.dtype == batch["target_mapping"].dtype == np.float32
    # Only predicted places are hidden; from themselves always, from tokens that are not predicted always.
    assert (hidden[~np.broadcast_to(chosen[:, None, :], hidden.shape)] == 0).all()
    ordinary = ~chosen & (ids > SEP)
    for row in range(40):
        among = hidden[row][np.ix_(chosen[row], chosen[row])]
        assert (np.diag(among) == 1).all()
        assert (hidden[row][np.ix_(ordinary[row], chosen[row])] == 1).all()
        # One order: of two predicted places exactly one sees the other, and how many each sees counts through.
        assert (among + among.T == 1 + np.eye(len(among))).all()
        assert sorted(among.sum(axis=1)) == list(range(1, len(among) + 1))
    assert (collator(samples)["labels"] != labels).any()


def test_permutation_spans_have_up_to_the_longest_length(tokenizer):
    options = {"plm_probability": 0.25, "max_span_length": 3, "seed": 0, "return_tensors": "np"}
    batch = DataCollatorForPermutationLanguageModeling(tokenizer, **options)(long_rows(100))
    runs = []
    for row in batch["labels"] != -100:
        edges = np.flatnonzero(np.diff(np.concatenate([[0], row, [0]])))
        runs += list(edges[1::2] - edges[::2])
    assert set(runs) >= {1, 2, 3}
    assert np.mean(np.array(runs) > 3) < 0.2  # neighbouring spans may touch
    assert abs((batch["labels"][:, 1:-1] != -100).mean() - 0.25) < 0.03


def test_permutation_shapes_equal_transformers_and_odd_lengths_are_padded(tokenizer):
    theirs = transformers.DataCollatorForPermutationLanguageModeling(tokenizer)(IDS)
    ours = DataCollatorForPermutationLanguageModeling(tokenizer, return_tensors="pt")(IDS)
    assert {key: (value.shape, value.dtype) for key, value in ours.items()} == {
        key: (value.shape, value.dtype) for key, value in theirs.items()
    }
    odd = DataCollatorForPermutationLanguageModeling(tokenizer, return_tensors="np")([[CLS, 5, SEP]])
    assert odd["input_ids"].shape == (1, 4)
    assert odd["input_ids"][0, 3] == 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"return_position_ids": False, "return_seq_idx": True},
        {"return_flash_attn_kwargs": True, "separator_id": -7, "position_ids_start": 2},
    ],
)
@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_flattening_equals_transformers(options, make):
    for labels in ({}, {"labels": 7}):
        samples = [{"input_ids": make(ids), "attention_mask": [1] * len(ids)} for ids in [[5, 6], [7, 8, 9], [10]]]
        for sample in samples if labels else []:
            sample["labels"] = make([labels["labels"]] * len(sample["input_ids"]))
        theirs = transformers.DataCollatorWithFlattening(**options)(samples)
        ours = DataCollatorWithFlattening(**options, return_tensors="pt")(samples)
        assert_same(ours, theirs)
        assert_same(
            DataCollatorWithFlattening(**options)(samples, return_tensors="pt", separator_id=-1),
            transformers.DataCollatorWithFlattening(**options)(samples, separator_id=-1),
        )


def test_flattening_needs_a_label_per_token():
    with pytest.raises(DataError, match=r"'labels' has lengths \[1\], but 'input_ids' has \[2\]"):
        DataCollatorWithFlattening()([{"input_ids": [1, 2], "labels": [1]}])
    batch = DataCollatorWithFlattening("np")([{"input_ids": [1, 2]}, {"input_ids": []}])
    assert batch["labels"].tolist() == [[-100, 2]]


def test_arguments_that_cannot_work(tokenizer, bare_tokenizer):
    with pytest.raises(ArgumentError, match=r"no mask token.*mlm=False"):
        DataCollatorForLanguageModeling(bare_tokenizer)
    with pytest.raises(ArgumentError, match="no mask token"):
        DataCollatorForPermutationLanguageModeling(bare_tokenizer)
    with pytest.raises(ArgumentError, match=r"mlm_probability=1\.5"):
        DataCollatorForLanguageModeling(tokenizer, mlm_probability=1.5)
    with pytest.raises(ArgumentError, match=r"random_replace_prob is 1\.2"):
        DataCollatorForLanguageModeling(tokenizer, mask_replace_prob=0.8, random_replace_prob=0.4)
    with pytest.raises(ArgumentError, match="whole_word_mask=True"):
        DataCollatorForLanguageModeling(tokenizer, mlm=False, whole_word_mask=True)
    with pytest.raises(ArgumentError, match="plm_probability=0"):
        DataCollatorForPermutationLanguageModeling(tokenizer, plm_probability=0)


@pytest.mark.parametrize(
    "kind",
    [
        DataCollatorForLanguageModeling,
        DataCollatorForWholeWordMask,
        DataCollatorForPermutationLanguageModeling,
    ],
)
def test_random_collators_can_be_pickled(tokenizer, kind):
    collator = kind(tokenizer, seed=1, return_tensors="np")
    collator(IDS)
    copy = pickle.loads(pickle.dumps(collator))
    np.testing.assert_array_equal(collator(IDS)["labels"], copy(IDS)["labels"])
