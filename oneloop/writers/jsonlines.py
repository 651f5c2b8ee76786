"""log.jsonl in the output directory: one line a log, of every run that went there."""

import json
import logging
import math
import os
import time
from pathlib import Path
from typing import Any

from ..callbacks import TrainerCallback

logger = logging.getLogger(__name__)

NAME = "log.jsonl"


class JsonLinesCallback(TrainerCallback):
    """Each line has the run's id, the step and a time. After a resume, lines that the dead run had written beyond the
    checkpoint are taken out, so that no step is there twice."""

    def __init__(self, run_id: Any) -> None:
        self._run_id = run_id  # a function: a resumed run takes the id of its checkpoint
        self._failed = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        path = Path(args.output_dir) / NAME
        if not state.is_world_process_zero or not path.is_file():
            return
        run_id = self._run_id()
        # Of the step itself, what the checkpoint knows: the end of its epoch may have been logged after the save.
        left = sum(entry.get("step") == state.global_step for entry in state.log_history)
        kept = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:  # the torn last line of a run that died
                continue
            if not isinstance(entry, dict):
                continue
            if entry.get("run") == run_id and entry.get("step") == state.global_step:
                left -= 1
                if left < 0:
                    continue
            if entry.get("run") != run_id or entry.get("step", 0) <= state.global_step:
                kept.append(line)
        partial = path.with_name(f".{NAME}.partial")
        partial.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        os.replace(partial, path)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs:
            return
        entry = {"run": self._run_id(), "step": state.global_step, "time": round(time.time(), 3)}
        for key, value in logs.items():
            finite = not isinstance(value, float) or math.isfinite(value)
            entry[key] = value if finite and isinstance(value, (int, float, str, bool, type(None))) else str(value)
        path = Path(args.output_dir) / NAME
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "a", encoding="utf-8") as f:
                f.write(json.dumps(entry) + "\n")
        except OSError as error:
            # Metrics are worth more than their log: an evaluation or a long run does not end over it.
            if not self._failed:
                logger.warning("%s cannot be written (%s); what is logged is missing there.", path, error)
            self._failed = True
