"""Seq2SeqTrainingArguments."""

import pytest

from oneloop.arguments import Seq2SeqTrainingArguments, TrainingArguments
from oneloop.errors import ArgumentError


def test_defaults():
    args = Seq2SeqTrainingArguments("out")
    assert isinstance(args, TrainingArguments)
    assert not args.sortish_sampler and not args.predict_with_generate
    assert args.generation_max_length is args.generation_num_beams is args.generation_config is None


def test_values(tmp_path):
    args = Seq2SeqTrainingArguments(
        "out", predict_with_generate="true", generation_max_length="20", generation_config=tmp_path, no_cuda=True
    )
    assert args.predict_with_generate is True and args.generation_max_length == 20
    assert args.generation_config == str(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("generation_max_length", 0), ("generation_num_beams", 0), ("generation_config", 3), ("sortish_sampler", "x")],
)
def test_wrong_values(name, value):
    with pytest.raises(ArgumentError, match=f"^Invalid {name}="):
        Seq2SeqTrainingArguments("out", **{name: value})


def test_one_order_of_the_data():
    with pytest.raises(ArgumentError, match="sortish_sampler"):
        Seq2SeqTrainingArguments("out", sortish_sampler=True, group_by_length=True)
    with pytest.raises(ArgumentError, match="sortish_sampler=True and data_order='transformers' are two orders"):
        Seq2SeqTrainingArguments("out", sortish_sampler=True, data_order="transformers")
