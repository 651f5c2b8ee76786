"""What a checkpoint of another library's Trainer says about groups, rates and the position, without any framework."""

from types import SimpleNamespace

import pytest

from oneloop.callbacks import EarlyStoppingCallback
from oneloop.checkpoint import from_other_trainers
from oneloop.converters.parameter_groups import Parameter, candidates, choose
from oneloop.errors import CheckpointError
from oneloop.optim.scheduler import Scheduler
from oneloop.steps import Position

# -- groups of parameters

MODEL = [
    Parameter("embed.weight", trainable=False),
    Parameter("layer.weight", True),
    Parameter("layer.bias", True),
    Parameter("norm.weight", True, in_layer_norm=True),
]
SHAPES = {"embed.weight": (9, 4), "layer.weight": (4, 4), "layer.bias": (4,), "norm.weight": (4,)}


def kept_of(*names):
    """The shapes of the state of parameters that are numbered in this order."""
    return {number: {"exp_avg": SHAPES[name]} for number, name in enumerate(names)}


def test_frozen_parameters_that_older_releases_numbered_too():
    numbers = [[0, 1], [2, 3]]
    kept = kept_of("embed.weight", "layer.weight", "layer.bias", "norm.weight")
    del kept[0]  # it has no state
    rule, groups = choose(candidates(MODEL, keep_empty=True), numbers, kept, SHAPES, "optimizer.pt")
    assert rule.endswith(", frozen ones too")
    assert groups == [["embed.weight", "layer.weight"], ["layer.bias", "norm.weight"]]


def test_rules_that_agree_are_one_and_rules_that_disagree_are_an_error():
    numbers, kept = [[0], [1, 2]], kept_of("layer.weight", "layer.bias", "norm.weight")
    rule, groups = choose(candidates(MODEL, keep_empty=True), numbers, kept, SHAPES, "optimizer.pt")
    assert rule == "transformers 4.53 to 5" and groups == [["layer.weight"], ["layer.bias", "norm.weight"]]
    tried = [("first", [["a"], ["b"]]), ("second", [["b"], ["a"]])]
    with pytest.raises(CheckpointError, match="several rules that disagree on which parameter is which: first; second"):
        choose(tried, [[0], [1]], {}, {"a": (2,), "b": (2,)}, "optimizer.pt")
    shapes = {"a": (2,), "b": (3,)}
    assert choose(tried, [[0], [1]], {1: {"exp_avg": (2,)}}, shapes, "optimizer.pt")[0] == "second"
    with pytest.raises(CheckpointError, match=r"does not fit this model\. Tried: first: exp_avg of a would be \(5,\)"):
        choose(tried, [[0], [1]], {0: {"exp_avg": (5,)}}, shapes, "optimizer.pt")


# -- learning rates


def scheduler_of(*rates):
    optimizers = SimpleNamespace(learning_rates=list, set_learning_rates=lambda optimizer, rates: None)
    return Scheduler(SimpleNamespace(optimizers=optimizers), list(rates), lambda step: 1 - step / 10)


def test_each_group_goes_on_with_the_rate_of_those_that_it_was_in():
    scheduler = scheduler_of(0.5, 0.5, 0.5)
    state = {"last_epoch": 5, "base_lrs": [0.1, 0.2, 0.1]}
    notes = from_other_trainers._load_schedule(scheduler, state, [{1}, {0, 2}, {0, 1}])
    assert scheduler.base_lrs == [0.2, 0.1, 0.5] and scheduler.get_last_lr() == pytest.approx([0.1, 0.05, 0.25])
    assert notes == [
        "learning_rate was 0.2, and is kept (the arguments have 0.5)",
        "learning_rate was 0.1, and is kept (the arguments have 0.5)",
        "the learning rate of parameter group 2 is this run's, 0.5",
    ]


# -- the position and counters


def run_of(steps_per_epoch, ignore_data_skip=False, callbacks=()):
    trainer = SimpleNamespace(
        args=SimpleNamespace(ignore_data_skip=ignore_data_skip), callback_handler=SimpleNamespace(callbacks=callbacks)
    )
    return SimpleNamespace(
        plan=SimpleNamespace(steps_per_epoch=steps_per_epoch),
        core=SimpleNamespace(trainer=trainer),
    )


@pytest.mark.parametrize(
    "steps_per_epoch, state, expected",
    [
        (4, {"global_step": 6, "epoch": 0.3}, (1, 2)),
        (4, {"global_step": 8}, (2, 0)),
        (None, {"global_step": 7, "epoch": 0.7, "max_steps": 10}, (0, 7)),  # data without a length
        (None, {"global_step": 25, "epoch": 2.5, "max_steps": 10}, (2, 5)),
        (None, {"global_step": 7}, (0, 7)),
    ],
)
def test_where_a_run_goes_on(steps_per_epoch, state, expected):
    assert from_other_trainers._position(run_of(steps_per_epoch), state) == Position(*expected)
    again = from_other_trainers._position(run_of(steps_per_epoch, ignore_data_skip=True), state)
    assert again == Position(expected[0], 0)


def test_early_stopping_goes_on():
    callbacks = [EarlyStoppingCallback(), EarlyStoppingCallback(), object()]
    callbacks[1].best = 0.9
    run = run_of(4, callbacks=callbacks)
    from_other_trainers._load_callbacks(run, {"best_metric": 0.7})
    assert [callback.best for callback in callbacks[:2]] == [0.7, 0.9]
