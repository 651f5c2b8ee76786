"""VisualDL log files."""

from typing import Any

from ..errors import MissingPackageError
from .base import Writer


class VisualDLCallback(Writer):
    """Scalars and texts in the directory of args.logging_dir. A LogWriter of your own can be given."""

    def __init__(self, vdl_writer: Any = None) -> None:
        super().__init__()
        self._given = vdl_writer
        self._writer: Any = vdl_writer

    def open(self, directory: str, resumed_step: int) -> None:
        if self._given is not None:
            return
        try:
            from visualdl import LogWriter
        except ImportError as error:
            raise MissingPackageError("report_to='visualdl' needs the package: pip install visualdl") from error
        self._writer = LogWriter(logdir=directory)

    def scalar(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(tag=name, value=value, step=step)

    def text(self, name: str, value: str) -> None:
        self._writer.add_text(tag=name, text_string=value, step=0)

    def close(self) -> None:
        if self._given is None:
            self._writer.close()
