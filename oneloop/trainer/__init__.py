"""The Trainer, and the objects that it creates for a run.

Vocabulary of this package, of loop.py and of the checkpoints:

- run: what one call of train() does. A resumed run keeps the id of the run that it resumes.
- step, update: one optimizer step. Both words mean the same; `global_step` is the number of completed ones.
- micro-batch: the batch that one process sends through the model at once (per_device_train_batch_size samples).
  An update accumulates gradients over gradient_accumulation_steps micro-batches in every process.
- position: how far a run has come: the epoch, and the completed steps in it. Of data: an index into the order of an
epoch (see data/order.py), which a resume computes from the former instead of reading data again.
- plan: the numbers of steps and epochs, computed once from the data and the arguments before the first step.
- items: what the loss is averaged over: labels that are not ignored, or samples where there are no labels (see
  loss.py).
- process, rank: one of the world_size processes of a run, and its number. The main process has rank 0.
- collective: communication that every process must take part in, in the same order, or all of them hang.
- host sync: reading a value from the device, which blocks until the device has computed everything before it.

The classes are imported lazily: other packages use the small modules here without the cost of importing the Trainer.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .seq2seq import Seq2SeqTrainer
    from .trainer import Trainer

__all__ = ["Seq2SeqTrainer", "Trainer"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{'trainer' if name == 'Trainer' else 'seq2seq'}"), name)
