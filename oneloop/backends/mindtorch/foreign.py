"""Checkpoints of other trainers: their optimizer files are pickles of PyTorch's, which mindtorch cannot be trusted to
read; they are refused in words."""

from pathlib import Path
from typing import Any, NoReturn

from ...errors import CheckpointError


def _refuse(path: Path) -> NoReturn:
    raise CheckpointError(
        f"{path} was written by another trainer, and a run under mindnlp can go on from checkpoints of oneloop alone. "
        "Load its weights with from_pretrained, and start a new run."
    )


def load_weights(model: Any, path: Path) -> NoReturn:
    _refuse(path)


def load_optimizer(optimizer: Any, model: Any, path: Path) -> NoReturn:
    _refuse(path)


def scheduler_state(path: Path) -> NoReturn:
    _refuse(path)


def scaler_state(path: Path) -> NoReturn:
    _refuse(path)
