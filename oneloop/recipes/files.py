"""Rows of data files: JSONL, JSON, CSV, TSV and text by the standard library, others by optional packages.

A file may be damaged, or made by somebody else. A row that cannot be read does not end the reading: it is found with
the reason, and the caller decides.
"""

import csv
import errno
import importlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, DataError, MissingPackageError
from ..formats.reading import open_file

LONGEST_ROW = 1 << 24  # bytes of a line
LARGEST_JSON = 1 << 30  # bytes of a file that is one JSON array, which is read as a whole
MOST_FILES = 1_000_000  # in a folder


@dataclass(frozen=True)
class Found:
    """A row of a file, or why there is none."""

    file: str
    line: int  # from 1 on; of a JSON array, of Parquet and of `datasets` the number of the row; 0: the whole file
    row: dict[str, Any] | None
    problem: str = ""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


def find(path: str) -> Iterator[Found]:
    """The rows of a file or of all files of a folder, in their order."""
    given = Path(path)
    if given.is_dir():
        yield from _rows_of_folder(given)
        return
    reader = READERS.get(given.suffix.lower())
    if reader is None:
        raise ArgumentError(
            f"{path}: unknown kind of data file {given.suffix or '(no suffix)'!r}. Known: {', '.join(READERS)}, or a "
            "folder of such files."
        )
    if not os.path.lexists(given):
        raise DataError(f"there is no data file {path} (looked for in {Path.cwd()}). Correct the path.")
    try:
        yield from reader(given)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {_reason(error)}.") from error


def _reason(error: OSError) -> str:
    return str(error.strerror or error) if error.errno != errno.EISDIR else "it is a directory"


def _rows_of_folder(folder: Path) -> Iterator[Found]:
    """A folder that `datasets` has written, text files (in folders that are their labels, or not), or data files of
    one kind."""
    if (folder / "dataset_info.json").exists() or (folder / "dataset_dict.json").exists():
        yield from _saved_dataset(folder)
        return
    files = sorted(_files_below(folder))
    kinds = sorted({file.suffix.lower() for file in files} & set(READERS))
    if len(kinds) != 1:
        what = f"files of several kinds ({', '.join(kinds)})" if kinds else "no data files"
        raise DataError(
            f"the folder {folder} has {what}; expected one of {', '.join(READERS)}. Name the files instead."
        )
    for file in files:
        if file.suffix.lower() not in READERS:
            continue
        label = {"label": file.parent.name} if kinds == [".txt"] and file.parent != folder else {}
        for found in find(str(file)):
            yield Found(found.file, found.line, found.row and {**found.row, **label}, found.problem)


def _files_below(folder: Path) -> list[Path]:
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(place, name) for name in names if not name.startswith(".")]
        if len(found) > MOST_FILES:
            raise DataError(f"the folder {folder} has more than {MOST_FILES} files. Put the rows into fewer files.")
    return found


# -- JSON


def _json_lines(path: Path) -> Iterator[Found]:
    with open_file(path) as f:
        number = 0
        while line := f.readline(LONGEST_ROW):
            number += 1
            if len(line) == LONGEST_ROW and not line.endswith(b"\n"):
                while (rest := f.readline(LONGEST_ROW)) and not rest.endswith(b"\n"):
                    pass
                yield Found(str(path), number, None, f"the line has more than {LONGEST_ROW} bytes")
            elif line.strip():
                yield _parsed(str(path), number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)


def _parsed(file: str, number: int, line: bytes) -> Found:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        return Found(file, number, None, "it is not UTF-8")
    except RecursionError:
        return Found(file, number, None, "it is nested too deeply")
    except ValueError as error:
        return Found(file, number, None, f"it is not valid JSON ({error})")
    return _as_row(file, number, row)


def _as_row(file: str, number: int, row: Any) -> Found:
    if isinstance(row, dict):
        return Found(file, number, row)
    return Found(file, number, None, f"expected a JSON object, found {type(row).__name__}")


def _json(path: Path) -> Iterator[Found]:
    """A file with one array of objects, or with an object in each line."""
    with open_file(path) as f:
        start = f.read(64).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
        if start == b"[":
            size = os.fstat(f.fileno()).st_size
            if size > LARGEST_JSON:
                raise DataError(
                    f"{path} has {size} bytes; an array is read as a whole, up to {LARGEST_JSON}. Write one object per "
                    "line (JSONL)."
                )
            f.seek(0)
            whole = f.read(LARGEST_JSON + 1)
    if start != b"[":
        yield from _json_lines(path)
        return
    try:
        rows = json.loads(whole.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON: {error or 'it is nested too deeply'}. Correct the file.") from error
    for number, row in enumerate(rows, 1):
        yield _as_row(str(path), number, row)


# -- tables


def _table(separator: str) -> Callable[[Path], Iterator[Found]]:
    def read(path: Path) -> Iterator[Found]:
        with open_file(path) as binary:
            # Bytes that are not UTF-8 stay visible as surrogates, so that only their rows are bad.
            text = io.TextIOWrapper(binary, "utf-8-sig", errors="surrogateescape", newline="")
            yield from _rows_of_table(str(path), csv.reader(text, delimiter=separator, strict=True))

    return read


def _rows_of_table(file: str, reader: Any) -> Iterator[Found]:
    csv.field_size_limit(LONGEST_ROW)
    try:
        head = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise DataError(f"{file}: the first line is not a list of columns ({error}). Correct the file.") from error
    if not head or not all(head) or len(set(head)) < len(head):
        raise DataError(
            f"{file}: the first line has to name the columns, each once; it is {_short(','.join(head))}. Add one."
        )
    while True:
        start = reader.line_num + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            yield Found(file, start, None, f"it is not a valid row ({error})")
            continue
        if fields is None:
            return
        if not fields:  # an empty line
            continue
        if len(fields) != len(head):
            yield Found(file, start, None, f"it has {len(fields)} fields; the first line names {len(head)} columns")
        else:
            yield Found(file, start, dict(zip(head, fields)))


def _text(path: Path) -> Iterator[Found]:
    with open_file(path) as f:
        data = f.read(LARGEST_JSON + 1)
    if len(data) > LARGEST_JSON:
        raise DataError(f"{path} is one text of more than {LARGEST_JSON} bytes. Divide it into several files.")
    try:
        yield Found(str(path), 0, {"text": data.decode("utf-8-sig")})
    except UnicodeDecodeError:
        yield Found(str(path), 0, None, "it is not UTF-8")


# -- by other packages


def package(name: str, why: str, install: str = "") -> Any:
    """An optional package, or an error with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise _missing(install or name, why) from error


def require(name: str, why: str) -> None:
    """Raise the same error for a package that is not installed, without importing it."""
    try:
        found = find_spec(name) is not None
    except ValueError:
        found = False
    if not found:
        raise _missing(name, why)


def _missing(name: str, why: str) -> MissingPackageError:
    return MissingPackageError(f"{why} requires the package {name}, which is not installed. Run `pip install {name}`.")


def _parquet(path: Path) -> Iterator[Found]:
    parquet = package("pyarrow.parquet", f"reading {path}", "pyarrow")
    try:
        with open_file(path) as f:
            number = 0
            for batch in parquet.ParquetFile(f).iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield Found(str(path), number, row)
    except OSError:
        raise
    except Exception as error:  # pyarrow has its own for each kind of damage
        raise DataError(f"{path} is not a Parquet file that can be read: {_short(str(error))}.") from error


def _saved_dataset(folder: Path) -> Iterator[Found]:
    datasets = package("datasets", f"reading the folder {folder}")
    try:
        data = datasets.load_from_disk(str(folder))
        if hasattr(data, "column_names") and isinstance(data.column_names, dict):
            raise DataError(
                f"{folder} has the splits {', '.join(sorted(data))}. Name one, as in {folder / next(iter(data))}; "
                f"another one can be eval_data."
            )
        for number in range(len(data)):
            yield Found(str(folder), number + 1, dict(data[number]))
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{folder} is not a dataset that can be read: {_short(str(error))}.") from error


def _short(text: str) -> str:
    return repr(text if len(text) <= 200 else text[:200] + "…")


READERS: dict[str, Callable[[Path], Iterator[Found]]] = {
    ".jsonl": _json_lines,
    ".json": _json,
    ".csv": _table(","),
    ".tsv": _table("\t"),
    ".parquet": _parquet,
    ".txt": _text,
}


def find_all(paths: Iterable[str]) -> list[Found]:
    """The rows of several files or folders; at least one."""
    found = [each for path in paths for each in find(path)]
    if not found:
        raise DataError(f"{', '.join(paths)}: no rows. Training needs at least one.")
    return found
