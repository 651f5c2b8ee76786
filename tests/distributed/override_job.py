"""Two processes whose Trainer saves and loads parts of a checkpoint itself: `override_job.py FOLDER CASE [CASE ...]`.

As in cases.py, each process writes the results of all cases into FOLDER/rankN.json.
"""

import sys
from pathlib import Path

from oneloop import Trainer, TrainerCallback
from oneloop.checkpoint import store
from oneloop.distributed.world import world
from tests.backends.support import rows
from tests.distributed import cases

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


class Own(Trainer):
    """Each process adds a file in every method that saves, and reads it in the one that loads."""

    found = ()

    def _add(self, folder, what):
        (Path(folder) / f"{what}.{world().rank}").write_text(str(self.state.global_step))

    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        assert store.problems(folder) == []
        self._add(folder, "after")

    def _save_optimizer_and_scheduler(self, output_dir):
        super()._save_optimizer_and_scheduler(output_dir)
        self._add(output_dir, "optimizer")

    def _save_rng_state(self, output_dir):
        self._add(output_dir, "rng")
        super()._save_rng_state(output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        own = (Path(checkpoint) / f"{what}.{world().rank}" for what in ("after", "optimizer", "rng"))
        self.found = [file.read_text() for file in own]


class Hears(TrainerCallback):
    """The files of the overrides in the manifest, when on_save is called."""

    def __init__(self):
        self.listed = []

    def on_save(self, args, state, control, **kwargs):
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        assert store.problems(folder) == []
        names = store.read_manifest(folder)["files"]
        self.listed.append([name for name in names if name.endswith((".0", ".1"))])


def run(folder, name, **given):
    hears = Hears()
    given = {"max_steps": 4, "save_steps": 2, "save_strategy": "steps", "optim": "adamw_torch"} | given
    model, other = cases.KIT.classifier(dropout=0.2), cases.KIT.classifier(dropout=0.2, seed=3)
    whole = cases.course(cases.train(folder, name, model, rows(32), Own, callbacks=[hears], **given))
    again = cases.train(folder, name, other, rows(32), Own, resume=str(Path(folder) / name / "checkpoint-2"), **given)
    return {
        "listed": hears.listed,
        "found": again.found,
        "whole": whole["weights"],
        "again": cases.course(again)["weights"],
    }


@case
def by_main(folder):
    return run(folder, "by_main", optim="adamw_torch" if cases.KIT.name == "torch" else "adamw")


@case
def in_parts(folder):
    return run(folder, "in_parts", sharding="stage1")


if __name__ == "__main__":
    folder, *asked = sys.argv[1:]
    cases.main(folder, *asked, cases=CASES)
