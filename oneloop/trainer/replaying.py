"""Computes the gradients of an update again, as if for the first time: with the same random numbers and buffers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .. import randomness
from ..introspect import is_overridden

if TYPE_CHECKING:
    from .part import RunContext

REPLAYED = ("training_step", "compute_loss")  # methods of the Trainer that a replay calls again

Replay = Callable[[Any], Any]
"""Computes the gradients with these hooks instead of those of the run, and without callbacks; returns the loss."""


class Snapshot:
    """Random states and buffers before an update."""

    def __init__(self, context: "RunContext") -> None:
        self._backend = context.backend
        self._random = randomness.get_state(self._backend)
        self._buffers = self._backend.models.buffers(context.model)
        self._tensors = [buffer.current for buffer in self._buffers]
        self._copies = self._backend.tensors.keep(self._tensors, [None] * len(self._tensors))

    def restore(self) -> None:
        for buffer, tensor in zip(self._buffers, self._tensors, strict=True):
            buffer.container[buffer.key] = tensor
        self._backend.tensors.restore_copies(self._tensors, self._copies)
        randomness.set_state(self._backend, dict(self._random))


@contextmanager
def restored(context: "RunContext") -> Iterator[None]:
    """A context after which random states and buffers are those of before, and the gradients are cleared."""
    snapshot = Snapshot(context)
    try:
        yield
    finally:
        context.engine.clear()
        snapshot.restore()


def doubled_overrides(context: "RunContext") -> list[str]:
    """Overridden methods that a replay would call again, and that the user has not named in replay_overrides."""
    allowed = context.args.replay_overrides
    return [name for name in REPLAYED if name not in allowed and is_overridden(context.trainer, name)]
