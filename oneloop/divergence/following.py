"""Compares two runs while they train: each time that both have recorded another step."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..formats import trace_file
from ..report import summary
from ..report.log_reader import Directory
from .comparison import Comparison
from .runs import compare_runs, read_run

WAIT = 1.0  # seconds between two looks
OVER = {"finished", "stopped early", "preempted", "failed", "not saved"}  # states of a run that records nothing more

Recordings = dict[int, int]  # by step: when each was written


class Followed:
    """The output directory of a run, which may not have begun."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._directory = Directory(folder)

    def look(self) -> tuple[bool, Recordings]:
        """Whether the run is over, and its recordings: those that an earlier run has left are none of them."""
        self._directory.read_new()
        is_over = summary.status(self._directory, summary.now()) in OVER  # before the recordings are looked for
        paths = {step: trace_file.path_of(self.folder, step) for step in trace_file.steps_in(self.folder)}
        found = {step: path.stat().st_mtime_ns for step, path in paths.items()}
        run = self._directory.run_id
        return is_over, found if found and (not run or read_run(self.folder)[0][0].run == run) else {}


def follow(a: Path, b: Path, mapping: Mapping[str, str] | None = None, wait: float = WAIT) -> Iterator[Comparison]:
    """A comparison whenever there is more to compare. Ends at a difference, or when both runs are over; raises
    CheckpointError if they are, and nothing can be compared."""
    both, seen = (Followed(a), Followed(b)), None
    is_compared = False
    while True:
        ours, theirs = (each.look() for each in both)
        is_last, now = ours[0] and theirs[0], (ours[1], theirs[1])
        is_due = bool(now[0].keys() & now[1].keys()) and now != seen
        if is_due or (is_last and not is_compared):
            found, seen, is_compared = compare_runs(a, b, mapping), now, True
            yield found
            if not found.agrees:
                return
        if is_last:
            return
        time.sleep(wait)
