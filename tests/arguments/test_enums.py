"""Names that are strings."""

import json

import pytest

from oneloop import enums
from oneloop.errors import ArgumentError, UnsupportedError
from oneloop.optim.catalog import OptimizerNames

ALL = [
    enums.IntervalStrategy,
    enums.SaveStrategy,
    enums.SchedulerType,
    enums.HubStrategy,
    OptimizerNames,
    enums.FSDPOption,
    enums.DebugOption,
    enums.HPSearchBackend,
    enums.ParallelMode,
]


@pytest.mark.parametrize("cls", ALL)
def test_a_member_is_its_string(cls):
    for member in cls:
        assert member == member.value and str(member) == member.value == f"{member}"
        assert {member: 1}[member.value] == 1
        assert cls(member.value) is member and cls(member) is member
        assert json.loads(json.dumps(member)) == member.value


@pytest.mark.parametrize("cls", ALL)
def test_another_string_is_an_error_that_shows_the_list(cls):
    with pytest.raises(ArgumentError) as caught:
        cls("nonsense")
    assert "'nonsense'" in str(caught.value)
    assert all(repr(member.value) in str(caught.value) for member in cls)


def test_counts():
    assert len(enums.SchedulerType) == 12
    assert len(OptimizerNames) == 41 + 4


def test_a_service_that_is_gone():
    with pytest.raises(UnsupportedError, match="SigOpt"):
        enums.HPSearchBackend("sigopt")
