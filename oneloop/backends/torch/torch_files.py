"""Writes files that programs with PyTorch read: those of torch.save and of torch.distributed.checkpoint."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...formats.safetensors_io import Raw
from . import weights

_TYPES = {name: dtype for dtype, name in weights._DTYPES.items()}


def tensor(raw: Raw) -> torch.Tensor:
    """A stored tensor, without a copy of its bytes: they are read from the file when they are needed."""
    if not raw.size:
        return torch.empty(raw.shape, dtype=_TYPES[raw.dtype])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(raw.data, dtype=_TYPES[raw.dtype]).reshape(raw.shape)


def option(value: Any) -> Any:
    """An option of a parameter group, as checkpoints have it, for an optimizer."""
    if isinstance(value, dict) and "torch.dtype" in value:
        return getattr(torch, str(value["torch.dtype"]))
    if isinstance(value, dict) and "tensor" in value:
        return torch.tensor(value["tensor"], dtype=getattr(torch, str(value.get("dtype", "float32"))))
    return tuple(value) if isinstance(value, list) else value


def without_memory(make: Callable[[], Any]) -> Any:
    """A model of names and shapes only."""
    with torch.device("meta"):
        return make()


def save(value: Any, path: Path) -> None:
    torch.save(value, path)
    _flush(path)


def save_parts(tree: dict[str, Any], folder: Path) -> None:
    """A folder of torch.distributed.checkpoint, written by this process alone."""
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*no_dist.*|.*single process.*")
        dcp.save(tree, checkpoint_id=folder, no_dist=True)
    for file in folder.iterdir():
        _flush(file)


def random_state(streams: dict[str, np.ndarray]) -> dict[str, Any]:
    """The generators of one process: of Python, NumPy and torch."""
    words, (version, has_gauss, gauss) = streams["python"], streams["python.gauss"].tolist()
    position, has_cached, cached = streams["numpy.rest"].tolist()
    found: dict[str, Any] = {
        "python": (int(version), tuple(int(word) for word in words), gauss if has_gauss else None),
        "numpy": ("MT19937", np.array(streams["numpy"]), int(position), int(has_cached), cached),
        "cpu": torch.from_numpy(np.array(streams["torch.cpu"])),
    }
    devices = [torch.from_numpy(np.array(streams[name])) for name in sorted(streams) if name.startswith("torch.cuda.")]
    return found | ({"cuda": devices[0] if len(devices) == 1 else devices} if devices else {})


def _flush(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
