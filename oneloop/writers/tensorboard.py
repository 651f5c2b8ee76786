"""TensorBoard event files, through the tensorboard package itself."""

import time
from typing import Any

from ..errors import MissingPackageError
from .base import Writer


class TensorBoardCallback(Writer):
    """Scalars and texts in the directory of args.logging_dir. A SummaryWriter of your own can be given."""

    def __init__(self, tb_writer: Any = None) -> None:
        super().__init__()
        self._given = tb_writer
        self._writer: Any = None

    def open(self, directory: str, resumed_step: int) -> None:
        if self._given is not None:
            return
        try:
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise MissingPackageError("report_to='tensorboard' needs the package: pip install tensorboard") from error
        self._writer = EventFileWriter(directory)
        if resumed_step:
            # Tells readers to drop what a run that died had written after the checkpoint.
            start = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(wall_time=time.time(), step=resumed_step + 1, session_log=start))

    def _add(self, value: Any, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=[value])))

    def scalar(self, name: str, value: float, step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._given is not None:
            self._given.add_scalar(name, value, step)
        else:
            self._add(Summary.Value(tag=name, simple_value=value), step)

    def text(self, name: str, value: str) -> None:
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
