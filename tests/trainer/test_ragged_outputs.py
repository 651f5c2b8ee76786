"""Outputs whose batches differ in some axes and not in others: evaluate() and predict() give whole, padded arrays."""

import numpy as np
import pytest

from oneloop import Trainer
from tests.backends.support import rows

PADDING = {"float32": -100.0, "int64": -100, "bool": False}
SHAPES = {  # of one sample, by the widths of its batch
    "last axis": lambda a, b: (3, a),
    "first axis": lambda a, b: (a, 3),
    "middle axis": lambda a, b: (2, a, 3),
    "two axes": lambda a, b: (a, b, 2),
}
WIDTHS = [(2, 4), (4, 1), (3, 3)]  # of the three batches; the widest is not the first


class Walked:
    """Data that does not say how long it is."""

    def __iter__(self):
        return iter(rows(10))


class Ragged(Trainer):
    """Its batches have arrays of their own sizes; every number in them is another one."""

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        loss, _, labels = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        array = self.arrays[self.batch]
        self.batch += 1
        return loss, self.as_tensor(array), labels


def numbers(shape, start, dtype):
    values = np.arange(start, start + int(np.prod(shape))).reshape(shape)
    return np.ones(shape, bool) if dtype == "bool" else values.astype(dtype)


@pytest.fixture
def make(backend, arguments):
    """make(shape, dtype): a Trainer, the arrays of its three batches, and the whole one, put together by hand."""

    def build(shape, dtype, **given):
        arrays, start = [], 1
        for rows_of_batch, widths in zip((4, 4, 2), WIDTHS):
            arrays.append(numbers((rows_of_batch, *SHAPES[shape](*widths)), start, dtype))
            start += arrays[-1].size
        sizes = [max(array.shape[axis] for array in arrays) for axis in range(1, arrays[0].ndim)]
        whole = []
        for array in arrays:
            for row in array:
                padding = [(0, size - own) for size, own in zip(sizes, row.shape)]
                whole.append(np.pad(row, padding, constant_values=PADDING[dtype]))
        trainer = Ragged(backend.classifier(), arguments(per_device_eval_batch_size=4), **given)
        trainer.arrays, trainer.batch, trainer.as_tensor = arrays, 0, backend.tensor
        return trainer, np.stack(whole)

    return build


@pytest.mark.parametrize("data", [rows(10), Walked()], ids=["of a known length", "walked through"])
@pytest.mark.parametrize("shape", SHAPES)
def test_predictions_are_padded_in_the_axes_that_differ(make, shape, data):
    trainer, expected = make(shape, "float32")
    np.testing.assert_array_equal(trainer.predict(data).predictions, expected)


@pytest.mark.parametrize("dtype", PADDING)
def test_what_the_padding_is(make, dtype):
    trainer, expected = make("last axis", dtype)
    found = trainer.predict(rows(10)).predictions
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_metrics_see_padded_predictions(make):
    seen = []

    def compute(prediction):
        seen.append(prediction.predictions)
        return {}

    trainer, expected = make("last axis", "float32", compute_metrics=compute, eval_dataset=rows(10))
    trainer.evaluate()
    np.testing.assert_array_equal(seen[0], expected)
