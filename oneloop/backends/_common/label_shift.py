"""What a model declares about its labels: whether its loss compares position i with label i + 1. No framework.

Its class's name is no answer: models of the same family differ. One that computes its loss with a method
`loss_function` is asked for that function, which is tried on two labels. Where nothing here answers, the Trainer
computes it with the first batch (trainer/label_shift.py).
"""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import libraries
from ...introspect import mentions

LOSS = "loss_function"


def declared_shift(model: Any, forward: Callable, tensor: Callable[[np.ndarray], Any]) -> bool | None:
    """What the model declares; None if it has to be computed. `tensor` makes a tensor of an array."""
    declared = getattr(model, "shifts_labels", None)
    if declared is not None:
        return bool(declared)
    if getattr(getattr(model, "config", None), "is_encoder_decoder", None) is True:
        return False  # the decoder's inputs are the shifted labels, so that a position is compared with its own
    uses = mentions(forward, {LOSS})
    # Of a library's own forward, a loss of another kind is known as well, such as that of token classification.
    if not uses and (getattr(model, "loss_type", None) is None or _library(inspect.unwrap(forward)) is None):
        return None
    shifts = _function_shifts(getattr(model, LOSS, None), tensor)
    if uses:
        return shifts
    return None if shifts else False


def _function_shifts(function: Any, tensor: Callable[[np.ndarray], Any]) -> bool | None:
    """Whether a loss function of language models leaves out a label at the first position; None if it is none."""
    try:
        if not {"logits", "labels", "vocab_size"} <= inspect.signature(function).parameters.keys():
            return None
        labels = tensor(np.array([[0, -100]]))
        loss = function(logits=tensor(np.zeros((1, 2, 2), np.float32)), labels=labels, vocab_size=2)
        return not float(loss) > 0.1  # the logarithm of 2 if it counts; NaN or 0 if not
    except Exception:  # another kind of loss
        return None


def guess_label_shift(cls: type) -> bool:
    """A guess, for a model that declares nothing and whose loss cannot be computed beforehand: by its name, or by that
    of the class of a library that it is derived from."""
    base = next((each for each in cls.__mro__ if _library(each) is not None), cls)
    return any(each.__name__.endswith(("ForCausalLM", "LMHeadModel")) for each in (cls, base))


def _library(owner: Any) -> str | None:
    root = (getattr(owner, "__module__", None) or "").partition(".")[0]
    return root if root in libraries.MODELS else None
