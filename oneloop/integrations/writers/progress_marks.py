"""How far a run has been reported, so that after a resume no step is missing or duplicated."""

import json
import logging
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...errors import CheckpointError
from ...formats.reading import read_json

logger = logging.getLogger(__name__)

FOLDER = ".reported"


@dataclass
class Mark:
    """Everything before `step` has been written, and the values of these names at `step`."""

    step: int = -1
    names: list[str] = field(default_factory=list)

    def covers(self, step: int, name: str) -> bool:
        return step < self.step or (step == self.step and name in self.names)

    def add(self, step: int, names: Iterable[str]) -> None:
        if step > self.step:
            self.step, self.names = step, []
        if step == self.step:
            self.names.extend(name for name in names if name not in self.names)

    def later(self, other: "Mark") -> "Mark":
        """The mark that is further ahead."""
        return max(self, other, key=lambda mark: (mark.step, len(mark.names)))


def keep(output_dir: Any, writer: str, run: dict[str, Any], mark: Mark) -> None:
    """Save the mark in output_dir. Checkpoints contain it too, but a run can die long after its last one."""
    path = Path(output_dir) / FOLDER / f"{writer}.json"
    partial = path.with_suffix(".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps({"run": run, **asdict(mark)}), encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:  # a mark that cannot be written must not stop the run
        logger.debug("Cannot write %s: %s", path, error)


def kept(output_dir: Any, writer: str, run: dict[str, Any]) -> Mark:
    """The mark of this run of the service; an empty one if there is none."""
    try:
        stored = read_json(Path(output_dir) / FOLDER / f"{writer}.json")
        if stored["run"] == run:
            return Mark(int(stored["step"]), [str(name) for name in stored["names"]])
    except (CheckpointError, ValueError, TypeError, KeyError, OverflowError):
        pass
    return Mark()
