"""The loss of divided sequences without gathering them: each process computes the share of its part.

That goes for a model whose forward computes its loss by a loss function that is known to be a mean over labels
(`libraries.models`). The labels are whole in every process: they are shifted before they are divided, so that the last
position of a part is compared with the first label of the next one, and the mean is over those of all parts.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch import nn

from ... import libraries
from ...introspect import mentions
from .models import base_of, invoke
from .sequence_attention import summed
from .sequence_division import Division, SequenceDivision
from .tensors import smoothed_loss

IGNORED = -100
SHIFTED = "shift_labels"
LOSS = "loss_function"


def is_divisible(model: nn.Module) -> bool:
    """Whether the loss of this model can be computed from parts."""
    base: Any = base_of(model)
    forward = getattr(base.forward, "__func__", base.forward)
    return positions_of(getattr(base, LOSS, None)) is not None and calls_loss_function(forward)


@cache
def calls_loss_function(forward: Callable[..., Any]) -> bool:
    return mentions(forward, {LOSS})


@cache
def _known() -> Mapping[Any, str]:
    return libraries.models().token_losses()


def positions_of(function: Any) -> str | None:
    """Whether a loss function compares a position with the next label or with the same; None if it is another one."""
    return next((positions for known, positions in _known().items() if known is function), None)


@contextlib.contextmanager
def of_parts(model: nn.Module, division: SequenceDivision) -> Iterator[None]:
    """A context in which the model computes its loss from parts. Its logits are those of the part."""
    base: Any = base_of(model)
    own, had = base.loss_function, "_loss_function" in vars(base)

    def loss(logits: torch.Tensor, labels: Any, *given: Any, **options: Any) -> torch.Tensor:
        if division.last is None:  # this call was not divided
            return own(logits, labels, *given, **options)
        return _share(own, division.last, logits, labels, given, options)

    base._loss_function = loss
    try:
        with division.keeping_parts():
            yield
    finally:
        if had:
            base._loss_function = own
        else:
            del base._loss_function


def _share(
    own: Callable[..., Any], division: Division, logits: torch.Tensor, labels: Any, given: Any, options: dict[str, Any]
) -> torch.Tensor:
    ignored = options.get("ignore_index", IGNORED)
    whole = options.pop(SHIFTED, None)
    if positions_of(own) == "same":
        whole = labels
    elif whole is None:
        whole = nn.functional.pad(labels, (0, 1), value=ignored)[..., 1:]
    part = _part(whole, division, ignored).to(logits.device)
    if options.get("num_items_in_batch") is None:
        options["num_items_in_batch"] = (whole != ignored).sum()
    if positions_of(own) == "next":
        options[SHIFTED] = part
    return summed(own(logits, part, *given, **options), division.axis)


def smoothed(
    model: nn.Module, division: SequenceDivision, inputs: Any, labels: torch.Tensor, epsilon: float, shift: bool
) -> torch.Tensor:
    """The mean cross entropy with label smoothing."""
    with division.keeping_parts():
        outputs = invoke(model, inputs)
        logits = outputs[0] if isinstance(outputs, tuple) else outputs["logits"]
    if division.last is None:
        return smoothed_loss(logits, labels, epsilon, shift)
    if shift:
        labels = nn.functional.pad(labels, (0, 1), value=IGNORED)[..., 1:]
    part = _part(labels, division.last)
    losses = nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), part.flatten(), label_smoothing=epsilon, ignore_index=IGNORED, reduction="sum"
    )
    return summed(losses / (labels != IGNORED).sum(), division.axis)


def _part(labels: torch.Tensor, division: Division, ignored: int = IGNORED) -> torch.Tensor:
    padded = nn.functional.pad(labels, (0, division.whole - division.length), value=ignored)
    return division.own(padded).contiguous()
