"""Whether the loss compares position i with label i + 1, computed for a model that does not declare it.

Of the labels of a batch one position is kept, the same in each row. If the loss is then another than without any
label, that position is read. A loss that reads the first one compares it with its own position. One that does not, and
reads the second, leaves the first out: it is shifted.

That takes two to five forward passes like those of an evaluation, once per model, before the first update for which
the answer matters.
"""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import randomness
from ..backends._common.buffers import BufferCopies
from ..data.batch_sizes import batch_rows
from ..errors import NonFiniteError
from ..introspect import NUM_ITEMS, accepts
from .inputs import in_half
from .loss import find_loss, logits_of, split_labels

if TYPE_CHECKING:
    from .core import Core

logger = logging.getLogger(__name__)

IGNORED = -100
ROUNDING = 1e-3  # relative: an auxiliary loss that depends on no label may be computed in half precision


def find(core: "Core", batches: Sequence[Any]) -> None:
    """Called before labels are counted or shifted. Where a forward pass is a collective, so is this."""
    if not core.model_info.is_shift_guessed:
        return
    labels = _Labels.of(core, batches)
    asked = labels is not None and labels.can_be_shifted
    waits = labels is None or (asked and not labels.known)  # for a batch with labels
    together = core.strategy.forward_is_collective and not core.mesh.is_single
    if together:
        others = core.processes.all_gather([labels is None, asked, waits])
        if any(has_none for has_none, _, _ in others) or all(waiting for _, _, waiting in others):
            return
        asked = all(is_asked for _, is_asked, _ in others)
    elif waits:
        return
    assert labels is not None
    answer = _computed(core, labels, together) if asked else None
    if together and asked:
        found = core.processes.all_gather([-1 if answer is None else int(answer)])
        answer = next((bool(number) for (number,) in found if number >= 0), None)
    guess = core.model_info.shifts_labels
    core.inspect_model(shifts_labels=guess if answer is None else answer, is_shift_guessed=False)
    if asked:
        _log_answer(core, answer, guess)


def _log_answer(core: "Core", answer: bool | None, guess: bool) -> None:
    name = core.strategy.class_of(core.trainer.model).__name__
    if answer is not None:
        logger.debug("shifts_labels of %s: %s (computed)", name, answer)
    elif core.mesh.is_main and core.run.contract.has_default_loss:
        logger.warning(
            "Could not compute whether the loss of %s compares position i with label i + 1; it is taken to %s, for the "
            "number of its items. Declare it by a class attribute of the model: shifts_labels = True or False.",
            name,
            "do so" if guess else "compare it with its own label",
        )


class _Labels:
    """The labels of a batch, and the batch with others in their place."""

    def __init__(self, core: "Core", batch: Any, labels: np.ndarray, ignored: int) -> None:
        self.core, self.batch, self.labels, self.ignored = core, batch, labels, ignored
        self.tensors = core.backend.tensors

    @classmethod
    def of(cls, core: "Core", batches: Sequence[Any]) -> "_Labels | None":
        """The labels of the first batch that has any; None if there is no batch."""
        found = [cls(core, batch, *_array_of(core, batch)) for batch in batches]
        return next((each for each in found if each.known), found[0] if found else None)

    @property
    def can_be_shifted(self) -> bool:
        """Whether the question arises: classes by row and position."""
        return self.labels.dtype.kind == "i" and self.labels.ndim == 2 and self.labels.shape[1] > 1

    @cached_property
    def known(self) -> list[int]:
        """Labels that the batch has: the lowest and the highest, since a model may know one too well for a loss."""
        found = self.labels[(self.labels != self.ignored) & (self.labels >= 0)]
        return [int(found.min()), int(found.max())] if found.size else []

    @property
    def values(self) -> list[int]:
        """Two labels to try, in any batch: it may have to be computed only because other processes do."""
        return self.known or [int(self.ignored == 0)] * 2

    def halved(self) -> "_Labels | None":
        rows = batch_rows(self.batch) or 1
        if rows < 2 or len(self.labels) != rows:
            return None
        first = self.tensors.split(self.batch, 2, rows)[0]
        return _Labels(self.core, first, self.labels[: rows // 2], self.ignored)

    def keeping(self, position: int | None, value: int) -> Any:
        """The batch on the device, with that label at the position of each row, and no others."""
        core, labels = self.core, np.full_like(self.labels, self.ignored)
        if position is not None:
            labels[:, position] = value
        batch = self._replaced(self.tensors.from_numpy(labels))
        inputs = core.to_device(batch)
        half = core.model_info.input_half
        return inputs if half is None else in_half(inputs, half, core.trainer.label_names, core.backend)

    def _replaced(self, labels: Any) -> Any:
        if not isinstance(self.batch, Mapping):
            return (*self.batch[:-1], labels)
        first = next(name for name in self.core.trainer.label_names if name in self.batch)
        return {**self.batch, first: labels}


def _array_of(core: "Core", batch: Any) -> tuple[np.ndarray, int]:
    """The labels of a batch as an array, which is empty if they are none by row and position, and the label that is
    ignored."""
    _, labels = split_labels(batch, core.trainer.label_names)
    labels = labels[0] if isinstance(labels, tuple) else labels
    tensors, counting = core.backend.tensors, core.run.update.counting
    array = np.zeros(0)
    if len(getattr(labels, "shape", ())) == 2:  # else nothing has to be read
        array = tensors.to_numpy(labels) if tensors.is_tensor(labels) else np.asarray(labels)
    return array, IGNORED if counting.ignore_index is None else counting.ignore_index


def _computed(core: "Core", labels: _Labels, together: bool) -> bool | None:
    """None if it cannot be computed. Nothing of the run is changed."""
    trainer, backend = core.trainer, core.backend
    model = backend.models.unwrap(trainer.model)
    streams = randomness.get_state(backend)
    training = backend.models.eval_mode(trainer.model)
    buffers = BufferCopies(backend.models.buffers(trainer.model), backend.tensors)
    buffers.begin()
    try:
        with backend.engine.no_gradients(), trainer.compute_loss_context_manager():
            return _answer(core, model, labels, together)
    except Exception as error:
        logger.debug("shifts_labels of %s: %s: %s", type(model).__name__, type(error).__name__, error)
        return None
    finally:
        buffers.end(True)
        backend.models.restore_mode(training)
        randomness.set_state(backend, streams)


def _answer(core: "Core", model: Any, labels: _Labels, together: bool) -> bool | None:
    try:
        without = _loss(core, model, labels.keeping(None, 0))
        cases = [(place, value) for place in (0, 1) for value in labels.values]
        losses = ((place, _loss(core, model, labels.keeping(place, value))) for place, value in cases)
        found: Iterator[int] = (place for place, loss in losses if _differs(loss, without))
        if together:  # each process computes as often
            found = iter(list(found))
        place = next(found, None)
        return None if place is None else place == 1
    except Exception as error:
        half = labels.halved() if core.backend.devices.is_out_of_memory(error) and not together else None
        if half is None:
            raise
    core.backend.devices.empty_cache(core.trainer.args.device)
    return _answer(core, model, half, together)


def _loss(core: "Core", model: Any, inputs: Any) -> float:
    trainer, tensors = core.trainer, core.backend.tensors
    function, criterion = trainer.compute_loss_func, trainer.criterion
    try:
        if function is None and criterion is None:
            loss = find_loss(core.backend.models.invoke(model, inputs), inputs)
        else:
            rest, labels = split_labels(inputs, trainer.label_names)
            outputs = core.backend.models.invoke(model, rest)
            if function is not None:
                loss = function(outputs, labels, **({NUM_ITEMS: 1} if accepts(function, NUM_ITEMS) else {}))
            else:
                loss = criterion(logits_of(outputs), labels)
                loss = loss[0] if isinstance(loss, (tuple, list)) else loss
    except NonFiniteError:  # debug="underflow_overflow" watches all layers, and has seen a mean over no labels
        return math.nan
    return float(tensors.to_numpy(tensors.detach(loss)).mean())


def _differs(loss: float, without: float) -> bool:
    """Whether a loss is another than that of no labels, which may be 0/0."""
    if not math.isfinite(loss):
        return False
    return not math.isfinite(without) or abs(loss - without) > ROUNDING * max(abs(loss), abs(without))
