"""VisualDL log files."""

import json
import os
from typing import Any

from ...arguments import TrainingArguments
from ...state import TrainerState
from .base import Writer, log_directory, stored_directory, tag


class VisualDLCallback(Writer):
    """Scalars and texts in args.logging_dir. You can pass your own LogWriter."""

    name = "visualdl"

    def __init__(self, vdl_writer: Any = None) -> None:
        super().__init__()
        self._given = vdl_writer
        self._writer: Any = vdl_writer
        self._goes_on = False

    def open(self, args: TrainingArguments, state: TrainerState) -> None:
        self._goes_on = bool(self.run)
        if self._given is not None:
            self.run = {"given": True}
            return
        directory = log_directory(args, self.run, self.output_folder(args))
        stored = stored_directory(directory, self.output_folder(args))
        # VisualDL shows only one file per directory: a resumed run appends to its file.
        file = self.run.get("file", "") if stored == self.run.get("directory") else ""
        self._writer = self.package().LogWriter(logdir=directory, file_name=file)
        self.run = {"directory": stored, "file": os.path.basename(self._writer.file_name)}

    def parameters(self, arguments: dict[str, Any], model: dict[str, Any]) -> None:
        if self._goes_on:
            return
        texts = {"run_name": str(arguments["run_name"]), "args": json.dumps(arguments, indent=2, default=str)}
        if model:
            texts["model_config"] = json.dumps(model, indent=2, default=str)
        for name, text in texts.items():
            self._writer.add_text(tag=name, text_string=text, step=0)

    def write(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(tag=tag(name), value=value, step=step)

    def flush(self) -> None:
        self._writer._get_file_writer().flush()

    def close(self) -> None:
        if self._given is None:
            self._writer.close()
