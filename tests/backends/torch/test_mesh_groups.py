"""Optimizers whose parameters are on several meshes: a step sees those of one mesh at a time."""

import pytest
import torch

from oneloop.backends.torch import mesh_groups
from oneloop.errors import UnsupportedError


class Counts(torch.optim.Optimizer):
    """Keeps the number of its steps in the options of each group."""

    def __init__(self, groups):
        super().__init__(groups, {"steps": 0})
        self.seen = []

    def step(self, closure=None):
        for group in self.param_groups:
            group["steps"] += 1
            self.seen.append((group["name"], [len(p) for p in group["params"]], group["steps"]))


@pytest.fixture
def optimizer(monkeypatch):
    monkeypatch.setattr(mesh_groups, "_mesh_of", lambda p: len(p) % 2)  # even and odd ones are on two meshes
    of = {n: torch.nn.Parameter(torch.zeros(n)) for n in range(1, 6)}
    groups = [{"name": "one", "params": [of[1], of[2], of[3]]}, {"name": "two", "params": [of[4]]}]
    return Counts([*groups, {"name": "none", "params": []}])


def test_a_step_has_groups_of_one_mesh_and_leaves_them_as_they_were(optimizer):
    groups = optimizer.param_groups
    before = [(group, list(group["params"])) for group in groups]
    for _ in range(2):
        mesh_groups.step_by_mesh(optimizer)  # a second time changes nothing
    for step in (1, 2):
        optimizer.step()
        expected = [("one", [1, 3], step), ("one", [2], step), ("two", [4], step), ("none", [], step)]
        assert optimizer.seen[-4:] == expected
        assert [group["steps"] for group in optimizer.param_groups] == [step] * 3
    for group, (own, params) in zip(optimizer.param_groups, before, strict=True):
        assert group is own and group["params"] == params and group.keys() == {"name", "params", "steps"}


def test_what_is_no_optimizer_of_torch_is_refused():
    with pytest.raises(UnsupportedError, match=r"object is not a torch\.optim\.Optimizer.*adamw_torch"):
        mesh_groups.step_by_mesh(object())
