"""EarlyStoppingCallback without a run: which evaluations count as an improvement."""

from types import SimpleNamespace

import pytest

from oneloop import EarlyStoppingCallback, TrainerControl, TrainerState
from oneloop.checkpoint.resume import load_callbacks
from oneloop.errors import CheckpointError


@pytest.mark.parametrize(
    "greater, threshold, values, counts",
    [
        (False, 0.0, [3.0, 3.0, 2.5, 2.75], [0, 1, 0, 1]),  # as good as before is no improvement
        (False, 0.5, [3.0, 2.5, 2.25, 1.0], [0, 1, 0, 0]),  # nor is one of just the threshold
        (True, 0.0, [1.0, 1.0, 2.0, 1.5], [0, 1, 0, 1]),
        (None, None, [1.0, 0.5, 0.75], [0, 1, 2]),  # by the name of the metric
    ],
)
def test_evaluations_without_an_improvement_in_a_row(greater, threshold, values, counts):
    stopping, state, control = EarlyStoppingCallback(2, threshold), TrainerState(), TrainerControl()
    args = SimpleNamespace(metric_for_best_model="accuracy", greater_is_better=greater)
    found = []
    for value in values:
        stopping.on_evaluate(args, state, control, metrics={"eval_accuracy": value})
        found.append(stopping.early_stopping_patience_counter)
    assert found == counts and control.should_training_stop == (max(counts) == 2)


@pytest.mark.parametrize(
    ("name", "value"), [("best", "much"), ("best", [1.0]), ("early_stopping_patience_counter", None)]
)
def test_a_stored_state_of_another_kind_is_an_error(name, value):
    """A best value may be missing, as before the first evaluation, where the current one is known."""
    callback = EarlyStoppingCallback(2)
    callback.best, callback.early_stopping_patience_counter = 0.5, 1

    def load(**attributes):
        stored = {"EarlyStoppingCallback": {"args": {}, "attributes": attributes}}
        trainer = SimpleNamespace(
            state=SimpleNamespace(stateful_callbacks=stored),
            callback_handler=SimpleNamespace(callbacks=[callback]),
            args=SimpleNamespace(restore_callback_states_from_checkpoint=False),
        )
        load_callbacks(trainer)

    with pytest.raises(CheckpointError, match=f"the state of EarlyStoppingCallback in .* {name} is"):
        load(**{name: value})
    load(best=None)
    assert callback.best is None
