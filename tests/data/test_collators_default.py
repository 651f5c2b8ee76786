"""The default collator, what its results are made of, and the choice of framework."""

import functools
import pickle
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from oneloop.data import collators  # noqa: E402
from oneloop.data.collators import (  # noqa: E402
    DataCollatorMixin,
    DefaultDataCollator,
    default_data_collator,
    numpy_default_data_collator,
    torch_default_data_collator,
)
from oneloop.errors import ArgumentError, DataError  # noqa: E402

in_numpy = functools.partial(default_data_collator, return_tensors="np")


def test_every_name_is_exported():
    for name in collators.__all__:
        assert getattr(collators, name) is not None
    assert set(collators.__all__) >= {"DataCollator", "DataCollatorForSOP", "DataCollatorForWholeWordMask"}


@pytest.mark.parametrize(
    ("value", "shape", "dtype"),
    [
        (3, (2,), np.int64),
        (0.5, (2,), np.float32),
        (True, (2,), np.bool_),
        ([1, 2, 3], (2, 3), np.int64),
        ([0.5, 1.0], (2, 2), np.float32),
        ([[True], [False]], (2, 2, 1), np.bool_),
        ((1, 2), (2, 2), np.int64),
        (np.float64(0.5), (2,), np.float64),
        (np.int16(7), (2,), np.int16),
        (np.zeros(4, np.float64), (2, 4), np.float64),
        (np.zeros((2, 2), np.uint8), (2, 2, 2), np.uint8),
        ([np.zeros(2), np.ones(2)], (2, 2, 2), np.float64),
        (np.array(3, np.int32), (2,), np.int32),
        (torch.zeros(3, dtype=torch.float16), (2, 3), np.float16),
        ([], (2, 0), np.float32),
    ],
)
def test_shape_and_dtype_of_a_column(value, shape, dtype):
    batch = in_numpy([{"x": value}, {"x": value}])
    assert type(batch["x"]) is np.ndarray
    assert batch["x"].shape == shape
    assert batch["x"].dtype == dtype
    tensor = default_data_collator([{"x": value}, {"x": value}], "pt")["x"]
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_array_equal(tensor.numpy(), batch["x"])
    assert tensor.numpy().dtype == dtype


def test_an_integer_first_does_not_cut_later_fractions():
    np.testing.assert_array_equal(in_numpy([{"x": 1}, {"x": 0.5}])["x"], np.array([1, 0.5], np.float32))


def test_torch_columns_are_stacked_by_torch():
    values = [torch.randn(3).bfloat16() for _ in range(2)]
    batch = default_data_collator([{"x": value} for value in values], "pt")
    assert batch["x"].dtype == torch.bfloat16
    assert torch.equal(batch["x"], torch.stack(values))


@pytest.mark.parametrize("name", ["label", "label_ids"])
@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1, np.int64),
        (True, np.int64),
        (0.5, np.float32),
        (np.float64(0.5), np.float32),
        (np.int32(1), np.int64),
        (torch.tensor(1), np.int64),
        (torch.tensor(0.5, dtype=torch.float64), np.float32),
        ([1, -100], np.int64),
        ([0.0, 1.0], np.float32),
        (np.array([1, 2], np.int32), np.int64),
    ],
)
def test_labels_get_their_name_and_width(name, value, dtype):
    batch = in_numpy([{"x": 1, name: value}] * 3)
    assert set(batch) == {"x", "labels"}
    assert batch["labels"].dtype == dtype
    np.testing.assert_array_equal(batch["labels"][0], np.asarray(value))


def test_labels_win_over_label_and_label_over_label_ids():
    assert in_numpy([{"label": 1, "label_ids": 2}])["labels"].tolist() == [1]
    assert in_numpy([{"label": 1, "labels": 3}])["labels"].tolist() == [3]
    assert in_numpy([{"label": None, "label_ids": [2, 2]}])["labels"].tolist() == [[2, 2]]


def test_strings_and_none_are_dropped():
    sample = {"x": 1, "text": "a b", "raw": b"a", "nothing": None, "tokens": ["a", "b"]}
    other = {"x": 1, "text": "c", "raw": b"c", "nothing": None, "tokens": ["c"]}
    assert list(in_numpy([sample, other])) == ["x"]


@pytest.mark.parametrize(
    "samples",
    [
        [{"x": [1, 2], "label": 0}, {"x": [3, 4], "label": 1}],
        [{"x": 0.5, "labels": 0.25}, {"x": 1.5, "labels": 1.0}],
        [{"x": np.arange(3.0), "label_ids": [1, 2]}, {"x": np.arange(3.0) + 1, "label_ids": [3, 4]}],
        [{"x": torch.ones(2), "label": torch.tensor(1)}, {"x": torch.zeros(2), "label": torch.tensor(0)}],
        [{"x": 1, "text": "a", "label": None}, {"x": 2, "text": "b", "label": None}],
    ],
)
def test_equal_to_transformers(samples):
    theirs = pytest.importorskip("transformers").default_data_collator(samples)
    ours = default_data_collator(samples, return_tensors="pt")
    assert set(ours) == set(theirs)
    for key, value in theirs.items():
        assert ours[key].dtype == value.dtype, key
        assert torch.equal(ours[key], value), key


def test_mapping_and_object_samples(tokenizer):
    encoded = [tokenizer("the cat"), tokenizer("a mat")]
    batch = in_numpy(encoded)
    assert batch["input_ids"].shape == (2, 4)
    objects = [SimpleNamespace(x=[1, 2], label=1), SimpleNamespace(x=[3, 4], label=0)]
    batch = in_numpy(objects)
    assert batch["x"].tolist() == [[1, 2], [3, 4]]
    assert batch["labels"].tolist() == [1, 0]


def test_nested_mappings_are_stacked_inside():
    batch = default_data_collator([{"image": {"pixels": np.zeros(2)}}, {"image": {"pixels": np.ones(2)}}], "pt")
    assert batch["image"]["pixels"].shape == (2, 2)
    assert isinstance(batch["image"]["pixels"], torch.Tensor)


def test_tuples_become_a_tuple_of_columns():
    data = torch.utils.data.TensorDataset(torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 0]))
    x, y = default_data_collator([data[i] for i in range(3)], "pt")
    assert torch.equal(x, data.tensors[0])
    assert torch.equal(y, data.tensors[1])
    x, y = in_numpy([(np.zeros(2), 1), (np.ones(2), 0)])
    assert x.shape == (2, 2)
    assert y.dtype == np.int64
    x, y = in_numpy([[1, 0.5], [2, 1.5]])
    assert (x.dtype, y.dtype) == (np.int64, np.float32)


def test_named_tuples_keep_their_type():
    Sample = namedtuple("Sample", "x y")
    batch = default_data_collator([Sample(1, 2.0), Sample(3, 4.0)], "pt")
    assert isinstance(batch, Sample)
    assert batch.x.tolist() == [1, 3]
    assert isinstance(batch.y, torch.Tensor)


def test_bare_values_become_one_array():
    assert in_numpy([np.zeros(2), np.ones(2)]).tolist() == [[0, 0], [1, 1]]
    assert default_data_collator([torch.zeros(2)] * 2, "pt").shape == (2, 2)


def test_the_framework_is_guessed_without_return_tensors(monkeypatch):
    from oneloop.backends import loading
    from oneloop.data.collators import base

    assert isinstance(default_data_collator([{"x": 1}])["x"], torch.Tensor)
    assert isinstance(DefaultDataCollator()([{"x": 1}])["x"], torch.Tensor)
    base._guess.cache_clear()
    monkeypatch.setattr(loading, "guess", lambda: None)
    try:
        assert type(default_data_collator([{"x": 1}])["x"]) is np.ndarray
    finally:
        base._guess.cache_clear()


def test_return_tensors_of_the_object_and_of_the_call():
    collator = DefaultDataCollator("np")
    assert type(collator([{"x": 1}])["x"]) is np.ndarray
    assert isinstance(collator([{"x": 1}], return_tensors="pt")["x"], torch.Tensor)
    collator.return_tensors = "pt"
    assert isinstance(collator([{"x": 1}])["x"], torch.Tensor)
    assert isinstance(torch_default_data_collator([{"x": 1}])["x"], torch.Tensor)
    assert type(numpy_default_data_collator([{"x": torch.ones(1)}])["x"]) is np.ndarray
    with pytest.raises(ArgumentError, match=r"return_tensors='tf'.*'np'.*'pt'"):
        default_data_collator([{"x": 1}], "tf")


def test_overrides_of_torch_call_and_numpy_call_are_used():
    class Doubled(DefaultDataCollator):
        def torch_call(self, features):
            batch = super().torch_call(features)
            batch["x"] = batch["x"] * 2
            return batch

    class Own(DataCollatorMixin):
        def numpy_call(self, features):
            return "own"

    assert Doubled("pt")([{"x": 1}])["x"].tolist() == [2]
    assert Doubled("np")([{"x": 1}])["x"].tolist() == [1]
    assert Own()([1], return_tensors="np") == "own"
    with pytest.raises(NotImplementedError, match="collate"):
        Own()([1], return_tensors="pt")


def test_collators_can_be_pickled():
    copy = pickle.loads(pickle.dumps(functools.partial(default_data_collator, return_tensors="np")))
    assert copy([{"x": 1}])["x"].tolist() == [1]
    assert pickle.loads(pickle.dumps(DefaultDataCollator("np"))) == DefaultDataCollator("np")


@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_ragged_lengths_name_the_column_and_the_way_out(make):
    samples = [{"ids": make([1, 2, 3])}, {"ids": make([1, 2])}]
    with pytest.raises(DataError, match=r"'ids'.*lengths are 3, 2.*DataCollatorWithPadding"):
        default_data_collator(samples, "pt")


def test_unequal_shapes_and_ragged_insides():
    with pytest.raises(DataError, match=r"'x'.*shapes are \(2, 3\), \(2, 4\)"):
        in_numpy([{"x": np.zeros((2, 3))}, {"x": np.zeros((2, 4))}])
    with pytest.raises(DataError, match=r"'x'"):
        in_numpy([{"x": [[1], [1, 2]]}, {"x": [[1], [1, 2]]}])


def test_errors_say_what_is_wrong():
    with pytest.raises(DataError, match=r"has 'x', but sample 1 has only \['y'\]"):
        in_numpy([{"x": 1}, {"y": 1}])
    with pytest.raises(DataError, match="'x' is None in sample 1"):
        in_numpy([{"x": 1}, {"x": None}])
    with pytest.raises(DataError, match=r"'x' holds object.*data_collator"):
        in_numpy([{"x": object()}, {"x": object()}])
    with pytest.raises(DataError, match="empty list"):
        in_numpy([])
    with pytest.raises(DataError, match="list of samples, but got a dict"):
        in_numpy({"x": [1, 2]})
    with pytest.raises(DataError, match="tuples of 2, 1 elements"):
        in_numpy([(1, 2), (1,)])
    with pytest.raises(DataError, match="element 0"):
        in_numpy([([1, 2], 0), ([1], 0)])
