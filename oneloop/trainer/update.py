"""One update: the gradients of its micro-batches, and the step of the optimizer."""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..compat.introspect import NUM_ITEMS
from ..data.order import BatchSampler
from ..distributed.step_sync import SharedUpdate
from ..errors import NonFiniteError
from .evaluation import batch_rows
from .loss import UNWEIGHTED, ItemCounting, LossContract, MicroBatchWeights, split_labels, weigh_labels

if TYPE_CHECKING:
    from .run import Run

logger = logging.getLogger(__name__)


class Update:
    """Lives for one run, which is many updates."""

    def __init__(self, run: "Run") -> None:
        core = run.core
        self.run = run
        self.contract = LossContract.of(core)
        self.counting = ItemCounting.of(core, self.contract, core.trainer.args.gradient_accumulation_steps)
        self.micro_items: list[Any] = []  # of the micro-batches of the update under way
        self.weights: MicroBatchWeights = UNWEIGHTED  # of the micro-batch under way
        self.is_weighted = False  # our compute_loss has weighed the last loss, also when an override called it
        self.split = 1  # pieces that a micro-batch is cut into since memory ran out
        self.last_rate = 0.0  # the learning rate of the last update
        self.past: Any = None  # past_index: the output that the next batch is given as `mems`

    def accumulates(self, steps: int) -> None:
        """A resume on another number of processes has changed the accumulation: items have to be counted now."""
        if steps > 1:
            self.counting = replace(self.counting, counts=True)

    def resume(self, last_rate: float, split: int) -> None:
        """What a checkpoint says."""
        self.last_rate, self.split = last_rate, split

    # -- items

    def count_items(self, batch: Any) -> Any:
        """How much a micro-batch weighs in its update; see loss.py. Batches are still on the host here."""
        core, counting = self.run.core, self.counting
        _, labels = split_labels(batch, core.trainer.label_names)
        labels = labels[0] if isinstance(labels, tuple) else labels
        if labels is None:
            return batch_rows(batch) or 1
        tensors, shifted = core.backend.tensors, core.model_info.shifts_labels
        if counting.class_weights is not None:
            array = tensors.to_numpy(labels) if tensors.is_tensor(labels) else np.asarray(labels)
            if array.dtype.kind in "iu":  # labels that are shares of classes have a plain mean
                ignored = -100 if counting.ignore_index is None else counting.ignore_index
                return weigh_labels(array, counting.class_weights, ignored, shifted)
        return int(tensors.count_labels(labels, shifted, counting.ignore_index))

    def take(self, batches: list[Any]) -> Any:
        """The micro-batches of the next update have come: how many items they hold, or None when nothing needs it."""
        if not self.counting.counts or not batches:
            return None
        self.micro_items = [self.count_items(batch) for batch in batches]
        return sum(self.micro_items)

    def _items_for_step(self, shared: SharedUpdate) -> Any:
        """num_items_in_batch as training_step is given it."""
        items = shared.num_items
        return items / shared.sharing if items and self.contract.step_divides and shared.sharing > 1 else items

    # -- gradients

    def loss_of(self, model: Any, inputs: Any, num_items: Any) -> Any:
        """The loss of a micro-batch as it enters the update, and its gradients added to those held."""
        contract, trainer = self.contract, self.run.core.trainer

        def compute() -> Any:
            self.is_weighted = False
            given = contract.loss_takes_items and num_items is not None
            items: dict[str, Any] = {NUM_ITEMS: num_items} if given else {}
            loss = trainer.compute_loss(model, inputs, **items)
            if contract.divides_itself and self.weights.sharing > 1 and not self.is_weighted:
                loss = loss * self.weights.sharing
            return loss

        divisor = None if contract.loss_is_share else self.weights.divisor
        return self.run.core.engine.loss_and_gradients(compute, divisor)

    def weigh(self, loss: Any, num_items: Any) -> Any:
        """The share of a mean loss in its update, for a compute_loss that was given num_items."""
        if num_items is None or (divisor := self.weights.divisor) is None:
            return loss
        self.is_weighted = True
        return loss / divisor

    def of_all_processes(self, loss: Any, num_items: Any) -> Any:
        """A loss that was divided by the items of all processes: losses of processes are averaged, and this is a part
        of a sum."""
        if num_items is not None and self.weights.sharing > 1 and not self.contract.divides_itself:
            return loss * self.weights.sharing
        return loss

    def accumulate(self, micro_batches: list[Any], shared: SharedUpdate) -> Any:
        """Gradients of all micro-batches of an update; the loss of the update."""
        core = self.run.core
        if self.split > 1:
            micro_batches = self._split_batches(micro_batches, self.split)
        while True:
            message = None
            try:
                loss = self._accumulate(micro_batches, shared)
            except Exception as error:
                if not core.trainer.args.auto_find_batch_size or not core.backend.devices.is_out_of_memory(error):
                    raise
                if all((batch_rows(batch) or 1) <= 1 for batch in micro_batches):
                    raise
                # The error holds the tensors of the failed pass: only its text may leave this block.
                message = str(error).splitlines()[0][:200]
            finally:
                self.weights = UNWEIGHTED
            if message is None:
                break
            micro_batches = self._halve(micro_batches, message)
        for inputs in micro_batches:  # only now: a step that is computed again counts once
            self.run.meter.work.add(inputs)
        if core.strategy.finish(core.engine.parameters):
            core.wrap_model(again=True)
        return loss

    def _halve(self, micro_batches: list[Any], message: str) -> list[Any]:
        """Memory ran out: the micro-batches to compute the update again with."""
        core, step = self.run.core, self.run.core.trainer.state.global_step + 1
        core.engine.clear()
        core.backend.devices.empty_cache(core.trainer.args.device)
        self.split *= 2
        micro_batches = self._split_batches(micro_batches, 2)
        self.run.events.add("out_of_memory", step=step, split=self.split)
        logger.warning(
            "Out of memory at step %d (%s). The step is computed again with micro-batches of at most %d samples "
            "and %d times the accumulation; the global batch stays the same.",
            step,
            message,
            max(batch_rows(batch) or 1 for batch in micro_batches),
            self.split,
        )
        return micro_batches

    def _split_batches(self, micro_batches: list[Any], parts: int) -> list[Any]:
        """Every micro-batch cut into smaller ones; their weights follow."""
        cut: list[Any] = []
        for batch in micro_batches:
            rows = batch_rows(batch) or 1
            pieces = min(parts, rows)
            cut.extend(self.run.core.backend.tensors.split(batch, pieces, rows) if pieces > 1 else [batch])
        self.micro_items = [self.count_items(batch) for batch in cut]
        return cut

    def _accumulate(self, micro_batches: list[Any], shared: SharedUpdate) -> Any:
        core, strategy = self.run.core, self.run.core.strategy
        total = None
        last = len(micro_batches) - 1
        weighs = bool(shared.num_items) and (last > 0 or core.processes.size > 1)
        model, closing = strategy.called(core.trainer.model_wrapped), last
        if weighs:
            closing = max((i for i, items in enumerate(self.micro_items) if items), default=last)
        if shared.joins:
            closing = -1
        for i, inputs in enumerate(micro_batches):
            self.run.call("on_load_data_end", inputs=inputs)
            items = self.micro_items[i] if weighs else None
            # Without a label it has no part in the mean; its own mean would be 0/0.
            if items != 0:
                if i == closing and shared.loss_travels:
                    strategy.closing(total, counts=True)
                # A compute_loss finds the weight of its micro-batch there, whoever calls it.
                self.weights = MicroBatchWeights(items, shared.num_items, shared.sharing)
                with strategy.micro_batch(i == closing):
                    loss = self._step(model, inputs, shared)
                total = loss if total is None else total + loss
            if i != last:
                self.run.call("on_substep_end")
        if shared.joins:
            self._join(model, shared, total)
        if shared.is_idle:
            if shared.loss_travels:
                strategy.closing(total, counts=False)
            strategy.add_nothing()
        if total is None and core.processes.size > 1:
            core.engine.stand_by()
        return total

    def _step(self, model: Any, inputs: Any, shared: SharedUpdate) -> Any:
        given = (model, inputs, self._items_for_step(shared))[: 3 if self.contract.step_takes_items else 2]
        step = self.run.core.trainer.training_step
        return self.run.core.engine.recorded(partial(step, *given)) if self.contract.is_recorded else step(*given)

    def _join(self, model: Any, shared: SharedUpdate, total: Any) -> None:
        """Compute as many micro-batches as the others do, where each one is a collective. They add nothing."""
        strategy = self.run.core.strategy
        for i in range(shared.joins):
            if i == shared.joins - 1 and shared.loss_travels:
                strategy.closing(total, counts=False)
            self.weights = MicroBatchWeights(None, shared.num_items, shared.sharing)
            with strategy.micro_batch(i == shared.joins - 1), strategy.muted(model):
                given = (model, shared.spare, self._items_for_step(shared))
                self.run.core.trainer.training_step(*given[: 3 if self.contract.step_takes_items else 2])

    # -- the optimizer's step

    def apply(self, loss: Any) -> None:
        """Clip, step the optimizer and the schedule, and forget the gradients."""
        run, core = self.run, self.run.core
        trainer, engine = core.trainer, core.engine
        step = trainer.state.global_step + 1
        loss = core.strategy.mean(loss)
        engine.prepare_update(trainer.optimizer, loss)
        scaler = getattr(engine, "scaler", None)
        run.call("on_pre_optimizer_step")
        run.call("on_optimizer_begin", scaler=scaler)
        bad = engine.apply_update(trainer.optimizer, step)
        run.call("on_optimizer_step")
        run.call("on_optimizer_end", scaler=scaler)
        run.meter.losses.add(loss)
        if bad is not None:
            self.nonfinite(bad)
        self.last_rate = core.backend.optimizers.learning_rates(trainer.optimizer)[0]
        if not run.step_end.steps_by_metric:
            trainer.lr_scheduler.step()
        engine.clear()
        every = trainer.args.torch_empty_cache_steps
        if every and step % every == 0:
            core.backend.devices.empty_cache(trainer.args.device)

    def nonfinite(self, step: int) -> None:
        """nonfinite="stop" raises; "skip" left the update out and goes on, aloud."""
        run = self.run
        args = run.core.trainer.args
        if args.nonfinite == "ignore":  # a loss scaler leaves the update out by itself
            return
        samples = self._samples_of(step)
        run.events.add("nonfinite", step=step, action=args.nonfinite, samples=samples)
        text = (
            f"step {step}: the loss or a gradient is not finite (NaN or infinite, as it also is when no label counts). "
            f"The update was left out, so the weights are still good. Samples of this step: {samples}."
        )
        if args.nonfinite == "skip":
            logger.warning("%s nonfinite='skip': the run goes on.", text)
            return
        run.checkpointer.finish()  # a save under way may be the last checkpoint
        raise NonFiniteError(
            f"{text} Last checkpoint: {run.checkpointer.last_saved or 'none in this run'}. Look at these samples, "
            "lower the learning rate, or use debug='underflow_overflow' to find the layer; nonfinite='skip' leaves "
            "such steps out and goes on."
        )

    def _samples_of(self, step: int) -> str:
        """Indices of the samples in an update: the order is a pure function, so they can be told afterwards."""
        plan = self.run.plan
        sampler = getattr(plan.loader, "batch_sampler", None)
        if not isinstance(sampler, BatchSampler) or not plan.steps_per_epoch:
            return "unknown (the data set cannot be indexed)"
        epoch, place = divmod(step - 1, plan.steps_per_epoch)
        size = sampler.batch_size * sampler.world * plan.accumulation
        end = min(sampler.length, len(sampler) * sampler.batch_size * sampler.world)  # drop_last drops what follows
        indices = sampler.orders(epoch).take(place * size, min((place + 1) * size, end)).tolist()
        return str(indices) if len(indices) <= 64 else f"{str(indices[:64])[:-1]}, ... {len(indices)} in all]"

    # -- past_index

    def keep_past(self, output: Any) -> None:
        """The output of this batch that the next one is given; None: it is given none."""
        self.past = output

    @contextlib.contextmanager
    def without_past(self) -> Iterator[None]:
        """Within it, batches are of other data than training's."""
        past, self.past = self.past, None
        try:
            yield
        finally:
            self.past = past
