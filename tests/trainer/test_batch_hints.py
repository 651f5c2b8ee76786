"""What a kernel refuses is explained by the batch: its column, its values, and what to do."""

import numpy as np
import pytest

from oneloop.backends._common.helpers import explain_call
from oneloop.errors import DataError, ModelError
from tests.backends.support import rows


@pytest.mark.parametrize("label", [7, -5])
def test_labels_out_of_range(backend, trained, label):
    with pytest.raises(DataError, match=rf"values of column labels are {label} to {label} in this batch.*num_labels"):
        trained(backend.classifier(), [row | {"labels": label} for row in rows(8)], max_steps=1)


def test_inputs_in_double_precision(backend, trained):
    data = [row | {"x": row["x"].astype(np.float64)} for row in rows(8)]
    with pytest.raises(DataError, match=r"column x is in float64.*astype\('float32'\)"):
        trained(backend.classifier(), data, max_steps=1)


def test_labels_that_are_floats(backend, trained):
    data = [row | {"labels": np.float32(row["labels"])} for row in rows(8)]
    if backend.name == "mindspore":  # its loss takes them
        trained(backend.classifier(), data, max_steps=1)
        return
    with pytest.raises(DataError, match="column labels is in float32, but a classification loss takes integer classes"):
        trained(backend.classifier(), data, max_steps=1)


class Model:
    def forward(self, features):
        raise TypeError("a wrong argument")


@pytest.mark.parametrize(
    ("columns", "advice"),
    [
        (["features", "labels"], "To compute the loss from the outputs and the labels, pass criterion="),
        (["x"], "Name the columns of the samples as the model does"),
        (["features", "x", "labels"], "Name the columns of the samples as the model does"),
    ],
)
def test_a_batch_that_forward_does_not_accept(columns, advice):
    model = Model()
    with pytest.raises(DataError, match=f"forward does not accept this batch.*accepts features. {advice}"):
        explain_call(model, model.forward, True, dict.fromkeys(columns), TypeError())


def test_an_error_of_another_kind_stays_what_it_is(backend, trained):
    def fail(*args, **kwargs):
        raise IndexError("list index out of range")

    with pytest.raises(IndexError, match="^list index out of range$"):
        trained(backend.classifier(), [row | {"labels": -100} for row in rows(8)], max_steps=1, compute_loss_func=fail)


def test_a_loss_of_none_is_named(backend, trained):
    with pytest.raises(ModelError, match="the model returned (loss=None|no loss)"):
        trained(backend.classifier(), [{"x": row["x"]} for row in rows(8)], max_steps=1)
