"""MLflow."""

import json
import logging
import os
import re
import time
from itertools import islice
from pathlib import Path
from typing import Any

from ... import secrets
from ...arguments import TrainingArguments
from ...errors import ArgumentError
from ...state import TrainerState
from .base import Writer, flat, switch

logger = logging.getLogger(__name__)


class MLflowCallback(Writer):
    """MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, MLFLOW_RUN_ID, MLFLOW_NESTED_RUN, MLFLOW_TAGS,
    MLFLOW_FLATTEN_PARAMS, MLFLOW_MAX_LOG_PARAMS and HF_MLFLOW_LOG_ARTIFACTS.

    A run started by the script is used, and left open.
    """

    name = "mlflow"

    def open(self, args: TrainingArguments, state: TrainerState) -> None:
        mlflow = self.package()
        self._client, self._own = mlflow.MlflowClient(), False
        after_training = bool(self.run) and not self.resumed_step
        if after_training:
            return  # values are added by run id, so that no active run is left behind
        nested, active = switch("MLFLOW_NESTED_RUN"), mlflow.active_run()
        if active is None or nested:
            experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME")
            if experiment:
                mlflow.set_experiment(experiment)
            wanted = os.environ.get("MLFLOW_RUN_ID") or self._still_there(mlflow)
            active = mlflow.start_run(run_id=wanted, run_name=args.run_name, nested=nested)
            self._own = True
        self.run = {"id": active.info.run_id}
        self._tags()

    def _still_there(self, mlflow: Any) -> str | None:
        """The id of the run to resume, if the store still has it."""
        if not self.run:
            return None
        try:
            self._client.get_run(self.run["id"])
        except mlflow.exceptions.MlflowException as error:
            why = secrets.clean_text(str(error))
            logger.warning("MLflow run %s no longer exists (%s); starting a new one.", self.run["id"], why)
            return None
        return self.run["id"]

    def _tags(self) -> None:
        text = os.environ.get("MLFLOW_TAGS")
        if not text:
            return
        try:
            tags = dict(json.loads(text))
        except (ValueError, TypeError) as error:
            raise ArgumentError(f"Invalid MLFLOW_TAGS={text!r}: expected a JSON object, such as {{}}.") from error
        for name, value in tags.items():
            self._client.set_tag(self.run["id"], name, value)

    def parameters(self, arguments: dict[str, Any], model: dict[str, Any]) -> None:
        from mlflow.entities import Param
        from mlflow.utils.validation import MAX_PARAM_VAL_LENGTH

        given = {**model, **arguments}
        given = flat(given, joint=".") if switch("MLFLOW_FLATTEN_PARAMS") else given
        known = self._client.get_run(self.run["id"]).data.params  # MLflow parameters are immutable
        texts = {_allowed(name): str(value) for name, value in given.items()}
        long = [name for name, text in texts.items() if len(text) > MAX_PARAM_VAL_LENGTH]
        if long:
            logger.warning("Parameters too long for MLflow were dropped: %s. MLFLOW_FLATTEN_PARAMS=1 may help.", long)
        most = os.environ.get("MLFLOW_MAX_LOG_PARAMS", "")
        named = (name for name in texts if name not in known and name not in long)
        new = list(islice(named, int(most) if most.isdigit() else None))
        for start in range(0, len(new), 100):  # the maximum per request
            batch = [Param(name, texts[name]) for name in new[start : start + 100]]
            self._client.log_batch(self.run["id"], params=batch)

    def write(self, values: dict[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(_allowed(name), value, now, step) for name, value in values.items()]
        self._client.log_batch(self.run["id"], metrics=metrics)

    def close(self) -> None:
        if self._own:
            self.package().end_run()

    def wants(self, what: str) -> bool:
        return switch("HF_MLFLOW_LOG_ARTIFACTS")

    def artifact(self, folder: Path, what: str, state: TrainerState) -> None:
        place = folder.name if what == "checkpoint" else "model"
        self._client.log_artifacts(self.run["id"], str(folder), artifact_path=place)


def _allowed(name: str) -> str:
    return re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)
