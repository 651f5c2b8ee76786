"""DVCLive: files in the folder dvclive, for DVC to version."""

import os
from pathlib import Path
from typing import Any

from ...arguments import TrainingArguments
from ...state import TrainerState
from .base import Writer, switch, tag


class DVCLiveCallback(Writer):
    """HF_DVCLIVE_LOG_MODEL (true: the final model; all: also every checkpoint). You can pass your own Live."""

    name = "dvclive"

    def __init__(self, live: Any = None) -> None:
        super().__init__()
        self._given = live

    def open(self, args: TrainingArguments, state: TrainerState) -> None:
        self._live = self._given
        if self._live is None:
            before = bool(self.run) and os.path.isdir(self.run["directory"])
            self._live = self.package().Live(resume=before)
        self.run = {"directory": os.path.abspath(self._live.dir)}

    def parameters(self, arguments: dict[str, Any], model: dict[str, Any]) -> None:
        self._live.log_params({**model, **arguments})

    def write(self, values: dict[str, float], step: int) -> None:
        self._live.step = step
        for name, value in values.items():
            self._live.log_metric(tag(name), value)
        self._live.sync()

    def close(self) -> None:
        if self._given is None:
            self._live.end()

    def wants(self, what: str) -> bool:
        every = os.environ.get("HF_DVCLIVE_LOG_MODEL", "").strip().lower() == "all"
        return every or (what == "model" and switch("HF_DVCLIVE_LOG_MODEL"))

    def artifact(self, folder: Path, what: str, state: TrainerState) -> None:
        name = folder.name if what == "checkpoint" else "model"
        self._live.log_artifact(str(folder), type="model", name=name, copy=True)
