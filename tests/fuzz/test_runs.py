"""A few scripts of the fuzzer on every framework; and that it sees what it is made to see."""

import os
import random

import pytest

from tests.backends.support import DEVICE, names
from tests.fuzz import runs, users

SEEDS = {"torch": range(100, 108), "paddle": range(100, 102), "mindspore": range(100, 101)}
pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="forks processes of a CPU run")


def _played(framework, first, count):
    """In a process of its own: the fuzzer forks, and test processes have threads."""
    import subprocess
    import sys

    command = [sys.executable, "-m", "tests.fuzz.runs", framework, "--first", str(first), "--runs", str(count)]
    return subprocess.run(
        [*command, "--no-shrink"], capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )


@pytest.mark.slow
@pytest.mark.parametrize("framework", names())
def test_scripts_end_as_if_they_had_not_been_interrupted(framework):
    seeds = SEEDS[framework]
    done = _played(framework, seeds[0], len(seeds))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert f"{len(seeds)} scripts on {framework}" in done.stdout and ": 0 differ" in done.stdout


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


def test_logs_on_other_numbers_of_processes_are_compared_up_to_rounding():
    whole = {"epoch": 1.0, "history": [{"loss": 1.0, "step": 1}]}
    assert runs._apart(whole, {"epoch": 1.0, "history": [{"loss": 1.0001, "step": 1}]}) == []
    assert "/history/loss" in runs._apart(whole, {"epoch": 1.0, "history": [{"loss": 1.1, "step": 1}]})[0]
    assert runs._apart(whole, {"epoch": 2.0, "history": [{"loss": 1.0, "step": 1}]}) != []
    assert runs._apart(whole, {"epoch": 1.0, "history": [{"loss": 1.0, "step": 1, "more": 1}]}) != []
