"""How long a run is and where it stands, in plain numbers: no model, no data."""

from types import SimpleNamespace

import pytest

from oneloop.errors import CheckpointError
from oneloop.steps import StepPlan, accumulation_for, plan_steps


def plan(**given):
    usual = {"loader": None, "accumulation": 1, "batches": 4, "max_steps": 8, "epochs": 2, "samples": 32}
    return StepPlan(**usual | {"samples_per_step": 8} | given)


@pytest.mark.parametrize(
    ("per_epoch", "max_steps", "epochs", "planned"),
    [
        (4, -1, 3, (12, 3)),
        (4, -1, 2.5, (10, 3)),  # half an epoch is trained
        (4, -1, 0.1, (1, 1)),
        (3, -1, 1.5, (5, 2)),  # and half a step is a whole one
        (4, 8, 99, (8, 2)),  # max_steps counts
        (4, 9, 1, (9, 3)),
        (4, 1, 3, (1, 1)),
        (None, 9, 1, (9, 2**62)),  # data without a length begins again as often as it takes
        (None, -1, 2, (-1, 2)),
        (None, -1, 1.5, (-1, 2)),
        (4, 0, 1, (4, 1)),
    ],
)
def test_steps_and_epochs(per_epoch, max_steps, epochs, planned):
    assert plan_steps(per_epoch, SimpleNamespace(max_steps=max_steps, num_train_epochs=epochs)) == planned


@pytest.mark.parametrize(
    ("samples", "batch", "processes", "steps"),
    [(32, 8, 1, 4), (32, 8, 2, 2), (32, 8, 4, 1), (12, 1, 3, 4), (7, 7, 1, 1)],
)
def test_micro_batches_that_make_up_an_update(samples, batch, processes, steps):
    assert accumulation_for(samples, batch, processes) == steps


@pytest.mark.parametrize(
    ("samples", "batch", "processes", "advice"),
    [
        (12, 8, 1, "set per_device_train_batch_size to 1, 2, 3, 4, 6, 12."),
        (12, 4, 2, "With 2 process(es), set per_device_train_batch_size to 1, 2, 3, 6."),
        (8, 16, 1, "set per_device_train_batch_size to 1, 2, 4, 8."),  # too large for a single one
        (12, 1, 5, "Use a number of processes that divides 12."),
        (0, 1, 1, "Use a number of processes that divides 0."),
    ],
)
def test_an_update_that_cannot_be_made_up(samples, batch, processes, advice):
    with pytest.raises(CheckpointError) as caught:
        accumulation_for(samples, batch, processes)
    assert f"{samples} samples in an update, which is not a multiple of {processes} process(es)" in str(caught.value)
    assert f"x per_device_train_batch_size={batch}. " in str(caught.value)
    assert str(caught.value).endswith(advice)


def test_the_epoch_as_a_fraction():
    assert [plan().epoch_at(1, step) for step in range(5)] == [1.0, 1.25, 1.5, 1.75, 2.0]
    rest = plan(batches=9, accumulation=2)
    assert [rest.epoch_at(2, step) for step in (4, 5)] == [2 + 8 / 9, 3.0], "in micro-batches: the last update has one"
    endless = plan(batches=None, max_steps=10, accumulation=3)
    assert (endless.epoch_at(0, 5), endless.epoch_at(2, 1)) == (0.5, 2.1)
    assert plan(batches=None, max_steps=-1).epoch_at(3, 7) == 3.0, "nothing says how far it is"


def test_the_end():
    assert [plan(max_steps=3).is_over(step) for step in (0, 2, 3, 4)] == [False, False, True, True]
    assert not plan(max_steps=-1).is_over(10**9), "the epochs end it"


def test_samples_of_an_update():
    assert plan().rows_per_step == 8
    own = plan(own_batch_size=5, batches_per_step=4)  # the data set makes batches, whatever the arguments say
    assert (own.rows_per_step, own.samples_per_step) == (20, 8)
