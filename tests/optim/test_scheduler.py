"""The object that sets the learning rates, with an optimizer that is a list of rates."""

from types import SimpleNamespace

import pytest

from oneloop.optim.scheduler import Scheduler


def scheduler_of(*rates, start=0):
    def set_rates(optimizer, rates):
        optimizer[: len(rates)] = rates

    backend = SimpleNamespace(optimizers=SimpleNamespace(learning_rates=list, set_learning_rates=set_rates))
    return Scheduler(backend, list(rates), lambda step: 1 - step / 10, start)


def test_each_rate_is_its_initial_one_times_the_factor_of_the_step():
    scheduler = scheduler_of(1.0, 0.1, start=2)
    assert scheduler.optimizer == pytest.approx([0.8, 0.08])
    scheduler.step()
    assert scheduler.last_epoch == 3 and scheduler.optimizer == scheduler.get_last_lr() == pytest.approx([0.7, 0.07])
    scheduler.step(8)
    assert scheduler.optimizer == pytest.approx([0.2, 0.02])


def test_a_group_that_is_added_starts_with_its_own_rate():
    scheduler = scheduler_of(1.0)
    scheduler.step(5)
    scheduler.optimizer.append(0.4)
    scheduler.step()
    assert scheduler.base_lrs == [1.0, 0.4] and scheduler.optimizer == pytest.approx([0.4, 0.16])


def test_a_changed_schedule_is_that_of_all_groups():
    scheduler = scheduler_of(1.0, 1.0)
    scheduler.factors = [lambda step: 1.0, lambda step: 0.5]
    scheduler.follow(lambda factor: lambda step: factor(step) / 2)
    assert scheduler.optimizer == [0.5, 0.25]
    alone = scheduler_of(1.0, start=5)
    alone.follow(lambda factor: lambda step: factor(step) / 2)
    assert alone.optimizer == [0.25]


def test_a_state_goes_on_with_its_rates():
    scheduler, again = scheduler_of(1.0, 0.1), scheduler_of(3.0, 3.0)
    scheduler.step(4)
    again.load_state_dict(scheduler.state_dict())
    assert again.optimizer == scheduler.optimizer == pytest.approx([0.6, 0.06])
    again.load_state_dict({"last_epoch": 5, "base_lrs": [2.0]})  # one rate for all, of other groups
    assert again.optimizer == [1.0, 1.0]
