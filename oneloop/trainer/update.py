"""One update: the gradients of its micro-batches, and the optimizer step."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.batch_sizes import batch_rows
from ..distributed.step_sync import SharedUpdate
from ..errors import ArgumentError, ModelError, NoGradientsError, a_type
from ..formats.schema import integer, number
from ..introspect import NUM_ITEMS
from . import batch_hints, label_shift
from .broadcast_check import BroadcastCheck
from .clipping import clip
from .loss import (
    WHOLE_UPDATE,
    ItemCounting,
    LossTerms,
    ReturnedLoss,
    items_for_step,
    rescale_for_world,
    smoothing_of,
    split_labels,
    weigh_labels,
)
from .part import Hooks, Part
from .world_invariance import WorldInvariance, exact_weight

if TYPE_CHECKING:
    from ..checkpoint.resume import StoredRun
    from .run import Run

logger = logging.getLogger(__name__)

_ALONE = contextlib.nullcontext()
SHIFTED = "shift_labels"  # labels that a collator has shifted: position i is compared with label i


class Update(Part):
    """Created for each run; computes all its updates."""

    name = "update"
    schema = {"learning_rate": number(0), "split": integer(1, 2**20)}

    def __init__(self, run: "Run") -> None:
        super().__init__(run.context)
        core = run.core
        self.run, self.core, self.trainer = run, core, core.trainer
        self.contract = run.contract
        self.counting = ItemCounting.of(core, self.contract, core.trainer.args.gradient_accumulation_steps)
        self.micro_batches = 1  # in the current update
        self.terms: LossTerms = WHOLE_UPDATE  # of the micro-batch in training_step; see loss.py
        self._invariance = run.parts.of(WorldInvariance) if core.strategy.sums_gradients else None
        # There are processes, which add up their gradients and losses; or these are added up in a fixed order.
        self._several = not core.mesh.is_single or core.strategy.sums_gradients
        self._clips_by_override = core.clips_by_override
        self._asks_shift = True  # whether the loss is of position i and label i + 1
        self._counted: tuple[list[Any], list[Any]] = ([], [])  # micro-batches, and the items of each
        self.split = 1  # parts that a micro-batch is split into after running out of memory
        self.last_rate = 0.0  # the learning rate of the last update
        self.optimizer_has_no_model_params = False  # maybe those of a criterion
        self.broadcasts = BroadcastCheck()
        self.gradients: Any = None  # a state for scripts: whether a micro-batch ends its update (`sync_gradients`)
        self.past: Any = None  # past_index: the output that is passed to the next batch as `mems`

    def start(self) -> None:
        """Called at the start of train()."""
        self.gradients = self.core.extensions.gradient_state()

    def stop(self) -> None:
        """Called at the end of train(), also after an error in the middle of an update."""
        if self.gradients is not None:
            self.gradients.sync_gradients = True

    def accumulates(self, steps: int) -> None:
        """Called when a resume on another number of processes changes the accumulation: items must be counted then."""
        if steps > 1:
            self.counting = replace(self.counting, counts=True)

    def state(self) -> dict[str, Any]:
        return {"learning_rate": self.last_rate, "split": self.split}

    def load(self, stored: dict[str, Any], source: "StoredRun") -> None:
        self.last_rate, self.split = stored.get("learning_rate", 0.0), stored.get("split", 1)

    # -- items

    def count_items(self, batch: Any) -> Any:
        """The weight of a micro-batch in its update; see loss.py. Batches are still on the host here: no host sync."""
        core, counting = self.core, self.counting
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
                weight = weigh_labels(array, counting.class_weights, ignored, shifted)
                return weight if self._invariance is None else exact_weight(weight)
        return int(tensors.count_labels(labels, shifted, counting.ignore_index))

    def _find_label_shift(self, batches: list[Any]) -> None:
        """If anything depends on how the loss compares positions and labels, find it out."""
        core = self.core
        depends = self.counting.counts or smoothing_of(core)
        depends = depends or any(part.depends_on_label_shift for part in self.run.parts)
        if depends and core.model_info.is_shift_guessed:
            label_shift.find(core, batches)
            self._counted = [], []  # by another rule, maybe
        self._asks_shift = bool(depends) and core.model_info.is_shift_guessed

    def count_update_items(self, batches: list[Any]) -> Any:
        """The number of items in the micro-batches of the next update; None if nothing needs it."""
        if self._asks_shift:
            self._find_label_shift(batches)
        if not self.counting.counts or not batches:
            return None
        return sum(self.items_of(batches))

    def items_of(self, batches: list[Any]) -> list[Any]:
        """The items of each of these micro-batches. They are counted once, also if get_batch_samples is overridden."""
        known, items = self._counted
        if len(known) != len(batches) or any(one is not other for one, other in zip(known, batches)):
            items = [self.count_items(batch) for batch in batches]
            self._counted = list(batches), items
        return items

    # -- gradients

    def backward(self, model: Any, inputs: Any, num_items: Any, terms: LossTerms) -> Any:
        """The normalized loss of a micro-batch; its gradients are added to the accumulated ones."""
        core, contract = self.core, self.contract
        if num_items is None and contract.weighs_items:  # an overridden training_step has not passed it on
            num_items = terms.num_items
        given = contract.loss_takes_items and num_items is not None
        compute = partial(core.trainer.compute_loss, model, inputs, **({NUM_ITEMS: num_items} if given else {}))
        divisor = None
        if contract.returned is ReturnedLoss.MEAN:
            divisor = terms.divisor
        elif contract.returned is ReturnedLoss.EQUAL_MEAN:
            divisor = self.micro_batches
        elif contract.returned is ReturnedLoss.DIVIDED_BY_ITEMS:
            compute = partial(self._rescaled, compute, terms)
        return core.engine.loss_and_gradients(compute, divisor)

    @staticmethod
    def _rescaled(compute: Callable[[], Any], terms: LossTerms) -> Any:
        """The loss of an override that divides by the items of all processes, unless super() has normalized it."""
        terms.is_normalized = False
        loss = compute()
        return loss if terms.is_normalized else rescale_for_world(loss, terms)

    def begin(self, micro_batches: list[Any], shared: SharedUpdate | None) -> None:
        """Before on_step_begin: whether the first micro-batch, if any is computed, is the last as well."""
        several = shared is not None and len(micro_batches) * self.split + shared.dummy_steps > 1
        self.micro_batches = max(1, len(micro_batches))
        self.gradients.sync_gradients = not several

    def accumulate(self, micro_batches: list[Any], shared: SharedUpdate) -> Any:
        """Compute the gradients of all micro-batches of an update; returns the loss of the update."""
        core, hooks = self.core, self.run.hooks
        if self._asks_shift:  # an override has counted the items
            self._find_label_shift(micro_batches)
        for hook in hooks.start_update:
            hook(micro_batches)
        if self.split > 1:
            micro_batches = self._split_batches(micro_batches, self.split)
        while True:
            message = None
            try:
                for before in hooks.before_accumulation:
                    before(partial(self._replay, micro_batches, shared))
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
            if message is None:
                break
            micro_batches = self._halve(micro_batches, message)
        for hook in hooks.end_accumulation:
            hook(micro_batches)
        if self._several and core.strategy.finish(core.engine.parameters):
            core.wrap_model(again=True)
        return loss

    def _replay(self, micro_batches: list[Any], shared: SharedUpdate, hooks: Hooks) -> Any:
        """Compute the gradients of the update for somebody who compares them, without the parts and callbacks of the
        run; returns the loss of this process."""
        core, past = self.core, self.past
        core.engine.clear()
        try:
            with self.run.with_hooks(hooks):
                loss = self._accumulate(micro_batches, shared)
        finally:
            self.past = past
        if self._several:
            core.strategy.finish(core.engine.parameters)
        return loss

    def _explain(self, error: Exception, micro_batches: list[Any]) -> None:
        """Raise an error that names what is wrong with a batch, if that is why a kernel failed."""
        core = self.core
        for batch in micro_batches:
            explained = batch_hints.explain(error, batch, core, core.trainer.train_dataset)
            if explained is not None:
                raise explained from error

    def _halve(self, micro_batches: list[Any], message: str) -> list[Any]:
        """After running out of memory: the smaller micro-batches with which to repeat the update."""
        core, step = self.core, self.trainer.state.global_step + 1
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
        """Split every micro-batch into smaller ones."""
        cut: list[Any] = []
        for batch in micro_batches:
            rows = batch_rows(batch) or 1
            pieces = min(parts, rows)
            cut.extend(self.backend.tensors.split(batch, pieces, rows) if pieces > 1 else [batch])
        self.micro_batches = max(1, len(cut))
        for hook in self.run.hooks.split_micro_batches:
            hook(cut)
        return cut

    def _accumulate(self, micro_batches: list[Any], shared: SharedUpdate) -> Any:
        core, strategy, hooks = self.core, self.core.strategy, self.run.hooks
        gradients, total, invariance = self.gradients, None, self._invariance
        if invariance is not None:
            strategy.begin_sums(core.trainer.model, core.engine.parameters, self.run.plan.accumulation)
        last = len(micro_batches) - 1
        weighs = bool(shared.num_items) and (last > 0 or core.mesh.num_batches > 1) and self.contract.weighs_items
        counted = self.items_of(micro_batches) if weighs else None
        model, closing = core.trainer.model_wrapped, last
        if self._several:
            model = strategy.forward_module(model)
        if counted is not None:
            closing = max((i for i, items in enumerate(counted) if items), default=last)
        if shared.dummy_steps:
            closing = -1
        for i, inputs in enumerate(micro_batches):
            gradients.sync_gradients = i == closing
            self.run.call("on_load_data_end", inputs=inputs)
            items = None if counted is None else counted[i]
            # A micro-batch without labels does not contribute; its own mean would be 0/0.
            if items != 0:
                if i == closing and shared.loss_follows_gradients:
                    strategy.attach_loss_to_last_backward(total, counts=True)
                terms = WHOLE_UPDATE
                if shared.num_items is not None or shared.sharing > 1:
                    terms = LossTerms(items, shared.num_items, shared.sharing)
                for hook in hooks.start_micro_batch:
                    hook(i)
                if invariance is not None:
                    invariance.seed_micro_batch(i)
                with strategy.micro_batch(i == closing) if self._several else _ALONE:
                    loss = self._step(model, inputs, terms)
                if invariance is not None:
                    strategy.take_micro_batch(i, loss)
                for hook in hooks.end_micro_batch:
                    hook(i)
                total = loss if total is None else total + loss
            if i != last:
                if i == closing:  # the micro-batches that follow have no labels
                    gradients.sync_gradients = False
                self.run.call("on_substep_end")
        if shared.dummy_steps:
            self._join(model, shared, total)
        if shared.is_idle:
            if shared.loss_follows_gradients:
                strategy.attach_loss_to_last_backward(total, counts=False)
            strategy.contribute_zero_grads()
        if total is None and core.mesh.num_batches > 1:
            core.engine.skip_local_compute()
        if invariance is not None:
            invariance.seed_rest_of_step()
        gradients.sync_gradients = True
        return total

    def _step(self, model: Any, inputs: Any, terms: LossTerms) -> Any:
        if self.run.modes.waiting:  # a callback may have evaluated since the last micro-batch
            self.run.modes.train()
        core, contract = self.core, self.contract
        step: Callable[..., Any] = core.trainer.training_step
        given: tuple[Any, ...] = (model, inputs)
        if contract.step_takes_items:
            items = terms.num_items
            if contract.step_divides:
                items = items_for_step(contract, items, terms.processes)
            given = (model, inputs, items)
        if contract.is_recorded:
            step, given = core.engine.recorded, (partial(step, *given),)
        self.terms = terms  # training_step and compute_loss have no parameter for them
        try:
            loss = step(*given)
        finally:
            self.terms = WHOLE_UPDATE
        if contract.has_default_step and contract.has_default_loss and not core.trainer.args.torch_compile:
            return loss
        # It is read after later steps, which may write to its memory, as captured graphs do.
        return core.backend.tensors.detach(loss) * 1 if core.backend.tensors.is_tensor(loss) else loss

    def _join(self, model: Any, shared: SharedUpdate, total: Any) -> None:
        """Compute as many micro-batches as the other processes, where each forward pass is a collective and would
        otherwise hang. They do not contribute to the gradients."""
        strategy = self.core.strategy
        for i in range(shared.dummy_steps):
            if i == shared.dummy_steps - 1 and shared.loss_follows_gradients:
                strategy.attach_loss_to_last_backward(total, counts=False)
            self.gradients.sync_gradients = i == shared.dummy_steps - 1
            own = strategy.micro_batch(i == shared.dummy_steps - 1), strategy.discard_gradients(model)
            with own[0], own[1], self.run.logged_metrics.muted():
                self._step(model, shared.dummy_batch, LossTerms(None, shared.num_items, shared.sharing))

    # -- the optimizer step

    def _accept_no_gradients(self) -> bool:
        """Where it is expected, an overridden training_step may have stepped optimizers of its own and left no
        gradients; the optimizer step then changes nothing."""
        if self.contract.has_default_step or not self.core.behaviour.step_may_update_model:
            return False
        if self.run.events.is_first_report("no gradients"):
            logger.warning(
                "training_step has left no gradients, so the optimizer of the Trainer changes nothing. That is "
                "right if training_step updates the model itself."
            )
        return True

    def apply(self, loss: Any) -> None:
        """Clip, step the optimizer and the schedule, and clear the gradients."""
        run, core, hooks = self.run, self.core, self.run.hooks
        trainer, engine = core.trainer, core.engine
        step = trainer.state.global_step + 1
        for ready in hooks.gradients_ready:
            ready(loss)
        if self._several:
            loss = core.strategy.mean(loss)
        try:
            engine.prepare_update(trainer.optimizer, loss)
        except NoGradientsError:
            if not self._accept_no_gradients():
                raise
        if self._clips_by_override:
            clip(core)
        if self.optimizer_has_no_model_params:
            self._check_criterion_gradients()
        for start in hooks.start_optimizer_step:
            start()
        scaler = engine.scaler
        run.call("on_pre_optimizer_step")
        run.call("on_optimizer_begin", scaler=scaler)
        bad = engine.apply_update(trainer.optimizer, step)
        for after in hooks.end_optimizer_step:
            after(engine.is_bad)
        run.call("on_optimizer_step")
        run.call("on_optimizer_end", scaler=scaler)
        self.last_rate = trainer._get_learning_rate()
        for end in hooks.end_update:
            end(step, loss)
        if bad is not None:
            for handle in hooks.handle_nonfinite:
                handle(bad)
        self._step_schedule()
        engine.clear()
        for hook in hooks.end_step:
            hook(step)
        every = trainer.args.torch_empty_cache_steps
        if every and step % every == 0:
            core.backend.devices.empty_cache(trainer.args.device)

    def _step_schedule(self) -> None:
        trainer = self.trainer
        if not self.run.step_end.steps_by_metric:
            trainer.lr_scheduler.step()

    def advance_without_update(self) -> None:
        """A step whose samples are skipped: nothing is updated. The schedule and averages continue, as after an update
        that was skipped because it is not finite."""
        hooks, step = self.run.hooks, self.trainer.state.global_step + 1
        for hook in hooks.skip_step:
            hook(step)
        self.last_rate = self.trainer._get_learning_rate()
        self._step_schedule()
        for hook in hooks.end_step:
            hook(step)

    def check_optimizer_parameters(self, optimizer: Any) -> None:
        """Raise ModelError if the optimizer has no parameters of the model, nor of a loss function that may have
        some."""
        core, contract = self.core, self.contract
        trainer, known = core.trainer, {id(p) for p in core.engine.parameters}
        if core.strategy.is_sharded or any(id(p) in known for p in self._parameters_held_by(optimizer)):
            return
        if (
            contract.has_default_loss
            and contract.has_default_step
            and trainer.criterion is None
            and trainer.compute_loss_func is None
        ):
            raise self._foreign(optimizer)
        self.optimizer_has_no_model_params = True

    def _check_criterion_gradients(self) -> None:
        """In the first update: parameters of a loss function have gradients now."""
        optimizer, self.optimizer_has_no_model_params = self.trainer.optimizer, False
        if all(getattr(p, "grad", None) is None for p in self._parameters_held_by(optimizer)):
            raise self._foreign(optimizer)

    def _parameters_held_by(self, optimizer: Any) -> list[Any]:
        return [p for group in self.backend.optimizers.groups(optimizer) for p in group["params"]]

    def _foreign(self, optimizer: Any) -> ModelError:
        return ModelError(
            f"the optimizer ({type(optimizer).__name__}) has none of the model's parameters: it would train nothing. "
            "It may have been created for another model, or before the model was copied. Create it from the parameters "
            "of trainer.model, or remove it from optimizers=."
        )

    # -- past_index

    def store_past(self, outputs: Any) -> None:
        """Store the output of this batch that is passed to the next one."""
        core = self.core
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
        has = f"{len(outputs)} outputs" if isinstance(outputs, (tuple, list)) else f"{a_type(outputs)}"
        raise ArgumentError(
            f"past_index={index} is the index, from 0, of the output that is passed back as `mems`, but the model "
            f"returned {has}. Correct past_index, or remove it."
        )
    return outputs[index]
