"""Saves in which one call to the operating system fails, or it and all after it: each call in turn, with each of 20
error numbers, and writes that take half of their data. The run goes on, and there is always a complete checkpoint.

The calls are made to fail by tests/checkpoint/disk/calls.c, below Python and the native code of libraries.
"""

import json

import pytest

from tests.backends.support import names
from tests.checkpoint.disk import preload
from tests.checkpoint.disk.job import NUMBERS

# What a save of the default run does; the slow ones do each call with each number.
FEW = {"every": 17, "numbers": ["EUCLEAN", "EMFILE"], "every_write": 17}
CHANGES = {"close", "fsync", "mkdir", "open", "rename", "write"}


def outcome(library, action, framework, memory, **options):
    found = json.loads(preload.run(library, action, framework, memory / "run", json.dumps(options)))
    print(action, framework, options, {key: value for key, value in found.items() if key != "wrong"})
    assert found["wrong"] == []
    return found


def frameworks():
    return [name if name == "torch" else pytest.param(name, marks=pytest.mark.slow) for name in names()]


@pytest.mark.parametrize("framework", frameworks())
def test_some_calls_of_a_save(framework, library, memory):
    found = outcome(library, "faults", framework, memory, limit=1, **FEW)
    assert found["finished"] and found["saves"] > 25
    assert found["saved"] and found["not saved"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"limit": 1}, {"same_step": True, "background": False}], ids=str)
def test_every_call_of_a_save(options, library, memory):
    found = outcome(library, "faults", names()[0], memory, **options)
    assert found["finished"] and found["saves"] > 50 * len(NUMBERS)
    assert set(found["calls"]) >= CHANGES


@pytest.mark.slow
@pytest.mark.parametrize("framework", names()[1:])
def test_every_call_of_a_save_on_the_other_frameworks(framework, library, memory):
    """With some numbers: the calls are the same, but for those of the framework."""
    found = outcome(library, "faults", framework, memory, limit=1, numbers=["ENOSPC", "EUCLEAN", "ENOENT"])
    assert found["finished"] and found["saves"] > 300
    assert set(found["calls"]) >= CHANGES


@pytest.mark.parametrize("framework", frameworks())
def test_some_calls_of_save_model(framework, library, memory):
    found = outcome(library, "model_faults", framework, memory, **FEW)
    assert found["saves"] > 15 and found["saved"] and found["not saved"]


@pytest.mark.slow
def test_every_call_of_save_model(library, memory):
    found = outcome(library, "model_faults", names()[0], memory)
    assert found["saves"] > 50 * len(NUMBERS) and set(found) == {"saves", "saved", "not saved", "wrong"}
