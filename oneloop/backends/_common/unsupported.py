"""Checkpoints of other trainers, on a backend that cannot go on from them. No framework."""

from pathlib import Path
from typing import Any, NoReturn

from ...errors import CheckpointError


class ForeignRefused:
    """The functions of a backend's foreign.py, each with the same answer."""

    def __init__(self, words: str) -> None:
        self.words = words

    def _refuse(self, path: Path) -> NoReturn:
        raise CheckpointError(f"{path} was written by another trainer, and a run {self.words}")

    def load_weights(self, model: Any, path: Path) -> NoReturn:
        self._refuse(path)

    def load_optimizer(self, optimizer: Any, model: Any, path: Path) -> NoReturn:
        self._refuse(path)

    def scheduler_state(self, path: Path) -> NoReturn:
        self._refuse(path)

    def scaler_state(self, path: Path) -> NoReturn:
        self._refuse(path)
