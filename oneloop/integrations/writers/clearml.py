"""ClearML."""

import os
from pathlib import Path
from typing import Any

from ...arguments import TrainingArguments
from ...state import TrainerState
from .base import Writer, flat, switch, tag


class ClearMLCallback(Writer):
    """CLEARML_PROJECT, CLEARML_TASK, CLEARML_LOG_MODEL, CLEARML_OFFLINE_MODE, and the variables of clearml.

    A task started by the script is used, and left open.
    """

    name = "clearml"
    closes = False

    def open(self, args: TrainingArguments, state: TrainerState) -> None:
        clearml = self.package()
        self._task = clearml.Task.current_task()
        self._own = self._task is None
        if self._own:
            self._task = clearml.Task.init(
                project_name=os.environ.get("CLEARML_PROJECT") or args.project,
                task_name=os.environ.get("CLEARML_TASK") or state.trial_name or args.run_name,
                reuse_last_task_id=self.run.get("id", False),
                continue_last_task=0 if self.run else False,  # 0: our steps are absolute, not relative to the last one
                auto_connect_frameworks={"tensorboard": False, "pytorch": False},
                auto_connect_arg_parser=False,
            )
        self.run = {"id": self._task.id}

    def parameters(self, arguments: dict[str, Any], model: dict[str, Any]) -> None:
        self._task.set_parameters_as_dict({"Trainer": flat(arguments), **({"Model": flat(model)} if model else {})})

    def write(self, values: dict[str, float], step: int) -> None:
        logger = self._task.get_logger()
        for name, value in values.items():
            title, _, series = tag(name).partition("/")
            logger.report_scalar(title=title, series=series, value=value, iteration=step)

    def flush(self) -> None:
        self._task.flush()

    def close(self) -> None:
        if self._own:
            self._task.close()

    def wants(self, what: str) -> bool:
        return switch("CLEARML_LOG_MODEL", "true") and not self.package().Task.is_offline()  # no models in offline mode

    def artifact(self, folder: Path, what: str, state: TrainerState) -> None:
        name = folder.name if what == "checkpoint" else "model"
        model = self.package().OutputModel(task=self._task, name=name)
        model.update_weights_package(
            weights_path=str(folder), target_filename=name, iteration=state.global_step, auto_delete_file=False
        )
