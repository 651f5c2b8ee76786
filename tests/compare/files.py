"""The files of a run by their hashes, with what differs from one run to the next masked."""

import hashlib
import json
import re
from pathlib import Path

# Keys whose values are masked wherever they stand in logs and JSON files: times, speeds and memory.
MASKED = re.compile(r"time|written|seconds|.*_?runtime|.*_per_second|memory_bytes|(train_)?(data_wait|mfu)")
# Keys that earlier commits have in more places: speeds of training steps are in log.jsonl alone.
LEFT_OUT = ("steps_per_second", "samples_per_second")
# Keys whose values are random ids of runs: they become run-1, run-2, ..., so that equal ones stay equal.
IDS = ("run", "run_id", "parent")


def masked(value, ids=None):
    """The value without times and speeds; floats stay exact, as JSON writes all their digits."""
    ids = {} if ids is None else ids
    if isinstance(value, dict):
        found = {}
        for key, inner in value.items():
            if key in LEFT_OUT:
                continue
            if MASKED.fullmatch(str(key)):
                inner = "masked"
            elif key in IDS and isinstance(inner, str):
                inner = ids.setdefault(inner, f"run-{len(ids) + 1}")
            found[str(key)] = masked(inner, ids)
        return found
    if isinstance(value, (list, tuple)):
        return [masked(inner, ids) for inner in value]
    if isinstance(value, float) and value != value:
        return "nan"
    return value if isinstance(value, (int, float, str, bool, type(None))) else repr(value)


def read_all(folder):
    """{relative path: facts} of every file below a folder: the hash of its bytes, or, of JSON with something to mask,
    of what is left; for JSON also the contents, so that a difference can be shown."""
    ids, found = {}, {}
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file():
            found[path.relative_to(folder).as_posix()] = _facts(path, ids)
    return found


def _facts(path, ids):
    data = path.read_bytes()
    if path.suffix not in (".json", ".jsonl"):
        return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    contents = [json.loads(line) for line in data.splitlines()] if path.suffix == ".jsonl" else json.loads(data)
    if path.name == "manifest.json":
        contents["files"] = {name: _is_right(path.parent / name, facts) for name, facts in contents["files"].items()}
    rest = masked(contents, ids)
    return {
        "json": rest,
        "sha256": hashlib.sha256(data if rest == contents else json.dumps(rest).encode()).hexdigest(),
    }


def _is_right(path, facts):
    """Whether the manifest tells the truth of a file, whose hash may follow from values that are masked."""
    data = path.read_bytes()
    return facts == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
