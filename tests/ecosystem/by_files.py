"""Compares two runs by the files that they left: for programs that do not hand out their Trainer."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.ecosystem.compare import ADDED_KEYS, TIMES


def logs(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "trainer_state.json").read_text())["log_history"]


def weights(folder: Path) -> dict[str, np.ndarray]:
    """Of all safetensors files in the folder itself that hold weights."""
    from safetensors.numpy import load_file

    found: dict[str, np.ndarray] = {}
    for path in sorted(folder.glob("*.safetensors")):
        if path.name not in ("optimizer.safetensors", "random.safetensors"):
            found |= {f"{path.name}:{name}": value for name, value in load_file(path).items()}
    assert found, f"no weights in {folder}"
    return found


def differences(theirs: list[dict[str, Any]], ours: list[dict[str, Any]], tolerance: float) -> list[str]:
    """What differs in two log histories, apart from times and the keys that oneloop adds."""
    if [entry["step"] for entry in theirs] != [entry["step"] for entry in ours]:
        return [f"logs at steps {[entry['step'] for entry in theirs]} and {[entry['step'] for entry in ours]}"]
    found = []
    for their, our in zip(theirs, ours):
        where = f"step {their['step']}"
        missing, added = their.keys() - our.keys(), our.keys() - their.keys() - ADDED_KEYS
        if missing or added:
            found.append(f"{where}: missing {sorted(missing)}, added {sorted(added)}")
        for key in (their.keys() & our.keys()) - {each for each in their if TIMES.search(each)}:
            one, other = their[key], our[key]
            if not (one == other or abs(one - other) <= tolerance * max(1.0, abs(one))):
                found.append(f"{where}: {key} {one} and {other}")
    return found


def largest_difference(theirs: dict[str, np.ndarray], ours: dict[str, np.ndarray]) -> float:
    assert theirs.keys() == ours.keys(), theirs.keys() ^ ours.keys()
    return max(float(np.abs(theirs[name].astype(np.float64) - ours[name]).max()) for name in theirs)
