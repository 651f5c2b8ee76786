"""Plays the tiny runs on a commit and on the working tree, and compares what they did.

    python -m tests.compare.compare COMMIT [-k WORD] [--jobs N] [--keep FOLDER]

One line a run: equal, or the first difference of each field. The exit status is 1 when anything differs that
explained.py does not explain, or when a run could not be played.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
FRAMEWORKS = ("torch", "paddle", "mindspore")
SHOWN = ("texts", "seconds", "oneloop")  # kept in a record to be shown, not compared
SHORT = 100  # characters of a value in a line


# -- differences


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, value, value) of every leaf that differs, in order."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from differences(old.get(key, "missing"), new.get(key, "missing"), f"{path}.{key}" if path else key)
    elif isinstance(old, list) and isinstance(new, list):
        for i, (left, right) in enumerate(zip(old, new)):
            yield from differences(left, right, f"{path}[{i}]")
        if len(old) != len(new):
            yield f"{path}[{min(len(old), len(new))}:]", f"{len(old)} in all", f"{len(new)} in all"
    elif type(old) is not type(new) or old != new:
        yield path, old, new


def split_off_arguments(old: dict, new: dict) -> tuple[dict, list[str]]:
    """The files of `new` without the arguments that `old` does not have, and the names of these."""
    files, names = dict(new), set()
    for path in [path for path in old if path.endswith(("training_args.json", "run.jsonl")) and path in new]:
        left, right = old[path]["json"], new[path]["json"]
        is_log = isinstance(left, list)
        pairs = zip([each.get("arguments") for each in left], right) if is_log else [(left, {"arguments": right})]
        added: set[str] = set()
        for known, entry in pairs:
            if isinstance(known, dict) and isinstance(entry.get("arguments"), dict):
                added |= entry["arguments"].keys() - known.keys()
        if not added:
            continue
        names |= added
        rest: Any = _without(right, added) if not is_log else [_without_arguments(entry, added) for entry in right]
        files[path] = old[path] if rest == left else {**new[path], "json": rest}
    return files, sorted(names)


def _without(values: dict, names: set[str]) -> dict:
    return {key: value for key, value in values.items() if key not in names}


def _without_arguments(entry: dict, names: set[str]) -> dict:
    return {**entry, "arguments": _without(entry["arguments"], names)} if entry.get("arguments") else entry


def by_field(old: dict, new: dict) -> dict[str, list[tuple[str, Any, Any]]]:
    """The differences of two records under the field that they belong to."""
    found: dict[str, list[tuple[str, Any, Any]]] = {}
    files, names = split_off_arguments(old.get("files", {}), new.get("files", {}))
    if names:
        found["new arguments"] = [(name, "missing", "declared") for name in names]
        new = {**new, "files": files}

    def compare(left: dict, right: dict, place: str) -> None:
        for field in [*left, *(field for field in right if field not in left)]:
            if field in SHOWN or field == "phases":
                continue
            for path, *values in differences(left.get(field, "missing"), right.get(field, "missing")):
                found.setdefault(field, []).append((f"{place}{path}", *values))

    compare(old, new, "")
    for i, (left, right) in enumerate(zip(old["phases"], new["phases"])):
        for rank, (one, other) in enumerate(zip(left, right)):
            several = (f"phase {i} " if len(old["phases"]) > 1 else "") + (f"rank {rank} " if len(left) > 1 else "")
            compare(one, other, several)
    return found


def broken(record: dict | None) -> str | None:
    """Why a record says nothing: the run was not played to its end. Errors that a run expects are no such thing."""
    if record is None:
        return "no record was written"
    for ranks in record["phases"]:
        for found in ranks:
            if found["error"] or found["exit"]:
                words = found.get("texts") or [""]
                return f"{found['error']}, exit status {found['exit']}: {words[-1].strip().splitlines()[-1:]}"
    return None


def shortened(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= SHORT else f"{text[:SHORT]}..."


def verdict(name: str, old: dict | None, new: dict | None, explained: list) -> tuple[bool, list[str]]:
    """(whether all is well, lines about a run)."""
    why = {"commit": broken(old), "working tree": broken(new)}
    if any(why.values()):
        words = [f"         on the {side}: {reason}" for side, reason in why.items() if reason]
        return False, [f"BROKEN   {name}", *words]
    assert old is not None and new is not None
    found = by_field(old, new)
    if not found:
        return True, [f"equal    {name}"]
    good, lines = True, []
    for field, every in found.items():
        path, left, right = every[0]
        more = f" and {len(every) - 1} more" if len(every) > 1 else ""
        reason = next((why for runs, fields, why in explained if fnmatch(name, runs) and fnmatch(field, fields)), None)
        good = good and reason is not None
        head = "differs" if reason is None else f"differs, explained: {reason}:"
        lines.append(f"         {head} {field}: {path}: {shortened(left)} -> {shortened(right)}{more}")
    return good, [f"{'differs ' if good else 'DIFFERS '} {name}", *lines]


# -- the runs


def play(tree: Path, framework: str, names: list[str], folder: Path) -> None:
    """Play runs with the oneloop of a tree; the records are in the folder then."""
    folder.mkdir(parents=True, exist_ok=True)
    given = {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"}
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"} | given
    command = [sys.executable, str(FOLDER / "probe.py"), framework, str(folder), *names]
    child = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if child.returncode:
        print(f"{framework}: exit status {child.returncode}\n{child.stdout}", file=sys.stderr)


def read(folder: Path, name: str, tree: Path) -> dict | None:
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    record = json.loads(path.read_text())
    if Path(record["oneloop"]).resolve() != (tree / "oneloop").resolve():
        raise SystemExit(f"{name} was played with {record['oneloop']}, not with the oneloop of {tree}")
    return record


def names_of(word: str) -> list[str]:
    """The names of all runs that have the word in them."""
    listing = [sys.executable, "-c", "import tiny_runs; print(*tiny_runs.RUNS)"]
    every = subprocess.run(listing, cwd=FOLDER, check=True, capture_output=True, text=True).stdout.split()
    return [name for name in every if word in name]


@contextlib.contextmanager
def worktree(commit: str, folder: Path) -> Iterator[Path]:
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), commit], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def compare(old_tree: Path, new_tree: Path, names: list[str], folder: Path, jobs: int, explained: list) -> bool:
    """Play the runs on both trees and say what differs; whether all is well."""
    # Folders with names of the same length: processes broadcast paths, and the bytes are compared.
    sides = {"old": old_tree, "new": new_tree}
    with ThreadPoolExecutor(jobs) as pool:
        started = []
        for framework in FRAMEWORKS:
            own = [name for name in names if name.startswith(f"{framework}-")]
            started += [pool.submit(play, tree, framework, own, folder / side) for side, tree in sides.items() if own]
        for each in started:
            each.result()
    good = []
    for name in names:
        well, lines = verdict(name, *(read(folder / side, name, tree) for side, tree in sides.items()), explained)
        good.append(well)
        print("\n".join(lines))
    print(f"{len(good)} runs, {good.count(False)} with differences that are not explained")
    return all(good)


def main() -> int:
    from tests.compare.explained import EXPLAINED

    parser = argparse.ArgumentParser(description="Compare tiny runs of a commit with those of the working tree.")
    parser.add_argument("commit")
    parser.add_argument("-k", default="", metavar="WORD", help="only runs with this word in their name")
    parser.add_argument("--jobs", type=int, default=2, help="interpreters at a time (default: 2)")
    parser.add_argument("--keep", metavar="FOLDER", help="keep records, files and output of the runs there")
    given = parser.parse_args()
    names = names_of(given.k)
    if not names:
        parser.error(f"no run has {given.k!r} in its name")
    with tempfile.TemporaryDirectory() as place, worktree(given.commit, Path(place) / "tree") as tree:
        folder = Path(given.keep or place).resolve() / "runs"
        return 0 if compare(tree, ROOT, names, folder, given.jobs, EXPLAINED) else 1


if __name__ == "__main__":
    sys.exit(main())
