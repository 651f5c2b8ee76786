"""verify_steps=: computes the gradients of every N-th update twice, and compares their bytes.

They differ if hardware computes wrongly, if a kernel is not deterministic, or if code draws random numbers that are not
the framework's, Python's or NumPy's. The gradients are applied once.
"""

import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..errors import ArgumentError, ReplayError
from . import replaying
from .part import Hooks, Part, RunContext
from .replaying import Replay
from .tracing import tracing_of

logger = logging.getLogger(__name__)

Place = tuple[str, str, str]  # what, the layer, and its class
Difference = tuple[float, Place]  # with its number in the order of a pass


class VerifySteps(Part):
    """Nothing is attached to the model in other steps."""

    name = "verification"

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self._every = context.args.verify_steps
        self._first: Fingerprints | None = None
        self._second: Fingerprints | None = None
        self._gradients: list[Any] = []

    @property
    def is_active(self) -> bool:
        return self._every > 0

    def begin_run(self) -> None:
        doubled = replaying.doubled_overrides(self.context) if self.is_active else []
        if doubled:
            raise ArgumentError(
                f"verify_steps={self._every} calls {' and '.join(doubled)} twice in some updates, but this Trainer "
                f"overrides it: its side effects would be doubled. If they may be, set replay_overrides={doubled}."
            )

    def _is_due(self, step: int) -> bool:
        return step % self._every == 0

    def wants_presync(self, step: int) -> bool:
        return self._is_due(step)

    def before_accumulation(self, replay: Replay) -> None:
        if not self._is_due(self.context.state.global_step + 1):
            return
        self._detach()  # of micro-batches that did not fit into memory, and are halved
        tracing = tracing_of(self.backend)
        self._first = Fingerprints(tracing)
        with replaying.restored(self.context), self._first.attached(self.context.model):
            replay(Hooks())
            gradients = [tracing.gradient_of(p) for p in self.context.engine.parameters]
            self._gradients = [None if g is None else tracing.copy(tracing.piece(g)[0]) for g in gradients]
        self._second = Fingerprints(tracing)
        self._second.attach(self.context.model)

    def gradients_ready(self, loss: Any) -> None:
        if self._second is None:
            return
        self._second.detach()
        found = self._compare()
        self._first = self._second = None
        self._gradients = []
        every = self.context.processes.all_gather_object(found)
        # The first one: a difference in one process makes others in all that exchange activations or gradients with it.
        differing = [(each[0], process, each[1]) for process, each in enumerate(every) if each is not None]
        if differing:
            _, process, place = min(differing)
            self._report(process, place)

    def fail_run(self) -> None:
        self._detach()

    def _detach(self) -> None:
        if self._second is not None:
            self._second.detach()

    def _compare(self) -> Difference | None:
        """The first place that differs in this process; None if its gradients have the same bytes."""
        assert self._first is not None and self._second is not None
        tracing, parameters = self._second.tracing, self.context.engine.parameters
        differing = []
        for p, before in zip(parameters, self._gradients, strict=True):
            gradient = tracing.gradient_of(p)
            if (gradient is None) != (before is None) or (
                gradient is not None and not tracing.same_bytes(tracing.piece(gradient)[0], before)
            ):
                differing.append(p)
        if not differing:
            return None
        found = self._first.first_difference(self._second)
        if found is not None:
            return found
        names = {id(p): name for name, p in self.backend.models.named_parameters(self.context.model)}
        return math.inf, ("gradient", names.get(id(differing[0]), "a parameter"), "")

    def _report(self, process: int, place: Place) -> None:
        what, name, kind = place
        step = self.context.state.global_step + 1
        action = self.context.args.verify_action
        where = f"{name or 'the model'}{f' ({kind})' if kind else ''}"
        self.context.events.add(
            "replay_mismatch", step=step, module=name, layer=kind, what=what, process=process, action=action
        )
        text = (
            f"step {step}: the gradients differ when they are computed again with the same batch and random states. "
            f"The first difference is in the {what} of {where}"
            + ("" if self.context.mesh.is_single else f", in process {process}")
            + ". Either this layer draws random numbers of its own, or its kernels are not deterministic "
            "(full_determinism=True), or the hardware computes wrongly."
        )
        if action == "stop":
            raise ReplayError(f"{text} The update was not applied; verify_action='warn' continues.")
        logger.warning("%s", text)


class Fingerprints:
    """Of the outputs of all layers and of their gradients, in the order in which a pass computes them."""

    def __init__(self, tracing: Any) -> None:
        self.tracing = tracing
        self._found: list[tuple[Place, Any]] = []
        self._remove: Callable[[], None] | None = None

    def attach(self, model: Any) -> None:
        self._remove = self.tracing.watch(model, lambda name, layer, args, kwargs: None, self._after)

    def detach(self) -> None:
        if self._remove is not None:
            self._remove()
            self._remove = None

    def attached(self, model: Any) -> "_Attached":
        return _Attached(self, model)

    def _after(self, name: str, layer: Any, output: Any) -> None:
        for tensor in _tensors(output):
            if self.tracing.is_floating(tensor):
                self._add("output", name, layer, tensor)
                if self.tracing.has_gradient(tensor):
                    self.tracing.on_gradient(tensor, lambda gradient: self._add("gradient", name, layer, gradient))

    def _add(self, what: str, name: str, layer: Any, tensor: Any) -> None:
        self._found.append(((what, name, type(layer).__name__), self.tracing.fingerprint(tensor)))

    def first_difference(self, other: "Fingerprints") -> Difference | None:
        """A host sync."""
        for number, ((place, one), (_, two)) in enumerate(zip(self._found, other._found)):
            if not np.array_equal(self._numbers(one), self._numbers(two)):
                return number, place
        return None

    @staticmethod
    def _numbers(value: Any) -> np.ndarray:
        return value if isinstance(value, np.ndarray) else np.array(value.tolist())


class _Attached:
    def __init__(self, fingerprints: Fingerprints, model: Any) -> None:
        self._fingerprints, self._model = fingerprints, model

    def __enter__(self) -> None:
        self._fingerprints.attach(self._model)

    def __exit__(self, *error: Any) -> None:
        self._fingerprints.detach()


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for inner in value:
            yield from _tensors(inner)
    else:
        yield value
