"""Checkpoints of other trainers, on a backend that cannot resume from them. No framework."""

from pathlib import Path
from typing import Any, NoReturn

from ...errors import CheckpointError


class ForeignRefused:
    """The functions of a backend's transformers_checkpoint.py; each raises the same error."""

    def __init__(self, words: str) -> None:
        self.words = words

    def _refuse(self, path: Path) -> NoReturn:
        raise CheckpointError(f"{path} was written by another trainer, but a run {self.words}")

    def load_weights(self, model: Any, path: Path) -> NoReturn:
        self._refuse(path)

    def load_optimizer(self, optimizer: Any, model: Any, path: Path) -> NoReturn:
        self._refuse(path)

    def scheduler_state(self, path: Path) -> NoReturn:
        self._refuse(path)

    def scaler_state(self, path: Path) -> NoReturn:
        self._refuse(path)

    def random_state(self, path: Path, rank: int, processes: int) -> NoReturn:
        self._refuse(path)
