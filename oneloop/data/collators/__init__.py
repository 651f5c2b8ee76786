"""Collators: turn a list of samples into a batch. Implemented in NumPy; they return tensors of the framework in use."""

from .base import DataCollator, DataCollatorMixin, for_framework
from .default import (
    DefaultDataCollator,
    default_data_collator,
    numpy_default_data_collator,
    torch_default_data_collator,
)
from .flattening import DataCollatorWithFlattening
from .language import DataCollatorForLanguageModeling, DataCollatorForSOP, DataCollatorForWholeWordMask
from .padding import DataCollatorWithPadding
from .permutation import DataCollatorForPermutationLanguageModeling
from .tokens import DataCollatorForMultipleChoice, DataCollatorForSeq2Seq, DataCollatorForTokenClassification

__all__ = [
    "DataCollator",
    "DataCollatorForLanguageModeling",
    "DataCollatorForMultipleChoice",
    "DataCollatorForPermutationLanguageModeling",
    "DataCollatorForSOP",
    "DataCollatorForSeq2Seq",
    "DataCollatorForTokenClassification",
    "DataCollatorForWholeWordMask",
    "DataCollatorMixin",
    "DataCollatorWithFlattening",
    "DataCollatorWithPadding",
    "DefaultDataCollator",
    "default_data_collator",
    "for_framework",
    "numpy_default_data_collator",
    "torch_default_data_collator",
]
