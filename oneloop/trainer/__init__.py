"""The Trainer, and the objects that it makes for a run.

The classes are imported when they are first used: other packages need the small modules beside them, which are quick.
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
