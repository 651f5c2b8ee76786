"""The Trainer and its parts."""

from .core import Trainer
from .seq2seq import Seq2SeqTrainer

__all__ = ["Seq2SeqTrainer", "Trainer"]
