"""Every argument, answered as docs/arguments.md says: it works, and that can be seen; or it maps; or it refuses."""

import copy

import pytest

from oneloop.arguments import Seq2SeqTrainingArguments
from oneloop.arguments.answers import answer
from oneloop.arguments.fields import declared
from tests.arguments.observations import OBSERVATIONS
from tests.arguments.scenes import Scene

NAMES = [rules["public"] or name for name, (_, rules) in declared(Seq2SeqTrainingArguments).items()]
ANSWERS = {name: answer(name, "torch") for name in NAMES}
WORKS = [name for name in NAMES if ANSWERS[name] in ("works", "works in part")]


@pytest.fixture
def look(tmp_path_factory, monkeypatch, capsys):
    """What an observation sees for one value of an argument."""

    def see(name, observation, value):
        scene = Scene(tmp_path_factory.mktemp("scene"), monkeypatch, capsys, **observation.given)
        scene.given[name] = copy.copy(value)
        return observation.see(scene)

    return see


@pytest.mark.parametrize("name", WORKS)
def test_what_works_can_be_seen(name, look):
    assert name in OBSERVATIONS, f"{name} has no observation: add one to tests/arguments/observations.py"
    observation = OBSERVATIONS[name]
    seen = [look(name, observation, value) for value, _ in observation.seen]
    if observation.exact:
        assert seen == [expected for _, expected in observation.seen]
        assert any(other != seen[0] for other in seen[1:])
    else:
        first, second = seen
        assert look(name, observation, observation.seen[0][0]) == first
        assert second != first
