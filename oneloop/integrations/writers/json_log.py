"""log.jsonl in the output directory: one line a log, of every run that went there."""

import json
import logging
import math
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ...arguments import TrainingArguments
from ...callbacks import TrainerCallback
from ...state import TrainerControl, TrainerState

logger = logging.getLogger(__name__)

NAME = "log.jsonl"


class JsonLinesCallback(TrainerCallback):
    """Each line has the run's id, the step and a time. After a resume, lines that the dead run had written beyond the
    checkpoint are taken out, so that no step is there twice."""

    def __init__(self, run_id: Any, figures: Any = dict) -> None:
        self._run_id = run_id  # a function: a resumed run takes the id of its checkpoint
        self._figures = figures  # what is measured for the run's page and is in no history
        self._failed = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        path = Path(args.output_dir) / NAME
        if not state.is_world_process_zero or not path.is_file():
            return
        partial = path.with_name(f".{NAME}.partial")
        try:
            with (  # line by line: the log of a long run may be larger than what memory is left
                open(path, encoding="utf-8", errors="replace", newline="\n") as lines,
                open(partial, "w", encoding="utf-8") as kept,
            ):
                for line in _before(state, self._run_id(), lines):
                    kept.write(line if line.endswith("\n") else f"{line}\n")
            os.replace(partial, path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            self._tell(path, error)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_world_process_zero or not logs:
            return
        entry = {"run": self._run_id(), "step": state.global_step, "time": round(time.time(), 3)}
        for key, value in {**self._figures(), **logs}.items():
            finite = not isinstance(value, float) or math.isfinite(value)
            entry[key] = value if finite and isinstance(value, (int, float, str, bool, type(None))) else str(value)
        path = Path(args.output_dir) / NAME
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "a", encoding="utf-8") as f:
                f.write(json.dumps(entry) + "\n")
        except OSError as error:
            self._tell(path, error)

    def _tell(self, path: Path, error: OSError) -> None:
        # Metrics are worth more than their log: an evaluation or a long run does not end over it.
        if not self._failed:
            logger.warning("%s cannot be written (%s); what is logged is missing there.", path, error)
        self._failed = True


def _before(state: TrainerState, run_id: str, lines: Iterable[str]) -> Iterator[str]:
    """The lines of other runs, and those of this one that its checkpoint knows of."""
    # Of the step itself there may be more: the end of its epoch is logged after the save.
    left = sum(entry.get("step") == state.global_step for entry in state.log_history)
    for line in lines:
        try:
            entry = json.loads(line)
            own, step = entry["run"] == run_id, int(entry["step"])
        except (ValueError, TypeError, KeyError):  # the torn last line of a run that died
            continue
        if own and step == state.global_step:
            left -= 1
        if not own or step < state.global_step or (step == state.global_step and left >= 0):
            yield line
