import numpy as np

from oneloop.backends._common import helpers
from oneloop.errors import RefusedError

from .framework import Tensor


def is_tensor(value):
    return isinstance(value, Tensor)


def from_numpy(array):
    return Tensor(array)


def to_numpy(tensor):
    return tensor.array


def stack(values):
    return Tensor(np.stack([value.array for value in values]))


def detach(value):
    return helpers.map_tensors(value, is_tensor, Tensor.detach)


def in_half(value, kind):
    raise RefusedError("the toy computes in float32")


def copy_into(target, tensor):
    np.copyto(target, tensor.array)


def total(values, skip_nonfinite=False):
    found = np.array([float(value) for value in values], np.float64)
    found = found[np.isfinite(found)] if skip_nonfinite else found
    return float(found.sum()) * (len(values) / len(found) if skip_nonfinite and len(found) else 1.0)


def count_labels(labels, shifted, ignore_index=-100):
    array = labels.array if is_tensor(labels) else np.asarray(labels)
    return array.size if array.dtype.kind == "f" or ignore_index is None else int((array != ignore_index).sum())


def smoothed_loss(logits, labels, epsilon, shift):
    raise RefusedError("the toy has no cross entropy")


def split(value, parts, rows):
    return helpers.split(value, parts, rows, lambda leaf: isinstance(leaf, (Tensor, np.ndarray)))
