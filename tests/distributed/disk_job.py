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
    return run(folder, "background")


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


def broken(folder):
    """An error of another kind, which ends the main process."""
    run(folder, "broken", error=ZeroDivisionError("a bug in the writer"))


if __name__ == "__main__":
    folder, *asked = sys.argv[1:]
    cases.main(folder, *(name for name in asked if name in CASES), cases=CASES)
    if "broken" in asked:
        broken(folder)
