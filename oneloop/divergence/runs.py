"""Reads the recordings of two runs from their output directories, and compares them."""

import json
from collections.abc import Mapping
from pathlib import Path

from ..backends._common.helpers import preview
from ..errors import ArgumentError, CheckpointError
from ..formats import digests, trace_file
from ..formats.reading import read_json
from ..formats.schema import check, mapping, text
from ..formats.trace_file import Trace
from .comparison import Comparison, compare


def read_run(folder: Path) -> tuple[list[Trace], list[str]]:
    """The recorded steps of the last run in an output directory, and notes on what was left out."""
    steps = trace_file.steps_in(folder)
    if not steps:
        raise CheckpointError(
            f"{folder} has no recording. Train with trace_steps, such as trace_steps='0-2', and compare the output "
            "directories."
        )
    traces = [trace_file.read(trace_file.path_of(folder, step), digests.VERSION) for step in steps]
    newest = max(traces, key=lambda trace: trace_file.path_of(folder, trace.step).stat().st_mtime_ns).run
    left_out = [trace.step for trace in traces if trace.run != newest]
    notes = [f"{folder}: steps {left_out} were recorded by another run, and are ignored."] if left_out else []
    return [trace for trace in traces if trace.run == newest], notes


def compare_runs(a: Path, b: Path, mapping: Mapping[str, str] | None = None) -> Comparison:
    """Compare what two runs have recorded. `mapping`: names of A, or their beginnings, to those of B."""
    (ours, notes), (theirs, more) = read_run(a), read_run(b)
    found = compare(ours, theirs, (str(a), str(b)), mapping)
    if not found.steps:
        raise CheckpointError(
            f"no step was recorded in both runs: {a} has {[trace.step for trace in ours]}, {b} has "
            f"{[trace.step for trace in theirs]}. Record the same steps (trace_steps)."
        )
    if found.first is None and not found.agreed.get("weights"):
        raise CheckpointError(
            f"nothing was compared but the data: no parameter of {a} has the name of one of {b}. {_names(found)}Give "
            "--map NAME_IN_A=NAME_IN_B, or mapping."
        )
    found.notes.extend(notes + more)
    return found


def _names(found: Comparison) -> str:
    return "".join(f"{name} has {preview(only)}. " for name, only in zip("AB", found.only, strict=True) if only)


def read_mapping(given: list[str]) -> dict[str, str]:
    """From NAME_IN_A=NAME_IN_B, or from a JSON file with an object."""
    found: dict[str, str] = {}
    for word in given:
        ours, sign, theirs = word.partition("=")
        if sign and ours and theirs:
            found[ours] = theirs
        elif Path(word).is_file():
            found |= check(read_json(Path(word), 1 << 24), mapping(text()), word)
        else:
            raise ArgumentError(f"--map {word}: expected NAME_IN_A=NAME_IN_B, or a JSON file with such pairs")
    return found


def to_json(found: Comparison) -> str:
    from .report import to_dict

    return json.dumps(to_dict(found), indent=2)
