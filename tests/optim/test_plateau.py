"""Learning rates that follow a metric, in numbers that can be followed by hand; test_schedules.py compares them with
those of torch and transformers."""

import json
import math

import pytest

from oneloop.optim.plateau import Greedy, Plateau


def rates(rule, *metrics):
    """The first group's learning rate after each metric."""
    found = []
    for metric in metrics:
        rule.update(metric)
        found.append(rule.lrs[0])
    return found


def test_a_plateau_is_more_than_patience_evaluations_without_progress():
    assert rates(Plateau(1.0, factor=0.5, patience=1), 3, 3, 3, 3, 3, 3) == [1, 1, 0.5, 0.5, 0.25, 0.25]


@pytest.mark.parametrize(
    ("given", "metrics", "lowered"),
    [
        ({"mode": "min"}, (2.0, 1.9), False),
        ({"mode": "min"}, (2.0, 2.1), True),
        ({"mode": "max"}, (2.0, 2.1), False),
        ({"mode": "max"}, (2.0, 1.9), True),
        ({"threshold": 0.25, "threshold_mode": "rel"}, (2.0, 1.5), True),  # it has to be below 1.5
        ({"threshold": 0.25, "threshold_mode": "rel"}, (2.0, 1.499), False),
        ({"threshold": 0.25, "threshold_mode": "abs"}, (2.0, 1.75), True),
        ({"threshold": 0.25, "threshold_mode": "abs"}, (2.0, 1.749), False),
        ({"mode": "max", "threshold": 0.25, "threshold_mode": "rel"}, (2.0, 2.5), True),
        ({"mode": "max", "threshold": 0.25, "threshold_mode": "abs"}, (2.0, 2.251), False),
    ],
)
def test_what_progress_is(given, metrics, lowered):
    assert (rates(Plateau(1.0, patience=0, **given), *metrics)[-1] < 1.0) == lowered


def test_after_a_cut_nothing_counts_for_a_while():
    assert rates(Plateau(1.0, factor=0.5, patience=0, cooldown=2), 1, 1, 1, 1, 1) == [1, 0.5, 0.5, 0.5, 0.25]


def test_each_group_has_its_own_rate_and_its_lowest():
    rule = Plateau([1.0, 0.1], factor=0.5, patience=0, min_lr=[0.4, 0.0])
    rates(rule, 1, 1, 1, 1)
    assert rule.lrs == [0.4, 0.0125]


def test_a_cut_that_nobody_would_notice_is_left_out():
    assert rates(Plateau(1.5e-8, factor=0.5, patience=0, eps=1e-8), 1, 1) == [1.5e-8, 1.5e-8]


def test_update_tells_how_far_the_rate_is_from_its_base():
    rule = Plateau([2.0, 1.0], factor=0.5, patience=0)
    assert [rule.update(1.0), rule.update(1.0)] == [1.0, 0.5]
    assert Plateau(0.0).update(1.0) == 1.0


def test_greedy_raises_after_progress_and_lowers_without():
    rule = Greedy(0.5, factor=0.5, patience=1, min_lr=0.1, max_lr=0.8)
    assert rates(rule, 9, 8) == [0.5, 0.8]
    assert rates(rule, 9, 9, 9, 9, 9, 9) == [0.8, 0.4, 0.4, 0.2, 0.2, 0.1]


def test_greedy_rests_after_a_raise_and_after_a_cut():
    rule = Greedy(0.5, factor=0.5, patience=0, warmup=1, cooldown=2, min_lr=0.0, max_lr=8.0)
    assert rates(rule, 9, 8, 7) == [1.0, 1.0, 2.0]
    assert rates(rule, 7, 7, 7, 7, 7) == [2.0, 1.0, 1.0, 1.0, 0.5]


def test_greedy_begins_anew_when_it_has_long_been_at_its_lowest():
    rule = Greedy(0.4, factor=0.5, patience=0, min_lr=0.2, max_lr=0.4, reset_start=2)
    assert rates(rule, 1, 1, 1) == [0.4, 0.2, 0.4], "the second cut that found it there"
    assert rule.state_dict()["best"] is None
    patient = Greedy(0.4, factor=0.5, patience=0, min_lr=0.2, max_lr=0.4, reset_start=2)
    assert rates(patient, 3, 3, 2, 2, 2) == [0.4, 0.2, 0.4, 0.2, 0.4], "a raise begins the count anew"


def test_greedy_follows_a_rolling_mean():
    rule = Greedy(0.5, factor=0.5, patience=0, smooth=True, window_size=2, min_lr=0.0, max_lr=8.0)
    assert rates(rule, 4.0, 2.0, 4.0) == [1.0, 2.0, 1.0]  # means of 4, 3 and 3
    assert rule.best == 3.0 and rule.state_dict()["window"] == [2.0, 4.0]


@pytest.mark.parametrize("rule", [Plateau, Greedy])
def test_a_state_is_plain_data(rule):
    first = rule([1.0, 0.5], mode="max", patience=0, factor=0.5, min_lr=0.01)
    assert first.state_dict()["best"] is None, "JSON has no infinity"
    rates(first, 1.0, 2.0, 1.0)
    second = rule([1.0, 0.5], mode="max", patience=0, factor=0.5, min_lr=0.01)
    second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    assert second.state_dict() == first.state_dict() and second.lrs == first.lrs
    assert rates(second, 1.0, 3.0) == rates(first, 1.0, 3.0)
    fresh = rule([1.0, 0.5], mode="max")
    second.load_state_dict(fresh.state_dict())
    assert second.best == -math.inf
