"""Checkpoints of other trainers on MindSpore: their weights can be read, the rest of a run cannot."""

from pathlib import Path
from typing import Any, NoReturn

from ...errors import CheckpointError


def _refuse(path: Path) -> NoReturn:
    raise CheckpointError(
        f"{path} was written by another trainer, and a run on MindSpore cannot go on from it. Load its weights into "
        "the model by hand, and start a new run."
    )


def load_weights(model: Any, path: Path) -> NoReturn:
    """transformers' Trainer writes weights of PyTorch models, under PyTorch's names."""
    _refuse(path)


def load_optimizer(optimizer: Any, model: Any, path: Path) -> NoReturn:
    _refuse(path)


def scheduler_state(path: Path) -> NoReturn:
    _refuse(path)


def scaler_state(path: Path) -> NoReturn:
    _refuse(path)
