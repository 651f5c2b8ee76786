"""Runs of two processes in which the disk refuses a save to one of them: `disk_job.py FOLDER CASE [CASE ...] [broken]`.

As in cases.py, each process writes the results of all cases into FOLDER/rankN.json.
"""

import contextlib
import errno
import os
import re
import sys
from pathlib import Path

from oneloop import Trainer, TrainerCallback
from oneloop.checkpoint import model_files, sharded
from oneloop.distributed.world import world
from tests.backends.support import rows
from tests.distributed import cases

SCORES = [5, 7, 6, 1]  # after each step; the save of step 2 is refused
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


class Scored(Trainer):
    def evaluate(self, *args, **kwargs):
        return super().evaluate(*args, **kwargs) | {"eval_score": SCORES[self.state.global_step - 1]}


class Writing(Scored):
    """An override, which the main process alone calls, and which finds no room at step 2."""

    def save_model(self, output_dir=None, _internal_call=False):
        super().save_model(output_dir)
        if self.state.global_step == 2 and Path(output_dir).name.startswith(".checkpoint-2."):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Hears(TrainerCallback):
    def __init__(self):
        self.saved = []

    def on_save(self, args, state, control, **kwargs):
        self.saved.append(state.global_step)


@contextlib.contextmanager
def failing(rank, error):
    """In this process, files of checkpoint-2 cannot be brought to the disk."""
    sync = os.fsync

    def fsync(descriptor):
        found = re.search(r"checkpoint-(\d+)", os.readlink(f"/proc/self/fd/{descriptor}"))
        if found and found[1] == "2":
            raise error
        sync(descriptor)

    os.fsync = fsync if world().rank == rank else sync
    try:
        yield
    finally:
        os.fsync = sync


def run(folder, name, rank=0, error=None, trainer_class=Scored, **given):
    hears, error = Hears(), error or OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    given = {"save_steps": 100, "save_strategy": "steps", "max_steps": len(SCORES), "ddp_timeout": 60} | given
    given |= {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}
    with failing(rank, error):
        trainer = cases.train(
            folder,
            name,
            cases.KIT.classifier(),
            rows(32),
            trainer_class,
            callbacks=[hears],
            eval_dataset=rows(8),
            metric_for_best_model="score",
            **given,
        )
    state = trainer.state
    return {
        "saved": hears.saved,
        "best": [state.best_global_step, state.best_metric, Path(state.best_model_checkpoint).name],
        "weights": cases.course(trainer)["weights"],
    }


@case
def at_once(folder):
    return run(folder, "at_once", save_async=False)


@case
def background(folder):
    return run(folder, "background", error=OSError(errno.EUCLEAN, os.strerror(errno.EUCLEAN)))


@case
def override(folder):
    return run(folder, "override", rank=None, trainer_class=Writing)


@case
def in_parts(folder):
    """The main process's files of a checkpoint that both write."""
    return run(folder, "in_parts", sharding="stage1", optim="adamw_torch")


@case
def part_of_another(folder):
    """The other process's files."""
    return run(folder, "part_of_another", rank=1, sharding="stage1", optim="adamw_torch")


@case
def no_note(folder):
    """The other process can neither write its files nor say so; nobody waits for it."""
    leave = sharded.write_note

    def refused(stage, *rest):
        if world().rank == 1 and "checkpoint-2" in stage.name:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return leave(stage, *rest)

    sharded.write_note = refused
    try:
        given = {"sharding": "stage1", "optim": "adamw_torch", "ddp_timeout": 600}
        return run(folder, "no_note", rank=1, error=OSError(errno.ESTALE, os.strerror(errno.ESTALE)), **given)
    finally:
        sharded.write_note = leave


@case
def small_files(folder):
    """Files that the main process writes before the tensors are passed to the writers."""
    saved_files, refusals = model_files._saved_files, [OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))]

    def refused(thing):
        if refusals and Path(folder, "small_files", "checkpoint-1").exists():
            raise refusals.pop()
        return saved_files(thing)

    model_files._saved_files = refused
    try:
        return run(folder, "small_files", rank=None, sharding="stage1", optim="adamw_torch", save_async=False)
    finally:
        model_files._saved_files = saved_files


class Adding(Scored):
    """An override whose files one process cannot write at step 2."""

    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        path = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        if world().rank == 1 and self.state.global_step == 2:
            raise OSError(errno.EREMOTEIO, os.strerror(errno.EREMOTEIO))
        (path / f"mine{world().rank}").write_text("mine")


@case
def added_files(folder):
    return run(folder, "added_files", rank=None, trainer_class=Adding, save_steps=1)


class Parts(Scored):
    """An override of a part of the checkpoint, which one process cannot write at step 2."""

    def _save_rng_state(self, output_dir):
        super()._save_rng_state(output_dir)
        if world().rank == 1 and self.state.global_step == 2:
            raise OSError(errno.EHOSTDOWN, os.strerror(errno.EHOSTDOWN))


@case
def parts(folder):
    return run(folder, "parts", rank=None, trainer_class=Parts)


def broken(folder):
    """An error of another kind, which ends the main process."""
    run(folder, "broken", error=ZeroDivisionError("a bug in the writer"))


if __name__ == "__main__":
    folder, *asked = sys.argv[1:]
    cases.main(folder, *(name for name in asked if name in CASES), cases=CASES)
    if "broken" in asked:
        broken(folder)
