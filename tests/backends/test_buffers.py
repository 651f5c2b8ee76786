"""Buffers that an update has changed and that are restored if it is skipped, with tensors of NumPy."""

from types import SimpleNamespace

import numpy as np
import pytest

from oneloop.backends._common import buffers
from oneloop.backends._common.buffers import Buffer, BufferCopies


class Tensor:
    def __init__(self, *values):
        self.array, self.version = np.array(values, np.float64), 0

    def write(self, *values):
        self.array[:] = values
        self.version += 1


def keep(tensors, copies):
    return [tensor.array.copy() for tensor in tensors]


def restore_copies(tensors, copies, where=True):
    for tensor, copy in zip(tensors, copies, strict=True):
        assert where and tensor.array.shape == copy.shape
        tensor.array[:] = copy


TENSORS = SimpleNamespace(
    keep=keep,
    restore_copies=restore_copies,
    version=lambda tensor: tensor.version,
    size=lambda tensor: tensor.array.nbytes,
    equals=lambda tensor, copy: np.array_equal(tensor.array, copy),
)


@pytest.fixture
def place():
    return {"small": Tensor(1.0), "large": Tensor(1.0, 2.0, 3.0)}


@pytest.fixture
def copies(place, monkeypatch):
    monkeypatch.setattr(buffers, "SMALL", 8)
    layer = SimpleNamespace(training=True)
    return BufferCopies([Buffer(f"norm.{key}", layer, place, key) for key in place], TENSORS)


def values(place):
    return {key: tensor.array.tolist() for key, tensor in place.items()}


def test_a_buffer_that_changes_late_is_restored_if_it_is_small(place, copies):
    copies.begin()
    assert copies.end(False) == []
    copies.begin()
    place["small"].write(5.0)
    place["large"].write(5.0, 5.0, 5.0)
    assert copies.end(True) == ["norm.large"]
    assert values(place) == {"small": [1.0], "large": [5.0, 5.0, 5.0]}
    copies.begin()
    place["large"].write(6.0, 6.0, 6.0)  # a buffer that has changed is copied from then on
    assert copies.end(True) == [] and values(place)["large"] == [5.0, 5.0, 5.0]


def test_a_small_buffer_need_not_show_that_it_changes(place, copies):
    """It may be written to through memory that it shares with another tensor, or with an array."""
    for value, is_bad, expected in ((1.0, False, 1.0), (5.0, False, 5.0), (6.0, True, 5.0), (7.0, False, 7.0)):
        copies.begin()
        place["small"].array[:] = value
        assert copies.end(is_bad) == [] and values(place)["small"] == [expected]


def test_only_large_buffers_are_compared(place, copies, monkeypatch):
    compared = []
    monkeypatch.setattr(TENSORS, "equals", lambda tensor, copy: compared.append(tensor.array.size) or True)
    for _ in range(3):
        copies.begin()
        copies.end(False)
    assert compared == [3]


@pytest.mark.parametrize("first", [True, False])
def test_a_buffer_that_was_replaced_is_in_its_place_again(place, copies, first):
    if not first:
        copies.begin()
        place["small"] = Tensor(2.0)
        assert copies.end(False) == []
    before = place["small"]
    copies.begin()
    place["small"] = Tensor(7.0, 8.0)  # of another shape, as code that collects values does
    assert copies.end(True) == []
    assert place["small"] is before and values(place)["small"] == ([1.0] if first else [2.0])


def test_a_good_update_changes_what_the_next_one_is_restored_to(place, copies):
    for value, is_bad, expected in ((2.0, False, 2.0), (3.0, True, 2.0), (4.0, False, 4.0), (5.0, True, 4.0)):
        copies.begin()
        place["small"].write(value)
        assert copies.end(is_bad) == [] and values(place)["small"] == [expected]
