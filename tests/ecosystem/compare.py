"""Compares what play.py recorded on transformers' Trainer and on oneloop, and prints a table.

python -m tests.ecosystem.compare MODULE [NAME ...]     plays both and prints the table; status 1 if they differ
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
SIDES = ("transformers", "oneloop")

# Log keys that measure time, whose values are not compared.
TIMES = re.compile(r"(^|_|/)(runtime|samples_per_second|steps_per_second|time|step_time|total_flos|per_second)")
# Log keys that oneloop has and transformers has not: docs/migrate.md names them.
ADDED_KEYS = {"steps_per_second", "samples_per_second", "train_tokens_per_second"}
# Files of one side alone, as regular expressions on their path in output_dir, with the reason.
FILES = {
    "transformers": {
        r"checkpoint-\d+/(optimizer|scheduler)\.pt": "oneloop: optimizer.safetensors, run.json",
        r"checkpoint-\d+/rng_state(_\d+)?\.pth": "oneloop: rng.safetensors",
        r"(checkpoint-\d+/)?training_args\.bin": "oneloop: training_args.json; no pickle files",
    },
    "oneloop": {
        r"checkpoint-\d+/(manifest\.json|run\.json|optimizer[^/]*|random[^/]*|rng[^/]*)": "its format",
        r"checkpoint-\d+/training_args\.json": "instead of training_args.bin",
        r"training_args\.json": "instead of training_args.bin",
        r"(run|log|curve)\.jsonl": "events and logs",
        r"\.oneloop.*": "its lock",
    },
}  # fmt: skip


@dataclass
class Comparison:
    """Of one scenario: the largest difference of logged numbers and of weights, and what else differs."""

    name: str
    losses: int = 0
    largest: float = 0.0  # of all numbers in logs
    weights: float = 0.0
    differs: str = ""  # why numbers are not compared
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        verdict = self.differs or "equal" if not self.problems else "; ".join(self.problems)
        return f"{self.name:30} {self.losses:>6} {self.largest:>10.1e} {self.weights:>10.1e}  {verdict}"


HEADER = f"{'scenario':30} {'losses':>6} {'logs':>10} {'weights':>10}  result"


def play(side: str, module: str, folder: Path, names: list[str], launcher: list[str] | None = None) -> None:
    """Play scenarios in a process of their own, or in those of a launcher."""
    command = [*(launcher or [sys.executable]), "-m", "tests.ecosystem.play", side, module, str(folder), *names]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}")


def compare(scenario: Any, folder: Path, reference: str = SIDES[0], other: str = SIDES[1]) -> Comparison:
    """Compare the results of one scenario in FOLDER/SIDE."""
    found = Comparison(scenario.name, differs=scenario.differs)
    results = {side: json.loads((folder / side / f"{scenario.name}.json").read_text()) for side in (reference, other)}
    for side, result in results.items():
        if "error" in result:
            found.problems.append(f"{side}: {result['error'].strip().splitlines()[-1][:200]}")
    if found.problems:
        return found
    theirs, ours = results[reference], results[other]
    if other == "oneloop" and not any(base.startswith("oneloop.") for base in ours["bases"]):
        found.problems.append("this Trainer is not oneloop's")
    for key in ("global_step", "best_checkpoint"):
        if theirs[key] != ours[key]:
            found.problems.append(f"{key}: {theirs[key]} and {ours[key]}")
    _compare_files(found, scenario, theirs["files"], ours["files"])
    if scenario.differs:
        return found
    _compare_logs(found, scenario, theirs["logs"], ours["logs"])
    if not _is_same(theirs["outcome"], ours["outcome"], scenario.tolerance):
        found.problems.append(f"outcome {theirs['outcome']} and {ours['outcome']}")
    found.weights = _weights(folder, reference, other, scenario.name)
    if not found.weights <= max(scenario.tolerance, 1e-5):
        found.problems.append(f"weights differ by {found.weights:.1e}")
    return found


def _compare_logs(found: Comparison, scenario: Any, theirs: list[dict], ours: list[dict]) -> None:
    found.losses = sum("loss" in entry for entry in ours)
    if len(theirs) != len(ours) or [e["step"] for e in theirs] != [e["step"] for e in ours]:
        found.problems.append(f"logs at steps {[e['step'] for e in theirs]} and {[e['step'] for e in ours]}")
        return
    for their, our in zip(theirs, ours):
        missing = their.keys() - our.keys() - scenario.explained.keys()
        added = our.keys() - their.keys() - ADDED_KEYS - scenario.explained.keys()
        if missing or added:
            found.problems.append(f"step {their['step']}: missing {sorted(missing)}, added {sorted(added)}")
        for key in their.keys() & our.keys():
            if TIMES.search(key) or key in scenario.explained:
                continue
            difference = _difference(their[key], our[key])
            found.largest = max(found.largest, difference)
            if difference > scenario.tolerance:
                found.problems.append(f"step {their['step']}: {key} {their[key]} and {our[key]}")


def _difference(first: Any, second: Any) -> float:
    if isinstance(first, (int, float)) and isinstance(second, (int, float)):
        if first == second or (first != first and second != second):
            return 0.0
        return abs(first - second) / max(1.0, abs(first))
    return 0.0 if first == second else float("inf")


def _is_same(first: Any, second: Any, tolerance: float) -> bool:
    if isinstance(first, list) and isinstance(second, list):
        same = [_is_same(one, other, tolerance) for one, other in zip(first, second)]
        return len(first) == len(second) and all(same)
    return _difference(first, second) <= tolerance


def _compare_files(found: Comparison, scenario: Any, theirs: list[str], ours: list[str]) -> None:
    for side, extra in (("transformers", set(theirs) - set(ours)), ("oneloop", set(ours) - set(theirs))):
        known = [*FILES[side], *map(re.escape, scenario.explained)]
        rest = sorted(name for name in extra if not any(re.fullmatch(pattern, name) for pattern in known))
        if rest:
            found.problems.append(f"files of {side} alone: {', '.join(rest)}")


def _weights(folder: Path, reference: str, other: str, name: str) -> float:
    theirs, ours = (np.load(folder / side / f"{name}.npz") for side in (reference, other))
    if set(theirs.files) != set(ours.files):
        return float("inf")
    return max((float(np.abs(theirs[key] - ours[key]).max()) for key in theirs.files), default=0.0)


def main(module: str, *names: str) -> int:
    import importlib

    scenarios = {each.name: each for each in importlib.import_module(module).SCENARIOS}
    chosen = list(names or scenarios)
    folder = Path(tempfile.mkdtemp(prefix="ecosystem-"))
    for side in SIDES:
        play(side, module, folder / side, chosen)
    found = [compare(scenarios[name], folder) for name in chosen]
    print(HEADER, *(each.line() for each in found), sep="\n")
    return int(any(each.problems for each in found))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
