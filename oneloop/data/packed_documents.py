"""Packing: the documents of a dataset in rows of a fixed number of tokens.

Terms: a document is a sample of the dataset, with its tokens in `input_ids`. A piece is a run of tokens of a document:
(document, start, stop). A pack is a list of pieces with at most `width` tokens, and becomes a row of a batch. A pass
goes through every document once.

Which pieces are in a pack is a function of the lengths of the documents, the seed, the pass and the number of the pack.
So packs are samples like others: the same for any number of processes and workers, and a run resumes in the middle of a
document without reading what came before it. Every pass has the same number of packs; those of pass p are numbered from
p * packs on.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ..errors import DataError, a_type
from .collators.base import to_numpy
from .feistel import key_of, permute
from .order import Order
from .samples import fetch_samples

IGNORED = -100  # the label of the first token of a piece: nothing before it predicts it
KEPT = 2  # passes in memory
# Columns that packing makes to keep documents apart; what they contain is in collators/packs.py.
POSITIONS, DOCUMENTS, MASK = "position_ids", "document_ids", "attention_mask"
ROW_INDICES, SEQUENCE_LENGTHS = "attn_mask_startend_row_indices", "cu_seq_lens_q"
MADE = (POSITIONS, DOCUMENTS, MASK, ROW_INDICES, SEQUENCE_LENGTHS)
_DOCUMENTS = -3  # separates the keys that shuffle documents from those that shuffle samples

Piece = tuple[int, int, int]
Columns = dict[str, np.ndarray]  # of tokens


class Layout:
    """The packs of the documents of one dataset."""

    packs: int  # in a pass

    def __init__(self, lengths: np.ndarray, width: int, seed: int = 0, source: int = 0, shuffle: bool = True) -> None:
        self.lengths = np.asarray(lengths, np.int64)
        self.width = width
        self.key = key_of(seed, _DOCUMENTS, source)
        self.shuffle = shuffle
        self.tokens = int(self.lengths.sum())
        self._passes: OrderedDict[int, Any] = OrderedDict()

    def pieces(self, number: int) -> list[Piece]:
        """The pieces of a pack; numbers beyond the first pass are those of later passes."""
        number_of_pass, place = divmod(number, self.packs)
        if number_of_pass not in self._passes:
            self._passes[number_of_pass] = self._lay(self._documents(number_of_pass))
            if len(self._passes) > KEPT:
                self._passes.popitem(last=False)
        return self._pieces(self._passes[number_of_pass], place)

    def _documents(self, number_of_pass: int) -> np.ndarray:
        """The documents in the order of a pass."""
        documents = np.arange(len(self.lengths), dtype=np.int64)
        return permute(documents, len(documents), self.key, number_of_pass) if self.shuffle else documents

    def _lay(self, documents: np.ndarray) -> Any:
        """What is kept of a pass."""
        raise NotImplementedError

    def _pieces(self, laid: Any, place: int) -> list[Piece]:
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_passes": OrderedDict()}


class EndToEnd(Layout):
    """The documents of a pass one after the other, cut wherever a pack is full. Only the last pack may be short."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.packs = -(-self.tokens // self.width)

    def _lay(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return documents, np.cumsum(self.lengths[documents])

    def _pieces(self, laid: tuple[np.ndarray, np.ndarray], place: int) -> list[Piece]:
        documents, ends = laid
        begin = place * self.width
        end = min(begin + self.width, self.tokens)
        first, last = int(ends.searchsorted(begin, side="right")), int(ends.searchsorted(end))
        pieces = []
        start = int(ends[first - 1]) if first else 0
        for document, stop in zip(documents[first : last + 1].tolist(), ends[first : last + 1].tolist()):
            if stop > start:
                pieces.append((document, max(begin, start) - start, min(end, stop) - start))
            start = stop
        return pieces


class BestFit(Layout):
    """Whole documents, the longest first, each in the pack with the least room that is enough for it.

    Documents longer than a pack are cut into whole packs and a rest. How many packs there are, and which lengths are in
    each, depends on the lengths alone; which document of a length it is, on the pass.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        whole, self.rests = np.divmod(self.lengths, self.width)
        self.whole_ends = np.cumsum(whole)  # packs that are filled by one document
        self.filled = int(self.whole_ends[-1])
        ranked = np.sort(self.rests[self.rests > 0], kind="stable")[::-1]
        bins = best_fit(ranked, self.width)
        self.slots = np.argsort(bins, kind="stable")  # ranks by pack
        self.starts = np.concatenate(([0], np.cumsum(np.bincount(bins)))) if len(bins) else np.zeros(1, np.int64)
        self.packs = self.filled + len(self.starts) - 1

    def _lay(self, documents: np.ndarray) -> np.ndarray:
        """The documents by rank: those with the longest rests first, in the order of the pass among equals."""
        documents = documents[self.rests[documents] > 0]
        return documents[np.argsort(-self.rests[documents], kind="stable")]

    def _pieces(self, laid: np.ndarray, place: int) -> list[Piece]:
        if place < self.filled:
            document = int(np.searchsorted(self.whole_ends, place, side="right"))
            before = int(self.whole_ends[document - 1]) if document else 0
            start = (place - before) * self.width
            return [(document, start, start + self.width)]
        number = place - self.filled
        documents = laid[self.slots[self.starts[number] : self.starts[number + 1]]]
        ends = self.lengths[documents]
        starts = ends - self.rests[documents]
        return list(zip(documents.tolist(), starts.tolist(), ends.tolist()))


class Unpacked(Layout):
    """Each document alone in its row, whole and in the order of the data."""

    def __init__(self, lengths: np.ndarray) -> None:
        super().__init__(lengths, int(lengths.max(initial=0)), shuffle=False)
        self.packs = len(lengths)

    def _lay(self, documents: np.ndarray) -> None:
        return None

    def _pieces(self, laid: None, place: int) -> list[Piece]:
        return [(place, 0, int(self.lengths[place]))]


LAYOUTS: dict[str, type[Layout]] = {"end_to_end": EndToEnd, "best_fit": BestFit, "wrapped": EndToEnd}


def best_fit(ranked: np.ndarray, width: int) -> np.ndarray:
    """The bin of each length; lengths are in descending order, 1 to width.

    A document goes into the bin with the least room that is enough for it. What room is left there is less, so the next
    document of that length goes into the same bin as long as it fits. So all bins with the same room are filled at
    once, and the time depends on the number of different lengths.
    """
    bins = np.empty(len(ranked), np.int64)
    open_bins: dict[int, list[np.ndarray]] = {}  # by room
    rooms: list[int] = []  # in ascending order
    opened = 0
    values, begins = np.unique(-ranked, return_index=True)
    for length, begin, end in zip((-values).tolist(), begins.tolist(), [*begins[1:].tolist(), len(ranked)]):
        while begin < end:
            at = _at_least(rooms, length)
            if at < len(rooms):
                room = rooms[at]
                free = np.concatenate(open_bins.pop(room))
                del rooms[at]
            else:
                room = width
                each = width // length
                free = np.arange(opened, opened - (-(end - begin) // each))
                opened += len(free)
            each = room // length
            taken = min(len(free), -(-(end - begin) // each))
            count = min(end - begin, taken * each)
            bins[begin : begin + count] = np.repeat(free[:taken], each)[:count]
            begin += count
            full = taken if count == taken * each else taken - 1
            for left, some in (
                (room, free[taken:]),
                (room - each * length, free[:full]),
                (room - (count - full * each) * length, free[full:taken]),
            ):
                if left and len(some):
                    if left not in open_bins:
                        rooms.insert(_at_least(rooms, left), left)
                        open_bins[left] = []
                    open_bins[left].append(some)
    return bins


def _at_least(rooms: list[int], length: int) -> int:
    return bisect_right(rooms, length - 1)


class PackOrder(Order):
    """The packs of one epoch; each epoch is a pass."""

    def at(self, positions: np.ndarray) -> np.ndarray:
        return super().at(positions) + self.epoch * self.length


class PackedDocuments:
    """A map-style dataset of packs over a dataset of documents.

    Args:
        dataset: The documents.
        layouts: One for each source; the documents of the dataset are those of one source after the other.
        sources: The datasets of the sources; None: their documents are read from the dataset.
        extra: Columns with one value per token that are packed as well, in addition to input_ids and labels.
        keeps_first_label: Whether the first label of a piece is kept, for models that compare position i with label i.
        joins: Whether the pieces of a row are one document.
    """

    def __init__(
        self,
        dataset: Any,
        layouts: Sequence[Layout],
        extra: Sequence[str] = (),
        keeps_first_label: bool = False,
        sources: Sequence[Any] | None = None,
        joins_pieces: bool = False,
    ) -> None:
        self.dataset = dataset
        self.sources = None if sources is None else list(sources)
        self.layouts = list(layouts)
        self.extra = tuple(extra)
        self.keeps_first_label = keeps_first_label
        self.joins_pieces = joins_pieces
        self.sizes = [layout.packs for layout in self.layouts]
        self._ends = list(accumulate(self.sizes))
        self._firsts = [0, *accumulate(len(layout.lengths) for layout in self.layouts)]

    def __len__(self) -> int:
        return self._ends[-1]

    @property
    def fill(self) -> float:
        """The share of the rows that is text."""
        room = sum(layout.packs * layout.width for layout in self.layouts)
        return sum(layout.tokens for layout in self.layouts) / max(1, room)

    def source_of(self, number: int) -> int:
        """The number of the source that a pack is from."""
        return bisect_right(self._ends, number % len(self))

    def pieces(self, number: int) -> list[Piece]:
        """The pieces of a pack, with the documents as numbered in the dataset."""
        number_of_pass, place = divmod(number, len(self))
        source = bisect_right(self._ends, place)
        packs, first = self.sizes[source], self._firsts[source]
        of_source = number_of_pass * packs + place - (self._ends[source] - packs)
        return [(first + document, start, stop) for document, start, stop in self.layouts[source].pieces(of_source)]

    def __getitem__(self, number: int) -> Columns:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Columns]:
        of_packs = [self.pieces(int(number)) for number in numbers]
        documents = self._fetch(sorted({document for pieces in of_packs for document, _, _ in pieces}))
        cuts = ([cut(documents[document], start, stop) for document, start, stop in pieces] for pieces in of_packs)
        return [pack_of(pieces, self.keeps_first_label, self.joins_pieces) for pieces in cuts]

    def _fetch(self, wanted: list[int]) -> dict[int, Columns]:
        """Documents by number, which are given in ascending order."""
        samples = []
        if self.sources is None:
            samples = fetch_samples(self.dataset, wanted)
        else:
            borders = np.searchsorted(wanted, self._firsts).tolist()
            for data, first, begin, end in zip(self.sources, self._firsts, borders, borders[1:]):
                samples += fetch_samples(data, [document - first for document in wanted[begin:end]])
        found = {}
        for document, sample in zip(wanted, samples):
            found[document] = columns = token_columns(sample, self.extra, f"document {document}")
            self._check_length(document, len(columns["input_ids"]))
        return found

    def _check_length(self, document: int, length: int) -> None:
        source = bisect_right(self._firsts, document) - 1
        expected = int(self.layouts[source].lengths[document - self._firsts[source]])
        if length != expected:
            raise DataError(
                f"document {document} has {length} tokens, but {expected} when its length was measured. Packing needs "
                "documents of fixed lengths: tokenize them beforehand, or correct the column of lengths."
            )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)


# -- documents and packs as columns of tokens


def extra_columns(sample: Any, accepted: Sequence[str]) -> list[str]:
    """Columns with one value per token that the model accepts, besides tokens, labels and what packing makes."""
    if not isinstance(sample, Mapping) or "input_ids" not in sample:
        return []
    made = ("input_ids", "labels", *MADE)
    found = [(name, value) for name, value in sample.items() if name in accepted and name not in made]
    return [name for name, value in found if np.ndim(value) == 1 and len(value) == len(sample["input_ids"])]


def token_columns(sample: Any, extra: Sequence[str] = (), what: str = "a document") -> Columns:
    """The columns of a document that have one value per token."""
    if not isinstance(sample, Mapping) or "input_ids" not in sample:
        has = f"the columns {sorted(map(str, sample))}" if isinstance(sample, Mapping) else "no columns"
        raise DataError(
            f"packing needs token ids in 'input_ids', but {what} is {a_type(sample)} with {has}. Tokenize the "
            "text first."
        )
    ids = sample["input_ids"]
    ids = np.array(ids, np.int64) if type(ids) is list else to_numpy(ids)  # the first is the usual case, and faster
    if ids.ndim != 1:
        raise DataError(f"packing needs a list of token ids, but 'input_ids' of {what} has shape {ids.shape}.")
    mask = sample.get("attention_mask")
    if mask is not None and len(mask) and not to_numpy(mask).all():
        raise DataError(
            f"packing needs documents without padding, but {what} has padding. Tokenize with padding=False."
        )
    columns = {"input_ids": ids.astype(np.int64, copy=False)}
    for name in extra if sample.get("labels") is None else ("labels", *extra):
        values = to_numpy(sample[name])
        if values.shape != ids.shape:
            raise DataError(
                f"{name!r} of {what} has the shape {values.shape}, but 'input_ids' {ids.shape}. Packing needs one "
                "value for each token."
            )
        columns[name] = values.astype(np.int64, copy=False) if values.dtype.kind in "iub" else values
    return columns


def cut(document: Columns, start: int, stop: int) -> Columns:
    return {name: values[start:stop] for name, values in document.items()}


def pack_of(pieces: Sequence[Columns], keeps_first_label: bool = False, joins_pieces: bool = False) -> Columns:
    """A pack: the pieces one after the other, and their lengths. Without labels, the tokens are the labels. The first
    label of each piece is ignored: it would be predicted from the piece before. `joins_pieces`: they count as one
    piece."""
    sizes = [len(piece["input_ids"]) for piece in pieces]
    sizes = [sum(sizes)] if joins_pieces else sizes
    pack = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0] if name != "labels"}
    labelled = [piece for piece in pieces if "labels" in piece]
    if labelled:
        pack["labels"] = np.concatenate([piece.get("labels", piece["input_ids"]) for piece in pieces])
    else:
        pack["labels"] = pack["input_ids"].copy()
    if not labelled or not keeps_first_label:
        labels, start = pack["labels"], 0
        for size in sizes:  # a few: an array of their indices would cost more
            if size:
                labels[start] = IGNORED
            start += size
    pack["lengths"] = np.array(sizes, np.int64)
    return pack


def layouts_of(how: str, lengths: Sequence[np.ndarray], width: int, seed: int, shuffle: bool) -> list[Layout]:
    """The layout of each source."""
    return [LAYOUTS[how](of_source, width, seed, source, shuffle) for source, of_source in enumerate(lengths)]
