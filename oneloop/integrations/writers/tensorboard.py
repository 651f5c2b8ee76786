"""TensorBoard event files, through the tensorboard package itself."""

import json
import os
import time
from typing import Any

from ...arguments import TrainingArguments
from ...state import TrainerState
from .base import Writer, log_directory, stored_directory, tag


class TensorBoardCallback(Writer):
    """Scalars and texts in args.logging_dir, or, if it is not given, in the directory that the variable
    TENSORBOARD_LOGGING_DIR names. You can pass your own SummaryWriter."""

    name = "tensorboard"

    def __init__(self, tb_writer: Any = None) -> None:
        super().__init__()
        self._given = tb_writer
        self._writer: Any = None
        self._goes_on = False
        self.rewinds = tb_writer is None

    def open(self, args: TrainingArguments, state: TrainerState) -> None:
        self._goes_on = bool(self.run)
        if self._given is not None:
            self.run = {"given": True}
            return
        self._proto = self.package("tensorboard.compat.proto.event_pb2")
        directory = log_directory(args, self.run, self.output_folder(args), _wanted(state))
        self._writer = self.package("tensorboard.summary.writer.event_file_writer").EventFileWriter(directory)
        self.run = {"directory": stored_directory(directory, self.output_folder(args))}
        if self.resumed_step:
            # Tells readers to drop what was written after the checkpoint.
            start = self._proto.SessionLog(status=self._proto.SessionLog.START)
            self._writer.add_event(self._proto.Event(wall_time=time.time(), step=self.resumed_step, session_log=start))

    def parameters(self, arguments: dict[str, Any], model: dict[str, Any]) -> None:
        if self._goes_on:
            return
        self._text("run_name", str(arguments["run_name"]))
        self._text("args", json.dumps(arguments, indent=2, default=str))
        if model:
            self._text("model_config", json.dumps(model, indent=2, default=str))

    def _add(self, value: Any, step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._writer.add_event(self._proto.Event(wall_time=time.time(), step=step, summary=Summary(value=[value])))

    def write(self, values: dict[str, float], step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        for name, value in values.items():
            if self._given is not None:
                self._given.add_scalar(tag(name), value, step)
            else:
                self._add(Summary.Value(tag=tag(name), simple_value=value), step)

    def _text(self, name: str, value: str) -> None:
        if self._given is not None:
            self._given.add_text(name, value)
            return
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.plugins.text.metadata import create_summary_metadata

        tensor = TensorProto(dtype="DT_STRING", string_val=[value.encode()])
        metadata = create_summary_metadata(display_name=name, description="")
        self._add(Summary.Value(tag=f"{name}/text_summary", metadata=metadata, tensor=tensor), 0)

    def flush(self) -> None:
        (self._given or self._writer).flush()

    def close(self) -> None:
        if self._given is None:
            self._writer.close()


def _wanted(state: TrainerState) -> str | None:
    """The directory that the environment names. Trials of a search have directories of their own
    all the same."""
    named = os.environ.get("TENSORBOARD_LOGGING_DIR")
    return os.path.expanduser(named) if named and not state.is_hyper_param_search else None
