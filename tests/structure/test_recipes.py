"""The recipes of docs/architecture.md are carried out: how many files each needs, and that the result works."""

import re

import pytest

from tests.structure import figures, recipes


@pytest.fixture(scope="module")
def carried_out():
    pytest.importorskip("torch")
    return recipes.carried_out()


# What is written by hand, for each recipe.
FILES = {
    "argument": ["oneloop/arguments/reporting.py", "oneloop/trainer/trainer.py"],
    "optimizer": ["oneloop/optim/catalog.py"],
    "callback event": ["oneloop/callbacks/base.py", "oneloop/loop.py"],
    "writer": ["oneloop/integrations/writers/jsonfile.py", "oneloop/writers.py"],
}
GENERATED = {
    *("docs/arguments.md", "oneloop/arguments/signatures.pyi"),
    "oneloop/integrations/writers/classes.pyi",
}


def test_the_files_that_a_recipe_needs(carried_out):
    changed, _ = carried_out
    assert {name: by_hand for name, (by_hand, _) in changed.items()} == FILES
    assert {file for _, generated in changed.values() for file in generated} <= GENERATED


def test_an_argument_is_parsed_checked_and_has_its_effect(carried_out):
    _, run = carried_out
    assert run["raised"][0] == pytest.approx([loss + 100 for loss in run["plain"][0]])
    assert run["raised"][1] == run["plain"][1] and "loss_offset" in run["refused"]


def test_an_optimizer_trains_and_resumes(carried_out):
    _, run = carried_out
    assert run["plain"][3] == run["resumed"][3] == "Adamax"
    assert run["resumed"][0] == run["plain"][0] and run["resumed"][1] == run["plain"][1]
    assert len(run["plain"][0]) == 4 and len(set(run["plain"][0])) == 4


def test_a_callback_event_is_heard(carried_out):
    _, run = carried_out
    assert run["plain"][2] == [[step, 1] for step in range(4)]
    assert run["resumed"][2] == [[2, 1], [3, 1]]


def test_a_writer_gets_the_logs(carried_out):
    _, run = carried_out
    written = [values["loss"] for _, values in run["lines"] if "loss" in values]
    assert written == run["raised"][0]


def test_toys_need_no_line_in_the_package():
    """Their own tests show that they work."""
    files = {name: len(found) for name, found in recipes.toys().items()}
    assert files.keys() == recipes.TOYS.keys()
    assert files["part"] == files["axis"] == 1 and 0 < files["backend"] < 20
    code = [line for text in figures.sources().values() for line in figures.code_lines(text).values()]
    assert [line for line in code if re.search(r"(?i)\btoy", line)] == []
