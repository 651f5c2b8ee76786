"""What the model receives besides the batch on its device: other precisions, and outputs of the previous batch."""

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from ..errors import DataError

if TYPE_CHECKING:
    from ..backends.base import Backend


def in_half(inputs: Any, kind: str, label_names: list[str], backend: "Backend") -> Any:
    """Inputs for weights in pure half precision; labels keep their precision."""
    convert = backend.tensors.in_half
    if not isinstance(inputs, MutableMapping):
        return convert(inputs, kind)
    for name in inputs:
        if name not in label_names:
            inputs[name] = convert(inputs[name], kind)
    return inputs


def with_past(inputs: Any, past: Any, index: int) -> Any:
    """past_index: the batch with the output of the previous one as `mems`."""
    if not isinstance(inputs, MutableMapping):
        raise DataError(
            f"past_index={index} passes `mems` to the model by name, but a batch is a "
            f"{type(inputs).__name__}. Use a dataset or collator that returns dicts, or remove past_index."
        )
    inputs["mems"] = past
    return inputs
