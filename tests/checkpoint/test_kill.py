"""A run that is killed at any moment, and started again until it ends, ends with the bytes of one that never died.

After every kill the newest checkpoint is whole, or there is none yet. At the end the directory holds the checkpoints
that it would hold without kills, and the log has each line once.
"""

import contextlib
import json
import os
import random
import signal
import time

import pytest

from tests.checkpoint import kill_points
from tests.checkpoint.children import KILLED, checkpoint_names, damage_of_latest, differences, log_lines, result

ROLLBACK = ("--set", 'loss_spike="rollback"', "--set", "loss_spike_window=8")
COURSES = {
    "plain": ("--no-sync",),
    # The step at the end of an epoch is saved for being one in four, and again for its evaluation: it is replaced.
    "replacing": ("--no-sync", "--set", 'eval_strategy="epoch"', "--set", "save_steps=4"),
    "workers": ("--no-sync", "--workers", "2", "--accumulation", "3", "--group-by-length"),
    "synced": (),
    "packed mixture": ("--no-sync", "--packed", "mixture"),
    "packed mixture, workers": ("--no-sync", "--packed", "mixture", "--workers", "2", "--accumulation", "3"),
    "packed stream": ("--no-sync", "--packed", "stream"),
    # Two returns to checkpoint-12, and one to checkpoint-15.
    "rolled back": ("--no-sync", "--spikes", "13", "14", "17", *ROLLBACK),
    "rolled back, workers": ("--no-sync", "--spikes", "14", "--workers", "2", "--accumulation", "3", *ROLLBACK),
}


@pytest.fixture(scope="module")
def unbroken(forks, tmp_path_factory):
    """course -> (directory, calls of each kill point) of a run that was never killed; made once."""
    made = {}

    def make(course):
        if course not in made:
            output = tmp_path_factory.mktemp(course) / "run"
            ended = forks.run(*COURSES[course], "--count", output=output)
            assert ended.status == 0, ended.output
            assert ('"rolled_back"' in (output / "run.jsonl").read_text()) == course.startswith("rolled back")
            made[course] = output, json.loads((output / "result.json").read_text())["counts"]
        return made[course]

    return make


def killed_run(forks, argv, base, kills, output, look=None):
    """Kill a run once at each of these points in turn, let it end, and compare it with one that was never killed."""
    deaths = 0
    for kill in [*kills, None]:
        options = ("--kill", kill) if isinstance(kill, str) else ()
        meanwhile = kill if callable(kill) else None
        ended = forks.run(*argv, "--resume", "latest", *options, output=output, meanwhile=meanwhile)
        assert damage_of_latest(output) == [], f"after {kill}"
        if ended.status == 0:
            break
        assert ended.status == KILLED, ended.output
        deaths += 1
        if look is not None:
            look(kill)
    else:
        pytest.fail("the run did not end")
    assert differences(result(base), result(output)) == [], kills
    assert log_lines(output) == log_lines(base), kills
    assert checkpoint_names(output) == checkpoint_names(base), kills
    assert [p.name for p in output.glob(".*")] == [], kills
    return deaths


@pytest.fixture
def killed(forks, unbroken, record_property):
    """Run a course, killed once at each of these points in turn, to its end, and compare. The kills that took place."""
    total = 0

    def run(course, kills, output, look=None):
        nonlocal total
        deaths = killed_run(forks, COURSES[course], unbroken(course)[0], kills, output, look)
        total += deaths
        return deaths

    yield run
    record_property("kills", total)


# Seven files a checkpoint; the seventh is the manifest.
SAVING = {
    "before the first file": ("plain", "write:before:1"),
    "inside the weights": ("plain", "write:inside:8"),
    "inside the optimizer": ("plain", "write:inside:9"),
    "after the last file, before the manifest": ("plain", "write:after:13"),
    "inside the manifest": ("plain", "write:inside:21"),
    "between manifest and name": ("plain", "write:after:21"),
    "before the name is on the disk": ("synced", "fsync:before:27"),
    "after the name": ("plain", "rename:after:2"),
    "between commit and rotation": ("plain", "commit:after:4"),
    "inside a deletion": ("plain", "rmtree:inside:2"),
    "inside a line of the log": ("plain", "log:inside:9"),
    "with workers": ("workers", "write:inside:17"),
    "in the middle of a packed document": ("packed mixture", "write:inside:17"),
    "after a rollback": ("rolled back", "update:after:16"),
}


@pytest.mark.parametrize("when", SAVING)
def test_while_saving(when, killed, tmp_path):
    course, kill = SAVING[when]
    assert killed(course, [kill], tmp_path / "run") == 1


def test_between_the_two_renames_of_a_replacement(killed, tmp_path):
    """The third rename moves the old checkpoint-8 aside, the fourth puts the new one there."""
    seen = []

    def look(kill):
        seen.append(checkpoint_names(tmp_path / "run"))

    assert killed("replacing", ["rename:after:3"], tmp_path / "run", look) == 1
    names = seen[0]
    assert "checkpoint-8" not in names
    assert sorted(name.rsplit(".", 1)[1] for name in names if name.startswith(".")) == ["partial", "replaced"]


RESUMING = ["leftovers:before:1", "verify:after:1", "load:after:1", "load_state:before:1", "load_optimizer:after:1"]
RESUMING += ["log_begin:before:1", "log_begin:after:1", "load_random:before:1", "load_random:after:1"]


def test_while_resuming(killed, tmp_path):
    """Killed inside a save, and then again and again while it tries to go on."""
    assert killed("plain", ["write:inside:33", *RESUMING, "update:before:1"], tmp_path / "run") == len(RESUMING) + 2


def at_a_random_moment(moments, longest):
    """Kill the child from outside. It may have ended by then: a pidfd cannot hit another process."""

    def kill(pid):
        with contextlib.suppress(OSError):
            child = os.pidfd_open(pid)
            time.sleep(moments.uniform(0, longest))
            signal.pidfd_send_signal(child, signal.SIGKILL)
            os.close(child)

    return kill


def test_at_random_moments(killed, tmp_path):
    kill = at_a_random_moment(random.Random(1), 0.6)
    killed("plain", [kill] * 6, tmp_path / "run")


# -- the long grid


def spread(count, wanted):
    """At most so many of 1 to count, evenly."""
    return sorted({1 + i * count // wanted for i in range(wanted)}) if count > wanted else list(range(1, count + 1))


GRID = [
    ("plain", "write", "before", 21),
    ("plain", "write", "inside", 63),
    ("plain", "write", "after", 63),
    ("synced", "fsync", "before", 27),
    ("plain", "rename", "before", 16),
    ("plain", "rename", "after", 16),
    ("replacing", "rename", "before", 20),
    ("replacing", "rename", "after", 20),
    ("replacing", "write", "inside", 14),
    ("plain", "commit", "before", 9),
    ("plain", "commit", "after", 9),
    ("plain", "room", "before", 9),
    ("plain", "copy", "after", 9),
    ("plain", "delete", "before", 7),
    ("plain", "delete", "after", 7),
    ("plain", "rmtree", "before", 7),
    ("plain", "rmtree", "inside", 7),
    ("plain", "log", "inside", 17),
    ("plain", "update", "after", 11),
    ("workers", "write", "inside", 14),
    ("workers", "rename", "after", 8),
    ("packed mixture", "write", "inside", 10),
    ("packed mixture", "commit", "after", 9),
    ("packed mixture", "update", "after", 11),
    ("packed mixture, workers", "commit", "after", 5),
    ("packed mixture, workers", "update", "after", 5),
    ("packed stream", "commit", "after", 9),
    ("packed stream", "update", "after", 11),
    ("rolled back", "write", "inside", 12),
    ("rolled back", "commit", "after", 9),
    ("rolled back", "update", "after", 25),
    ("rolled back", "load_optimizer", "after", 3),
    ("rolled back", "log_begin", "before", 3),
    ("rolled back, workers", "update", "after", 8),
]


@pytest.mark.slow
@pytest.mark.parametrize(("course", "point", "when", "most"), GRID, ids=lambda value: str(value))
def test_at_every_call(course, point, when, most, killed, unbroken, tmp_path):
    _, counts = unbroken(course)
    assert counts[point] > 0
    for number in spread(counts[point], most):
        assert killed(course, [f"{point}:{when}:{number}"], tmp_path / str(number)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("course", ["plain", "replacing", "workers"])
def test_while_resuming_from_every_checkpoint(course, killed, tmp_path):
    for number in (1, 2, 3, 4):
        kills = [f"commit:after:{number}", *RESUMING]
        assert killed(course, kills, tmp_path / str(number)) == len(kills)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_random_lives(seed, killed, unbroken, tmp_path):
    """Kills at random points and moments, one after the other."""
    choose = random.Random(seed)
    course = choose.choice(["plain", "plain", "replacing", "workers", "synced"])
    _, counts = unbroken(course)
    inside = [name for name, point in kill_points.points("torch").items() if point[2] is not None]
    kills = []
    for _ in range(8):
        name = choose.choice([name for name, count in counts.items() if count > 0])
        when = choose.choice(kill_points.WHEN if name in inside else ["before", "after"])
        kills.append(f"{name}:{when}:{choose.randint(1, max(1, counts[name] // 4))}")
    for place in choose.sample(range(8), 3):
        kills[place] = at_a_random_moment(choose, 1.0)
    killed(course, kills, tmp_path / "run")
