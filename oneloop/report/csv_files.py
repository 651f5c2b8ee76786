"""The curves of a run and the table of several runs as CSV, for spreadsheets and other programs."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from ..arguments.evaluation import higher_is_better
from .log_reader import Directory

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # with which spreadsheets take a text for a formula


def csv_text(rows: Iterable[str]) -> str:
    return "".join(f"{row}\r\n" for row in rows)


def csv_head(names: Sequence[str], metrics: Sequence[str]) -> str:
    """The titles of the table of runs."""
    of_metrics = [f"{key}, {what}" for key in metrics for what in ("last", _best(key), f"step of the {_best(key)}")]
    return _line(["run", "status", "step", *names, *of_metrics])


def csv_row(run: dict[str, Any], values: Sequence[str], metrics: Sequence[str]) -> str:
    """A run in it, with all digits."""
    found: list[Any] = [run["name"], run["status"], run["step"], *values]
    for key in metrics:
        best = run["best"].get(key) or ("", "")
        found += [run["last"].get(key, ""), *best]
    return _line(found)


def curves_as_csv(directory: Directory, limit: int) -> str:
    """Every value that a run logged, a row for each step."""
    curves = directory.curves(limit)
    rows: dict[float, dict[str, float]] = {}
    for key, (steps, values) in curves.items():
        for step, value in zip(steps.tolist(), values.tolist()):
            rows.setdefault(step, {})[key] = value
    body = (_line([step, *(rows[step].get(key, "") for key in curves)]) for step in sorted(rows))
    return csv_text([_line(["step", *curves]), *body])


def _best(key: str) -> str:
    return "highest" if higher_is_better(key) else "lowest"


def _line(values: Iterable[Any]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerow([_cell(value) for value in values])  # it quotes these two in cells
    return text.getvalue().removesuffix("\r\n")


def _cell(value: Any) -> str:
    """A number as it is; a text that a spreadsheet would calculate begins with an apostrophe."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    text = str(value)
    return f"'{text}" if text.startswith(_FORMULA) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
