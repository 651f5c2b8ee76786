"""EarlyStoppingCallback without a run: which evaluations count as an improvement."""

from types import SimpleNamespace

import pytest

from oneloop import EarlyStoppingCallback, TrainerControl, TrainerState


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
