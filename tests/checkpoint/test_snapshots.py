"""snapshot_steps: the newest state of a run in memory, from which a run is resumed whose processes were killed."""

import json
import logging
import os
import shutil

import pytest

from oneloop import Trainer, TrainerCallback, TrainingArguments
from oneloop.checkpoint import store
from oneloop.errors import ArgumentError, CheckpointError, UnsupportedError
from tests.checkpoint.children import KILLED, damage_of_latest, differences, log_lines, result

# Each is complete before the next step, so that tests know which one is there.
PLAIN = ("--no-sync", "--set", "save_async=false", "--set", "save_steps=9", "--set", "load_best_model_at_end=false")
TAKES = (*PLAIN, "--set", "snapshot_steps=2")
MEMORY = "snapshot_dir={}"


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "memory"
    folder.mkdir()
    return folder


def options(place, *more):
    return (*TAKES, "--set", f"snapshot_dir={json.dumps(str(place))}", *more)


def snapshots(place):
    return sorted(path.name for path in place.glob("*/*/checkpoint-*"))


def steps_on_disk(output):
    return [found.step for found in store.find(output)]


# -- kills


@pytest.fixture(scope="module")
def unbroken(forks, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    (folder / "memory").mkdir()
    ended = forks.run(*options(folder / "memory"), "--count", output=folder / "run")
    assert ended.status == 0, ended.output
    return folder / "run", json.loads((folder / "run" / "result.json").read_text())["counts"]


def killed_run(forks, place, output, kills, base):
    """Killed at each of these points in turn, and then to its end. What was said at each start."""
    said = []
    for kill in [*kills, None]:
        more = () if kill is None else ("--kill", kill)
        ended = forks.run(*options(place), "--resume", "latest", *more, output=output)
        said.append(ended.output)
        assert damage_of_latest(output) == [], f"after {kill}"
        assert ended.status in (KILLED, 0), ended.output
        if ended.status == 0:
            break
    assert ended.status == 0, "the run did not end"
    assert differences(result(base), result(output)) == [], kills
    assert log_lines(output) == log_lines(base), kills
    assert list(place.glob("*/*")) == [] and not (output / ".snapshots").exists(), "the memory is free again"
    return said


def test_killed_runs_are_resumed_from_their_snapshot(forks, place, tmp_path, unbroken):
    """After step 7, when nothing is on the disk; after 15, where a checkpoint is older; and again before a new one."""
    kills = ["update:before:8", "update:before:10", "update:before:2"]
    first, second, third, last = killed_run(forks, place, tmp_path / "run", kills, unbroken[0])
    assert "was in memory" not in first
    assert "snapshot of step 6 is now" in second
    assert "snapshot of step 15 is now" in third
    assert "was in memory" not in last


def spread(count, wanted):
    return sorted({1 + i * count // wanted for i in range(wanted)})


POINTS = [
    (name, when) for name in ("write", "rename", "commit", "room", "copy", "replace") for when in ("before", "after")
]
POINTS += [("write", "inside"), ("rmtree", "before"), ("rmtree", "inside"), ("delete", "after")]


def points(counts, most):
    return [f"{name}:{when}:{number}" for name, when in POINTS for number in spread(counts[name], most) if counts[name]]


def test_killed_while_one_is_written(forks, place, tmp_path, unbroken):
    for number, kill in enumerate(("write:inside:9", "commit:before:3", "rmtree:inside:2", "rename:after:2")):
        killed_run(forks, place, tmp_path / f"run{number}", [kill, "verify:after:1", "write:inside:5"], unbroken[0])


@pytest.mark.slow
def test_killed_anywhere(forks, place, tmp_path, unbroken):
    every = points(unbroken[1], 12)
    assert len(every) >= 100
    for number, kill in enumerate(every):
        killed_run(forks, place, tmp_path / f"run{number}", [kill], unbroken[0])
        shutil.rmtree(tmp_path / f"run{number}")


# -- what is the run's own


class Stops(Exception):
    pass


def stopping(at):
    class Stop(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == at:
                raise Stops

    return Stop()


@pytest.fixture
def stopped(trainer, place, tmp_path):
    """A run that an error has ended after step 16: a snapshot of step 15, and checkpoint-9."""

    def run(at=16, resume=None, more=()):
        with pytest.raises(Stops):
            trainer(*options(place, *more), callbacks=[stopping(at)]).train(resume_from_checkpoint=resume)

    run()
    assert snapshots(place) == ["checkpoint-15"] and steps_on_disk(tmp_path / "run")[-1] == 9
    return run


def resumed_at(trainer, place, wanted=True, **more):
    """The step with which a run begins that is resumed."""
    seen = []

    class Look(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            seen.append(state.global_step)
            raise Stops

    with pytest.raises(Stops):
        trainer(*options(place), callbacks=[Look()], **more).train(resume_from_checkpoint=wanted)
    return seen[0]


def test_it_is_taken_once(stopped, trainer, place, tmp_path):
    assert resumed_at(trainer, place) == 15
    assert 15 in steps_on_disk(tmp_path / "run") and snapshots(place) == []
    assert resumed_at(trainer, place) == 15, "from the checkpoint that it has become"


def test_a_run_without_snapshots_takes_it_too(stopped, trainer, place, tmp_path):
    memory = ("--set", f"snapshot_dir={json.dumps(str(place))}")
    made = trainer("--no-sync", *memory, callbacks=[stopping(16)])
    with pytest.raises(Stops):
        made.train(resume_from_checkpoint=True)
    assert 15 in steps_on_disk(tmp_path / "run") and snapshots(place) == []


@pytest.mark.parametrize("wanted", ["checkpoint-9", None])
def test_asked_for_something_else(stopped, trainer, place, tmp_path, wanted):
    """A run from an older checkpoint, or from the start: the snapshot is of the past from then on."""
    path = None if wanted is None else str(tmp_path / "run" / wanted)
    assert resumed_at(trainer, place, path) == (0 if wanted is None else 9)
    assert snapshots(place) == []
    assert resumed_at(trainer, place) == 9


def test_the_disk_is_newer(stopped, trainer, place, tmp_path):
    kept = tmp_path / "kept"
    shutil.copytree(place, kept)
    mark = (tmp_path / "run" / ".snapshots").read_bytes()
    stopped(at=20, resume=True)
    for old in (place, tmp_path / "run" / "checkpoint-15"):
        shutil.rmtree(old)
    shutil.copytree(kept, place)
    (tmp_path / "run" / ".snapshots").write_bytes(mark)  # as if nothing had started since
    assert resumed_at(trainer, place) == 18
    assert 15 not in steps_on_disk(tmp_path / "run")


def test_the_newest_of_two(trainer, place, monkeypatch):
    """A run that was killed before it could delete the older ones."""
    from oneloop.checkpoint.snapshots import Snapshots

    monkeypatch.setattr(Snapshots, "delete_superseded", lambda *given: None)
    with pytest.raises(Stops):
        trainer(*options(place), callbacks=[stopping(12)]).train()
    assert len(snapshots(place)) > 3
    assert resumed_at(trainer, place) == 11


def test_a_best_step_that_is_not_saved(trainer, place):
    """It is known to the snapshot, and no checkpoint of it, which there is none of."""
    best = ("--set", 'metric_for_best_model="eval_loss"', "--set", "save_steps=50", "--set", "snapshot_steps=4")
    with pytest.raises(Stops):
        trainer(*options(place, *best), callbacks=[stopping(5)]).train()
    (file,) = place.glob("*/*/checkpoint-4/trainer_state.json")
    state = json.loads(file.read_text())
    assert state["best_global_step"] == 4 and state["best_model_checkpoint"] is None


def test_of_another_start(stopped, trainer, place, tmp_path):
    """What was left when another machine, or a run that takes none, has gone on."""
    kept = tmp_path / "kept"
    shutil.copytree(place, kept)
    assert resumed_at(trainer, place, str(tmp_path / "run" / "checkpoint-9")) == 9
    shutil.rmtree(place)
    shutil.copytree(kept, place)
    assert resumed_at(trainer, place) == 9


def test_changed_bytes(stopped, trainer, place, caplog):
    (file,) = place.glob("*/*/checkpoint-15/optimizer.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert resumed_at(trainer, place) == 9
    assert "is incomplete or corrupt, and is not used: optimizer.safetensors has changed" in caplog.text


@pytest.mark.parametrize("what", ["writable", "link", "link above", "mark", "unreadable mark"])
def test_what_others_may_have_written(stopped, trainer, place, tmp_path, what):
    (own,) = place.glob("*/*")
    if what == "writable":
        own.chmod(0o770)
    elif what.startswith("link"):
        folder = own if what == "link" else own.parent
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        (own / ".snapshots").write_text('{"mark": "0123456789abcdef"}' if what == "mark" else "{")
    if what in ("mark", "unreadable mark"):
        assert resumed_at(trainer, place) == 9
        return
    with pytest.raises(CheckpointError, match="is not a directory that belongs to this user alone"):
        resumed_at(trainer, place)
    assert steps_on_disk(tmp_path / "run")[-1] == 9


def test_of_another_user(stopped, trainer, place, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    (own,) = place.glob("*")
    own.rename(place / "oneloop-12345")  # whose directories are not theirs
    with pytest.raises(CheckpointError, match="snapshot_dir"):
        resumed_at(trainer, place)


def test_the_output_directory_is_full(stopped, trainer, place, tmp_path, monkeypatch, caplog):
    from oneloop.checkpoint import snapshots as module

    def fails(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.shutil, "copyfile", fails)
    assert resumed_at(trainer, place) == 9
    assert "could not be copied" in caplog.text and "No space left" in caplog.text
    assert list(tmp_path.glob("run/.checkpoint-*")) == []


# -- while it trains


def test_the_memory_is_full(trainer, place, tmp_path, monkeypatch, caplog):
    """The run goes on, without an effect on its checkpoints."""
    from oneloop.checkpoint import checkpointer

    check = checkpointer.check_free_space

    def full(folder, size):
        if place in folder.parents:
            raise OSError(28, "No space left on device")
        check(folder, size)

    monkeypatch.setattr(checkpointer, "check_free_space", full)
    made = trainer(*options(place))
    made.train()
    assert "snapshot-2 was NOT saved" in caplog.text and "it is resumed from an older state" in caplog.text
    assert steps_on_disk(tmp_path / "run")[-1] == 22
    assert "on no disk" not in caplog.text, "which is about a run whose last save has failed"


def test_a_failed_one_is_not_the_last_save(trainer, place, monkeypatch, caplog):
    from oneloop.checkpoint.snapshots import Snapshots

    def full(self, size):
        raise OSError(28, "No space left on device")

    class Ends(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 12

    monkeypatch.setattr(Snapshots, "describe", full)
    trainer(*options(place), callbacks=[Ends()]).train()
    assert "snapshot-11 was NOT saved" in caplog.text and "on no disk" not in caplog.text


def test_a_trainer_that_deletes_checkpoints_itself(trainer, place):
    """Snapshots are none of its checkpoints."""
    made = trainer(*options(place), callbacks=[stopping(8)])
    cls = type(made)
    made.__class__ = type("Keeps", (cls,), {"_rotate_checkpoints": lambda self, *given, **named: None})
    with pytest.raises(Stops):
        made.train()
    assert snapshots(place) == ["checkpoint-8"]


def test_how_much_memory_is_said_once(trainer, place, caplog):
    with caplog.at_level(logging.INFO, logger="oneloop"):
        trainer(*options(place)).train()
    (line,) = [each.getMessage() for each in caplog.records if "one takes" in each.getMessage()]
    assert str(place) in line and "are free" in line


def test_one_is_tried_again_soon_if_a_save_is_being_written(trainer, place, monkeypatch):
    made = trainer(*options(place, "--set", "snapshot_steps=20", "--set", "save_steps=50", "--steps", "30"))
    core, taken = made._oneloop, []
    from oneloop.checkpoint.checkpointer import Checkpointer
    from oneloop.checkpoint.writer import SaveWriter

    monkeypatch.setattr(SaveWriter, "is_busy", property(lambda self: core.trainer.state.global_step < 23))
    save = Checkpointer._save_to
    monkeypatch.setattr(
        Checkpointer,
        "_save_to",
        lambda self, where: (
            taken.append(made.state.global_step) if where is self.snapshots else None,
            save(self, where),
        ),
    )
    monkeypatch.setattr(SaveWriter, "_join", lambda self, name=None: None)
    made.train()
    assert taken == [24]


def test_a_return_to_an_earlier_step(trainer, place, monkeypatch):
    """A snapshot of what a run takes back is not left behind."""
    from oneloop.checkpoint.snapshots import Snapshots

    left, remove = [], Snapshots.remove_after

    def look(self, step):
        before = snapshots(place)
        remove(self, step)
        left.append((step, before, snapshots(place)))

    monkeypatch.setattr(Snapshots, "remove_after", look)
    rollback = ("--spikes", "13", "--set", 'loss_spike="rollback"', "--set", "loss_spike_window=8")
    made = trainer(*options(place, *rollback))
    made.train()
    assert left == [(9, ["checkpoint-11"], [])] and made.state.global_step == 22


def test_nobody_is_told(trainer, place):
    """Of on_save, which is for checkpoints on the disk."""

    class Saves(TrainerCallback):
        def __init__(self):
            self.steps = []

        def on_save(self, args, state, control, **kwargs):
            self.steps.append(state.global_step)

    without, taking = Saves(), Saves()
    trainer(*PLAIN, callbacks=[without]).train()
    trainer(*options(place), callbacks=[taking]).train()
    assert taking.steps == without.steps


# -- refused


class Adds(Trainer):
    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)


def test_what_it_does_not_go_with(backend, tmp_path):
    from tests.backends.support import rows

    def run(cls=Trainer, **given):
        args = TrainingArguments(str(tmp_path / "out"), snapshot_steps=2, max_steps=2, report_to="none", **given)
        cls(backend.classifier(), args, train_dataset=rows(8)).train()

    with pytest.raises(ArgumentError, match="cannot be used with save_strategy='no'"):
        run(save_strategy="no")
    with pytest.raises(ArgumentError, match="cannot be used with save_only_model=True"):
        run(save_only_model=True)
    with pytest.raises(ArgumentError, match="snapshot_dir"):
        run(snapshot_dir=str(tmp_path / "nowhere"))
    with pytest.raises(UnsupportedError, match="_save_checkpoint of Adds"):
        run(Adds)
