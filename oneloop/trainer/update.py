"""One update: the gradients of its micro-batches, and the optimizer step."""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.batch_sizes import batch_rows
from ..distributed.step_sync import SharedUpdate
from ..errors import ArgumentError, ModelError, NoGradientsError
from ..introspect import NUM_ITEMS
from . import batch_hints, label_shift
from .clipping import clip
from .loss import UNWEIGHTED, ItemCounting, LossContract, MicroBatchWeights, smoothing_of, split_labels, weigh_labels
from .modes import Modes
from .nonfinite import NonfiniteUpdates

if TYPE_CHECKING:
    from .run import Run

logger = logging.getLogger(__name__)

SHIFTED = "shift_labels"  # labels that a collator has shifted, as models of transformers take them


class Update:
    """Created for each run; computes all its updates."""

    def __init__(self, run: "Run") -> None:
        core = run.core
        self.run = run
        self.contract = LossContract.of(core)
        self.counting = ItemCounting.of(core, self.contract, core.trainer.args.gradient_accumulation_steps)
        self.micro_items: list[Any] = []  # of the micro-batches of the current update
        self.weights: MicroBatchWeights = UNWEIGHTED  # of the current micro-batch
        self.is_weighted = False  # our compute_loss has weighted the last loss, even if an override called it
        self.split = 1  # parts that a micro-batch is split into after running out of memory
        self.last_rate = 0.0  # the learning rate of the last update
        self.modes = Modes(core)
        self.nonfinite = NonfiniteUpdates(run)
        self.is_foreign = False  # the optimizer has none of the model's parameters, maybe those of a criterion
        self.past: Any = None  # past_index: the output that is passed to the next batch as `mems`

    def accumulates(self, steps: int) -> None:
        """Called when a resume on another number of processes changes the accumulation: items must be counted then."""
        if steps > 1:
            self.counting = replace(self.counting, counts=True)

    def resume(self, last_rate: float, split: int) -> None:
        """Restore the values of a checkpoint."""
        self.last_rate, self.split = last_rate, split

    # -- items

    def count_items(self, batch: Any) -> Any:
        """The weight of a micro-batch in its update; see loss.py. Batches are still on the host here: no host sync."""
        core, counting = self.run.core, self.counting
        _, labels = split_labels(batch, core.trainer.label_names)
        labels = labels[0] if isinstance(labels, tuple) else labels
        shifted = core.model_info.shifts_labels
        if isinstance(batch, Mapping) and batch.get(SHIFTED) is not None:
            labels, shifted = batch[SHIFTED], False
        if labels is None:
            return batch_rows(batch) or 1
        tensors = core.backend.tensors
        if counting.class_weights is not None:
            array = tensors.to_numpy(labels) if tensors.is_tensor(labels) else np.asarray(labels)
            if array.dtype.kind in "iu":  # for class probabilities as labels, the mean is unweighted
                ignored = -100 if counting.ignore_index is None else counting.ignore_index
                return weigh_labels(array, counting.class_weights, ignored, shifted)
        return int(tensors.count_labels(labels, shifted, counting.ignore_index))

    def _know_shift(self, batches: list[Any]) -> None:
        """If anything depends on how the loss compares positions and labels, find it out."""
        core, sources = self.run.core, self.run.meter.sources
        if core.model_info.is_shift_guessed:
            of_sources = sources is not None and sources.wants_losses
            if self.counting.counts or of_sources or smoothing_of(core):
                label_shift.find(core, batches)

    def take(self, batches: list[Any]) -> Any:
        """Count the items in the micro-batches of the next update; None if nothing needs their number."""
        self._know_shift(batches)
        if not self.counting.counts or not batches:
            return None
        self.micro_items = [self.count_items(batch) for batch in batches]
        return sum(self.micro_items)

    def _items_for_step(self, shared: SharedUpdate) -> Any:
        """num_items_in_batch as passed to training_step."""
        items = shared.num_items
        return items / shared.sharing if items and self.contract.step_divides and shared.sharing > 1 else items

    # -- gradients

    def loss_of(self, model: Any, inputs: Any, num_items: Any) -> Any:
        """The weighted loss of a micro-batch; its gradients are added to the accumulated ones."""
        contract, trainer = self.contract, self.run.core.trainer

        def compute() -> Any:
            self.is_weighted = False
            given = contract.loss_takes_items and num_items is not None
            items: dict[str, Any] = {NUM_ITEMS: num_items} if given else {}
            loss = trainer.compute_loss(model, inputs, **items)
            if contract.divides_itself and self.weights.sharing > 1 and not self.is_weighted:
                loss = loss * self.weights.sharing
            return loss

        divisor = None if contract.loss_is_share else self._divisor
        return self.run.core.engine.loss_and_gradients(compute, divisor)

    @property
    def _divisor(self) -> Any:
        """What the mean loss of a micro-batch is divided by."""
        return self.micro_batches if self.contract.counts_batches else self.weights.divisor

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches in the current update."""
        return max(1, len(self.micro_items))

    def weigh(self, loss: Any, num_items: Any) -> Any:
        """The share of a mean loss in its update, for a compute_loss that received num_items."""
        if num_items is None or (divisor := self.weights.divisor) is None:
            return loss
        self.is_weighted = True
        return loss / divisor

    def note_outputs(self, outputs: Any, inputs: Any, loss: Any) -> None:
        """For the losses of the datasets of a mixture: the outputs and the loss of compute_loss."""
        sources, contract = self.run.meter.sources, self.contract
        if sources is not None and sources.is_waiting:
            mean = loss * self.weights.divisor if self.is_weighted else loss
            sources.note(outputs, inputs, mean, is_mean=not (contract.sums or contract.func_is_share))

    def of_all_processes(self, loss: Any, num_items: Any) -> Any:
        """Scale a loss that was divided by the items of all processes: the losses of all processes must be summed, but
        gradients are averaged over processes."""
        if num_items is not None and self.weights.sharing > 1 and not self.contract.divides_itself:
            return loss * self.weights.sharing
        return loss

    def begin(self, micro_batches: list[Any], shared: SharedUpdate | None) -> None:
        """Before on_step_begin: whether the first micro-batch, if any is computed, is the last as well."""
        several = shared is not None and len(micro_batches) * self.split + shared.joins > 1
        self.modes.gradients.sync_gradients = not several

    def accumulate(self, micro_batches: list[Any], shared: SharedUpdate) -> Any:
        """Compute the gradients of all micro-batches of an update; returns the loss of the update."""
        core, sources = self.run.core, self.run.meter.sources
        if self.nonfinite.skips:
            self.nonfinite.begin()
        self._know_shift(micro_batches)  # if an override has counted the items
        if sources is not None:
            sources.begin(micro_batches)
        if self.split > 1:
            micro_batches = self._split_batches(micro_batches, self.split)
        while True:
            message = None
            try:
                loss = self._accumulate(micro_batches, shared)
            except Exception as error:
                if not core.trainer.args.auto_find_batch_size or not core.backend.devices.is_out_of_memory(error):
                    self._explain(error, micro_batches)
                    raise
                if all((batch_rows(batch) or 1) <= 1 for batch in micro_batches):
                    raise
                # The error references the tensors of the failed pass: keep only its message, or their memory stays
                # allocated.
                message = str(error).splitlines()[0][:200]
            finally:
                self.weights = UNWEIGHTED
            if message is None:
                break
            micro_batches = self._halve(micro_batches, message)
        for inputs in micro_batches:  # only now, so that a repeated step counts once
            self.run.meter.work.add(inputs)
        if sources is not None:
            sources.end()
        if core.strategy.finish(core.engine.parameters):
            core.wrap_model(again=True)
        return loss

    def _explain(self, error: Exception, micro_batches: list[Any]) -> None:
        """Raise an error that names what is wrong with a batch, if that is why a kernel failed."""
        core = self.run.core
        for batch in micro_batches:
            explained = batch_hints.explain(error, batch, core.trainer.label_names, core.backend.tensors)
            if explained is not None:
                raise explained from error

    def _halve(self, micro_batches: list[Any], message: str) -> list[Any]:
        """After running out of memory: the smaller micro-batches with which to repeat the update."""
        core, step = self.run.core, self.run.core.trainer.state.global_step + 1
        core.engine.clear()
        core.backend.devices.empty_cache(core.trainer.args.device)
        self.split *= 2
        micro_batches = self._split_batches(micro_batches, 2)
        self.run.events.add("out_of_memory", step=step, split=self.split)
        logger.warning(
            "Out of memory at step %d (%s). Repeating the step with micro-batches of at most %d samples "
            "and %d times the accumulation; the global batch size does not change.",
            step,
            message,
            max(batch_rows(batch) or 1 for batch in micro_batches),
            self.split,
        )
        return micro_batches

    def _split_batches(self, micro_batches: list[Any], parts: int) -> list[Any]:
        """Split every micro-batch into smaller ones, and count their items."""
        cut: list[Any] = []
        for batch in micro_batches:
            rows = batch_rows(batch) or 1
            pieces = min(parts, rows)
            cut.extend(self.run.core.backend.tensors.split(batch, pieces, rows) if pieces > 1 else [batch])
        self.micro_items = [self.count_items(batch) for batch in cut]
        if self.run.meter.sources is not None:
            self.run.meter.sources.split(cut)
        return cut

    def _accumulate(self, micro_batches: list[Any], shared: SharedUpdate) -> Any:
        core, strategy, sources = self.run.core, self.run.core.strategy, self.run.meter.sources
        gradients, total = self.modes.gradients, None
        last = len(micro_batches) - 1
        weighs = bool(shared.num_items) and (last > 0 or core.processes.size > 1) and not self.contract.counts_batches
        model, closing = strategy.called(core.trainer.model_wrapped), last
        if weighs:
            closing = max((i for i, items in enumerate(self.micro_items) if items), default=last)
        if shared.joins:
            closing = -1
        for i, inputs in enumerate(micro_batches):
            gradients.sync_gradients = i == closing
            self.run.call("on_load_data_end", inputs=inputs)
            items = self.micro_items[i] if weighs else None
            # A micro-batch without labels does not contribute; its own mean would be 0/0.
            if items != 0:
                if i == closing and shared.loss_travels:
                    strategy.closing(total, counts=True)
                # compute_loss reads the weight of its micro-batch from here, whether we or an override call it.
                self.weights = MicroBatchWeights(items, shared.num_items, shared.sharing)
                if sources is not None:
                    sources.enter(i)
                with strategy.micro_batch(i == closing):
                    loss = self._step(model, inputs, shared)
                if sources is not None:
                    sources.leave()
                total = loss if total is None else total + loss
            if i != last:
                if i == closing:  # the micro-batches that follow have no labels
                    gradients.sync_gradients = False
                self.run.call("on_substep_end")
        if shared.joins:
            self._join(model, shared, total)
        if shared.is_idle:
            if shared.loss_travels:
                strategy.closing(total, counts=False)
            strategy.add_nothing()
        if total is None and core.processes.size > 1:
            core.engine.stand_by()
        gradients.sync_gradients = True
        return total

    def _step(self, model: Any, inputs: Any, shared: SharedUpdate) -> Any:
        if self.modes.waiting:  # a callback may have evaluated since the last micro-batch
            self.modes.train()
        given = (model, inputs, self._items_for_step(shared))[: 3 if self.contract.step_takes_items else 2]
        core, contract = self.run.core, self.contract
        step = core.trainer.training_step
        loss = core.engine.recorded(partial(step, *given)) if contract.is_recorded else step(*given)
        if contract.own_step and contract.own_loss and not core.trainer.args.torch_compile:
            return loss
        # It is read after later steps, which may write to its memory, as captured graphs do.
        return core.backend.tensors.detach(loss) * 1 if core.backend.tensors.is_tensor(loss) else loss

    def _join(self, model: Any, shared: SharedUpdate, total: Any) -> None:
        """Compute as many micro-batches as the other processes, where each forward pass is a collective and would
        otherwise hang. They do not contribute to the gradients."""
        strategy = self.run.core.strategy
        for i in range(shared.joins):
            if i == shared.joins - 1 and shared.loss_travels:
                strategy.closing(total, counts=False)
            self.weights = MicroBatchWeights(None, shared.num_items, shared.sharing)
            self.modes.gradients.sync_gradients = i == shared.joins - 1
            with strategy.micro_batch(i == shared.joins - 1), strategy.muted(model):
                given = (model, shared.spare, self._items_for_step(shared))
                self.run.core.trainer.training_step(*given[: 3 if self.contract.step_takes_items else 2])

    # -- the optimizer step

    def _prepare(self, loss: Any) -> None:
        """Unscale and clip the gradients. Where it is expected, an overridden training_step may have stepped optimizers
        of its own and left no gradients; the optimizer step then changes nothing."""
        core = self.run.core
        try:
            core.engine.prepare_update(core.trainer.optimizer, loss)
        except NoGradientsError:
            if self.contract.own_step or not core.behaviour.step_may_update_model:
                raise
            if self.run.events.first_time("no gradients"):
                logger.warning(
                    "training_step has left no gradients, so the optimizer of the Trainer changes nothing. That is "
                    "right if training_step updates the model itself."
                )

    def apply(self, loss: Any) -> None:
        """Clip, step the optimizer and the schedule, and clear the gradients."""
        run, core = self.run, self.run.core
        trainer, engine = core.trainer, core.engine
        step = trainer.state.global_step + 1
        loss = core.strategy.mean(loss)
        self._prepare(loss)
        if core.clips_by_override:
            clip(core)
        if self.is_foreign:
            self._check_foreign()
        scaler = getattr(engine, "scaler", None)
        run.call("on_pre_optimizer_step")
        run.call("on_optimizer_begin", scaler=scaler)
        bad = engine.apply_update(trainer.optimizer, step)
        if self.nonfinite.skips:
            self.nonfinite.end(engine.is_bad)
        run.call("on_optimizer_step")
        run.call("on_optimizer_end", scaler=scaler)
        run.meter.losses.add(loss)
        if run.meter.spikes.is_on:
            run.meter.spikes.add(step, loss, engine.norm)
        if bad is not None:
            self.nonfinite.found(bad)
        self._step_schedule()
        engine.clear()
        if self.modes.average.kind is not None:
            self.modes.average.update(step)
        every = trainer.args.torch_empty_cache_steps
        if every and step % every == 0:
            core.backend.devices.empty_cache(trainer.args.device)

    def _step_schedule(self) -> None:
        trainer = self.run.core.trainer
        self.last_rate = trainer._get_learning_rate()
        if not self.run.step_end.steps_by_metric:
            trainer.lr_scheduler.step()

    def leave_out(self) -> None:
        """A step whose samples are left out: nothing is updated. The schedule and averages go on, as after an update
        that was skipped because it is not finite."""
        self.run.meter.losses.leave_out()
        self._step_schedule()
        if self.modes.average.kind is not None:
            self.modes.average.update(self.run.core.trainer.state.global_step + 1)

    def look_for_parameters(self, optimizer: Any) -> None:
        """Raise ModelError if the optimizer has no parameters of the model, nor of a loss function that may have
        some."""
        core, contract = self.run.core, self.contract
        trainer, known = core.trainer, {id(p) for p in core.engine.parameters}
        if core.strategy.in_parts or any(id(p) in known for p in self._held_by(optimizer)):
            return
        if contract.own_loss and contract.own_step and trainer.criterion is None and trainer.compute_loss_func is None:
            raise self._foreign(optimizer)
        self.is_foreign = True

    def _check_foreign(self) -> None:
        """In the first update: parameters of a loss function have gradients now."""
        optimizer, self.is_foreign = self.run.core.trainer.optimizer, False
        if all(getattr(p, "grad", None) is None for p in self._held_by(optimizer)):
            raise self._foreign(optimizer)

    def _held_by(self, optimizer: Any) -> list[Any]:
        return [p for group in self.run.core.backend.optimizers.groups(optimizer) for p in group["params"]]

    def _foreign(self, optimizer: Any) -> ModelError:
        return ModelError(
            f"the optimizer ({type(optimizer).__name__}) has none of the model's parameters: it would train nothing. "
            "It may have been created for another model, or before the model was copied. Create it from the parameters "
            "of trainer.model, or remove it from optimizers=."
        )

    # -- past_index

    def keep_past_of(self, outputs: Any) -> None:
        """Store the output of this batch that is passed to the next one."""
        core = self.run.core
        self.past = core.backend.tensors.detach(_output_at(outputs, core.trainer.args.past_index))

    def forget_past(self) -> None:
        self.past = None

    @contextlib.contextmanager
    def without_past(self) -> Iterator[None]:
        """A context for batches that are not training data."""
        past, self.past = self.past, None
        try:
            yield
        finally:
            self.past = past


def _output_at(outputs: Any, index: int) -> Any:
    outputs = list(outputs.values()) if isinstance(outputs, Mapping) else outputs
    if not isinstance(outputs, (tuple, list)) or index >= len(outputs):
        has = f"{len(outputs)} outputs" if isinstance(outputs, (tuple, list)) else f"a {type(outputs).__name__}"
        raise ArgumentError(
            f"past_index={index} is the index, from 0, of the output that is passed back as `mems`, but the model "
            f"returned {has}. Correct past_index, or remove it."
        )
    return outputs[index]
