"""The loss of an update: what is divided by what, and by whom.

The only rule for accumulation: **the update equals that of the whole batch in one micro-batch**. A micro-batch is
weighted by the number n of its items: labels that are not -100 (without the first of each row, for models that
compare position i with label i+1), or samples where there are no labels. N is the number of items in the update, of P
processes whose items are counted together and whose gradients are averaged. So the mean loss of a micro-batch enters
the update multiplied by n P / N: it is *normalized* then.

| compute_loss | returns | what remains to be done |
|---|---|---|
| oneloop's | `normalize_loss` of a mean, `rescale_for_world` of a loss that has been divided by N | nothing |
| an override that reads num_items_in_batch (N) | a loss divided by N | `rescale_for_world`: times P |
| the same, if it has called super() with N | a normalized loss | nothing |
| the same, if it asks for the number of processes | a normalized loss | nothing |
| any other override | the mean of its micro-batch | the engine divides it by `LossTerms.divisor`, N / (n P) |

`LossContract` finds the row of a run, as a `ReturnedLoss`; `Update.backward` does what remains. A training_step that
divides by N itself is given N / P (`items_for_step`). A subclass may say who divides:
`loss_is_scaled_for_ga = True`, its loss is used as it is; False, or `model_accepts_loss_kwargs = False`, every
micro-batch weighs the same, and the engine divides by their number.

n, N and P are the `LossTerms` of a micro-batch. They are passed down, except past training_step and compute_loss:
these may be overridden, with parameters that scripts know. `Update.terms` has them while training_step runs, where the
Trainer's own two methods pick them up. Nothing else is handed over in this way.

The attributes of a criterion (or compute_loss_func) are respected. Labels equal to its `ignore_index` are ignored
instead of -100. With class weights (`weight` and `ignore_index`, as a weighted cross entropy has them) its mean is
weighted, so an item counts with the weight of its class. With `reduction` "sum" the loss of the update is the sum of
the losses of its micro-batches, without division.

A loss function that reads `num_items_in_batch` is assumed to divide by it; any other is assumed to return the mean over
its micro-batch. The signature of `forward` has no influence.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import DataError, ModelError
from ..introspect import (
    NUM_ITEMS,
    accepts,
    calls_collectives,
    declared,
    is_overridden,
    log_decision,
    mentions,
    reads,
    reads_world_size,
)

if TYPE_CHECKING:
    from .core import Core


class ReturnedLoss(Enum):
    """What compute_loss returns, and so what remains to be done; see the table above."""

    NORMALIZED = "its share of the update: nothing remains"
    DIVIDED_BY_ITEMS = "divided by the items of all processes: times their number"
    MEAN = "the mean of its micro-batch: it is weighted by its items"
    EQUAL_MEAN = "the mean of its micro-batch, and every micro-batch weighs the same"


class LossTerms:
    """The terms on which the loss of one micro-batch enters its update."""

    __slots__ = ("is_normalized", "items", "num_items", "processes")

    def __init__(self, items: Any, num_items: Any, processes: int) -> None:
        self.items = items  # n: in this micro-batch; None if it is not weighted
        # N: in the update. A number, or a function that blocks until it is known.
        self.num_items: int | float | Callable[[], Any] | None = num_items
        self.processes = processes  # P: whose losses are averaged and whose items are counted together
        self.is_normalized = False  # the Trainer's compute_loss has normalized a loss, even if an override called it

    @property
    def divisor(self) -> Any:
        """What a mean loss is divided by; None: it is the loss of the update."""
        if not self.items:
            return None
        total = self.num_items() if callable(self.num_items) else self.num_items
        return total / (self.items * self.processes)


WHOLE_UPDATE = LossTerms(None, None, 1)


def normalize_loss(mean: Any, terms: LossTerms) -> Any:
    """The share of the mean loss of a micro-batch in its update."""
    divisor = terms.divisor
    if divisor is None:
        return mean
    terms.is_normalized = True
    return mean / divisor


def rescale_for_world(loss: Any, terms: LossTerms) -> Any:
    """A loss that was divided by the items of all processes, or by nothing: the losses of all processes must be summed,
    but gradients are averaged over processes."""
    return loss * terms.processes if terms.processes > 1 else loss


def items_for_step(contract: "LossContract", num_items: Any, processes: int) -> Any:
    """num_items_in_batch as training_step is given it."""
    return num_items / processes if num_items and contract.step_divides and processes > 1 else num_items


@dataclass(frozen=True)
class LossContract:
    """Which function divides the loss, and by what, given the overrides and loss functions of this run."""

    has_default_loss: bool  # compute_loss is oneloop's
    has_default_step: bool  # training_step is oneloop's
    loss_takes_items: bool  # compute_loss takes num_items_in_batch
    step_takes_items: bool  # training_step takes num_items_in_batch
    returned: ReturnedLoss  # by compute_loss
    weighs_items: bool  # a micro-batch weighs as much as it has items
    func_divides: bool  # compute_loss_func divides by num_items_in_batch
    criterion_sums: bool  # the criterion returns a sum
    step_divides: bool  # on several processes, an overridden training_step divides by the items of all processes
    gathers: bool  # overridden methods exchange values: every process has to call them equally often
    is_recorded: bool  # functional autodiff must record a training_step that calls backward itself

    @property
    def divides_by_items(self) -> bool:
        """Whether oneloop divides the loss of a micro-batch by the items of the update."""
        returns_mean = not self.criterion_sums if self.has_default_loss else self.returned is ReturnedLoss.MEAN
        return self.weighs_items and returns_mean

    @classmethod
    def of(cls, core: "Core") -> "LossContract":
        trainer: Any = core.trainer
        function, criterion = loss_function(trainer), trainer.criterion
        has_default_loss = not is_overridden(trainer, "compute_loss")
        has_default_step = not is_overridden(trainer, "training_step")
        func_divides = function is not None and reads(function)
        scaled = scaled_for_accumulation(trainer)
        criterion_sums = setting(criterion if function is None else function, "reduction") == "sum" and not func_divides
        criterion_sums = criterion_sums and scaled is None
        is_divided_up = core.mesh.num_batches > 1 or trainer.args.gradient_accumulation_steps > 1
        returned = _returned(trainer, scaled, criterion_sums, has_default_loss, is_divided_up)
        loss_divides = returned is ReturnedLoss.DIVIDED_BY_ITEMS
        if scaled and not has_default_loss:
            loss_divides = not reads_world_size(trainer.compute_loss)
        return cls(
            has_default_loss=has_default_loss,
            has_default_step=has_default_step,
            loss_takes_items=accepts(trainer.compute_loss, NUM_ITEMS),
            step_takes_items=accepts(trainer.training_step, NUM_ITEMS),
            returned=returned,
            weighs_items=scaled is None,
            func_divides=func_divides,
            criterion_sums=criterion_sums,
            step_divides=core.mesh.num_batches > 1 and not has_default_step and _step_divides(trainer, loss_divides),
            gathers=core.mesh.num_batches > 1 and calls_collectives(trainer),
            is_recorded=not has_default_step and core.backend.engine.RECORDS_TRAINING_STEP,
        )


def _returned(
    trainer: Any, scaled: bool | None, sums: bool, has_default_loss: bool, is_divided_up: bool
) -> ReturnedLoss:
    """`is_divided_up`: an update has several micro-batches, so that it makes a difference who divides."""
    if scaled is not None:
        return ReturnedLoss.NORMALIZED if scaled else ReturnedLoss.EQUAL_MEAN
    if has_default_loss:
        return ReturnedLoss.NORMALIZED
    divides, why = declared(trainer, "loss_is_divided"), ""
    if divides is None:
        divides = reads(trainer.compute_loss)
        why = f"compute_loss {'reads' if divides else 'does not read'} {NUM_ITEMS}"
    log_decision("loss_is_divided", trainer, divides, why, matters=is_divided_up)
    if not divides and not sums:
        return ReturnedLoss.MEAN
    minds_processes = reads_world_size(trainer.compute_loss)
    return ReturnedLoss.NORMALIZED if minds_processes else ReturnedLoss.DIVIDED_BY_ITEMS


def loss_function(trainer: Any) -> Any:
    """compute_loss_func; None if it is no function but a sign, see `scaled_for_accumulation`."""
    return trainer.compute_loss_func if callable(trainer.compute_loss_func) else None


def scaled_for_accumulation(trainer: Any) -> bool | None:
    """What a subclass says about it: True, its loss is used as it is. False, it is the mean of a
    micro-batch, and the update is the mean of these, whatever their items. None: the rule of this module."""
    said = trainer.loss_is_scaled_for_ga
    if said is None and trainer.compute_loss_func is not None and loss_function(trainer) is None:
        return True  # said by a compute_loss_func that is no function: with one, no loss is divided
    if said is None and trainer.compute_loss_func is None and not trainer.model_accepts_loss_kwargs:
        return False
    return said


def _step_divides(trainer: Any, loss_divides: bool) -> bool:
    """Whether an overridden training_step divides by num_items_in_batch itself, as on one process."""
    explicit = declared(trainer, "step_divides")
    if explicit is not None:
        return log_decision("step_divides", trainer, explicit)
    step = trainer.training_step
    if not reads(step):
        return log_decision("step_divides", trainer, False)
    if reads_world_size(step):
        return log_decision("step_divides", trainer, False, "training_step asks for the number of processes")
    weighing = {"training_step"} if loss_divides else {"training_step", "compute_loss"}
    if mentions(step, weighing):
        return log_decision("step_divides", trainer, False, f"training_step passes {NUM_ITEMS} on")
    return log_decision("step_divides", trainer, True, f"training_step reads {NUM_ITEMS} and does not pass it on")


@dataclass(frozen=True)
class ItemCounting:
    """Which items of a batch count in its loss, and whether they must be counted."""

    counts: bool  # the items of each micro-batch are counted
    is_read: bool  # a function of the user reads their number
    is_given: bool  # a function of the user receives their number
    ignore_index: int | None  # None: every label counts
    class_weights: Any  # an array, or None

    @classmethod
    def of(cls, core: "Core", contract: LossContract, accumulation: int) -> "ItemCounting":
        trainer: Any = core.trainer
        args, backend, function = trainer.args, core.backend, loss_function(trainer)
        criterion = trainer.criterion if function is None else function
        ignored, weight = setting(criterion, "ignore_index"), setting(criterion, "weight")
        ignore_index: int | None = ignored if isinstance(ignored, int) else -100
        if backend.models.counts_ignored(criterion):
            ignore_index = None  # its mean is over all labels
        # Without ignore_index, `weight` does not affect the mean.
        weighs = ignored is not None and backend.tensors.is_tensor(weight)
        weighs = weighs and not contract.criterion_sums and not contract.func_divides
        is_read = (not contract.has_default_loss and reads(trainer.compute_loss)) or contract.func_divides
        is_read = is_read or (not contract.has_default_step and reads(trainer.training_step))
        is_given = not contract.has_default_loss and contract.loss_takes_items
        is_given = is_given or (not contract.has_default_step and contract.step_takes_items)
        is_given = is_given or (function is not None and accepts(function, NUM_ITEMS))
        counts = accumulation > 1 or args.auto_find_batch_size or is_read
        if core.mesh.num_batches > 1 and args.average_tokens_across_devices:
            counts = True
        return cls(
            counts,
            is_read,
            is_given,
            ignore_index,
            backend.tensors.to_numpy(weight).astype("float64") if weighs else None,
        )


def setting(function: Any, name: str) -> Any:
    """A setting of a loss function: an attribute, or a keyword of functools.partial; None if it has neither."""
    value = getattr(function, name, None)
    return getattr(function, "keywords", {}).get(name) if value is None else value


def weigh_labels(labels: Any, weights: Any, ignore_index: int, shifted: bool) -> float:
    """The sum of the class weights of all labels that count in the loss. Labels and weights are arrays."""
    labels = labels[..., 1:] if shifted and labels.ndim > 1 else labels
    known = (labels != ignore_index) & (labels >= 0) & (labels < len(weights))  # the criterion raises for other labels
    return float(weights[labels[known]].sum())


def smoothing_of(core: "Core") -> float:
    """label_smoothing_factor; 0 for multi-label classification, where it has no meaning."""
    return 0.0 if core.model_info.has_several_labels else core.trainer.args.label_smoothing_factor


def find_loss(outputs: Any, inputs: Any) -> Any:
    """The loss in the outputs of a model: a dict, a tuple, an object, or the scalar itself."""
    if isinstance(outputs, Mapping):
        loss = outputs.get("loss")
    elif isinstance(outputs, (tuple, list)):
        loss = outputs[0] if outputs else None
    else:
        loss = getattr(outputs, "loss", None)
        if loss is None and hasattr(outputs, "shape"):
            loss = outputs
    if loss is None:
        names = list(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
        given = list(inputs) if isinstance(inputs, Mapping) else type(inputs).__name__
        what = "the model returned loss=None" if "loss" in names else "the model returned no loss"
        raise ModelError(
            f"{what}. It returned {names} for inputs {given}. Add labels that model.forward "
            "accepts to the batch, pass criterion= (a function of outputs and labels) or compute_loss_func=, or "
            "override compute_loss."
        )
    if getattr(loss, "ndim", 0) != 0 and tuple(loss.shape) != (1,):
        raise ModelError(
            f"the model's first output has shape {tuple(loss.shape)}; expected the loss, a single number. Pass "
            "criterion= (a function of outputs and labels), compute_loss_func=, or override compute_loss."
        )
    return loss


def logits_of(outputs: Any) -> Any:
    """What is passed to a criterion: the logits if the outputs have them by name, otherwise the outputs."""
    if isinstance(outputs, Mapping):
        return outputs["logits"] if "logits" in outputs else next(iter(outputs.values()))
    if isinstance(outputs, (tuple, list)):
        return outputs[0] if len(outputs) == 1 else outputs
    return getattr(outputs, "logits", outputs)


def split_labels(inputs: Any, label_names: list[str]) -> tuple[Any, Any]:
    """The inputs without labels, and the labels: one, or a tuple in the order of the names."""
    if isinstance(inputs, Mapping):
        names = [name for name in label_names if name in inputs]
        rest: Any = {key: value for key, value in inputs.items() if key not in names}
        labels = tuple(inputs[name] for name in names)
        return rest, (labels[0] if len(labels) == 1 else labels or None)
    if isinstance(inputs, (tuple, list)) and len(inputs) > 1:
        rest = inputs[:-1]
        return (rest[0] if len(rest) == 1 else rest), inputs[-1]
    return inputs, None


class _Computed(NamedTuple):
    """A loss before it is normalized."""

    loss: Any
    outputs: Any
    is_mean: bool  # of the micro-batch; otherwise a sum, or divided by num_items_in_batch
    has_loss: bool  # the outputs have a loss already


def default_compute_loss(
    core: "Core", model: Any, inputs: Any, num_items: Any, terms: LossTerms, wants_outputs: bool
) -> tuple[Any, Any]:
    """(loss, outputs) of a micro-batch. The loss is normalized if num_items is given. Without wants_outputs, outputs
    may be those of a part, or None."""
    trainer = core.trainer
    if not wants_outputs and (head := core.run.chunked.head_for(model, inputs)) is not None:
        return _chunked_loss(core, head, model, inputs, num_items, terms), None
    whole = wants_outputs or core.run.hooks.record_outputs or not core.strategy.computes_loss_in_parts
    if trainer.criterion is None and trainer.compute_loss_func is None and not trainer.args.label_smoothing_factor:
        outputs = (core.backend.models.invoke if whole else core.strategy.outputs_for_loss)(model, inputs)
        computed, is_mean, has_loss = find_loss(outputs, inputs), True, True
    else:
        computed, outputs, is_mean, has_loss = _external_loss(core, model, inputs, num_items, bool(whole))
    loss = computed
    broadcasts = core.run.update.broadcasts
    if not broadcasts.is_done and is_mean:
        broadcasts.check(core, outputs, inputs, computed)
    if num_items is not None:
        if is_mean:
            loss = normalize_loss(loss, terms)
        elif core.run.contract.returned is not ReturnedLoss.DIVIDED_BY_ITEMS:  # that of an override comes later
            loss = rescale_for_world(loss, terms)
    if not has_loss:
        outputs = _with_loss(outputs, loss)
    for hook in core.run.hooks.record_outputs:
        hook(outputs, inputs, computed, is_mean)
    return loss, outputs


def _chunked_loss(core: "Core", head: Any, model: Any, inputs: Any, num_items: Any, terms: LossTerms) -> Any:
    """The loss of a micro-batch from hidden states and head, without whole logits."""
    rest, labels = split_labels(inputs, core.trainer.label_names)
    found = head.mean_loss(model, inputs, rest, labels, smoothing_of(core))
    for hook in core.run.hooks.record_outputs:
        hook(found, inputs, found.loss, True)
    return found.loss if num_items is None else normalize_loss(found.loss, terms)


def _external_loss(core: "Core", model: Any, inputs: Any, num_items: Any, wants_outputs: bool) -> _Computed:
    """A loss that does not come from the model: from criterion, compute_loss_func or label smoothing."""
    trainer, info, contract = core.trainer, core.model_info, core.run.contract
    function, criterion, smoothing = loss_function(trainer), trainer.criterion, smoothing_of(core)
    if function is None and criterion is None and not smoothing:
        outputs = core.backend.models.invoke(model, inputs)
        return _Computed(find_loss(outputs, inputs), outputs, is_mean=True, has_loss=True)
    rest, labels = split_labels(inputs, trainer.label_names)
    if labels is None:
        names = list(inputs) if isinstance(inputs, Mapping) else type(inputs).__name__
        raise DataError(
            f"criterion, compute_loss_func and label_smoothing_factor need labels; the batch has {names} and "
            f"label_names is {trainer.label_names}. Add the labels to the dataset, or list their columns in "
            "label_names."
        )
    needs_labels = criterion is None and function is None and info.makes_decoder_inputs
    if criterion is None and function is None and not needs_labels and not wants_outputs:
        loss = core.strategy.smoothed_loss(model, rest, labels, smoothing, info.shifts_labels)
        if loss is not None:
            return _Computed(loss, None, is_mean=True, has_loss=True)
    outputs = core.backend.models.invoke(model, inputs if needs_labels else rest)
    is_mean = not contract.criterion_sums
    if function is not None:
        extra = {NUM_ITEMS: num_items} if accepts(function, NUM_ITEMS) else {}
        loss = function(outputs, labels, **extra)
        is_mean = is_mean and not contract.func_divides
    elif criterion is not None:
        loss = criterion(logits_of(outputs), labels)
        loss = loss[0] if isinstance(loss, (tuple, list)) else loss
    else:
        loss = core.backend.tensors.smoothed_loss(
            # Given labels, a model that returns a tuple puts its own loss first.
            outputs[bool(needs_labels)] if isinstance(outputs, (tuple, list)) else logits_of(outputs),
            labels,
            smoothing,
            info.shifts_labels,
        )
    return _Computed(loss, outputs, is_mean, has_loss=needs_labels)


def _with_loss(outputs: Any, loss: Any) -> Any:
    """Outputs of a model with an external loss, in the format of a model that returns its own."""
    if type(outputs) is dict:
        return {"loss": loss, **outputs}
    if isinstance(outputs, (tuple, list)):
        return (loss, *outputs)
    return (loss, outputs) if hasattr(outputs, "shape") else outputs
