"""Loss, gradients and update: the part that users override."""

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from ..data.order import BatchSampler
from ..errors import ArgumentError, DataError, NonFiniteError
from ..loop import Plan
from .evaluation import batch_rows
from .loss import NUM_ITEMS, accepts, find_loss, logits_of, mentions, minds_processes, reads, setting, split_labels
from .parts import TrainerParts

logger = logging.getLogger(__name__)


class TrainerSteps(TrainerParts):
    """compute_loss, training_step and what the loop does with them."""

    def _read_overrides(self) -> None:
        """Find out once which spelling of the overridable methods this run has."""
        cls = type(self)
        own_loss = self._own_loss = cls.compute_loss is TrainerSteps.compute_loss
        self._loss_takes_items = accepts(self.compute_loss, NUM_ITEMS)
        self._step_takes_items = accepts(self.training_step, NUM_ITEMS)
        self._loss_is_share = own_loss or reads(self.compute_loss)
        self._func_is_share = self.compute_loss_func is not None and reads(self.compute_loss_func)
        function = self.criterion if self.compute_loss_func is None else self.compute_loss_func
        ignored, weight = setting(function, "ignore_index"), setting(function, "weight")
        self._ignore_index = ignored if isinstance(ignored, int) else -100
        if self.backend.models.counts_ignored(function):
            self._ignore_index = None  # its mean is over all labels
        self._loss_sums = setting(function, "reduction") == "sum" and not self._func_is_share
        self._loss_is_share = self._loss_is_share or self._loss_sums
        weighs = ignored is not None and self.backend.tensors.is_tensor(weight)  # others' weights leave the mean plain
        weighs = weighs and not self._loss_sums and not self._func_is_share
        self._class_weights = self.backend.tensors.to_numpy(weight).astype("float64") if weighs else None
        self._own_flops = cls.floating_point_ops is not TrainerSteps.floating_point_ops
        asked = (not own_loss and reads(self.compute_loss)) or self._func_is_share
        self._own_step = cls.training_step is TrainerSteps.training_step
        asked = asked or (not self._own_step and reads(self.training_step))
        self._asked_items = asked
        given = [(own_loss, self._loss_takes_items), (self._own_step, self._step_takes_items)]
        given.append((self.compute_loss_func is None, accepts(self.compute_loss_func, NUM_ITEMS)))
        self._needs_items = any(takes and not own for own, takes in given)
        # Functional autodiff has to watch a training_step that hands its losses to backward.
        self._watches_step = not self._own_step and self.backend.engine.WATCHES_OVERRIDES
        self._counts_items = self.args.gradient_accumulation_steps > 1 or self.args.auto_find_batch_size or asked
        if self.processes.size > 1 and self.args.average_tokens_across_devices:
            self._counts_items = True
        # A compute_loss that divides by the items of all processes, and knows nothing of their mean.
        self._divides_itself = not own_loss and self._loss_is_share and not minds_processes(self.compute_loss)
        self._step_divides = self.processes.size > 1 and self._is_dividing_step()

    def _is_dividing_step(self) -> bool:
        """Whether a training_step of the user's divides by num_items_in_batch itself, as in one process."""
        step = self.training_step
        if type(self).training_step is TrainerSteps.training_step or not reads(step) or minds_processes(step):
            return False
        weighing = {"training_step"} if self._divides_itself else {"training_step", "compute_loss"}
        return not mentions(step, weighing)

    def _items_for_step(self, num_items: Any) -> Any:
        """num_items_in_batch as training_step is given it."""
        return num_items / self._sharing if num_items and self._step_divides and self._sharing > 1 else num_items

    @property
    def _share(self) -> Any:
        """What the mean loss of the micro-batch under way is divided by, so that it is its share in the update."""
        if not self._own_items:
            return None
        total = self._num_items() if callable(self._num_items) else self._num_items
        return total / (self._own_items * self._sharing)

    # -- loss

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: int | None = None
    ) -> Any:
        """The loss of a micro-batch: its mean, or, given num_items_in_batch, its share in the mean of the update."""
        if self.criterion is not None or self.compute_loss_func is not None or self.args.label_smoothing_factor:
            loss, outputs = self._external_loss(model, inputs, num_items_in_batch)
        else:
            outputs = self.backend.models.invoke(model, inputs)
            loss = find_loss(outputs, inputs)
            if num_items_in_batch is not None and self._share is not None:
                loss, self._weighed = loss / self._share, True
        if self.args.past_index >= 0:
            self._past = self.backend.tensors.detach(_output_at(outputs, self.args.past_index))
        return (loss, outputs) if return_outputs else loss

    def _external_loss(self, model: Any, inputs: Any, num_items: int | None) -> tuple[Any, Any]:
        """A loss that is not the model's own: from criterion, compute_loss_func or label smoothing."""
        rest, labels = split_labels(inputs, self.label_names)
        if labels is None:
            names = list(inputs) if isinstance(inputs, Mapping) else type(inputs).__name__
            raise DataError(
                f"criterion, compute_loss_func and label_smoothing_factor need labels; the batch has {names} and "
                f"label_names is {self.label_names}. Add the labels to the data set, or name them in label_names."
            )
        own = self.criterion is not None or self.compute_loss_func is not None
        needs_labels = not own and self._makes_decoder_inputs
        outputs = self.backend.models.invoke(model, inputs if needs_labels else rest)
        divided = self._loss_sums
        if self.compute_loss_func is not None:
            extra = {NUM_ITEMS: num_items} if accepts(self.compute_loss_func, NUM_ITEMS) else {}
            loss, divided = self.compute_loss_func(outputs, labels, **extra), divided or self._func_is_share
        elif self.criterion is not None:
            loss = self.criterion(logits_of(outputs), labels)
            loss = loss[0] if isinstance(loss, (tuple, list)) else loss
        else:
            loss = self.backend.tensors.smoothed_loss(
                # Given labels, a model that returns a tuple puts its own loss first.
                outputs[bool(needs_labels)] if isinstance(outputs, (tuple, list)) else logits_of(outputs),
                labels,
                self.args.label_smoothing_factor,
                self._shifts_labels,
            )
        if num_items is not None and self._share is not None and not divided:
            loss, self._weighed = loss / self._share, True
        elif num_items is not None and divided and self._sharing > 1 and not self._divides_itself:
            loss = loss * self._sharing  # losses of the processes are averaged, and this one is a part of a sum
        return loss, outputs if needs_labels else _with_loss(outputs, loss)

    def compute_loss_context_manager(self) -> AbstractContextManager:
        """The context of the forward pass: mixed precision when it is on."""
        return self.engine.autocast()

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> AbstractContextManager:
        return self.engine.autocast(cache_enabled)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: int | None = None) -> Any:
        """Add the gradients of one micro-batch to those held; its loss, as it enters the update."""
        self.backend.models.train_mode(model)
        inputs = self._prepare_inputs(inputs)

        def compute() -> Any:
            self._weighed = False
            given = self._loss_takes_items and num_items_in_batch is not None
            items: dict[str, Any] = {NUM_ITEMS: num_items_in_batch} if given else {}
            loss = self.compute_loss(model, inputs, **items)
            if self._divides_itself and self._sharing > 1 and not self._weighed:
                loss = loss * self._sharing
            return loss

        divisor = None if self._loss_is_share else self._share
        return self.engine.loss_and_gradients(compute, divisor)

    # -- the loop's parts

    def accumulate(self, micro_batches: list[Any], num_items: int | None) -> Any:
        """Gradients of all micro-batches of an update; the loss of the update."""
        if self._split > 1:
            micro_batches = self._split_batches(micro_batches)
        while True:
            message = None
            try:
                loss = self._accumulate(micro_batches, num_items)
            except Exception as error:
                if not self.args.auto_find_batch_size or not self.backend.devices.is_out_of_memory(error):
                    raise
                if all((batch_rows(batch) or 1) <= 1 for batch in micro_batches):
                    raise
                message = str(error).splitlines()[0][:200]
            if message is None:
                break
            self.engine.clear()
            self.backend.devices.empty_cache(self.args.device)
            self._split *= 2
            micro_batches = self._split_batches(micro_batches, 2)
            self.record_event("out_of_memory", step=self.state.global_step + 1, split=self._split)
            logger.warning(
                "Out of memory at step %d (%s). The step is computed again with micro-batches of at most %d samples "
                "and %d times the accumulation; the global batch stays the same.",
                self.state.global_step + 1,
                message,
                max(batch_rows(batch) or 1 for batch in micro_batches),
                self._split,
            )
        for inputs in micro_batches:  # only now: a step that is computed again counts once
            self._count_work(inputs)
        if self.strategy.finish(self.engine.parameters):
            self._share_model(again=True)
        return loss

    def _split_batches(self, micro_batches: list[Any], parts: int | None = None) -> list[Any]:
        """Every micro-batch cut into smaller ones; their weights follow."""
        cut: list[Any] = []
        for batch in micro_batches:
            rows = batch_rows(batch) or 1
            pieces = min(parts or self._split, rows)
            cut.extend(self.backend.tensors.split(batch, pieces, rows) if pieces > 1 else [batch])
        self._micro_items = [self._count_items(batch) for batch in cut]
        return cut

    def _accumulate(self, micro_batches: list[Any], num_items: int | None) -> Any:
        total = None
        last = len(micro_batches) - 1
        weighs = bool(num_items) and (last > 0 or self.processes.size > 1)
        model, closing = self.strategy.called(self.model_wrapped), last
        self._num_items = num_items
        if weighs:
            closing = max((i for i, items in enumerate(self._micro_items) if items), default=last)
        if self._stand_ins:
            closing = -1
        for i, inputs in enumerate(micro_batches):
            self.call("on_load_data_end", inputs=inputs)
            items = self._own_items = self._micro_items[i] if weighs else None
            # Without a label it has no part in the mean; its own mean would be 0/0.
            if items != 0:
                if i == closing and self._closes_early:
                    self.strategy.closing(total, counts=True)
                with self.strategy.micro_batch(i == closing):
                    given = (model, inputs, self._items_for_step(num_items))[: 3 if self._step_takes_items else 2]
                    if self._watches_step:
                        loss = self.engine.recorded(partial(self.training_step, *given))
                    else:
                        loss = self.training_step(*given)
                total = loss if total is None else total + loss
            if i != last:
                self.call("on_substep_end")
        if self._stand_ins:
            self._stand_in(model, num_items, total)
        if self._idle:
            if self._closes_early:
                self.strategy.closing(total, counts=False)
            self.strategy.add_nothing()
        if total is None and self.processes.size > 1:
            self.engine.stand_by()
        return total

    def _stand_in(self, model: Any, num_items: int | None, total: Any) -> None:
        """Compute as many micro-batches as the others do, where each one is a meeting. They add nothing."""
        count, self._stand_ins, self._own_items = self._stand_ins, 0, None
        for i in range(count):
            if i == count - 1 and self._closes_early:
                self.strategy.closing(total, counts=False)
            with self.strategy.micro_batch(i == count - 1), self.strategy.muted(model):
                given = (model, self._spare, self._items_for_step(num_items))[: 3 if self._step_takes_items else 2]
                self.training_step(*given)

    def update(self, loss: Any) -> None:
        """Clip, step the optimizer and the schedule, and forget the gradients."""
        step = self.state.global_step + 1
        loss = self.strategy.mean(loss)
        self.engine.prepare_update(self.optimizer, loss)
        scaler = getattr(self.engine, "scaler", None)
        self.call("on_pre_optimizer_step")
        self.call("on_optimizer_begin", scaler=scaler)
        bad = self.engine.apply_update(self.optimizer, step)
        self.call("on_optimizer_step")
        self.call("on_optimizer_end", scaler=scaler)
        self.losses.add(loss)
        if bad is not None:
            self._nonfinite_step(bad)
        self._rate_used = self.backend.optimizers.learning_rates(self.optimizer)[0]
        if not self._steps_by_metric:
            self.lr_scheduler.step()
        self.engine.clear()
        every = self.args.torch_empty_cache_steps
        if every and step % every == 0:
            self.backend.devices.empty_cache(self.args.device)

    def _nonfinite_step(self, step: int) -> None:
        """nonfinite="stop" raises; "skip" left the update out and goes on, aloud."""
        if self.args.nonfinite == "ignore":  # a loss scaler leaves the update out by itself
            return
        samples = self._samples_of_step(step)
        self.record_event("nonfinite", step=step, action=self.args.nonfinite, samples=samples)
        text = (
            f"step {step}: the loss or a gradient is not finite (NaN or infinite, as it also is when no label counts). "
            f"The update was left out, so the weights are still good. Samples of this step: {samples}."
        )
        if self.args.nonfinite == "skip":
            logger.warning("%s nonfinite='skip': the run goes on.", text)
            return
        self._saver.settle(self._tell_own)  # a save under way may be the last checkpoint
        raise NonFiniteError(
            f"{text} Last checkpoint: {self._last_saved or 'none in this run'}. Look at these samples, lower the "
            "learning rate, or use debug='underflow_overflow' to find the layer; nonfinite='skip' leaves such steps "
            "out and goes on."
        )

    def _samples_of_step(self, step: int) -> str:
        """Indices of the samples in an update: the order is a pure function, so they can be told afterwards."""
        plan: Plan = self._plan
        sampler = getattr(plan.loader, "batch_sampler", None)
        if not isinstance(sampler, BatchSampler) or not plan.steps_per_epoch:
            return "unknown (the data set cannot be indexed)"
        epoch, place = divmod(step - 1, plan.steps_per_epoch)
        size = sampler.batch_size * sampler.world * plan.accumulation
        end = min(sampler.length, len(sampler) * sampler.batch_size * sampler.world)  # drop_last drops what follows
        indices = sampler.orders(epoch).take(place * size, min((place + 1) * size, end)).tolist()
        return str(indices) if len(indices) <= 64 else f"{str(indices[:64])[:-1]}, ... {len(indices)} in all]"

    def _count_work(self, inputs: Any) -> None:
        """Tokens and floating-point operations of a micro-batch, for the logs."""
        if self._own_flops:
            self._flops += float(self.floating_point_ops(inputs))
        elif isinstance(inputs, Mapping):
            main = inputs.get(self._main_input_name)
            if main is not None:
                self._tokens += main.shape[0] * (main.shape[1] if len(main.shape) > 1 else 1)
        if self._counts_tokens == "non_padding":
            self._count_unpadded(inputs)

    def _count_unpadded(self, inputs: Any) -> None:
        """include_num_input_tokens_seen="non_padding": by the attention mask, or by the pad token."""
        mask = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
        main = inputs.get(self._main_input_name) if isinstance(inputs, Mapping) else None
        pad = getattr(self.processing_class, "pad_token_id", None)
        if mask is not None:
            self._unpadded.append(mask.sum())
        elif main is not None and pad is not None:
            self._unpadded.append((main != pad).sum())
        elif main is not None:
            self._unpadded.append((main == main).sum())
        if len(self._unpadded) >= 512:
            self._read_tokens()

    def _read_tokens(self) -> None:
        self._unpadded_total += int(self.backend.tensors.total(self._unpadded))
        self._unpadded = []

    def floating_point_ops(self, inputs: Any) -> float:
        """Operations of forward and backward: six for each matrix weight and token. Override it at will."""
        main = inputs.get(self._main_input_name) if isinstance(inputs, Mapping) else None
        tokens = 0 if main is None else main.shape[0] * (main.shape[1] if len(main.shape) > 1 else 1)
        return 6.0 * tokens * self._matrix_parameters

    def store_flos(self) -> None:
        """Bring the counts of tokens and operations into the state."""
        if self._counts_tokens == "non_padding":
            self._read_tokens()
        tokens, flops, unpadded = self._work = self._total_work()
        self.state.total_flos = flops if self._own_flops else 6.0 * tokens * self._matrix_parameters
        if self._counts_tokens == "non_padding":
            self.state.num_input_tokens_seen = unpadded
        elif self._counts_tokens == "all":
            self.state.num_input_tokens_seen = tokens

    def _total_work(self) -> tuple[int, float, int]:
        """Tokens, operations and unpadded tokens of all processes."""
        if self.processes.size == 1:
            return self._tokens, self._flops, self._unpadded_total
        tokens, flops, unpadded = map(
            sum, zip(*self.processes.all_gather([self._tokens, self._flops, self._unpadded_total]))
        )
        return int(tokens), flops, int(unpadded)

    # -- prediction

    def prediction_step(
        self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Any, Any, Any]:
        """(loss, logits, labels) of one batch, detached and on the device."""
        tensors = self.backend.tensors
        items = {NUM_ITEMS: self._count_items(inputs)} if self._asked_items and self._loss_takes_items else {}
        inputs = self._prepare_inputs(inputs)
        _, labels = split_labels(inputs, self.label_names)
        names = isinstance(inputs, Mapping)
        has_labels = labels is not None and (not names or all(name in inputs for name in self.label_names))
        if names and not self.label_names:
            has_labels = inputs.get("return_loss", self._can_return_loss)
        if ignore_keys is None:
            config = self.backend.models.config_of(self.model)
            ignore_keys = list(getattr(config, "keys_to_ignore_at_inference", None) or ["past_key_values"])
        loss = None
        with self.backend.engine.no_gradients(), self.compute_loss_context_manager():
            if has_labels or (labels is None and self._can_return_loss):
                self._own_items, self._sharing = None, 1
                loss, outputs = self.compute_loss(model, inputs, return_outputs=True, **items)
                loss = tensors.detach(loss).mean() if tensors.is_tensor(loss) else loss
                logits = _without(outputs, [*ignore_keys, "loss"], drop_first=True)
            else:
                outputs = self.backend.models.invoke(model, inputs)
                logits = _without(outputs, [*ignore_keys, "loss"], drop_first=False)
                if self.args.past_index >= 0:
                    self._past = tensors.detach(_output_at(outputs, self.args.past_index))
        if prediction_loss_only:
            return loss, None, None
        logits = tensors.detach(logits)
        if isinstance(logits, (tuple, list)) and len(logits) == 1:
            logits = logits[0]
        return loss, logits, tensors.detach(labels) if has_labels else None


def _output_at(outputs: Any, index: int) -> Any:
    outputs = list(outputs.values()) if isinstance(outputs, Mapping) else outputs
    if not isinstance(outputs, (tuple, list)) or index >= len(outputs):
        has = f"{len(outputs)} outputs" if isinstance(outputs, (tuple, list)) else f"a {type(outputs).__name__}"
        raise ArgumentError(
            f"past_index={index} is the place, from 0, of the output that is fed back as `mems`, but the model "
            f"returned {has}. Correct past_index, or leave it out."
        )
    return outputs[index]


def _with_loss(outputs: Any, loss: Any) -> Any:
    """Outputs of a model whose loss came from outside, in the shape of one that has its own."""
    if type(outputs) is dict:
        return {"loss": loss, **outputs}
    if isinstance(outputs, (tuple, list)):
        return (loss, *outputs)
    return (loss, outputs) if hasattr(outputs, "shape") else outputs


def _without(outputs: Any, ignored: list[str], drop_first: bool) -> Any:
    """What a model returned besides its loss, as a tuple or a single array."""
    if isinstance(outputs, Mapping):
        return tuple(value for key, value in outputs.items() if key not in ignored and value is not None)
    if isinstance(outputs, (tuple, list)):
        return tuple(outputs[1:]) if drop_first else tuple(outputs)
    if hasattr(outputs, "shape"):
        return outputs
    values = vars(outputs) if hasattr(outputs, "__dict__") else {}
    return tuple(v for k, v in values.items() if k not in ignored and v is not None and hasattr(v, "shape"))
