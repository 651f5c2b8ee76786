"""Why a framework's kernel refuses a batch, in words: labels out of range, floats where integers are expected, double
precision."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import DataError

_RANGE = re.compile(r"out of (bounds|range)|OutOfRange|must be in \[|device-side assert", re.IGNORECASE)
_DTYPE = re.compile(r"dtype|data type|type of|Double|Float64|not implemented for", re.IGNORECASE)


def explain(error: Exception, batch: Any, label_names: list[str], tensors: Any) -> DataError | None:
    """An error for the user in place of the kernel's; None if the batch does not explain it."""
    if not isinstance(batch, Mapping) or isinstance(error, DataError):
        return None
    said = str(error)
    kinds = {name: _kind(value) for name, value in batch.items() if tensors.is_tensor(value)}
    labels = [name for name in label_names if name in kinds]
    hint = None
    if _DTYPE.search(said) and (wide := [name for name, kind in kinds.items() if kind == "float64"]):
        hint = (
            f"column {_listed(wide)} in float64, but models compute in float32. Convert it in the dataset or the "
            "data_collator, for example with .astype('float32'), or convert the model."
        )
    elif _DTYPE.search(said) and (real := [name for name in labels if kinds[name].startswith(("float", "bfloat"))]):
        hint = (
            f"column {_listed(real)} in {kinds[real[0]]}, but a classification loss takes integer classes. "
            "Convert the labels to integers, or use a regression loss (MSE)."
        )
    elif _RANGE.search(said) and (whole := [name for name in labels if kinds[name].startswith(("int", "uint"))]):
        values = np.asarray(tensors.to_numpy(batch[whole[0]]))
        values = values[values != -100]
        if values.size:
            hint = (
                f"the values of column {whole[0]} are {values.min()} to {values.max()} in this batch. Classes are "
                "counted from 0 to the number of classes - 1: check the labels, and the size of the model's last layer "
                "(num_labels)."
            )
    return None if hint is None else DataError(f"{hint} ({type(error).__name__}: {said.strip().splitlines()[0]})")


def _kind(value: Any) -> str:
    """The name of a dtype, as NumPy has it: torch.float64, paddle.float64 and Float64 are float64."""
    return str(value.dtype).rpartition(".")[2].lower()


def _listed(names: list[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"
