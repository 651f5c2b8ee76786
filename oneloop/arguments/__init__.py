"""Training arguments: small groups, each validated beside its definition, put together in `training.py`."""

from .accelerator import AcceleratorConfig
from .aliases import Alias
from .compression import CompressionArguments
from .seq2seq import Seq2SeqTrainingArguments
from .training import TrainingArguments

__all__ = ["AcceleratorConfig", "Alias", "CompressionArguments", "Seq2SeqTrainingArguments", "TrainingArguments"]
