"""Comet."""

import json
import os
import zipfile
from pathlib import Path
from typing import Any

from ...arguments import TrainingArguments
from ...state import TrainerState
from .base import Writer, flat, switch, tag, untag
from .progress_marks import Mark


class CometCallback(Writer):
    """COMET_MODE, COMET_START_ONLINE, COMET_PROJECT_NAME, COMET_LOG_ASSETS, and the variables of comet_ml."""

    name = "comet_ml"
    closes = False

    def open(self, args: TrainingArguments, state: TrainerState) -> None:
        comet = self.package()
        key = os.environ.get("COMET_EXPERIMENT_KEY") or self.run.get("id")
        mode = os.environ.get("COMET_MODE", "").lower() or "get_or_create"
        if state.trial_name is not None and not self.run:
            mode = "create"
        self._experiment = comet.start(
            experiment_key=key,
            mode=mode,
            experiment_config=comet.ExperimentConfig(name=state.trial_name or args.run_name),
        )
        self.run = {"id": self._experiment.get_key()}

    def reported(self) -> Mark | None:
        """Offline, what the experiment's archives contain: a killed process leaves none."""
        folder = getattr(self._experiment, "offline_directory", None)
        if folder is None:
            return None
        mark = Mark()
        for path in sorted(Path(folder).glob(f"{self.run['id']}*.zip")):
            with zipfile.ZipFile(path) as archive:
                if "messages.json" not in archive.namelist():  # the archive of this process, which is not complete yet
                    continue
                lines = archive.read("messages.json").decode().splitlines()
            for metric in (json.loads(line)["payload"].get("metric") for line in lines):
                if metric and untag(metric["metricName"]):
                    mark.add(int(metric["step"]), [untag(metric["metricName"])])
        return mark

    def parameters(self, arguments: dict[str, Any], model: dict[str, Any]) -> None:
        self._experiment.log_parameters(flat({"args": arguments, **({"config": model} if model else {})}))

    def write(self, values: dict[str, float], step: int) -> None:
        named = {tag(name): value for name, value in values.items()}
        self._experiment.log_metrics(named, step=step, epoch=values.get("epoch"))

    def close(self) -> None:
        self._experiment.end()

    def wants(self, what: str) -> bool:
        return what == "model" and switch("COMET_LOG_ASSETS")

    def artifact(self, folder: Path, what: str, state: TrainerState) -> None:
        self._experiment.log_model("model", str(folder))
        self._experiment.flush()  # uploads are asynchronous, and the folder is deleted afterwards
