"""Random state of PyTorch, as plain data."""

import functools
import os
from typing import Any

import numpy as np
import torch

from .devices import available


def seed(value: int) -> None:
    """Start the streams of the host and of every accelerator.

    Not torch.manual_seed: for accelerators that are not available it stores a stack trace, which takes most of a
    millisecond, and workers seed for every sample.
    """
    torch.default_generator.manual_seed(value)
    for kind in _accelerators():
        module = getattr(torch, kind)
        if not getattr(module, "_is_in_bad_fork", bool)():
            seed_all: Any = getattr(module, "manual_seed_all", None) or module.manual_seed
            seed_all(value)


@functools.cache
def _accelerators() -> tuple[str, ...]:
    """The kinds of accelerators on this machine."""
    return tuple(kind for kind in ("cuda", "xpu", "npu", "mps") if available(kind))


def get_state() -> dict[str, np.ndarray]:
    """The state of every RNG that training may use."""
    state = {"torch.cpu": torch.get_rng_state().numpy()}
    if torch.cuda.is_available():
        state |= {f"torch.cuda.{i}": s.numpy() for i, s in enumerate(torch.cuda.get_rng_state_all())}
    for kind in ("xpu", "npu"):
        module = getattr(torch, kind, None)
        if module is not None and module.is_available():
            state[f"torch.{kind}"] = module.get_rng_state().cpu().numpy()
    return state


def set_state(state: dict[str, Any]) -> None:
    """Restore the result of get_state; devices that this machine lacks are skipped."""
    for name, array in state.items():
        tensor = torch.from_numpy(np.array(array, dtype=np.uint8))
        if name == "torch.cpu":
            torch.set_rng_state(tensor)
        elif name.startswith("torch.cuda.") and torch.cuda.is_available():
            index = int(name.rsplit(".", 1)[1])
            if index < torch.cuda.device_count():
                torch.cuda.set_rng_state(tensor, index)
        elif name in ("torch.xpu", "torch.npu") and hasattr(torch, name[6:]):
            getattr(torch, name[6:]).set_rng_state(tensor)


def deterministic(on: bool = True) -> None:
    """Use deterministic algorithms; an operation without one raises an error."""
    if on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(on)
    torch.backends.cudnn.deterministic = on
    torch.backends.cudnn.benchmark = False


def randperm(length: int, seed: int | None) -> np.ndarray:
    """A random permutation of a generator with this seed, or of the default generator."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return torch.randperm(length, generator=generator).numpy()


def worker_seed() -> int:
    """In a worker of a loader: the seed that the framework set."""
    return torch.initial_seed() % 2**32
