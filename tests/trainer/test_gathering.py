"""Batches of an evaluation as whole arrays: equal sizes, ragged ones, nested ones, and what does not fit."""

import numpy as np
import pytest

from oneloop.backends import loading
from oneloop.errors import ModelError
from oneloop.trainer.gathering import NestedRows, Pages, Rows


@pytest.fixture
def tensors(backend):
    return loading.load(backend.name).tensors


def batches(*sizes, width=3, dtype=np.float32):
    rows = np.arange(sum(sizes) * width, dtype=dtype).reshape(-1, width)
    return np.split(rows, np.cumsum(sizes)[:-1])


def gathered(rows, parts):
    for part in parts:
        rows.add(part)
    return rows.result()


def same(found, expected):
    assert found.dtype == expected.dtype and found.shape == expected.shape and found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("expected", [7, None, 5, 9], ids=["known", "unknown", "more than known", "fewer than known"])
@pytest.mark.parametrize("kind", ["tensors", "arrays"])
def test_whole_arrays(backend, tensors, expected, kind):
    parts = batches(3, 3, 1)
    given = [backend.tensor(part) for part in parts] if kind == "tensors" else parts
    same(gathered(Rows(expected, tensors), given), np.concatenate(parts))


@pytest.mark.parametrize("large", [False, True], ids=["ordinary", "in pages"])
def test_memory_that_comes_in_pages(backend, tensors, monkeypatch, large):
    monkeypatch.setattr(Pages, "SMALLEST", 1 if large else 1 << 40)
    parts = batches(300, 300, 17, width=11)
    found = gathered(Rows(700, tensors), [backend.tensor(part) for part in parts])
    same(found, np.concatenate(parts))


def test_scalars_are_rows(tensors):
    same(gathered(Rows(None, tensors), [np.float32(1.5), np.float32(2.5)]), np.array([1.5, 2.5], np.float32))
    same(gathered(Rows(2, tensors), [np.float32(1.5), np.float32(2.5)]), np.array([1.5, 2.5], np.float32))


@pytest.mark.parametrize("expected", [3, None])
@pytest.mark.parametrize(("dtype", "padding"), [(np.int64, -100), (np.float32, -100.0), (bool, False)])
def test_ragged_batches_are_padded_at_their_ends(backend, tensors, expected, dtype, padding):
    first, second = np.ones((2, 2), dtype), np.ones((1, 4), dtype)
    found = gathered(Rows(expected, tensors), [backend.tensor(first), backend.tensor(second)])
    same(found, np.array([[1, 1, padding, padding], [1, 1, padding, padding], [1, 1, 1, 1]], dtype))


def test_ragged_in_two_axes(tensors):
    found = gathered(Rows(2, tensors), [np.ones((1, 2, 1), np.int64), np.ones((1, 1, 2), np.int64)])
    assert found.tolist() == [[[1, -100], [1, -100]], [[1, 1], [-100, -100]]]


def test_batches_of_two_types_become_the_wider_one(tensors):
    found = gathered(Rows(4, tensors), [np.ones((2, 1), np.float32), np.full((2, 1), 0.1)])
    same(found, np.array([[1.0], [1.0], [0.1], [0.1]]))


def test_batches_with_another_number_of_axes(tensors):
    rows = Rows(None, tensors)
    rows.add(np.ones((2, 2)))
    rows.add(np.ones(2))
    with pytest.raises(ValueError, match=r"different numbers of axes: \[1, 2\]"):
        rows.result()


def test_what_was_gathered_does_not_change_with_its_batch(backend, tensors):
    for expected in (None, 4):
        rows, part = Rows(expected, tensors), np.ones((2, 2), np.float32)
        rows.add(part)
        part[:] = 7
        assert rows.result().tolist() == [[1, 1], [1, 1]]


def test_no_batch_at_all(tensors):
    assert Rows(None, tensors).result() is None and Rows(3, tensors).result() is None
    assert NestedRows(3, tensors).result() is None and NestedRows(3, tensors, as_list=True).result() is None


# -- structures


def test_structures_keep_their_shape(backend, tensors):
    gatherer = NestedRows(3, tensors)
    for part in batches(2, 1):
        gatherer.add({"logits": (backend.tensor(part), [backend.tensor(part + 1), None]), "none": None})
    gatherer.add(None)  # a batch without labels, say
    whole = np.concatenate(batches(2, 1))
    found = gatherer.result()
    assert found["none"] is None and found["logits"][1][1] is None
    same(found["logits"][0], whole)
    same(found["logits"][1][0], whole + 1)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"a": 1.0}, {"b": 1.0}, r"\(\['b'\]\) than in the first \(\['a'\]\)"),
        ({"a": 1.0}, (1.0,), r"\(tuple\) than in the first"),
        ((1.0, 2.0), (1.0,), r"\(1\) than in the first \(2\)"),
        ((1.0,), {"a": 1.0}, r"\(dict\) than in the first \(1\)"),
    ],
)
def test_a_batch_with_other_parts(tensors, first, second, words):
    gatherer = NestedRows(None, tensors)
    gatherer.add(first)
    with pytest.raises(ModelError, match=words):
        gatherer.add(second)


def test_batches_that_are_kept_apart(backend, tensors):
    """eval_do_concat_batches=False: neither their sizes nor their parts have to agree."""
    gatherer = NestedRows(None, tensors, as_list=True)
    gatherer.add((backend.tensor(np.ones((2, 2), np.float32)),))
    gatherer.add(np.ones((1, 5), np.int64))
    first, second = gatherer.result()
    same(first[0], np.ones((2, 2), np.float32))
    same(second, np.ones((1, 5), np.int64))
