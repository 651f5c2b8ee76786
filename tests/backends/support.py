"""Small models and data for the tests that run on every backend.

A backend takes part in tests/trainer, tests/callbacks and tests/checkpoint when tests/backends/kits has a module for
it, with the classes and methods of torch_kit. Data is plain Python and NumPy, so only models and their weights are
written again.
"""

import os
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest

FEATURES = 6
CLASSES = 3
WORDS = 17
RESOLUTION = {"bf16": 2.0**-8, "fp16": 2.0**-11}  # how far apart neighbouring numbers are, relative to them
JOB_WORDS, JOB_WIDTH, JOB_CLASSES = 23, 12, 3  # of tests/checkpoint/job.py


def rows(count=24, seed=0, features=FEATURES, classes=CLASSES):
    """Samples of a small classification: {"x": ..., "labels": ...}."""
    random = np.random.RandomState(seed)
    x = random.randn(count, features).astype(np.float32)
    labels = (np.abs(x).sum(axis=1) * 7).astype(np.int64) % classes
    return [{"x": x[i], "labels": int(labels[i])} for i in range(count)]


def tagged(lengths, seed=0, width=None, unlabelled=()):
    """Samples of token classification, padded to one width with -100; those in `unlabelled` have no label at all."""
    random = np.random.RandomState(seed)
    width = width or max(lengths)
    samples = []
    for i, length in enumerate(lengths):
        ids = random.randint(1, WORDS, width)
        labels = np.where(np.arange(width) < length, ids % CLASSES, -100)
        if i in unlabelled:
            labels[:] = -100
        samples.append({"input_ids": ids.astype(np.int64), "labels": labels.astype(np.int64)})
    return samples


DEVICE = os.environ.get("ON_DEVICE", "cpu")  # or npu: PyTorch alone, on a simulated accelerator; see tests/device


def names():
    """Frameworks that are installed and have a kit, but for those that the variable WITHOUT names."""
    if DEVICE != "cpu":
        return [DEVICE]
    known = [name for name in ("torch", "mindspore", "paddle") if name not in os.environ.get("WITHOUT", "").split()]
    return [name for name in known if find_spec(name) and find_spec(f"tests.backends.kits.{name}_kit")]


def kit_module(name):
    return import_module(f"tests.backends.kits.{name}_kit")


def available():
    return [kit_module(name).Kit() for name in names()]


def refuses_half(backend, arguments, **given):
    """Whether the framework has no such half precision on a CPU; then that it says so before training."""
    from oneloop import Trainer
    from oneloop.errors import UnsupportedError

    wanted = [name for name, value in given.items() if value and name[:4] in ("bf16", "fp16") and "level" not in name]
    if all(name[:4] in backend.half for name in wanted):
        return False
    with pytest.raises(
        UnsupportedError, match=f"{wanted[0]}=True cannot be used on {backend.name} with the device cpu"
    ):
        Trainer(backend.classifier(), arguments(**given))
    return True


def same_bytes(left, right):
    """Whether two {name: array} hold the same names and the same bits."""
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and left[name].tobytes() == right[name].tobytes() for name in left
    )


def largest_difference(left, right):
    assert left.keys() == right.keys()
    return max(float(np.abs(np.float64(left[name]) - np.float64(right[name])).max()) for name in left)
