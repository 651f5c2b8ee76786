"""Packing on the fly: the packs of a source of documents that can only be iterated over."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .packed_documents import Columns, cut, extra_columns, pack_of, token_columns

OPEN = 64  # packs that best-fit keeps open


class Packer:
    """Takes documents one by one. Documents that are not packed yet are its state."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.waiting: list[list[Columns]] = []  # packs that are not complete, as their pieces
        self.ready: list[list[Columns]] = []

    def add(self, document: Columns) -> None:
        """Add a document; complete packs are appended to `ready`."""
        raise NotImplementedError

    def finish(self) -> None:
        """No more documents follow: complete the open packs."""
        self.ready, self.waiting = self.ready + [pieces for pieces in self.waiting if pieces], []


class EndToEndPacker(Packer):
    """One document after the other, cut where a pack is full."""

    def add(self, document: Columns) -> None:
        open_pack = self.waiting.pop() if self.waiting else []
        start, length = 0, _size(document)
        while start < length:
            stop = min(length, start + self.width - sum(map(_size, open_pack)))
            open_pack.append(cut(document, start, stop))
            if sum(map(_size, open_pack)) == self.width:
                self.ready.append(open_pack)
                open_pack = []
            start = stop
        if open_pack:
            self.waiting.append(open_pack)


class BestFitPacker(Packer):
    """Each document in the open pack with the least room that is enough for it. Of more than OPEN, the fullest is
    complete."""

    def add(self, document: Columns) -> None:
        length = _size(document)
        whole = length - length % self.width
        self.ready += [[cut(document, start, start + self.width)] for start in range(0, whole, self.width)]
        if whole == length:
            return
        rooms = [self.width - sum(map(_size, pieces)) for pieces in self.waiting]
        fitting = [(room, place) for place, room in enumerate(rooms) if room >= length - whole]
        if fitting:
            room, place = min(fitting)
            self.waiting[place].append(cut(document, whole, length))
            if room == length - whole:
                self.ready.append(self.waiting.pop(place))
            return
        self.waiting.append([cut(document, whole, length)])
        if len(self.waiting) > OPEN:
            self.ready.append(self.waiting.pop(rooms.index(min(rooms))))


class SinglePacker(Packer):
    """Puts each document into a pack of its own."""

    def add(self, document: Columns) -> None:
        self.ready.append([document])


PACKERS: dict[str, type[Packer]] = {
    "end_to_end": EndToEndPacker,
    "best_fit": BestFitPacker,
    "wrapped": EndToEndPacker,
}


class PackedStream:
    """The packs of an iterable source of documents, in its order.

    Its state is that of the source, if the source has one, and the tokens that wait to be packed: a run resumes in the
    middle of a document.
    """

    def __init__(
        self, source: Any, packer: Packer, accepted: Sequence[str], keeps_first_label: bool, joins_pieces: bool = False
    ) -> None:
        self.source = source
        self.packer = packer
        self.accepted = tuple(accepted)  # parameters of the model's forward
        self.keeps_first_label = keeps_first_label
        self.joins_pieces = joins_pieces  # the pieces of a row are one document
        self._is_restored = False

    def __iter__(self) -> Iterator[Columns]:
        if not self._is_restored:
            self.packer.waiting, self.packer.ready = [], []
        self._is_restored = False
        yield from self._ready()
        extra: list[str] | None = None
        for number, sample in enumerate(self.source):
            if extra is None:
                extra = extra_columns(sample, self.accepted)
            self.packer.add(token_columns(sample, extra, f"document {number} of the stream"))
            yield from self._ready()
        self.packer.finish()
        yield from self._ready()

    def _ready(self) -> Iterator[Columns]:
        while self.packer.ready:
            yield pack_of(self.packer.ready.pop(0), self.keeps_first_label, self.joins_pieces)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "source":
            raise AttributeError(name)
        if name in ("state_dict", "load_state_dict") and callable(getattr(self.source, name, None)):
            return {"state_dict": self._state, "load_state_dict": self._load}[name]
        return getattr(self.source, name)

    def _state(self) -> dict[str, Any] | None:
        source = self.source.state_dict()
        if source is None:  # a mixture of which a part has no state
            return None
        waiting, ready = ([[_plain(piece) for piece in pack] for pack in packs] for packs in self._packs())
        return {"source": source, "waiting": waiting, "ready": ready}

    def _packs(self) -> tuple[list[list[Columns]], list[list[Columns]]]:
        return self.packer.waiting, self.packer.ready

    def _load(self, state: dict[str, Any]) -> None:
        self.source.load_state_dict(state["source"])
        self.packer.waiting, self.packer.ready = (
            [[_columns(piece) for piece in pack] for pack in state[name]] for name in ("waiting", "ready")
        )
        self._is_restored = True


def _size(piece: Columns) -> int:
    return len(piece["input_ids"])


def _plain(piece: Columns) -> dict[str, Any]:
    return {name: [values.dtype.name, values.tolist()] for name, values in piece.items()}


def _columns(piece: dict[str, Any]) -> Columns:
    return {name: np.array(values, dtype) for name, (dtype, values) in piece.items()}
