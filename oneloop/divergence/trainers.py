"""Compares two Trainers in one process: both start with the same weights, and have the same batches."""

import copy
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError, UnsupportedError
from ..trainer.core import core_of
from .comparison import Comparison
from .runs import compare_runs

if TYPE_CHECKING:
    from ..trainer import Trainer

QUIET = {
    "eval_strategy": "no",
    "load_best_model_at_end": False,
    "push_to_hub": False,
    "report_to": "none",
    "disable_tqdm": True,
    "output_url": None,
    "save_only_model": False,
    "num_train_epochs": 3.0,
    "resume_from_checkpoint": None,
}


def diff(
    trainer_a: "Trainer", trainer_b: "Trainer", steps: int = 1, mapping: Mapping[str, str] | None = None
) -> Comparison:
    """Where two Trainers part: of two frameworks, two versions of a model, or two sets of arguments.

    A makes one update and saves it. Both load these weights and make `steps` updates from there, each with a new
    optimizer and its own arguments, which are recorded and compared. Weights of both models are restored afterwards.

    Args:
        trainer_a: The one that is taken to be right.
        trainer_b: The other one. If its parameters have other names, override rename_parameter.
        steps: The number of updates to compare.
        mapping: Names of layers and parameters of A, or their beginnings, to those of B.
    """
    if trainer_a is trainer_b:
        raise ArgumentError("diff compares two Trainers, but got the same one twice")
    if steps < 1:
        raise ArgumentError(f"Invalid steps={steps}: expected at least 1")
    if trainer_a.model_init is not None or trainer_b.model_init is not None:
        raise UnsupportedError("diff loads weights into the models, but model_init creates new ones. Pass model=.")
    with tempfile.TemporaryDirectory(prefix="oneloop-diff-") as folder:
        start = Path(folder, "start")
        with _arguments(trainer_a, start, max_steps=1, save_strategy="steps", save_steps=1, trace_steps=""):
            trainer_a.train()
        for name, trainer in (("a", trainer_a), ("b", trainer_b)):
            options = {"max_steps": steps, "save_strategy": "no", "trace_steps": f"0-{steps - 1}"}
            with _arguments(trainer, Path(folder, name), **options):
                trainer._load_from_checkpoint(str(start / "checkpoint-1"))
                trainer.train()
        found = compare_runs(Path(folder, "a"), Path(folder, "b"), mapping)
    found.names = ("trainer_a", "trainer_b")
    return found


@contextmanager
def _arguments(trainer: Any, folder: Path, **given: Any) -> Iterator[None]:
    """A context in which a Trainer has other arguments; its weights are restored afterwards."""
    models, args = core_of(trainer).backend.models, trainer.args
    values = models.copy_values(trainer.model)
    trainer.args = copy.deepcopy(args)
    for name, value in (QUIET | {"output_dir": str(folder)} | given).items():
        setattr(trainer.args, name, value)
    try:
        yield
    finally:
        trainer.args = args
        models.restore_values(trainer.model, values)
