"""Stage 1 of sharding: what it cannot divide is refused before anything is divided."""

import pytest

from oneloop import TrainingArguments
from oneloop.backends import load
from oneloop.backends.common import parameter_groups
from oneloop.errors import RefusedError
from oneloop.processes import Team
from tests.backends_support import names
from tests.kits.paddle_kit import Kit

if "paddle" not in names():
    pytest.skip("Paddle is not installed", allow_module_level=True)


@pytest.fixture
def stage1(tmp_path):
    team = Team()
    team.size = 2
    args = TrainingArguments(str(tmp_path), device="cpu", sharding="stage1", weight_decay=0.1, optim="sgd")
    return load("paddle").parallel.strategy(args, team)


def test_parameter_groups_are_refused(stage1):
    optimizers = load("paddle").optimizers
    named = list(Kit().classifier().named_parameters())
    groups = parameter_groups(named, {name for name, _ in named if name.endswith("weight")}, 0.1)
    cls, options = optimizers.class_and_options(stage1.args)
    with pytest.raises(RefusedError, match="SGD takes weight_decay by groups. Use optim='adamw', or weight_decay=0"):
        stage1.build_optimizer(cls, groups, options)


def test_an_optimizer_that_is_built_already_is_refused(stage1):
    with pytest.raises(RefusedError, match="was given a SGD that is built already. Pass its class and options"):
        stage1.take_optimizer(Kit().sgd(Kit().classifier()))
