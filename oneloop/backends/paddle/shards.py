"""Parameters that are divided over the processes of an axis: their parts, gathered, sliced, and read from files.

A parameter that is divided has the values of this process, and its `Part` as an attribute. The optimizer, averages and
gradients have the same part.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist

from ...errors import CheckpointError
from ...formats.safetensors_io import Raw, read
from . import weights
from .parts import ATTRIBUTE, Part, part_of

_WITHOUT_GLOO = {paddle.bfloat16: paddle.int16, paddle.float16: paddle.int16}  # sent as integers of their size


@paddle.no_grad()
def divide(parameter: Any, part: Part) -> None:
    """Keep this part of a parameter only. It remains the same object, so that optimizers and other layers have it."""
    stored = weights.from_raw(_part_of_raw(weights.raw(parameter), part))
    parameter.value().get_tensor()._share_data_with(stored.value().get_tensor())
    setattr(parameter, ATTRIBUTE, part)


# -- tensors by the names of parameters: `layer.weight`, or `layer.weight:moment1`


def owner(name: str, parts: dict[str, tuple[Part, tuple[int, ...]]]) -> tuple[Part, tuple[int, ...]] | None:
    return parts.get(name) or parts.get(name.rsplit(":", 1)[0])


def parts_by_name(model: Any) -> dict[str, tuple[Part, tuple[int, ...]]]:
    """The parts that this process has, by every name of a divided parameter, and their shapes."""
    found = {}
    for name, p in model.state_dict().items():
        part = part_of(p)
        if part is not None:
            found[name] = (part, tuple(p.shape))
    return found


def gather_whole(tensors: dict[str, Any], parts: Any, group: Any, keep: bool) -> dict[str, Any]:
    """Gather the parts of all processes of a group, one tensor after the other; {} where they are not kept. What is not
    divided, such as the count of an optimizer, is the same in all of them. A collective."""
    found = {}
    for name, tensor in tensors.items():
        known = owner(name, parts)
        if known is None or tuple(tensor.shape) != known[1]:
            value = tensor
        else:
            value = _gathered(tensor, known[0], group)
        if keep:
            found[name] = value
    return found


@paddle.no_grad()
def _gathered(tensor: Any, part: Part, group: Any) -> Any:
    own = tensor.detach().contiguous()
    plain = _WITHOUT_GLOO.get(own.dtype)
    every: list[Any] = []
    dist.all_gather(every, own if plain is None else own.view(plain), group=group.handle)
    whole = paddle.concat(every, axis=part.dim)
    return whole if plain is None else whole.view(own.dtype)


def sliced(tensors: dict[str, Any], parts: Any) -> dict[str, Any]:
    """This process's parts of whole tensors; others as they are."""
    return {name: _sliced(value, owner(name, parts)) for name, value in tensors.items()}


def _sliced(value: Any, known: Any) -> Any:
    if known is None or tuple(value.shape) != known[0].whole_shape(known[1]):
        return value
    return known[0].of(value).contiguous()


def load_parts(path: Path, parts: Any, made: Callable[[Raw], Any] = weights.from_raw) -> dict[str, Any]:
    """The tensors of a file, of divided ones only the bytes of this process's part."""
    try:
        return {name: made(_read_part(raw, owner(name, parts))) for name, raw in read(path).items()}
    except Exception as error:
        raise CheckpointError(f"{path} cannot be read as safetensors: {error}") from error


def _read_part(raw: Raw, known: Any) -> Raw:
    if known is None or raw.shape != known[0].whole_shape(known[1]):
        return raw
    return _part_of_raw(raw, known[0])


def _part_of_raw(raw: Raw, part: Part) -> Raw:
    own = np.ascontiguousarray(part.of(raw.array()))
    return Raw(raw.dtype, own.shape, own.reshape(-1).view(np.uint8))
