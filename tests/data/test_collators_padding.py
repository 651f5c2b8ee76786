"""Collators that pad, compared with those of transformers wherever both give an answer."""

import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from oneloop.data.collators import (  # noqa: E402
    DataCollatorForMultipleChoice,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
)
from oneloop.errors import ArgumentError, DataError  # noqa: E402

IDS = [[2, 5, 3], [2, 5, 6, 7, 3], [2, 3]]


def samples(**more):
    batch = [{"input_ids": ids, "token_type_ids": [0] * len(ids), "attention_mask": [1] * len(ids)} for ids in IDS]
    for key, values in more.items():
        for sample, value in zip(batch, values, strict=True):
            sample[key] = value
    return batch


def assert_same(ours, theirs):
    assert set(ours) == set(theirs)
    for key, value in theirs.items():
        assert isinstance(ours[key], torch.Tensor), key
        assert ours[key].dtype == value.dtype, key
        assert torch.equal(ours[key], value), key


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"padding": "longest"},
        {"padding": "max_length", "max_length": 9},
        {"padding": "max_length", "max_length": 9, "pad_to_multiple_of": 4},
        {"pad_to_multiple_of": 8},
        {"padding": transformers.utils.PaddingStrategy.MAX_LENGTH, "max_length": 6},
    ],
)
def test_padding_equals_transformers(tokenizer, side, options):
    tokenizer.padding_side = side
    for more in ({}, {"label": [0, 1, 1]}, {"label_ids": [0.5, 1.0, 2.0]}, {"labels": [1, 2, 3]}):
        theirs = transformers.DataCollatorWithPadding(tokenizer, **options)(samples(**more))
        assert_same(DataCollatorWithPadding(tokenizer, **options, return_tensors="pt")(samples(**more)), theirs)


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_mask_is_made_when_samples_have_none(tokenizer, side):
    tokenizer.padding_side = side
    bare = [{"input_ids": ids} for ids in IDS]
    theirs = transformers.DataCollatorWithPadding(tokenizer)([dict(sample) for sample in bare])
    assert_same(DataCollatorWithPadding(tokenizer, return_tensors="pt")(bare), theirs)
    tokenizer.model_input_names = ["input_ids"]
    assert set(DataCollatorWithPadding(tokenizer)(bare)) == {"input_ids"}


def test_special_tokens_mask_pads_with_one_and_token_types_with_their_own(tokenizer):
    tokenizer._pad_token_type_id = 3
    given = samples(special_tokens_mask=[[1, 0, 1], [1, 0, 0, 0, 1], [1, 1]])
    theirs = transformers.DataCollatorWithPadding(tokenizer)([dict(sample) for sample in given])
    ours = DataCollatorWithPadding(tokenizer, return_tensors="pt")(given)
    assert_same(ours, theirs)
    assert ours["token_type_ids"][2].tolist() == [0, 0, 3, 3, 3]


@pytest.mark.parametrize("make", [np.array, torch.tensor, tuple])
def test_arrays_tensors_and_tuples_pad_like_lists(tokenizer, make):
    expected = DataCollatorWithPadding(tokenizer, return_tensors="np")(samples())
    given = [{key: make(value) for key, value in sample.items()} for sample in samples()]
    batch = DataCollatorWithPadding(tokenizer, return_tensors="np")(given)
    for key, value in expected.items():
        assert batch[key].dtype == np.int64
        np.testing.assert_array_equal(batch[key], value)


def test_encodings_of_the_tokenizer_pad_and_samples_stay_as_they_were(tokenizer):
    encoded = [tokenizer("the cat sat"), tokenizer("a", "mat on the mat")]
    before = [dict(sample) for sample in encoded]
    batch = DataCollatorWithPadding(tokenizer, return_tensors="np")(encoded)
    assert batch["input_ids"].shape == (2, 8)
    assert batch["token_type_ids"][1].tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    assert [dict(sample) for sample in encoded] == before


def test_other_columns_are_stacked_and_strings_dropped(tokenizer):
    pixels = [torch.ones(2, 2, dtype=torch.bfloat16)] * 3
    batch = DataCollatorWithPadding(tokenizer, return_tensors="pt")(samples(pixels=pixels, text=["a", "b", "c"]))
    assert batch["pixels"].dtype == torch.bfloat16
    assert "text" not in batch


def test_a_mask_per_pair_of_tokens_is_stacked(tokenizer):
    given = samples(attention_mask=[np.ones((5, 5), np.int64)] * 3)
    assert DataCollatorWithPadding(tokenizer, return_tensors="np")(given)["attention_mask"].shape == (3, 5, 5)


class Properties:
    """A tokenizer that has only the facts padding needs."""

    pad_token_id = 9
    padding_side = "left"
    model_input_names = ("ids",)


class Method:
    """A tokenizer that pads in its own way."""

    def pad(self, encoded, padding, max_length, pad_to_multiple_of, return_tensors):
        assert return_tensors == "np"
        assert (padding, max_length, pad_to_multiple_of) == (True, None, 2)
        return {"input_ids": np.array([sample["input_ids"][:1] for sample in encoded]), "keys": list(encoded[0])}


def test_tokenizers_by_facts_and_by_method(tokenizer):
    batch = DataCollatorWithPadding(Properties(), return_tensors="np")([{"ids": [1]}, {"ids": [2, 3]}])
    assert batch["ids"].tolist() == [[9, 1], [2, 3]]
    collator = DataCollatorWithPadding(Method(), pad_to_multiple_of=2, return_tensors="np")
    batch = collator([{"input_ids": [1], "text": "a"}, {"input_ids": [2, 3], "text": "b"}])
    assert batch["input_ids"].tolist() == [[1], [2]]
    assert batch["keys"] == ["input_ids"]
    with pytest.raises(DataError, match="NoneType cannot pad"):
        DataCollatorWithPadding(None)(samples())


def test_a_tokenizer_class_that_pads_its_own_columns_is_asked(tokenizer):
    class Boxes(type(tokenizer)):
        def _pad(self, encoded_inputs, max_length=None, **options):
            encoded_inputs["boxes"] = encoded_inputs["boxes"] + [-1] * (max_length - len(encoded_inputs["boxes"]))
            return super()._pad(encoded_inputs, max_length=max_length, **options)

    tokenizer.__class__ = Boxes
    batch = DataCollatorWithPadding(tokenizer, return_tensors="np")(samples(boxes=IDS))
    assert batch["boxes"][2].tolist() == [2, 3, -1, -1, -1]
    assert batch["input_ids"].shape == (3, 5)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_token_labels_equal_transformers(tokenizer, side, make):
    tokenizer.padding_side = side
    labels = [make([-100, 1, -100]), make([-100, 1, 2, 3, -100]), make([-100, -100])]
    options = {"pad_to_multiple_of": 4, "label_pad_token_id": -7}
    theirs = transformers.DataCollatorForTokenClassification(tokenizer, **options)(samples(labels=labels))
    collator = DataCollatorForTokenClassification(tokenizer, **options, return_tensors="pt")
    assert_same(collator(samples(labels=labels)), theirs)
    assert_same(collator(samples(label=labels)), theirs)
    assert "labels" not in collator(samples())


def test_more_labels_than_tokens_is_an_error(tokenizer):
    with pytest.raises(DataError, match="up to 6 labels, but only 5 tokens"):
        DataCollatorForTokenClassification(tokenizer)(samples(labels=[[1], [1] * 6, [1]]))


TARGETS = [[5, 6, 3], [5, 3], [5, 6, 7, 8, 9, 10, 3]]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("make", [list, np.array])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pad_to_multiple_of": 4},
        {"label_pad_token_id": 0},
        {"padding": "max_length", "max_length": 8},
        {"padding": "max_length", "max_length": 8, "pad_to_multiple_of": 3},
    ],
)
def test_targets_equal_transformers(tokenizer, side, make, options):
    tokenizer.padding_side = side
    labels = [make(target) for target in TARGETS]
    theirs = transformers.DataCollatorForSeq2Seq(tokenizer, **options)(samples(labels=labels))
    assert_same(DataCollatorForSeq2Seq(tokenizer, **options, return_tensors="pt")(samples(labels=labels)), theirs)


def test_targets_may_be_missing_or_unpadded(tokenizer):
    assert "labels" not in DataCollatorForSeq2Seq(tokenizer)(samples())
    assert "labels" not in DataCollatorForSeq2Seq(tokenizer)(samples(labels=[None] * 3))
    tokenizer.model_max_length = 6
    batch = DataCollatorForSeq2Seq(tokenizer, padding="max_length", return_tensors="np")(samples(labels=TARGETS))
    assert batch["input_ids"].shape == (3, 6)
    assert batch["labels"].shape == (3, 7)
    even = [{"input_ids": [1, 2], "labels": [3]}, {"input_ids": [3, 4], "labels": [5]}]
    batch = DataCollatorForSeq2Seq(tokenizer, padding=False, return_tensors="np")(even)
    assert batch["labels"].tolist() == [[3], [5]]


class Decoder(torch.nn.Module):
    def prepare_decoder_input_ids_from_labels(self, labels):
        return torch.nn.functional.pad(labels[:, :-1].masked_fill(labels[:, :-1] == -100, 0), (1, 0), value=2)


def test_decoder_inputs_come_from_the_model(tokenizer):
    theirs = transformers.DataCollatorForSeq2Seq(tokenizer, model=Decoder())(samples(labels=TARGETS))
    collator = DataCollatorForSeq2Seq(tokenizer, model=Decoder(), return_tensors="pt")
    assert_same(collator(samples(labels=TARGETS)), theirs)
    batch = collator(samples(labels=TARGETS), return_tensors="np")
    assert type(batch["decoder_input_ids"]) is np.ndarray
    assert "decoder_input_ids" not in DataCollatorForSeq2Seq(tokenizer, torch.nn.Linear(1, 1))(samples(labels=TARGETS))


def choices(label):
    return [
        {"input_ids": [[2, 5, 3], [2, 3]], "attention_mask": [[1] * 3, [1] * 2], label: 1},
        {"input_ids": [[2, 5, 6, 3], [2, 3]], "attention_mask": [[1] * 4, [1] * 2], label: 0},
    ]


@pytest.mark.parametrize("label", ["label", "labels"])
def test_choices_equal_transformers(tokenizer, label):
    theirs = transformers.DataCollatorForMultipleChoice(tokenizer)(choices(label))
    given = choices(label)
    batch = DataCollatorForMultipleChoice(tokenizer, return_tensors="pt")(given)
    assert_same(batch, theirs)
    assert batch["input_ids"].shape == (2, 2, 4)
    assert given == choices(label)


def test_choices_without_labels_and_with_unequal_counts(tokenizer):
    given = [{"input_ids": sample["input_ids"], "text": "a"} for sample in choices("label")]
    assert set(DataCollatorForMultipleChoice(tokenizer)(given)) == {"input_ids", "attention_mask"}
    given[1]["input_ids"] = [[2, 3]]
    with pytest.raises(DataError, match=r"'input_ids' has \[2, 1\] choices"):
        DataCollatorForMultipleChoice(tokenizer)(given)


def test_a_missing_pad_token_is_an_error_only_where_it_is_needed(bare_tokenizer):
    collator = DataCollatorWithPadding(bare_tokenizer, return_tensors="np")
    assert collator([{"input_ids": [1, 2]}, {"input_ids": [3, 4]}])["input_ids"].shape == (2, 2)
    with pytest.raises(DataError, match=r"lengths \[3, 5, 2\].*no pad token.*tokenizer.pad_token = "):
        collator([{"input_ids": ids} for ids in IDS])


def test_errors_say_what_to_do(tokenizer):
    with pytest.raises(DataError, match=r"requires 'input_ids', but the samples have only \['text'\].*Tokenize"):
        DataCollatorWithPadding(tokenizer)([{"text": "a"}])
    with pytest.raises(DataError, match=r"padding=False, but the samples have lengths \[3, 5, 2\]"):
        DataCollatorWithPadding(tokenizer, padding=False)(samples())
    with pytest.raises(DataError, match=r"5 tokens, more than max_length=4.*truncation=True"):
        DataCollatorWithPadding(tokenizer, padding="max_length", max_length=4)(samples())
    with pytest.raises(ArgumentError, match="requires max_length="):
        DataCollatorWithPadding(tokenizer, padding="max_length")(samples())
    with pytest.raises(ArgumentError, match="padding='widest'"):
        DataCollatorWithPadding(tokenizer, padding="widest")(samples())
    with pytest.raises(DataError, match=r"shape \(1, 3\).*without return_tensors="):
        DataCollatorWithPadding(tokenizer)([{"input_ids": torch.ones(1, 3)}])
    with pytest.raises(DataError, match=r"'input_ids' must be one list .* int"):
        DataCollatorWithPadding(tokenizer)([{"input_ids": 3}])
    with pytest.raises(DataError, match=r"'token_type_ids' has lengths \[3, 4, 2\]"):
        DataCollatorWithPadding(tokenizer)(samples(token_type_ids=[[0] * 3, [0] * 4, [0] * 2]))
    with pytest.raises(DataError, match=r"'labels'.*lengths are 3, 2, 7.*DataCollatorForSeq2Seq"):
        DataCollatorWithPadding(tokenizer)(samples(labels=TARGETS))
    with pytest.raises(DataError, match=r"expects dicts.*first sample is a tuple"):
        DataCollatorWithPadding(tokenizer)([([1, 2], 0)])


@pytest.mark.parametrize("kind", [DataCollatorWithPadding, DataCollatorForTokenClassification, DataCollatorForSeq2Seq])
def test_padding_collators_can_be_pickled(tokenizer, kind):
    copy = pickle.loads(pickle.dumps(kind(tokenizer, pad_to_multiple_of=4, return_tensors="np")))
    assert copy(samples())["input_ids"].shape == (3, 8)
