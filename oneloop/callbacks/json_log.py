"""log.jsonl in the output directory: one line per log, of every run in that directory."""

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ..arguments import TrainingArguments
from ..checkpoint import log_history
from ..formats import reading, schema
from ..formats.durable import append_line
from ..state import TrainerControl, TrainerState, to_plain
from .base import TrainerCallback

logger = logging.getLogger(__name__)

NAME = "log.jsonl"


class JsonLinesCallback(TrainerCallback):
    """Each line has the run's id, the step and a time. On resume, lines that were written after the checkpoint are
    removed, so that no step appears twice."""

    writes_logs = True

    def __init__(self, run_id: Any, figures: Any = dict, folder: Callable[[], Path] | None = None) -> None:
        self._run_id = run_id  # a function: a resumed run uses the id in its checkpoint
        self._folder = folder  # output_dir, which a run resolves when it starts
        self._figures = figures  # values measured for the run's page that are not in the log history
        self._failed = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        path = self._path(args)
        if not state.is_world_process_zero:
            return
        own = self._drop_later_lines(path, state) if path.is_file() else 0
        for entry in log_history.missing_lines(state.log_history, own):
            self._write(args, int(entry.get("step", 0)), entry)

    def _drop_later_lines(self, path: Path, state: TrainerState) -> int:
        """Remove what was written after the checkpoint; the number of lines that the run has left."""
        own = 0
        partial = path.with_name(f".{NAME}.partial")
        try:
            with open(partial, "wb") as kept:  # line by line: the log of a long run may not fit into memory
                for line in _before(state, self._run_id(), reading.lines(path)):
                    kept.write(line if line.endswith(b"\n") else line + b"\n")
                    own += self._run_id().encode() in line
            os.replace(partial, path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            self._warn_once(path, error)
        return own

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if state.is_world_process_zero and logs:
            self._write(args, state.global_step, {**self._figures(), **logs})

    def _write(self, args: TrainingArguments, step: int, values: dict[str, Any]) -> None:
        entry = {"run": self._run_id(), "step": step, "time": round(time.time(), 3)}
        entry |= {key: to_plain(value) for key, value in values.items() if key != "step"}
        path = self._path(args)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            append_line(path, json.dumps(entry).encode())
        except OSError as error:
            self._warn_once(path, error)

    def _path(self, args: TrainingArguments) -> Path:
        return (Path(args.output_dir or "") if self._folder is None else self._folder()) / NAME

    def _warn_once(self, path: Path, error: OSError) -> None:
        # A log that cannot be written must not stop a run or an evaluation.
        if not self._failed:
            logger.warning("%s cannot be written (%s); it will be incomplete.", path, error)
        self._failed = True


def _before(state: TrainerState, run_id: str, lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of other runs, and those of this run up to its checkpoint."""
    # The step itself may have more lines: the end of its epoch is logged after the save.
    left = sum(entry.get("step") == state.global_step for entry in state.log_history)
    for line in lines:
        entry = reading.log_entry(line) or {}
        if "run" not in entry or not schema.is_finite(entry.get("step")):  # such as a line cut off by a kill
            continue
        own, step = entry["run"] == run_id, int(entry["step"])
        if own and step == state.global_step:
            left -= 1
        if not own or step < state.global_step or (step == state.global_step and left >= 0):
            yield line
