"""A disk that refuses a save to one process of two: all hear of it, and agree on what is saved and what is the best."""

import re
from pathlib import Path

import pytest

from oneloop.checkpoint import store
from tests.backends.support import names
from tests.distributed import launch

JOB = Path(__file__).with_name("disk_job.py")
REFUSED = ("at_once", "background", "override", "parts")
IN_PARTS = ("in_parts", "part_of_another", "no_note", "small_files")


def frameworks():
    return [name if name == "torch" else pytest.param(name, marks=pytest.mark.slow) for name in names()]


@pytest.fixture(scope="module", params=frameworks())
def ended(request, tmp_path_factory):
    """(framework, folder, what was said, results by rank) of a run; on torch, an error in its last case ends it."""
    folder, of_torch = tmp_path_factory.mktemp("disk"), request.param == "torch"
    cases = (*REFUSED, *IN_PARTS, "added_files", "broken") if of_torch else (*REFUSED, "added_files")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "CASES", JOB)
        said = launch.run_cases(request.param, 2, folder, *cases, succeeds=not of_torch)
    return request.param, folder, said, launch.results(folder, 2)


@pytest.mark.parametrize("case", REFUSED + IN_PARTS)
def test_all_hear_of_a_save_that_was_refused(ended, case):
    framework, folder, said, found = ended
    if case not in found[0]:
        pytest.skip(f"{framework} writes no checkpoint in parts")
    assert found[0][case] == found[1][case]
    assert found[0][case]["saved"] == [1, 3, 4], "on_save speaks of what is whole"
    assert found[0][case]["best"] == [3, 6, "checkpoint-3"]
    assert sorted(c.step for c in store.find(folder / case)) == [3, 4]
    assert all(store.problems(c.path) == [] for c in store.find(folder / case))
    assert [path.name for path in (folder / case).glob(".*")] == []


def test_files_that_one_process_cannot_add_are_named_and_the_checkpoints_stay(ended):
    """None is deleted then: the next save does that."""
    _, folder, said, found = ended
    assert found[0]["added_files"] == found[1]["added_files"]
    assert found[0]["added_files"]["saved"] == [1, 2, 3, 4]
    assert "_save_checkpoint of Adding failed: [Errno 121] Remote I/O error" in said
    assert {c.step for c in store.find(folder / "added_files")} == {1, 2, 3, 4}
    unsealed = {c.step: store.unlisted(c.open()) for c in store.find(folder / "added_files")}
    assert unsealed == {1: [], 2: ["mine0"], 3: [], 4: []}


def test_it_is_said(ended):
    _, _, said, found = ended
    assert said.count("checkpoint-2 was NOT saved") >= len(found[0]) - 1  # one of them was saved


def test_an_error_of_another_kind_ends_all_with_its_words(ended):
    framework, folder, said, _ = ended
    if framework != "torch":
        pytest.skip("only torch's launcher leaves the others the time to say why")
    words = "CheckpointError: cannot write a checkpoint: a bug in the writer"
    assert f"[rank0]: oneloop.errors.{words}" in said
    assert re.search(rf"ProcessLostError: Process 0 \(.*\) exited after an error: {words}", said), said
    assert [c.step for c in store.find(folder / "broken")] == [1] and list((folder / "broken").glob(".*")) == []
