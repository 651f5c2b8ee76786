"""Rows of a task: the columns that have a role in it, checked, and divided into rows to train and rows to evaluate."""

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import ArgumentError, DataError
from ..formats.terminal import printable
from ..secrets import clean_text
from .files import Found, find_all
from .roles import ROLES, BadValueError

BAD_ROWS = ("stop", "skip")
_SHOWN = 5  # bad rows that a message lists
# Roles that are no input: rows that differ only in these stay together in a split.
TARGETS = ("label", "labels", "number", "tags", "completion", "target", "chosen", "rejected")

Row = TypeVar("Row", bound=Mapping[str, Any])


def read_rows(
    files: str | Sequence[str],
    columns: Mapping[str, str],
    bad_rows: str = "stop",
    labels: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """The rows of data files, as dicts from role to value.

    Args:
        files: JSONL, JSON, CSV, TSV, Parquet or text files, or folders of them.
        columns: The name of the column for each role, such as `{"text": "review", "label": "sentiment"}`.
        bad_rows: What to do about rows that cannot be used: "stop" with an error that names them, or "skip" them.
        labels: The labels that a row may have; None: any.
    """
    found = find_all([files] if isinstance(files, str) else files)
    return select(found, columns, bad_rows, labels).rows


@dataclass(frozen=True)
class Selected:
    """Rows with their places in the files, and the number of those that were left out."""

    rows: list[dict[str, Any]]
    places: list[Found]
    left_out: int


def select(
    found: Sequence[Found],
    columns: Mapping[str, str],
    bad_rows: str = "stop",
    labels: Sequence[str] | None = None,
    optional: Iterable[str] = (),
) -> Selected:
    """The rows that can be used. Those that cannot are an error, or are left out and listed on stderr. Roles in
    `optional` may be missing in a row."""
    if bad_rows not in BAD_ROWS:
        raise ArgumentError(f"Invalid bad_rows={bad_rows!r}: expected one of {', '.join(BAD_ROWS)}.")
    rows, places, bad = [], [], []
    known = None if labels is None else frozenset(labels)
    for each in found:
        try:
            if each.row is None:
                raise BadValueError(each.problem)
            rows.append(_row(each.row, columns, known, frozenset(optional)))
            places.append(each)
        except BadValueError as error:
            bad.append(f"{each.place}: {error}")
    if bad:
        _report(bad, len(found), bad_rows)
    if not rows:
        raise DataError(f"none of the {len(found)} rows can be used. The first: {bad[0]}.")
    return Selected(rows, places, len(bad))


def _row(
    given: Mapping[str, Any], columns: Mapping[str, str], labels: frozenset[str] | None, optional: frozenset[str]
) -> dict[str, Any]:
    row = {}
    for role, column in columns.items():
        if given.get(column) is None:
            if role in optional:
                continue
            raise BadValueError(f"it has no {column!r}")
        try:
            row[role] = ROLES[role].convert(given[column])
        except BadValueError as error:
            raise BadValueError(f"{column!r}: {error}") from None
    if "words" in row and "tags" in row and len(row["words"]) != len(row["tags"]):
        raise BadValueError(f"it has {len(row['words'])} words, but {len(row['tags'])} tags")
    if labels is not None:
        unknown = [each for each in labels_of(row) if each not in labels]
        if unknown:
            raise BadValueError(f"its label {unknown[0]!r} is not one of the labels of the recipe")
    return row


def labels_of(row: Mapping[str, Any]) -> list[str]:
    """The labels, or tags, of a row."""
    return [row["label"]] if "label" in row else row.get("labels", row.get("tags", []))


def _report(bad: Sequence[str], total: int, bad_rows: str) -> None:
    more = f"\n  and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    listed = "".join(f"\n  {each}" for each in bad[:_SHOWN]) + more
    if bad_rows == "stop":
        raise DataError(
            f"{len(bad)} of {total} rows cannot be used:{listed}\nCorrect them, or skip them with `bad_rows: skip` "
            f"in the recipe or `--bad_rows skip`."
        )
    print(printable(clean_text(f"{len(bad)} of {total} rows are skipped:{listed}")), file=sys.stderr)


def split_rows(rows: Sequence[Row], fraction: float) -> tuple[list[Row], list[Row]]:
    """(rows to train, rows to evaluate): about `fraction` of the rows are for evaluation, chosen by a hash of their
    inputs. A row stays on its side when others are added, and equal inputs are never on both."""
    if not 0 <= fraction < 1:
        raise ArgumentError(f"Invalid eval_split={fraction}: expected a fraction from 0 to below 1.")
    if not fraction:
        return list(rows), []
    keys = [_key(row) for row in rows]
    if len(set(keys)) < 2:
        raise DataError(
            "the rows cannot be divided, since all have the same input. Add rows, name eval_data, or set eval_split: 0."
        )
    limit = int(fraction * (1 << 64))
    # With few rows, the nearest to the limit is on the side that would be empty.
    limit = min(max(limit, min(keys) + 1), max(keys))
    sides = [key < limit for key in keys]
    return (
        [row for row, held_out in zip(rows, sides) if not held_out],
        [row for row, held_out in zip(rows, sides) if held_out],
    )


def _key(row: Mapping[str, Any]) -> int:
    inputs = {role: value for role, value in row.items() if role not in TARGETS}
    text = json.dumps(inputs, sort_keys=True, ensure_ascii=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
