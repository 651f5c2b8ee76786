"""A few scripts of the fuzzer on every framework; and that it sees what it is made to see."""

import os
import random
import subprocess
import sys

import pytest

from tests.backends.support import DEVICE, names
from tests.fuzz import runs, users

SEEDS = {"torch": range(100, 104), "paddle": range(100, 103), "mindspore": range(100, 101)}
pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="forks processes of a CPU run")


def _played(framework, first, count):
    """In a process of its own: the fuzzer forks, and test processes have threads."""
    command = [sys.executable, "-m", "tests.fuzz.runs", framework, "--first", str(first), "--runs", str(count)]
    return subprocess.run(
        [*command, "--no-shrink"], capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )


@pytest.mark.parametrize("framework", names())
def test_scripts_end_as_if_they_had_not_been_interrupted(framework):
    seeds = SEEDS[framework]
    done = _played(framework, seeds[0], len(seeds))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert f"{len(seeds)} scripts on {framework}" in done.stdout and ": 0 differ" in done.stdout


@pytest.mark.skipif("torch" not in names(), reason="scripts for PyTorch")
def test_scripts_that_went_wrong_end_as_they_should():
    command, variables = [sys.executable, "-m", "tests.fuzz.found"], os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    assert done.returncode == 0 and ": 0 differ" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("framework", names())
def test_a_seed_is_one_script_and_seeds_differ(framework):
    random.seed(5)
    first = [users.draw(seed, framework, (1, 2)) for seed in range(300)]
    random.seed(6)
    assert first == [users.draw(seed, framework, (1, 2)) for seed in range(300)]
    assert len({str(script) for script in first}) == 300
    drawn = {name for script in first for name in script.traits}
    only_torch = {"optimizer", "adapter"}
    missing = set(users.TRAITS) - drawn
    assert missing <= (set() if framework == "torch" else only_torch | {"precision", "workers"}), missing
    assert {phase.how for script in first for phase in script.phases} == {"signal", "abort", "kill"}
    refused = {kind for kind in users.KINDS[framework] if kind.endswith(" BatchSampler")}  # on several processes
    assert {script.kind for script in first} == set(users.KINDS[framework]) - refused
    alone = {users.draw(seed, framework).kind for seed in range(300)}
    assert alone == set(users.KINDS[framework])
    places = {phase.where for script in first for phase in script.phases}
    assert places == {*users.EVENTS, "evaluation", "write", None}
    assert not any(a in script.traits and b in script.traits for script in first for a, b in users.EXCLUDED)


def test_a_difference_is_found_and_made_smaller(monkeypatch):
    """A run whose third step goes wrong in the interrupted one, if it has an average."""
    script = users.Script(
        options={"max_steps": 4, "load_best_model_at_end": False, "eval_strategy": "no"},
        traits={"average": {"ema_decay": 0.8}, "collator": True},
        phases=(users.Phase(1, "on_step_end", 2), users.Phase()),
    )

    def difference(candidate):
        is_wrong = "average" in candidate.traits and len(candidate.phases) > 1
        return (["/weights: a != b"] if is_wrong else []), []

    monkeypatch.setattr(runs, "difference", difference)
    small = runs.shrunk(script)
    assert list(small.traits) == ["average"] and len(small.phases) == 2


def test_an_interruption_comes_where_the_undisturbed_run_gets():
    """A share of the times that it gets there; an event that it never has is replaced."""
    phase = users.Phase(1, "on_save", share=0.5)
    assert phase.placed({"on_save": 7}) == users.Phase(1, "on_save", 4)
    assert users.Phase(1, "on_save", share=0.999).placed({"on_save": 7}).number == 7
    assert phase.placed({"on_step_end": 3}) == users.Phase(1, "on_step_end", 2)
    later = users.Phase(1, "on_save", 2)
    assert later.placed({"on_save": 7}) is later


def test_samples_that_differ_when_a_step_is_repeated_are_seen(tmp_path):
    (tmp_path / "samples").write_text("1.1 a\n1.2 b\n2.1 c\n1.1 a\n2.1 d\n")
    assert runs._samples(tmp_path / "samples") == {"1.1": ["a"], "1.2": ["b"], "2.1": ["c", "d"]}


def test_remains_of_saves_are_listed(tmp_path):
    for name in ("checkpoint-2/inside/a", ".checkpoint-3.0123abcd.partial/b", ".log.jsonl.partial"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = runs._files(tmp_path, "checkpoint-2")
    assert found == {"files": ["inside", "inside/a"], "left": [".checkpoint-3.0123abcd.partial", ".log.jsonl.partial"]}


def test_logs_on_other_numbers_of_processes_are_compared_up_to_rounding():
    whole = {"epoch": 1.0, "history": [{"loss": 1.0, "step": 1}]}
    assert runs._apart(whole, {"epoch": 1.0, "history": [{"loss": 1.0001, "step": 1}]}) == []
    assert "/history/loss" in runs._apart(whole, {"epoch": 1.0, "history": [{"loss": 1.1, "step": 1}]})[0]
    assert runs._apart(whole, {"epoch": 2.0, "history": [{"loss": 1.0, "step": 1}]}) != []
    assert runs._apart(whole, {"epoch": 1.0, "history": [{"loss": 1.0, "step": 1, "more": 1}]}) != []
