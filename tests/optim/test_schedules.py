"""Schedules give the very learning rates of transformers' and torch's schedulers, and errors that help."""

import json
import math

import pytest

from oneloop.errors import ArgumentError
from oneloop.optim.schedules import Greedy, Plateau, follows_metric, make_metric_schedule, make_schedule, needs_length

BY_STEP = [
    ("linear", {}),
    ("cosine", {}),
    ("cosine", {"num_cycles": 1.3}),
    ("cosine_with_restarts", {}),
    ("cosine_with_restarts", {"num_cycles": 3}),
    ("polynomial", {}),
    ("polynomial", {"lr_end": 1e-6, "power": 2.5}),
    ("constant", {}),
    ("constant_with_warmup", {}),
    ("inverse_sqrt", {}),
    ("inverse_sqrt", {"timescale": 77}),
    ("cosine_with_min_lr", {"min_lr": 1.7e-6}),
    ("cosine_with_min_lr", {"min_lr_rate": 0.1, "num_cycles": 0.7}),
    ("cosine_warmup_with_min_lr", {"min_lr": 1.7e-6}),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.3, "warmup_lr_rate": 0.05}),
    ("warmup_stable_decay", {"num_decay_steps": 31}),
    ("warmup_stable_decay", {"num_decay_steps": 500}),
    ("warmup_stable_decay", {"num_decay_steps": 20, "num_stable_steps": 15, "min_lr_ratio": 0.1}),
    *(
        (
            "warmup_stable_decay",
            {"num_decay_steps": 40, "warmup_type": kind, "decay_type": kind, "min_lr_ratio": 0.03, "num_cycles": 0.6},
        )
        for kind in ("linear", "cosine", "1-sqrt")
    ),
]


def optimizer_with(*rates):
    torch = pytest.importorskip("torch")
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates]
    return torch.optim.SGD(groups, lr=rates[0])


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.filterwarnings("ignore:Both num_training_steps")
@pytest.mark.parametrize("rate", [1.0, 5e-5, 3e-4])
@pytest.mark.parametrize(("warmup", "total"), [(0, 120), (1, 120), (17, 120), (120, 121), (50, 40), (0, 1)])
@pytest.mark.parametrize(("name", "options"), BY_STEP)
def test_learning_rates_are_those_of_transformers(name, options, warmup, total, rate):
    theirs = pytest.importorskip("transformers")
    optimizer = optimizer_with(rate)
    scheduler = theirs.get_scheduler(name, optimizer, warmup, total, scheduler_specific_kwargs=dict(options))
    factor = make_schedule(name, warmup, total, lr_init=rate, **options)
    for step in range(total + 10):
        assert rate * factor(step) == scheduler.get_last_lr()[0], step
        scheduler.step()


def test_every_schedule_of_transformers_is_here():
    utils = pytest.importorskip("transformers.trainer_utils")
    for name in utils.SchedulerType:
        assert needs_length(name) == (name not in ENDLESS)
        assert follows_metric(name) == (name in BY_METRIC)
    assert {name for name, _ in BY_STEP} | set(BY_METRIC) == {name.value for name in utils.SchedulerType}


ENDLESS = ("constant", "constant_with_warmup", "inverse_sqrt", "reduce_lr_on_plateau", "greedy")
BY_METRIC = ("reduce_lr_on_plateau", "greedy")


def test_a_factor_depends_only_on_the_step():
    for name, options in BY_STEP:
        first, second = (make_schedule(name, 5, 50, lr_init=1e-3, **options) for _ in range(2))
        forwards = [first(step) for step in range(60)]
        assert all(type(value) is float for value in forwards)
        assert [second(step) for step in reversed(range(60))] == forwards[::-1]


def test_polynomial_survives_a_warmup_that_fills_the_run():
    factor = make_schedule("polynomial", 10, 10, lr_init=1e-3)
    assert factor(10) == 1.0
    assert factor(11) == 1e-7 / 1e-3


def test_endless_schedules_need_no_total():
    assert make_schedule("constant")(10**9) == 1.0
    assert make_schedule("constant_with_warmup", 10)(5) == 0.5
    assert make_schedule("inverse_sqrt", 100)(400) == 0.5
    assert make_schedule("warmup_stable_decay", 0, None, num_decay_steps=10, num_stable_steps=10)(20) == 0.0


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("linar", 0, 10), {}, "Unknown schedule 'linar'; did you mean linear"),
        ((3, 0, 10), {}, "Unknown schedule 3"),
        (("linear", 0), {}, "linear needs num_training_steps.*max_steps.*inverse_sqrt"),
        (("warmup_stable_decay", 0), {"num_decay_steps": 3}, "needs num_training_steps"),
        (("warmup_stable_decay", 0, 10), {}, "num_decay_steps"),
        (("warmup_stable_decay", 0, 10), {"num_decay_steps": 3, "decay_type": "cubic"}, "decay_type.*'cubic'"),
        (("cosine", 0, 10), {"num_cycle": 1}, "no option 'num_cycle'; did you mean num_cycles"),
        (("cosine", 0, 10), {"num_cycles": "2"}, "num_cycles='2'.*expected a number, not a string"),
        (("constant", 0, 10), {"power": 1}, "accepts no options"),
        (("cosine_with_min_lr", 0, 10), {}, "neither is given"),
        (("cosine_with_min_lr", 0, 10), {"min_lr": 1e-6, "min_lr_rate": 0.1}, "both are given"),
        (("cosine_warmup_with_min_lr", 0, 10), {"min_lr": 1e-6}, "base learning rate"),
        (("polynomial", 0, 10), {"lr_init": 1e-8}, "ends at lr_end=1e-07.*1e-08"),
        (("polynomial", 0, 10), {}, "lr_init"),
        (("inverse_sqrt", 0), {"timescale": 0}, "timescale"),
        (("greedy", 0, 10), {}, "depends on a metric"),
    ],
)
def test_bad_schedules_say_what_to_do(arguments, options, message):
    with pytest.raises(ArgumentError, match=message):
        make_schedule(*arguments, **options)


# Schedules by metric


def metrics_of(kind):
    """Losses that fall, stall and jump; some the same, one that is not a number."""
    waves = [math.sin(step * 0.37) * 0.3 + 2.0 / (1 + step * 0.1) for step in range(250)]
    waves[40] = math.nan
    waves[60:75] = [waves[60]] * 15
    return waves if kind == "min" else [-value for value in waves]


def follow(scheduler, optimizer, rule, metrics):
    """Feed both; return whether the learning rates moved, having checked that they never differ."""
    seen = set()
    for number, metric in enumerate(metrics):
        scheduler.step(metric)
        factor = rule.update(metric)
        assert rule.lrs == [group["lr"] for group in optimizer.param_groups], number
        assert factor == rule.lrs[0] / rule.lr_init[0]
        seen.add(rule.lrs[0])
    return len(seen) > 2


@pytest.mark.parametrize(
    "options",
    [
        {"patience": 2},
        {"patience": 0, "factor": 0.7, "threshold": 0.01, "cooldown": 3},
        {"patience": 1, "factor": 0.9, "threshold_mode": "abs", "min_lr": [1e-4, 2e-3], "eps": 1e-6},
        {"patience": 1, "factor": 0.3, "mode": "max", "min_lr": 1e-3},
        {"patience": 1, "factor": 0.8, "mode": "max", "threshold_mode": "abs", "threshold": 0.05},
    ],
)
def test_plateau_is_that_of_torch(options):
    optimizer = optimizer_with(0.03, 0.5)
    torch = pytest.importorskip("torch")
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **options)
    rule = make_metric_schedule("reduce_lr_on_plateau", [0.03, 0.5], **options)
    assert type(rule) is Plateau
    assert follow(scheduler, optimizer, rule, metrics_of(options.get("mode", "min")))


@pytest.mark.parametrize(
    "options",
    [
        {"patience": 1, "min_lr": 1e-4},
        {"patience": 0, "factor": 0.6, "cooldown": 2, "warmup": 1, "max_lr": [0.04, 0.6], "min_lr": [1e-2, 1e-1]},
        {"patience": 0, "factor": 0.5, "min_lr": 1e-2, "reset_start": 3, "cooldown": 1},
        {"patience": 1, "smooth": True, "window_size": 5, "reset_start": 2, "min_lr": 2e-2, "factor": 0.8},
        {"patience": 0, "mode": "max", "threshold_mode": "rel", "threshold": 0.01, "min_lr": 0.0, "max_lr": 10.0},
    ],
)
def test_greedy_is_that_of_transformers(options):
    theirs = pytest.importorskip("transformers")
    optimizer = optimizer_with(0.03, 0.5)
    scheduler = theirs.get_scheduler("greedy", optimizer, scheduler_specific_kwargs=dict(options))
    rule = make_metric_schedule("greedy", [0.03, 0.5], **options)
    metrics = metrics_of(options.get("mode", "min"))
    if options.get("smooth"):
        metrics[40] = 1.0  # a running sum never forgets a NaN
    assert follow(scheduler, optimizer, rule, metrics)


@pytest.mark.parametrize("rule", [Plateau, Greedy])
def test_a_metric_rule_resumes_from_plain_data(rule):
    options = {"patience": 1, "factor": 0.9, "cooldown": 1, "min_lr": 1e-4}
    if rule is Greedy:
        options |= {"smooth": True, "window_size": 4, "reset_start": 5}
    metrics = metrics_of("min")[41:]
    unbroken = rule(0.1, **options)
    expected = [unbroken.update(metric) for metric in metrics]
    for cut in (0, 1, 30, 100):
        first = rule(0.1, **options)
        got = [first.update(metric) for metric in metrics[:cut]]
        text = json.dumps(first.state_dict(), allow_nan=False)
        first.update(5.0)  # what happens after a state was taken does not reach into it
        second = rule(0.1, **options)
        second.load_state_dict(json.loads(text))
        assert got + [second.update(metric) for metric in metrics[cut:]] == expected


def test_a_state_does_not_change_afterwards():
    rule = Greedy(0.1, patience=0, min_lr=1e-3, smooth=True)
    state = rule.state_dict()
    before = json.dumps(state)
    for metric in (1.0, 0.5, 0.4, 0.6):
        rule.update(metric)
    assert json.dumps(state) == before
    rule.load_state_dict(state)
    rule.update(1.0)
    assert json.dumps(state) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "low"}, "Invalid mode='low': expected min or max"),
        ({"threshold_mode": "log"}, "Invalid threshold_mode='log': expected rel or abs"),
        ({"factor": 1.0}, "factor=1.0: expected a number between 0 and 1"),
        ({"min_lr": [0.1, 0.2]}, "min_lr has 2 values for 1 parameter groups"),
        ({"patiense": 3}, "no option 'patiense'; did you mean patience"),
    ],
)
def test_bad_metric_rules_say_what_to_do(options, message):
    with pytest.raises(ArgumentError, match=message):
        make_metric_schedule("reduce_lr_on_plateau", 0.1, **options)


def test_the_state_of_other_groups_with_one_rate_is_taken():
    one, two = Plateau(0.1, patience=0), Plateau([0.3, 0.3], patience=0)
    for metric in (1.0, 2.0):
        one.update(metric)
    two.load_state_dict(one.state_dict())
    assert two.lrs == [0.1 * 0.1] * 2 and two.best == 1.0


def test_a_foreign_state_is_refused():
    with pytest.raises(ArgumentError, match="not the state of Greedy"):
        Greedy(0.1).load_state_dict(Plateau(0.1).state_dict())
    with pytest.raises(ArgumentError, match="for 2 parameter groups"):
        Plateau([0.1, 0.2]).load_state_dict(Plateau([0.1, 0.2, 0.3]).state_dict())
    with pytest.raises(ArgumentError, match="depends on the step"):
        make_metric_schedule("linear", 0.1)
