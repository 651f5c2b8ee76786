"""Whether the loss of a run is computed without whole logits, from hidden states and head in chunks (chunked_loss).

It is decided once, with the first update: by the arguments and the model, and where neither says it, by the size of
the logits. The backend finds the head and tries on a row of one sample whether head and loss are all that the model
does (`backends/*/chunked_loss.py`). Checkpoints have the decision, and a resume keeps it, since sums over chunks differ
in their last digits.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .. import randomness
from ..backends._common.buffers import BufferCopies
from ..callbacks import tell
from ..errors import DataError, UnsupportedError
from ..formats.schema import flag
from ..introspect import replaces
from .core import core_of
from .loss import split_labels
from .part import Part, RunContext

if TYPE_CHECKING:
    from ..backends.base import LossHead
    from ..checkpoint.resume import StoredRun
    from .core import Core

logger = logging.getLogger(__name__)

LIMIT = 2**28  # bytes of the logits of a micro-batch in float32: larger ones are not computed whole


class ChunkedLoss(Part):
    """Its hooks are called where the loss may be computed in chunks; each loss asks for the `head`."""

    name = "chunked_loss"
    title = "choice of chunked_loss"
    schema = {"chunked_loss": flag}

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self.head: LossHead | None = None  # of the model, whose loss is computed from it; None: from whole logits
        self._found: LossHead | None = None  # to be tried with the first update
        self._stored: bool | None = None  # by the run that is resumed
        self._is_open = True  # not decided

    @property
    def is_active(self) -> bool:
        return self._found is not None

    def load(self, stored: dict[str, Any], source: "StoredRun") -> None:
        self._stored = bool(stored.get("chunked_loss"))

    def state(self) -> dict[str, Any]:
        return {} if self.head is None else {"chunked_loss": True}

    @property
    def asked(self) -> bool | None:
        """What the arguments say, or the run that is resumed; None: it depends on the size of the logits."""
        asked: bool | None = self.context.args.chunked_loss
        return self._stored if asked is None else asked

    def begin_run(self) -> None:
        self._is_open = self.asked is not False
        if self._is_open:
            self._find()
            self._is_open = self._found is not None

    def start_update(self, micro_batches: list[Any]) -> None:
        if self._is_open:
            self._decide(core_of(self.context.trainer), micro_batches)

    # -- the decision

    def _find(self) -> None:
        """The head. Where it was asked for, what is known to forbid it is an error."""
        core = core_of(self.context.trainer)
        try:
            self._found = _head_of(core, core.trainer.model, reason_against(core, bool(self.asked)))
        except UnsupportedError as error:
            self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        if self.asked:
            by = "chunked_loss=True" if self.context.args.chunked_loss else "chunked_loss is on in the checkpoint"
            raise UnsupportedError(
                f"{by}, but the loss of this run cannot be computed in chunks: {error}. Use chunked_loss=False."
            ) from None
        logger.debug("chunked_loss: off (%s)", error)

    def _decide(self, core: "Core", batches: list[Any]) -> None:
        """With the micro-batches of the first update. A collective."""
        sizes = [logits_bytes(core, batch, self._found) for batch in batches]
        most = max(sizes, default=0)
        if not core.mesh.is_single:
            every = core.processes.all_gather([most, bool(batches)])
            most = int(max(size for size, _ in every))
            if not all(has_batch for _, has_batch in every):
                self._is_open = bool(self.asked)  # then with the next update
                return
        self._is_open = False
        if not self.asked and most <= LIMIT:
            logger.debug("chunked_loss: off (logits of %d MB)", most >> 20)
            return
        error = self._try(core, self._found, batches[sizes.index(max(sizes))])
        failed = error is not None
        if not core.mesh.is_single:
            failed = any(flags[0] for flags in core.processes.all_gather([failed]))
        if failed:
            self._refuse(error or UnsupportedError("it fails in another process"))
            return
        self.head = self._found
        if core.mesh.is_main:
            tell(core.trainer.args, logger, f"{self._announcement(most)} chunked_loss=False computes whole logits.")

    def _announcement(self, most: int) -> str:
        assert self.head is not None
        reason = f"the logits of a micro-batch would have {most >> 20} MB"
        if self.asked:
            reason = "as asked" if self.context.args.chunked_loss else "as in the checkpoint"
        return f"chunked_loss is on ({reason}): the loss is computed in chunks by the head {self.head.describe()}."

    @staticmethod
    def _try(core: "Core", head: Any, batch: Any) -> UnsupportedError | None:
        """Compute one row both ways, with nothing of the run changed; why it is not the same."""
        trainer, backend = core.trainer, core.backend
        if not logits_bytes(core, batch, head) or not isinstance(batch, Mapping):
            return UnsupportedError("the batches are no dicts with labels by row and position")
        streams = randomness.get_state(backend)
        training = backend.models.eval_mode(trainer.model)
        buffers = BufferCopies(backend.models.buffers(trainer.model), backend.tensors)
        buffers.begin()
        try:
            with backend.engine.no_gradients(), trainer.compute_loss_context_manager():
                head.check(core.to_device(batch), trainer.label_names[0])
        except UnsupportedError as error:
            return error
        except Exception as error:
            logger.debug("chunked_loss: one row fails", exc_info=True)
            return UnsupportedError(f"one row of a batch fails ({type(error).__name__}: {error})")
        finally:
            buffers.end(True)
            backend.models.restore_mode(training)
            randomness.set_state(backend, streams)
        return None

    # -- losses

    def head_for(self, model: Any, inputs: Any) -> Any:
        """The head of this model if a loss is computed from it, and None otherwise."""
        if self.head is None:
            if not self._is_open or not self.context.args.chunked_loss or self.context.trainer.is_in_train:
                return None
            self._decide_without_training(inputs)
        return self.head if self.head is not None and self.head.covers(model) else None

    def _decide_without_training(self, inputs: Any) -> None:
        """For evaluations of a Trainer that has not trained, which was asked to."""
        core = core_of(self.context.trainer)
        self._is_open = False
        if core.strategy.forward_is_collective and not core.mesh.is_single:
            logger.warning("chunked_loss=True computes whole logits here: the processes have trained nothing yet.")
            return
        self._find()
        error = self._try(core, self._found, inputs)
        if error is not None:
            self._refuse(error)
        self.head = self._found

    def head_for_log_probs(self, model: Any, inputs: Any) -> Any:
        """The head of this model, also where a loss is not computed from it."""
        core = core_of(self.context.trainer)
        head = self.head or self._found
        if head is None or not head.covers(model):
            self._found = head = _head_of(core, model, _reason_of_run(core))
        if head is not self.head and self._tried is not head:
            error = self._try(core, head, inputs)
            if error is not None:
                raise UnsupportedError(f"token_log_probs cannot be used with this model: {error}.")
            self._tried = head
        return head

    _tried: Any = None  # for token_log_probs

    # -- plans

    @contextmanager
    def assumed(self, model: Any, inputs: Any) -> Iterator[None]:
        """A context in which steps without values are computed as a run would do it, if its rows pass."""
        core, before = core_of(self.context.trainer), self.head
        try:
            if self.asked is not False:
                head = _head_of(core, model, reason_against(core, bool(self.asked)))
                self.head = head if self.asked or logits_bytes(core, inputs, head) > LIMIT else None
        except UnsupportedError as error:
            self._refuse(error)
        try:
            yield
        finally:
            self.head = before


def logits_bytes(core: "Core", batch: Any, head: Any) -> int:
    """Of the logits of a batch in float32; 0 without labels by row and position."""
    _, labels = split_labels(batch, core.trainer.label_names)
    shape = tuple(getattr(labels, "shape", ()))
    return 4 * int(shape[0]) * int(shape[1]) * int(head.words) if len(shape) == 2 else 0


def reason_against(core: "Core", is_asked: bool) -> str | None:
    """Why the loss of a run is not computed in chunks, as far as it is known before the first batch."""
    trainer, args = core.trainer, core.trainer.args
    if not is_asked and core.in_transformers_order:
        return f"data_order={args.data_order!r} is for the results of another trainer"
    if not is_asked and not core.behaviour.chunks_losses:
        return "the script was written for another trainer, whose results it expects"
    if trainer.criterion is not None or trainer.compute_loss_func is not None:
        return "criterion and compute_loss_func compute it from outputs of the model"
    if replaces(trainer, "compute_loss"):
        return "compute_loss is overridden and does not call the Trainer's (for overrides: oneloop.token_log_probs)"
    if args.past_index >= 0:
        return "past_index needs the outputs of the model"
    return _reason_of_run(core)


def _reason_of_run(core: "Core") -> str | None:
    trainer, args = core.trainer, core.trainer.args
    if core.model_info.makes_decoder_inputs:
        return "the model makes the inputs of its decoder from the labels"
    if len(trainer.label_names) != 1:
        return f"its labels are not one column ({', '.join(trainer.label_names) or 'none'})"
    if core.strategy.computes_loss_in_parts:
        return "with sequence_parallel_size the loss is computed from the parts of a sequence"
    for name in ("deepspeed", "torch_compile", "jit_mode_eval", "use_liger_kernel"):
        if getattr(args, name):
            return f"{name} replaces the forward pass of the head"
    return None


def _head_of(core: "Core", model: Any, why_not: str | None) -> Any:
    if core.backend.chunked_loss is None:
        raise UnsupportedError(f"it is not supported on {core.backend.NAME}")
    if why_not is not None:
        raise UnsupportedError(why_not)
    return core.backend.chunked_loss.head_of(model, core.trainer.args.chunked_loss_layer)


def token_log_probs(trainer: Any, model: Any, inputs: Any) -> Any:
    """The log-probability of each label under the model, from its hidden states and its head in chunks: whole logits
    never exist. For overrides of `compute_loss`.

    Args:
        trainer: The Trainer.
        model: The model, as compute_loss is given it.
        inputs: The batch, with its labels.

    Returns:
        A tensor of the shape of the labels. For a model that compares position i with label i + 1, the value of the
        first label of each row is 0, as is that of labels of -100.
    """
    core = core_of(trainer)
    rest, labels = split_labels(inputs, trainer.label_names)
    if labels is None:
        raise DataError(f"token_log_probs needs labels; label_names is {trainer.label_names}")
    head = core.run.parts.of(ChunkedLoss).head_for_log_probs(model, inputs)
    return head.log_probs(model, rest, labels)
