"""trace_steps=: records a digest of everything that some updates compute, to be compared with another run.

In a recorded step, the gradients are first computed twice with noise of the size of rounding errors in every output of
a layer, every gradient and every weight. How far that moves a digest is how far it may differ from that of another run:
`rounding` in each record. Then random states and buffers are restored, and the update is computed as always.
"""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..data.batch_sizes import batch_rows
from ..errors import CheckpointError, UnsupportedError
from ..formats import digests, trace_file
from ..formats.trace_file import Trace
from . import replaying
from .part import Hooks, Part, RunContext
from .replaying import Replay
from .setup import half as half_of
from .trace_collector import Collector, Entry, Factors, Key, Noise, noise_of, read_entries
from .trace_records import HALVES, ORTHOGONAL, carry_rounding, drift_of, merge_records, piece_of, unmeasured

logger = logging.getLogger(__name__)

REPLAYS = 2
LOSS = Key("output", "(loss)", "0")


def steps_of(text: str) -> frozenset[int]:
    """The steps that trace_steps names, such as "0-2,10"."""
    found: set[int] = set()
    for word in filter(None, text.split(",")):
        first, _, last = word.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def tracing_of(backend: Any) -> Any:
    """The module of a backend that has one; one without rejects the arguments that need it, or an error is raised
    here."""
    if backend.tracing is None:
        raise UnsupportedError(
            f"trace_steps and verify_steps are not supported on {backend.NAME}, which has no hooks on gradients. "
            "Remove them, or use another framework."
        )
    return backend.tracing


class TraceSteps(Part):
    """Records the steps of trace_steps; nothing is attached to the model in other steps."""

    name = "trace"

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self._steps = steps_of(context.args.trace_steps)
        self._recording: Recording | None = None
        self._drift: dict[str, Any] = {}  # by weight: how far rounding has moved a value in the recorded steps so far
        self._carried: dict[Key, float] = {}  # the rounding of what the next step begins with
        self._estimated = 0.0  # the same for all weights, relative to them, where it is not measured
        self._last = -2  # the last recorded step

    @property
    def is_active(self) -> bool:
        return bool(self._steps)

    def wants_presync(self, step: int) -> bool:
        return step - 1 in self._steps

    def start_update(self, micro_batches: list[Any]) -> None:
        step = self.context.state.global_step
        if step not in self._steps:
            return
        if self._last != step - 1:
            self._drift, self._carried, self._estimated = {}, {}, 0.0
        self._recording = Recording(self.context, step, self._drift, self._estimated)
        self._recording.set_micro_batches(micro_batches)

    def split_micro_batches(self, micro_batches: list[Any]) -> None:
        if self._recording is not None:
            self._recording.set_micro_batches(micro_batches)

    def before_accumulation(self, replay: Replay) -> None:
        if self._recording is not None:
            self._recording.begin(replay)

    def start_micro_batch(self, index: int) -> None:
        if self._recording is not None:
            self._recording.start_micro_batch(index)

    def end_micro_batch(self, index: int) -> None:
        if self._recording is not None:
            self._recording.end_micro_batch(index)

    def gradients_ready(self, loss: Any) -> None:
        if self._recording is not None:
            self._recording.record_gradients(loss)

    def start_optimizer_step(self) -> None:
        if self._recording is not None:
            self._recording.record_clipped()

    def end_optimizer_step(self, is_bad: Any) -> None:
        if self._recording is not None:
            self._recording.record_update()

    def handle_nonfinite(self, step: int) -> None:
        self._finish()  # an update that is not finite may end the run, and is one to be compared

    def end_step(self, step: int) -> None:
        self._finish()

    def _finish(self) -> None:
        recording, self._recording = self._recording, None
        if recording is None:
            return
        self._last = recording.step
        trace = recording.finish()
        if trace is not None:
            self._carried = carry_rounding(trace, self._carried)
            self._estimated = drift_of(trace, self._carried)
        if trace is not None and self.context.args.should_save:
            self._write(trace)

    def end_run(self) -> None:
        if self._last < 0 and self._steps:
            logger.warning(
                "trace_steps=%r: nothing was recorded, since this run had no such step. Steps count from 0.",
                self.context.args.trace_steps,
            )

    def fail_run(self) -> None:
        if self._recording is not None:
            self._recording.collector.detach()

    def _write(self, trace: Trace) -> None:
        try:
            path = trace_file.write(self.context.output_dir, trace, digests.VERSION)
        except OSError as error:  # the run matters more
            logger.warning("Cannot write the recording of step %d: %s", trace.step, error)
            return
        self.context.events.add("traced", path=f"{trace_file.FOLDER}/{path.name}")


class Recording:
    """One recorded step."""

    def __init__(self, context: RunContext, step: int, drift: dict[str, Any], estimated: float) -> None:
        self.context, self.step, self._drift, self._estimated = context, step, drift, estimated
        backend = self.backend = context.backend
        tracing = self.tracing = tracing_of(backend)
        layout = backend.framework_layout.layout(context.model)
        self._places = {name: (place.name, place.axes) for name, place in layout.items()}
        self._weights = [
            (name, p) for name, p in backend.models.named_parameters(context.model) if tracing.is_floating(p)
        ]
        self.factors = Factors(self.tracing)
        self._scale = context.engine.loss_scale() or 1.0
        self._half = half_of(context.args)
        self.collector = self._new_collector()
        self._noisy: list[Collector] = []
        self._samples: list[np.ndarray] = []
        self._columns: dict[str, int] = {}
        self._shapes: dict[str, list[int]] = {}
        self._before: dict[str, Any] = {}
        self._norms: dict[str, tuple[Any, Any]] = {}  # digests of each gradient before and after clipping
        self._clipped: dict[str, Any] = {}  # some values of each gradient, as the optimizer gets it
        self._spreads: dict[str, Any] = {}
        self._rate = _finite(context.trainer._get_learning_rate())

    def _new_collector(self, noise: Noise | None = None) -> Collector:
        strategy = self.context.engine.strategy
        factor = 1.0 / (self._scale * strategy.replicas.size)  # gradients are averaged; see distributed/strategy.py
        parts = (name.split(".") for name, _ in self.backend.models.named_parameters(self.context.model))
        owners = frozenset(".".join(each[:end]) for each in parts for end in range(len(each)))
        return Collector(self.tracing, self.factors, factor, strategy.positions_in, noise, owners)

    def _place(self, name: str) -> tuple[str, str]:
        """The common name of a parameter or buffer, and the letters of its axes."""
        common, axes = self._places.get(name, (name, ""))
        return common, "" if axes == "-" else axes

    # -- data

    def set_micro_batches(self, micro_batches: list[Any]) -> None:
        tensors = self.backend.tensors
        self._samples, self._columns = [], {}

        def to_numpy(value: Any) -> np.ndarray | None:
            if tensors.is_tensor(value):
                return tensors.to_numpy(value)
            return value if isinstance(value, np.ndarray) else None

        for i, batch in enumerate(micro_batches):
            columns = digests.columns_of(batch, to_numpy)
            if i == 0:
                self._shapes = {name: list(array.shape) for name, array in columns}
            samples, of_columns = digests.hash_rows(columns, batch_rows(batch) or 1)
            self._samples.append(samples)
            for name, number in of_columns.items():
                self._columns[name] = (self._columns.get(name, 0) + number) % 2**64

    # -- gradients

    def begin(self, replay: Replay) -> None:
        """Record the state before the update, measure rounding errors, and attach to the layers for the real pass."""
        self.collector.detach()
        self.collector, self._noisy = self._new_collector(), []
        self._record_state()
        if not replaying.doubled_overrides(self.context):
            for number in range(REPLAYS):
                self._replay_with_noise(replay, number)
        self.collector.attach(self.context.model)

    def _record_state(self) -> None:
        for name, p in self._weights:
            common, axes = self._place(name)
            self.collector.add(Key("weight", common), p, axes, turned=True)
            self._before[name] = self.tracing.copy(self.tracing.piece(p)[0])
        self._record_buffers(self.collector, "buffer")

    def _record_buffers(self, collector: Collector, kind: str) -> None:
        for buffer in self.backend.models.buffers(self.context.model):
            common, axes = self._place(buffer.name)
            if self.tracing.is_floating(buffer.current) and self._places.get(buffer.name, ("", ""))[1] != "-":
                collector.add(Key(kind, common), buffer.current, axes)

    def _replay_with_noise(self, replay: Replay, number: int) -> None:
        noise = Noise(self.tracing, seed=1000003 * self.step + number)
        collector = self._new_collector(noise)
        hooks = Hooks(
            start_micro_batch=(lambda i: self._enter(collector, i),), end_micro_batch=(collector.end_micro_batch,)
        )
        with replaying.restored(self.context), self._noisy_weights(noise):
            collector.attach(self.context.model)
            try:
                loss = replay(hooks)
            finally:
                collector.detach()
            self._record_loss(collector, loss)
            for name, p in self._weights:
                self._record_gradient(collector, "gradient", name, p, 1.0 / self._scale)
            self._record_buffers(collector, "buffer_after")
        self._noisy.append(collector)

    @contextmanager
    def _noisy_weights(self, noise: Noise) -> Iterator[None]:
        """A context in which the weights have rounding errors, and those that earlier steps have left in them."""
        tracing = self.tracing
        dtype = HALVES.get(self._half or "")
        try:
            for name, p in self._weights:
                local = tracing.piece(p)[0]
                relative = noise_of(dtype or tracing.dtype_of(p))
                drift = self._drift.get(name, 0.0)
                tracing.write_noisy(local, self._before[name], noise.parts(local), relative, drift)
            yield
        finally:
            for name, p in self._weights:
                tracing.write(tracing.piece(p)[0], self._before[name])

    def _enter(self, collector: Collector, index: int) -> None:
        self.factors.set_samples(digests.factors_of(self._samples[index]))
        collector.start_micro_batch(index)

    def start_micro_batch(self, index: int) -> None:
        self._enter(self.collector, index)

    def end_micro_batch(self, index: int) -> None:
        self.collector.end_micro_batch(index)

    def _record_loss(self, collector: Collector, loss: Any) -> None:
        if self.tracing.is_floating(loss):
            vector = self.factors.digest(self.tracing.piece(loss)[0].reshape(()), ())
            collector.entries[LOSS] = Entry(
                "", "float32", (), [(vector, 1.0 / self.context.mesh.num_batches)], is_of_batch=True
            )

    def _record_gradient(self, collector: Collector, kind: str, name: str, p: Any, factor: float) -> Any:
        gradient = self.tracing.gradient_of(p)
        if gradient is None:
            return None
        common, axes = self._place(name)
        return collector.add(Key(kind, common), gradient, axes, factor=factor)

    def record_gradients(self, loss: Any) -> None:
        self.collector.detach()
        self._record_loss(self.collector, loss)
        self._norms = {}
        for name, p in self._weights:
            vector = self._record_gradient(self.collector, "gradient", name, p, 1.0 / self._scale)
            if vector is not None:
                self._norms[name] = (vector, None)

    def record_clipped(self) -> None:
        for name, p in self._weights:
            vector = self._record_gradient(self.collector, "clipped", name, p, 1.0)
            if vector is not None:  # an optimizer may write to it
                gradient = self.tracing.piece(self.tracing.gradient_of(p))[0]
                self._clipped[name] = self.tracing.copy(self.tracing.sampled(gradient))
            if vector is not None and name in self._norms:
                self._norms[name] = (self._norms[name][0], vector)

    # -- the update

    def record_update(self) -> None:
        tracing, optimizer = self.tracing, self.context.trainer.optimizer
        moments = tracing.moments(optimizer, self.context.model)
        is_muon = "Muon" in type(optimizer).__name__
        for name, p in self._weights:
            local, before = tracing.piece(p)[0], self._before[name]
            common, axes = self._place(name)
            change = tracing.difference(local, before)
            offsets, sizes = tracing.piece(p)[1:]
            shard = digests.weight_axes(axes, tuple(local.shape), offsets, sizes)
            entry = Entry("", tracing.dtype_of(p), shard)
            vector = self.factors.digest(change, shard)
            entry.vectors.append((vector, 1.0))
            self.collector.entries[Key("update", common)] = entry
            share = ORTHOGONAL if is_muon and "momentum_buffer" in moments.get(name, ()) else 0.0
            self._measure_spread(name, common, change, share * vector[digests.NORM])
        for name, state in moments.items():
            common, axes = self._place(name)
            for word, value in sorted(state.items()):
                self.collector.add(Key("state", common, word), value, axes)
        self._record_buffers(self.collector, "buffer_after")
        self._before, self._clipped = {}, {}

    def _measure_spread(self, name: str, common: str, change: Any, own: Any) -> None:
        """How far the noise of the gradient may have moved the update. `own`: how far the optimizer itself has."""
        tracing, gradients = self.tracing, self._clipped.get(name)
        key, vectors = Key("gradient", common), self._norms.get(name)
        noisy = [one.entries[key].vectors[0][0] for one in self._noisy if key in one.entries]
        if gradients is None or vectors is None or vectors[1] is None:
            return
        count = math.prod(tuple(change.shape))
        before, after = vectors[0][digests.NORM], vectors[1][digests.NORM]
        if noisy:
            noise = tracing.rms_of(vectors[0], noisy, count)
        else:
            usual = sum(each[0][digests.NORM] for each in self._norms.values()) / len(self._norms)
            share = unmeasured(tracing.dtype_of(gradients), self._half or "") + self._estimated
            noise = share * (before + usual) / math.sqrt(max(1, count))
        noise = noise * (after + 1e-30) / (before + 1e-30)  # of the gradient as it was clipped and unscaled
        self._spreads[name] = (tracing.spread(change, gradients, noise) ** 2 + own * own) ** 0.5
        drift, rms = self._drift.get(name, 0.0), self._spreads[name] / math.sqrt(max(1, count))
        self._drift[name] = (drift * drift + rms * rms) ** 0.5

    # -- the end of the step: everything is read from the device

    def finish(self) -> Trace | None:
        """The recording of all processes, in the main process; None in the others. A collective."""
        context = self.context
        real, *noisy = read_entries(self.tracing, [self.collector, *self._noisy])
        entries = self.collector.entries
        turned = {key: entry.transposed for key, entry in entries.items() if entry.transposed is not None}
        transposed = dict(zip(turned, self.tracing.read(list(turned.values())), strict=True))
        spreads = {
            self._place(name)[0]: float(value)
            for name, value in zip(
                self._spreads, self.backend.tensors.scalars(list(self._spreads.values())), strict=True
            )
        }
        own = [
            piece_of(
                key,
                entry,
                (context.mesh.batch_index, context.engine.strategy.replicas.rank),
                real[key],
                [one.get(key) for one in noisy],
                transposed.get(key),
                spreads.get(key.name, 0.0),
            )
            for key, entry in entries.items()
        ]
        samples = [f"{number:x}" for one in self._samples for number in one.tolist()]
        settings = self._settings()
        every = context.processes.gather_object((own, samples, self._columns, context.mesh.batch_index))
        if every is None:
            return None
        batches = {index: (samples, columns) for _, samples, columns, index in reversed(every)}
        columns: dict[str, int] = {}
        for _, of_batch in batches.values():
            for name, number in of_batch.items():
                columns[name] = (columns.get(name, 0) + number) % 2**64
        return Trace(
            run=context.run_id,
            step=self.step,
            framework=context.backend.NAME,
            settings=settings,
            columns={name[: trace_file.LONGEST]: f"{number:x}" for name, number in columns.items()},
            samples=[sample for index in sorted(batches) for sample in batches[index][0]],
            shapes=self._shapes,
            has_rounding=bool(noisy),
            records=merge_records([rows for rows, *_ in every]),
        )

    def _settings(self) -> dict[str, Any]:
        """Facts that explain differences."""
        context = self.context
        args, mesh = context.args, context.mesh
        found = {
            "processes": mesh.size,
            "mesh": {axis.name: axis.size for axis in mesh.axes if axis.size > 1},
            "micro_batches": len(self._samples),
            "half": self._half or "",
            "loss_scale": self._scale,
            "max_grad_norm": float(args.max_grad_norm or 0.0),
            "grad_norm": _finite(context.engine.grad_norm()),
            "learning_rate": self._rate,
            "optimizer": type(context.trainer.optimizer).__name__,
        }
        return found | {"groups": self._groups()}

    def _groups(self) -> list[dict[str, Any]]:
        """Options of the optimizer by group, under common names."""
        try:
            data = self.backend.weights.optimizer_state(self.context.trainer.optimizer, self.context.model)[1]
        except (CheckpointError, AttributeError, KeyError):  # an optimizer without state by parameter
            return []
        found = []
        for group in data.get("groups", ()):
            one = {_OPTIONS.get(key, key): value for key, value in group.items() if key != "names"}
            if isinstance(one.get("betas"), (list, tuple)):
                one["beta1"], one["beta2"] = one.pop("betas")
            found.append({key: one[key] for key in _KNOWN if isinstance(one.get(key), (int, float))})
        return found


_OPTIONS = {"epsilon": "eps"}
_KNOWN = ("beta1", "beta2", "eps", "weight_decay", "momentum")


def _finite(value: Any) -> float:
    value = 0.0 if value is None else float(value)
    return value if math.isfinite(value) else 0.0
