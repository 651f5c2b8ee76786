"""The functions on models that the core uses."""

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import nn

from ...errors import UnsupportedError
from ..torch import models as on_torch
from ..torch.models import (
    add_embedding_noise,
    base_of,
    buffers,
    config_of,
    counts_ignored,
    decay_names,
    embedding_rows,
    eval_mode,
    forward_of,
    forward_parameters,
    guess_label_shift,
    is_adapter,
    label_names,
    layers_in_eval,
    named_parameters,
    num_matrix_parameters,
    num_parameters,
    restore_mode,
    shifts_labels,
    train_mode,
    unwrap,
)
from .recomputing import recomputed
from .tensors import in_half, to_numpy, write

__all__ = [
    "NEAREST_HALF",
    "HALF_LEVELS",
    "add_embedding_noise",
    "base_of",
    "buffers",
    "check_compiler",
    "compiled",
    "config_of",
    "copy_values",
    "counts_ignored",
    "decay_names",
    "embedding_rows",
    "eval_mode",
    "forward_of",
    "forward_parameters",
    "invoke",
    "is_adapter",
    "label_names",
    "layers_in_eval",
    "named_parameters",
    "num_matrix_parameters",
    "num_parameters",
    "recompute",
    "restore_mode",
    "restore_values",
    "guess_label_shift",
    "shifts_labels",
    "tensor_parallel_size",
    "to_half",
    "train_mode",
    "unwrap",
    "with_master_weights",
]

HALF_LEVELS = ("O0", "O2", "O3")  # of fp16_opt_level; O1 is mapped to O2 with a warning
NEAREST_HALF = "autocast; the closest level, O2 (half precision with float32 master weights),"


def tensor_parallel_size(model: nn.Module) -> int:
    """The number of processes over which its layers are divided already: one, since models arrive whole."""
    return 1


def invoke(model: Callable, inputs: Any) -> Any:
    """Call the model with a batch; weights in half precision (O2) need inputs in half precision too."""
    kind = getattr(unwrap(model), "_computes_in", None) if isinstance(model, nn.Module) else None
    return on_torch.invoke(model, inputs if kind is None else in_half(inputs, kind))


def recompute(model: nn.Module, options: dict[str, Any] | None) -> None:
    """Discard activations in the forward pass and recompute them in the backward pass.

    torch.utils.checkpoint, which models call by themselves, discards nothing under mindtorch. So each element of a
    ModuleList or Sequential is a block, also in such models.
    """
    base = unwrap(model)
    blocks = on_torch._blocks(base)
    if not blocks:
        raise UnsupportedError(
            "gradient_checkpointing (recompute) needs a model built from blocks: an nn.ModuleList or "
            f"nn.Sequential whose elements have weights. {type(base).__name__} has none: remove the argument."
        )
    for block in blocks:
        if not hasattr(block, "_recomputed_forward"):
            block._recomputed_forward = block.forward
            block.forward = functools.partial(_recomputed, block)


def _recomputed(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    if not (block.training and torch.is_grad_enabled()):
        return block._recomputed_forward(*args, **kwargs)
    return recomputed(block, args, kwargs)


def compiled(model: nn.Module, backend: str | None, mode: str | None) -> NoReturn:
    """torch.compile returns the model unchanged under mindtorch."""
    check_compiler(backend)


def check_compiler(backend: str | None) -> NoReturn:
    raise UnsupportedError("torch_compile and jit_mode_eval have no compiler under mindnlp. Remove them.")


def to_half(model: nn.Module, kind: str) -> nn.Module:
    """Weights in float16 ("fp16") or bfloat16 ("bf16")."""
    return model.to(torch.float16 if kind == "fp16" else torch.bfloat16)


def with_master_weights(model: nn.Module, kind: str) -> nn.Module:
    """O2: weights in half precision; the optimizer has float32 master weights."""
    base = unwrap(model)
    if getattr(base, "_computes_in", None) != kind:
        to_half(model, kind)
        base._computes_in = kind
    return model


def copy_values(model: nn.Module) -> list[Any]:
    return [(value.dtype, to_numpy(value).copy()) for value in (*model.parameters(), *model.buffers())]


def restore_values(model: nn.Module, values: list[Any]) -> None:
    """Restore the values from copy_values, with their dtypes."""
    for target, (dtype, array) in zip((*model.parameters(), *model.buffers()), values, strict=True):
        target.data = target.to(dtype)
        write(target, array)
