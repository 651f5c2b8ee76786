import functools
import inspect
import pickle

import pytest

from oneloop.data.collators import default_data_collator
from oneloop.data.samples import ColumnFilter, forward_columns
from oneloop.errors import DataError

collate = functools.partial(default_data_collator, return_tensors="np")


def parameters(function):
    return inspect.signature(function).parameters


def test_columns_are_parameters_and_labels():
    keep = forward_columns(parameters(lambda input_ids, mask=None, *args, **kwargs: None), ["start_positions"])
    assert keep == {"input_ids", "mask", "start_positions", "label", "label_ids"}
    assert forward_columns(["x"], []) == {"x", "label", "label_ids"}


def test_a_forward_of_keywords_only_keeps_everything():
    assert forward_columns(parameters(lambda **batch: None), ["labels"]) is None
    assert forward_columns(parameters(lambda: None), ["labels"]) == {"labels", "label", "label_ids"}


def test_unused_columns_are_dropped_and_named_once():
    told = []
    only = ColumnFilter(collate, {"x", "label"}, on_first=told.append)
    samples = [{"x": 1, "id": 7, "text": "a", "label": 0}, {"x": 2, "id": 8, "text": "b", "label": 1}]
    for _ in range(2):
        assert {key: column.tolist() for key, column in only(samples).items()} == {"x": [1, 2], "labels": [0, 1]}
    assert told == [["id", "text"]]
    assert samples[0] == {"x": 1, "id": 7, "text": "a", "label": 0}


def test_samples_with_nothing_to_drop_pass_untouched():
    seen = []
    only = ColumnFilter(seen.append, {"x"})
    samples = [{"x": 1}]
    only(samples)
    assert seen[0] is samples
    pairs = [(1, 2)]
    only(pairs)
    assert seen[1] is pairs


def test_nothing_left_is_an_error():
    with pytest.raises(DataError, match=r"none of the columns \['a', 'b'\].*\['x'\].*remove_unused_columns=False"):
        ColumnFilter(collate, {"x"})([{"a": 1, "b": 2}])


def test_a_sample_without_the_column_is_named_by_the_collator():
    with pytest.raises(DataError, match="sample 1"):
        ColumnFilter(collate, {"x"})([{"x": 1, "y": 2}, {"y": 2}])


def test_the_filter_can_be_pickled():
    copy = pickle.loads(pickle.dumps(ColumnFilter(collate, {"x"})))
    assert copy([{"x": 1, "y": 2}])["x"].tolist() == [1]
