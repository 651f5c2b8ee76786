"""Losses and tokens of each dataset of a mixture, for the logs.

The dataset of a row is computed from its position in the data, so nothing travels with the samples. Losses of rows stay
on the device until a log or a save reads them. Sums are integers (losses in units of 2**-24): they do not depend on the
order of adding, so a log after a resume, or on another number of processes, has the same sums.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arguments.data import packing_of
from ..data.batch_sizes import batch_rows
from ..data.mixture import Mixture, source_lookup
from ..data.stream_mixture import StreamMixture
from ..formats.schema import integer, listing, mapping
from .loss import split_labels
from .meter import Meter
from .part import Part, RunContext

if TYPE_CHECKING:
    from ..checkpoint.resume import StoredRun

logger = logging.getLogger(__name__)

UNIT = 2.0**24  # of the sums of losses
UNREAD = 512  # micro-batches whose losses may be on the device
# Of the recomputed loss of a micro-batch. With logits in bfloat16 it has three digits. In float32, the loss of a new
# model whose labels are shifted by one, about the logarithm of the classes either way, must not pass for the same.
TOLERANCE, TOLERANCE_FLOAT32 = 0.01, 1e-4


@dataclass
class MicroBatch:
    """One value for each row, on the host or the device."""

    sources: np.ndarray
    tokens: Any  # None: the batch has no tokens
    items: Any = None  # labels that count in the loss
    losses: Any = None  # their summed losses
    loss: Any = None  # of the micro-batch, as training has it
    tolerance: float = TOLERANCE

    is_sequence: bool = False  # a row has several labels

    def rows(self, begin: int, end: int) -> "MicroBatch":
        return MicroBatch(self.sources[begin:end], None)


@dataclass
class Sums:
    """Sums by source: `tokens` and `samples` over the whole run, the others since the last log."""

    tokens: list[int]
    samples: list[int]
    items: list[int]
    losses: list[int]

    @classmethod
    def zero(cls, count: int) -> "Sums":
        return cls(*([0] * count for _ in range(4)))

    def add(self, other: "Sums") -> None:
        for mine, more in zip(self.lists(), other.lists()):
            mine[:] = [a + b for a, b in zip(mine, more)]

    def lists(self) -> tuple[list[int], ...]:
        return self.tokens, self.samples, self.items, self.losses


class SourceMeter(Part):
    """Active in a run on a Mixture whose order is the mixture's own."""

    name = "sources"
    schema = {"sources": mapping(listing(integer(), 4))}

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self.names: list[str] = []
        self.sampler: Any = None  # the datasets of the rows of a batch, by epoch and number; None: not active
        self.logs_losses = False
        self.sums = Sums.zero(0)  # of this process
        self.of_all = Sums.zero(0)  # of all processes, at the last collective
        self._update: list[MicroBatch] = []  # of the current update
        self._current: MicroBatch | None = None  # whose loss is being computed
        self._unread: list[MicroBatch] = []

    @property
    def is_active(self) -> bool:
        return self.sampler is not None

    @property
    def depends_on_label_shift(self) -> bool:
        return self.logs_losses

    def plan_ready(self) -> None:
        args, mesh = self.context.args, self.context.mesh
        mixture: Any = self.context.trainer.train_dataset
        if not isinstance(mixture, Mixture | StreamMixture) or args.mixture_metrics == "no":
            return
        shares = 1 if args.stream_sharding == "shards" else mesh.num_batches
        place = (self.context.batch_size, shares, mesh.batch_index if shares > 1 else 0)
        is_packed = isinstance(mixture, StreamMixture) and packing_of(args) is not None
        self.sampler = None if is_packed else source_lookup(mixture, self.context.plan.loader, place)
        if self.sampler is None:
            logger.warning(
                "Losses and tokens of the datasets of the Mixture are not logged: %s.",
                "documents of several streams are packed into one row"
                if is_packed
                else "a sampler or a loader of the script decides the order of the samples",
            )
            return
        self.names, self.logs_losses = mixture.names, args.mixture_metrics == "loss"
        self.sums, self.of_all = Sums.zero(len(self.names)), Sums.zero(len(self.names))

    # -- during an update

    def start_update(self, micro_batches: list[Any]) -> None:
        position = self.context.position
        first = position.step_in_epoch * self.context.plan.accumulation
        self._update, self._current = [], None
        for number, batch in enumerate(micro_batches, first):
            sources = self.sampler(position.epoch, number)
            if sources is None or len(sources) != batch_rows(batch):
                self._rows_unknown()
                return
            self._update.append(self._counted(sources, batch))

    def _rows_unknown(self) -> None:
        self._update = []
        if self.context.events.is_first_report("rows of sources", ""):
            logger.warning(
                "A batch does not have one row for each sample drawn for it, so its losses and tokens are not "
                "counted by dataset. A collator that packs or splits samples causes this."
            )

    def _counted(self, sources: np.ndarray, batch: Any) -> MicroBatch:
        """Sums over the rows of a batch. On the host, where it still is: no host sync."""
        counting = self.context.counting
        tokens = self.context.parts.of(Meter).tokens_by_row(batch)
        _, labels = split_labels(batch, self.context.trainer.label_names)
        found = MicroBatch(sources, tokens)
        if self.logs_losses and getattr(labels, "shape", None) and not _is_float(labels):
            found.is_sequence = len(labels.shape) > 1
            labels = labels[..., 1:] if self.context.model_info.shifts_labels and found.is_sequence else labels
            counts = labels == labels if counting.ignore_index is None else labels != counting.ignore_index
            found.items = counts.reshape((len(sources), -1)).sum(1)
        return found

    def split_micro_batches(self, micro_batches: list[Any]) -> None:
        """Their rows are those of before, in order."""
        if not self._update:
            return
        sources = np.concatenate([part.sources for part in self._update])
        edges = np.cumsum([batch_rows(batch) or 0 for batch in micro_batches])[:-1]
        self._update = [self._counted(own, batch) for own, batch in zip(np.split(sources, edges), micro_batches)]

    def start_micro_batch(self, index: int) -> None:
        self._current = self._update[index] if index < len(self._update) else None

    def end_micro_batch(self, index: int) -> None:
        self._current = None

    def record_outputs(self, outputs: Any, inputs: Any, loss: Any, is_mean: bool) -> None:
        """A repeated computation replaces the one before. A loss that is not a mean cannot be compared, and is not
        logged."""
        current = self._current
        if not self.logs_losses or current is None or current.items is None:
            return
        tensors, info = self.backend.tensors, self.context.model_info
        if (by_row := getattr(outputs, "by_row", None)) is not None:  # of a loss without whole logits
            current.losses, current.loss, current.tolerance = by_row, tensors.detach(loss), TOLERANCE
            return
        _, labels = split_labels(inputs, self.context.trainer.label_names)
        logits = _logits_for(outputs, labels)
        if logits is None or not is_mean:
            self._losses_unknown("the model returns no logits with one row for each label")
            return
        ignored = self.context.counting.ignore_index
        shifted = info.shifts_labels and len(labels.shape) > 1
        current.losses = tensors.row_losses(logits, labels, shifted, -100 if ignored is None else ignored)
        current.loss = tensors.detach(loss)
        current.tolerance = TOLERANCE_FLOAT32 if "float32" in str(logits.dtype).lower() else TOLERANCE

    def _losses_unknown(self, why: str) -> None:
        self.logs_losses = False
        for part in (*self._update, *self._unread):
            part.losses = part.loss = None
        logger.warning(
            "The losses of the datasets of the Mixture are not logged: %s. They are known where the loss is the mean "
            "cross entropy of logits and labels. Their tokens are logged; mixture_metrics='tokens' asks for no more.",
            why,
        )

    def end_accumulation(self, micro_batches: list[Any]) -> None:
        """A step that was repeated counts once."""
        for part in self._update if self.logs_losses else ():
            if part.items is None:
                self._losses_unknown("the batches have no labels that are classes")
            elif part.losses is None and self._host(part.items).any():
                self._losses_unknown("an override of compute_loss or training_step computes the loss")
        self._unread += self._update
        self._update, self._current = [], None
        if len(self._unread) >= UNREAD:
            self.read()

    # -- for logs and checkpoints

    def read(self) -> None:
        """Host sync: add what is on the device to the sums."""
        parts, self._unread = self._unread, []
        if not parts:
            return
        size = len(self.names)
        losses = [self._host(part.losses) if self.logs_losses else None for part in parts]
        if self.logs_losses and not self._agrees(parts, losses):
            hint = ""
            if any(part.is_sequence for part in parts) and not self.context.model_info.shifts_labels:
                hint = " (a model that compares position i with label i + 1 has to declare it: shifts_labels = True)"
            self._losses_unknown(f"the loss of the model is not the mean cross entropy of its logits and labels{hint}")
        for part, of_rows in zip(parts, losses):
            found = Sums.zero(size)
            found.samples = _by_source(np.ones(len(part.sources)), part.sources, size)
            if part.tokens is not None:
                found.tokens = _by_source(self._host(part.tokens), part.sources, size)
            if self.logs_losses and of_rows is not None:
                finite = np.isfinite(of_rows)
                sources = part.sources[finite]
                found.items = _by_source(self._host(part.items)[finite], sources, size)
                found.losses = _by_source(np.rint(of_rows[finite].astype(np.float64) * UNIT), sources, size)
            self.sums.add(found)

    def _agrees(self, parts: list[MicroBatch], losses: list[Any]) -> bool:
        """Whether the losses of the rows add up to the losses that training has."""
        for part, of_rows in zip(parts, losses):
            items = float(self._host(part.items).sum()) if of_rows is not None else 0.0
            mean = float(self._host(part.loss).reshape(-1)[0]) if items else math.nan
            found = float(of_rows.sum(dtype=np.float64)) / items if items else math.nan
            if math.isfinite(mean - found) and abs(found - mean) > part.tolerance * (abs(mean) + 0.1):
                return False
        return True

    def _host(self, values: Any) -> Any:
        if values is None or isinstance(values, np.ndarray):
            return values
        return self.backend.tensors.to_numpy(values)

    def before_save(self) -> None:
        self._add_up()

    def _add_up(self) -> None:
        """The sums of all batches. A collective on several processes, and a host sync."""
        self.read()
        self.of_all = Sums.zero(len(self.names))
        every = self.context.processes.all_gather_object((self.sums.lists(), self.logs_losses))
        for lists, _ in self.context.mesh.per_batch(every):
            self.of_all.add(Sums(*lists))
        self.logs_losses = all(wants for _, wants in every)

    def log(self) -> dict[str, Any]:
        self._add_up()
        logs: dict[str, Any] = {}
        for name, items, loss in zip(self.names, self.of_all.items, self.of_all.losses):
            if self.logs_losses and items:
                logs[f"loss/{name}"] = loss / UNIT / items
        counts = ("num_tokens", self.of_all.tokens) if any(self.of_all.tokens) else ("num_samples", self.of_all.samples)
        logs |= {f"{counts[0]}/{name}": count for name, count in zip(self.names, counts[1])}
        for each in (self.sums, self.of_all):
            each.items, each.losses = [0] * len(self.names), [0] * len(self.names)
        return logs

    def state(self) -> dict[str, Any]:
        return {"sources": {name: list(values) for name, *values in zip(self.names, *self.of_all.lists())}}

    def load(self, stored: dict[str, Any], source: "StoredRun") -> None:
        """The first batch continues with the sums of all; a dataset that is new starts with nothing."""
        if self.is_active and self.context.mesh.batch_index == 0:
            before = stored.get("sources", {})
            values = [before.get(name, [0] * 4) for name in self.names]
            self.sums = Sums(*(list(each) for each in zip(*values)))


def _by_source(values: np.ndarray, sources: np.ndarray, size: int) -> list[int]:
    """Sums of whole numbers by source."""
    sums = np.zeros(size, np.int64)
    np.add.at(sums, sources, values.astype(np.int64))
    return sums.tolist()


def _is_float(labels: Any) -> bool:
    return "float" in str(labels.dtype).lower()


def _logits_for(outputs: Any, labels: Any) -> Any:
    """The output with one more axis than the labels, the classes; None if there is none."""

    def fits(value: Any) -> bool:
        shape = tuple(getattr(value, "shape", ()))
        return len(shape) == len(labels.shape) + 1 and shape[:-1] == tuple(labels.shape)

    logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if logits is not None:
        return logits if fits(logits) else None
    several = outputs if isinstance(outputs, (tuple, list)) else [outputs]
    return next((value for value in several if fits(value)), None)
