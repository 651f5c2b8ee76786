"""A run that goes on from any of its checkpoints ends with the same bytes as one that never stopped.

Everything random is on: dropout, shuffling, a data set, a collator and a callback that draw from Python, NumPy and the
framework, evaluations in between. Compared are weights, optimizer, random state, position, callbacks and logs.
"""

import json
import random
import shutil

import pytest

from tests.backends.support import kit_module
from tests.checkpoint.children import differences, log_lines, result, run_new

EVERY_STEP = ("--set", "save_steps=1", "--set", "save_total_limit=null", "--no-sync")
BY_EPOCH = ("--set", 'eval_strategy="epoch"', "--set", 'logging_strategy="epoch"')
GROUPED = "--group-by-length"

COURSES = {
    "plain": ("--steps", "22"),
    "accumulated-grouped": ("--accumulation", "3", GROUPED),
    "workers-accumulated": ("--workers", "2", "--accumulation", "3"),
    "workers-grouped": ("--workers", "2", GROUPED),
    "fp16": ("--fp16", "--set", "scale_loss=3e5"),
    "logged-by-epoch": ("--steps", "18", *BY_EPOCH),
    "stopped-early": ("--patience", "2", "--steps", "60"),
    "persistent-workers": ("--workers", "2", "--steps", "18", "--set", "dataloader_persistent_workers=true"),
}


@pytest.fixture(scope="module")
def unbroken(forks, tmp_path_factory):
    """argv -> the directory of a run that never stopped; made once."""
    made = {}

    def make(*argv):
        if argv not in made:
            made[argv] = tmp_path_factory.mktemp("unbroken") / "run"
            ended = forks.run(*argv, output=made[argv])
            assert ended.status == 0, ended.output
        return made[argv]

    return make


def refuses_fp16(forks, tmp_path):
    """Whether the framework has no fp16 on a CPU; then that the run says so."""
    if "fp16" in kit_module(forks.framework).Kit.half:
        return False
    ended = forks.run(*COURSES["fp16"], output=tmp_path / "refused")
    assert ended.status == 1
    assert f"fp16=True cannot be used on {forks.framework} with the device cpu" in ended.output
    return True


def steps_saved(output):
    return sorted(int(path.name.split("-")[1]) for path in output.glob("checkpoint-*"))


def first_last_and(count, steps):
    inner = steps[1:-1]
    return sorted({steps[0], steps[-1], *random.Random(0).sample(inner, min(count, len(inner)))})


@pytest.fixture
def check_resumes(forks, tmp_path, record_property):
    """Resume from each of these steps in a new process and a new directory, run to the end, and compare."""
    total = 0

    def check(base, argv, steps):
        nonlocal total
        wanted = result(base)
        assert steps
        for step in steps:
            output = tmp_path / f"from-{step}"
            ended = forks.run(*argv, "--resume", base / f"checkpoint-{step}", output=output)
            assert ended.status == 0, ended.output
            found = result(output)
            if found["last"] is None:  # nothing was left to do, so nothing was saved: the checkpoint is the one given
                assert f"checkpoint-{step}" == wanted["last"]
                found |= {key: wanted[key] for key in ("last", "contents")}
            assert differences(wanted, found) == [], f"resumed from {step}"
            total += 1

    yield check
    record_property("resumes", total)


@pytest.mark.parametrize("course", ["plain", "accumulated-grouped", "workers-accumulated", "fp16", "logged-by-epoch"])
def test_from_some_steps(course, forks, unbroken, check_resumes, tmp_path):
    if course == "fp16" and refuses_fp16(forks, tmp_path):
        return
    argv = (*COURSES[course], *EVERY_STEP)
    base = unbroken(*argv)
    saved = steps_saved(base)
    assert saved == list(range(1, 1 + saved[-1]))
    ends_of_epochs = {8, 16} & set(saved)
    steps = {*first_last_and(1, saved), *ends_of_epochs}
    if forks.framework == "mindspore":  # which compiles in every process
        steps = {saved[len(saved) // 4], *ends_of_epochs}
    check_resumes(base, argv, sorted(steps))


@pytest.mark.slow
@pytest.mark.parametrize("grouped", [False, True], ids=["shuffled", "grouped"])
@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_from_every_step(workers, accumulation, grouped, unbroken, check_resumes):
    argv = ("--workers", workers, "--accumulation", accumulation, *[GROUPED] * grouped, *EVERY_STEP)
    base = unbroken(*argv)
    assert steps_saved(base) == list(range(1, 23))
    check_resumes(base, argv, steps_saved(base))


@pytest.mark.slow
@pytest.mark.parametrize("course", ["fp16", "logged-by-epoch", "stopped-early", "persistent-workers"])
def test_from_every_step_of_other_courses(course, forks, unbroken, check_resumes, tmp_path):
    if course == "fp16" and refuses_fp16(forks, tmp_path):
        return
    argv = (*COURSES[course], *EVERY_STEP)
    base = unbroken(*argv)
    check_resumes(base, argv, steps_saved(base))


def test_the_scaler_had_something_to_do(forks, unbroken, tmp_path):
    if refuses_fp16(forks, tmp_path):
        return
    run = json.loads((unbroken(*COURSES["fp16"], *EVERY_STEP) / "checkpoint-22" / "run.json").read_text())
    assert run["engine"]["skipped"] > 0


def test_checkpoints_are_json_even_when_something_is_infinite(forks, unbroken, tmp_path):
    if refuses_fp16(forks, tmp_path):
        return

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    paths = list(unbroken(*COURSES["fp16"], *EVERY_STEP).glob("checkpoint-*/*.json"))
    assert paths
    for path in paths:
        json.loads(path.read_text(), parse_constant=refuse)


def test_in_an_interpreter_of_its_own(forks, unbroken, tmp_path):
    """With another hash seed, and nothing left over from anything."""
    argv = (*COURSES["workers-grouped"], *EVERY_STEP)
    base = unbroken(*argv)
    ended = run_new(*argv, "--framework", forks.framework, "--resume", base / "checkpoint-9", output=tmp_path / "run")
    assert ended.status == 0, ended.output
    assert differences(result(base), result(tmp_path / "run")) == []


def test_saved_at_the_ends_of_epochs(unbroken, check_resumes):
    argv = ("--steps", "24", *BY_EPOCH, *EVERY_STEP, "--set", 'save_strategy="epoch"')
    base = unbroken(*argv)
    assert steps_saved(base) == [8, 16, 24]
    check_resumes(base, argv, [8, 16, 24])


def test_early_stopping_comes_at_the_same_step(unbroken, check_resumes):
    argv = (*COURSES["stopped-early"], *EVERY_STEP)
    base = unbroken(*argv)
    saved = steps_saved(base)
    assert 8 <= saved[-1] < 60, "the run was to be stopped by the callback"
    check_resumes(base, argv, [saved[-1] - 5, saved[-1] - 1, saved[-1]])


@pytest.mark.parametrize("course", ["plain", "logged-by-epoch"])
def test_in_place_each_line_of_the_log_is_there_once(course, forks, unbroken, tmp_path):
    """A run that ended is taken back to its middle, to the end of an epoch and to its end."""
    argv = (*COURSES[course], *EVERY_STEP)
    base = unbroken(*argv)
    output = tmp_path / "run"
    for step in (None, 5, 8, 16, steps_saved(base)[-1]):
        for later in [] if step is None else steps_saved(output):
            if later > step:
                shutil.rmtree(output / f"checkpoint-{later}")
        ended = forks.run(*argv, "--resume", "latest", output=output)
        assert ended.status == 0, ended.output
        assert differences(result(base), result(output)) == [], f"resumed from {step}"
        assert log_lines(output) == log_lines(base), f"resumed from {step}"
