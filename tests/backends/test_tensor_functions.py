"""Functions of a backend's module `tensors`, beside the same in NumPy: each framework has its own."""

import numpy as np
import pytest

from oneloop.backends import loading


@pytest.fixture
def tensors(backend):
    return loading.load(backend.name).tensors


@pytest.fixture
def made(backend):
    """made(array): a tensor that is trained, in float32."""
    return lambda *values: backend.tensor(np.array(values, np.float32))


LOGITS = np.random.RandomState(0).randn(3, 5, 4).astype(np.float32)
LABELS = np.array([[1, 2, 3, 0, 1], [2, -100, -100, 1, 3], [-100, 1, 0, 2, -100]])


def cross_entropies(logits, labels):
    """Of every position, with its class, and as the mean over all classes."""
    scores = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    own = np.take_along_axis(scores, np.where(labels < 0, 0, labels)[..., None], -1)[..., 0]
    return -own, -scores.mean(-1)


@pytest.mark.parametrize("ignored", [-100, 1])
@pytest.mark.parametrize("shift", [False, True])
def test_losses_of_rows(backend, tensors, shift, ignored):
    labels = np.where(LABELS == -100, ignored, LABELS)
    logits, compared = (LOGITS[:, :-1], labels[:, 1:]) if shift else (LOGITS, labels)
    expected = (cross_entropies(logits, compared)[0] * (compared != ignored)).sum(1)
    found = tensors.row_losses(backend.tensor(LOGITS), backend.tensor(labels), shift, ignored)
    np.testing.assert_allclose(tensors.to_numpy(found), expected, rtol=1e-5)


@pytest.mark.parametrize("shift", [False, True])
def test_label_smoothing_leaves_ignored_labels_out(backend, tensors, shift):
    logits, labels = (LOGITS[:, :-1], LABELS[:, 1:]) if shift else (LOGITS, LABELS)
    own, uniform = cross_entropies(logits, labels)
    expected = (0.8 * own + 0.2 * uniform)[labels != -100].mean()
    found = tensors.smoothed_loss(backend.tensor(LOGITS), backend.tensor(LABELS), 0.2, shift)
    assert float(tensors.to_numpy(found)) == pytest.approx(expected, rel=1e-5)


def test_labels_that_count(backend, tensors):
    for labels in (LABELS, backend.tensor(LABELS)):
        assert tensors.count_labels(labels, shifted=False) == 11
        assert tensors.count_labels(labels, shifted=True) == 9
        assert tensors.count_labels(labels, shifted=False, ignore_index=1) == 11
        assert tensors.count_labels(labels, shifted=True, ignore_index=None) == 12
    assert tensors.count_labels(LABELS[0], shifted=True) == 5  # classes of samples have no next token
    assert tensors.count_labels(LOGITS, shifted=True) == LOGITS.size
    assert tensors.count_labels([1, 2], shifted=False) == 2


def test_copies_do_not_change_with_their_tensors(tensors, made):
    pair = tensors.float32_copies([made(1, 2), made(3, 4)])
    first = tensors.keep(pair, [None, None])
    tensors.assign(pair, [made(5, 6), made(7, 8)])
    second = tensors.keep(pair, [None, None])
    assert not tensors.equals(pair[0], first[0]) and tensors.equals(pair[0], second[0])
    tensors.restore_copies(pair, first)
    assert [tensors.to_numpy(each).tolist() for each in pair] == [[1, 2], [3, 4]]
    again = tensors.keep(pair, second)  # in the memory of these
    assert all(mine is theirs for mine, theirs in zip(again, second, strict=True))
    assert tensors.equals(pair[1], second[1])


def test_an_average_moves_by_a_share_of_the_distance(tensors, made):
    target = tensors.float32_copies([made(0, 8)])
    tensors.lerp(target, [made(4, 4)], 0.25)
    assert tensors.to_numpy(target[0]).tolist() == [1, 7]


def test_what_is_finite(backend, tensors, made):
    assert tensors.is_finite(made(1, 2)) and tensors.is_finite(backend.tensor(LABELS))
    assert not tensors.is_finite(made(1, np.nan)) and not tensors.is_finite(made(-np.inf, 1))


def test_scalars_are_read_together(tensors, made):
    found = tensors.scalars([made(1)[0], made(2)])
    assert found.dtype == np.float64 and found.tolist() == [1.0, 2.0]
    assert tensors.scalars([]).tolist() == []
    values = np.array([1.0, np.nan, 3.0])
    assert np.isnan(tensors.total(values)) and tensors.total(values[::2]) == 4.0
