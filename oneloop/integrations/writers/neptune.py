"""Neptune."""

import os
from pathlib import Path
from typing import Any

from ...arguments import TrainingArguments
from ...state import TrainerState
from .base import Writer, tag


class NeptuneCallback(Writer):
    """NEPTUNE_PROJECT, NEPTUNE_API_TOKEN, NEPTUNE_MODE, and the variables of neptune.

    log_checkpoints="same" uploads every checkpoint, "last" the final model.
    """

    name = "neptune"
    closes = False

    def __init__(self, log_checkpoints: str | None = None, base_namespace: str = "finetuning") -> None:
        super().__init__()
        self.log_checkpoints = log_checkpoints
        self._base = base_namespace

    def open(self, args: TrainingArguments, state: TrainerState) -> None:
        neptune = self.package()
        offline = os.environ.get("NEPTUNE_MODE", "").lower() == "offline"
        options = {} if offline or not self.run else {"with_id": self.run["id"]}
        self._run = neptune.init_run(name=args.run_name, **options)
        self.run = {"id": self._run["sys/id"].fetch() if not offline else str(self._run._id)}

    def parameters(self, arguments: dict[str, Any], model: dict[str, Any]) -> None:
        from neptune.utils import stringify_unsupported

        self._run[f"{self._base}/trainer_parameters"] = stringify_unsupported(arguments)
        if model:
            self._run[f"{self._base}/model_parameters"] = stringify_unsupported(model)

    def write(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._run[f"{self._base}/{tag(name)}"].append(value, step=step)

    def close(self) -> None:
        self._run.stop()

    def wants(self, what: str) -> bool:
        return self.log_checkpoints == {"checkpoint": "same", "model": "last"}[what]

    def artifact(self, folder: Path, what: str, state: TrainerState) -> None:
        place = f"checkpoints/{folder.name}" if what == "checkpoint" else "model"
        self._run[f"{self._base}/{place}"].upload_files(str(folder), wait=True)
