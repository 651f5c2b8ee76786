"""Patches for what mindtorch lacks on a CPU, or does in a way that is not reproducible.

Its dropout and its random numbers come from kernels with hidden state; here they come from one RNG that is saved in
checkpoints (randomness.py). `backward()` of a tensor silently does nothing there; here it raises an error.
"""

import sys
from typing import Any

import mindspore
import mindtorch
import numpy as np
from mindtorch._apis import cpu
from mindtorch._op_prim.cpu import legacy

from ...errors import ModelError
from . import random_generator as rng

NO_BACKWARD = (
    "backward() computes nothing under mindnlp: its tensors are MindSpore's, which differentiates functions. Return "
    "the loss from compute_loss, or call self.engine.loss_and_gradients(function) in training_step, with a function "
    "that computes the loss and returns it."
)


def install() -> None:
    """Apply the patches; idempotent."""
    for function in (dropout, rand, randn, randint, inplace_uniform, isfinite, addcdiv, linalg_vector_norm):
        setattr(cpu, function.__name__, function)
    mindspore.Tensor.backward = backward


def _tensor(array: np.ndarray, dtype: Any = None) -> Any:
    made = mindtorch.tensor(np.ascontiguousarray(array), device=mindtorch.device("cpu"))
    return made if dtype is None or made.dtype == dtype else legacy.cast(made, dtype)


# -- random numbers


def dropout(input: Any, p: float, seed: Any, offset: Any) -> tuple[Any, Any]:
    """The masks depend only on the RNG, in the order of the calls."""
    kept = rng.generator.random(tuple(input.shape), dtype=np.float32) >= p
    mask = _tensor(kept * np.float32(1.0 / (1.0 - p)), input.dtype)
    return legacy.mul(input, mask), mask


def rand(size: Any, generator: Any, dtype: Any) -> Any:
    return _tensor(rng.generator.random(tuple(size), dtype=np.float32), dtype)


def randn(size: Any, generator: Any, dtype: Any) -> Any:
    return _tensor(rng.generator.standard_normal(tuple(size), dtype=np.float32), dtype)


def randint(low: int, high: int, shape: Any, generator: Any, dtype: Any) -> Any:
    return _tensor(rng.generator.integers(low, high, tuple(shape)), dtype)


def inplace_uniform(input: Any, from_: float, to_: float, generator_: Any) -> Any:
    """mindtorch's own function also seeds NumPy's global RNG."""
    drawn = rng.generator.uniform(from_, to_, tuple(input.shape))
    return cpu.numpy_to_tensor_overwrite(drawn.astype(mindtorch.dtype2np[input.dtype]), input)


# -- kernels


def isfinite(input: Any) -> Any:
    return _tensor(np.isfinite(input.asnumpy().astype(np.float32)))


def addcdiv(input: Any, tensor1: Any, tensor2: Any, value: float = 1.0) -> Any:
    return legacy.add(input, legacy.mul(legacy.div(tensor1, tensor2), value))


def linalg_vector_norm(x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """Not differentiated: it is used for clipping."""
    axes = tuple(dim) if isinstance(dim, (list, tuple)) else dim
    array = np.abs(x.asnumpy().astype(np.float32))
    if ord == float("inf"):
        return _tensor(np.max(array, axis=axes, keepdims=keepdim), dtype or x.dtype)
    powers = np.sum(array**ord, axis=axes, keepdims=keepdim)
    return _tensor(np.asarray(powers ** np.float32(1.0 / ord), dtype=np.float32), dtype or x.dtype)


# -- gradients


def backward(self: Any, *args: Any, **kwargs: Any) -> None:
    """MindNLP's own training step calls it inside a function that it differentiates, where it is harmless."""
    if sys._getframe(1).f_globals.get("__name__") != "mindnlp.transformers.trainer":
        raise ModelError(NO_BACKWARD)
