"""Plans of tensor parallelism: the styles, and the layers that patterns of names mean. No framework."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from ...errors import ArgumentError
from .helpers import preview

COLWISE, ROWWISE = ("colwise",), ("rowwise",)
GATHERED = ("colwise_gather_output", "colwise_rep")
SPLITS_INPUT = ("rowwise_split_input", "rowwise_rep")
EMBEDDING_ROWS, EMBEDDING_COLUMNS = "embedding_rowwise", "embedding_colwise"
SUMMED = "replicated_with_grad_allreduce"
WHOLE = (SUMMED, "replicate")


def plan_of(model: Any, given: dict[str, str] | None, known: Sequence[str]) -> dict[str, str]:
    """The plan of the arguments, or that of the model. `known` has its layers that can be divided, for the message."""
    if given is not None:
        return given
    own = getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None)
    if isinstance(own, dict) and own:
        return own
    raise ArgumentError(
        f"{type(model).__name__} has no plan for tensor parallelism. Pass tensor_parallel_plan, with the names of its "
        f'layers: {{"layers.*.up": "colwise", "layers.*.down": "rowwise"}}. It has {preview(patterns(known))}.'
    )


def matched_layers(
    plan: dict[str, str], layers: Sequence[str], model: str, known: Sequence[str], may_miss: bool = False
) -> dict[str, str]:
    """The style of each layer that the plan names. An error for a pattern without a layer, unless some may miss theirs,
    and for a plan that divides nothing. `model` is the name of its class and `known` has its layers that can be
    divided, for messages."""
    styles: dict[str, str] = {}
    for pattern, style in plan.items():
        matched = [name for name in layers if matches(name, pattern)]
        if not matched and not may_miss:
            raise ArgumentError(
                f"tensor_parallel_plan[{pattern!r}] is the name of no layer of {model}, which has "
                f"{preview(patterns(known))}."
            )
        styles |= dict.fromkeys(matched, style)
    if all(style in WHOLE for style in styles.values()):
        raise ArgumentError(
            f"the plan for tensor parallelism divides no layer of {model}: {preview(list(plan))}. Its layers are "
            f"{preview(patterns(known))}."
        )
    return styles


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern means this name: * stands for one part of it, or for a piece of one."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(fnmatchcase(part, one) for part, one in zip(parts, wanted))


def patterns(names: Sequence[str]) -> list[str]:
    """Names with * for numbers, each once."""
    return list(dict.fromkeys(".".join("*" if part.isdigit() else part for part in name.split(".")) for name in names))
