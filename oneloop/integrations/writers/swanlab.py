"""SwanLab."""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from ...arguments import TrainingArguments
from ...state import TrainerState
from .base import Writer, tag, untag
from .offline_files import records
from .progress_marks import Mark


class SwanLabCallback(Writer):
    """SWANLAB_MODE, SWANLAB_PROJECT, SWANLAB_RUN_ID, SWANLAB_RESUME, and the variables of swanlab.

    A run opened by the script is used, and left open.
    """

    name = "swanlab"
    closes = False

    def open(self, args: TrainingArguments, state: TrainerState) -> None:
        swanlab = self.package()
        self._own = not swanlab.has_run()
        if self._own:
            options: dict[str, Any] = {"project": os.environ.get("SWANLAB_PROJECT") or args.project}
            options["name"] = state.trial_name or args.run_name
            if self.run and not os.environ.get("SWANLAB_RUN_ID"):
                options |= {"id": self.run["id"], "resume": "allow"}
            swanlab.init(**options)
        self._run = swanlab.get_run()
        self.run = {"id": self._run.id}

    def reported(self) -> Mark | None:
        """What the run's files contain; None if they are elsewhere."""
        folder = Path(self._run.dir)
        Record = import_module("swanlab.proto.swanlab.record.v1.record_pb2").Record
        mark = Mark()
        for path in sorted(folder.parent.glob(f"run-*-{self.run['id']}/run-{self.run['id']}.swanlab")):
            for record in map(Record.FromString, records(path) if path.parent != folder else ()):
                if record.HasField("scalar") and untag(record.scalar.key):
                    mark.add(int(record.scalar.step), [untag(record.scalar.key)])
        return mark

    def parameters(self, arguments: dict[str, Any], model: dict[str, Any]) -> None:
        self._run.config.update({**model, **arguments})

    def write(self, values: dict[str, float], step: int) -> None:
        self._run.log({tag(name): value for name, value in values.items()}, step=step)

    def close(self) -> None:
        if self._own:
            self._run.finish()
