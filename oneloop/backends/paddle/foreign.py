"""Checkpoints of other trainers: their files are pickles of torch or of Paddle, and are refused in words here."""

from pathlib import Path
from typing import Any, NoReturn

from ...errors import CheckpointError


def _refuse(path: Path) -> NoReturn:
    raise CheckpointError(
        f"{path} was written by another trainer, and a run on Paddle can go on from checkpoints of oneloop alone. Load "
        "its weights into the model with the library that wrote them, and start a new run."
    )


def load_weights(model: Any, path: Path) -> NoReturn:
    _refuse(path)


def load_optimizer(optimizer: Any, model: Any, path: Path) -> NoReturn:
    _refuse(path)


def scheduler_state(path: Path) -> NoReturn:
    _refuse(path)


def scaler_state(path: Path) -> NoReturn:
    _refuse(path)
