"""Behaviour: each field is read by the core and chosen by compat, and says what it does."""

import re
from dataclasses import fields

import pytest

from oneloop.behaviour import OWN, Behaviour
from oneloop.compat import mode
from tests.structure.ownership import PACKAGE

NAMES = [each.name for each in fields(Behaviour)]
CORE = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in ("compat", "behaviour.py")]


@pytest.mark.parametrize("name", NAMES)
def test_a_field_is_read_by_the_core_explained_and_chosen_by_compat(name):
    assert [path for path in CORE if re.search(rf"\.{name}\b", path.read_text())] != []
    source = (PACKAGE / "behaviour.py").read_text()
    assert re.search(rf"^    {name}: [^\n]*  # \w", source, re.MULTILINE), "a comment says what it does"
    chosen = [behaviour for every in map(mode.expected_by, EVERY) for behaviour in (every[0], *every[1].values())]
    assert any(getattr(each, name) != getattr(OWN, name) for each in chosen)


EVERY = [{"transformers"}, {"paddlenlp"}, {"mindnlp"}]


def test_no_library_is_oneloops_own_behaviour():
    assert mode.expected_by(()) == (OWN, {})


def test_a_successor_has_the_behaviour_of_its_library():
    assert mode.expected_by({"paddleformers"}) == mode.expected_by({"paddlenlp"})


def test_paddle_is_assumed_for_scripts_of_paddlenlp_alone():
    assert mode.expected_by({"paddlenlp"})[0].framework == "paddle"
    assert mode.expected_by({"paddlenlp", "transformers"})[0].framework is None
