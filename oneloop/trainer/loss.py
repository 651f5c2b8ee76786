"""From a model's outputs to the loss of an update.

The only rule for accumulation: **the update equals that of the whole batch in one micro-batch**. A micro-batch is
weighted by the number n_j of its items: labels that are not -100 (without the first of each row, for models that
compare position i with label i+1), or samples where there are no labels. Its mean loss has the weight n_j / N.

The attributes of a criterion (or compute_loss_func) are respected. Labels equal to its `ignore_index` are ignored
instead of -100. With class weights (`weight` and `ignore_index`, as a weighted cross entropy has them) its mean is
weighted, so an item counts with the weight of its class. With `reduction` "sum" the loss of the update is the sum of
the losses of its micro-batches, without division.

A subclass may say in transformers' words who divides: `loss_is_scaled_for_ga`, or `model_accepts_loss_kwargs = False`.

A loss function that reads `num_items_in_batch` (N, the items of the whole update) is assumed to divide by it; any
other is assumed to return the mean over its micro-batch. The signature of `forward` has no influence.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import DataError, ModelError
from ..introspect import (
    NUM_ITEMS,
    accepts,
    calls_collectives,
    decided,
    declared,
    is_overridden,
    mentions,
    reads,
    reads_world_size,
)
from .internals import internals_of

if TYPE_CHECKING:
    from .internals import Internals
    from .trainer import Trainer


@dataclass(frozen=True)
class LossContract:
    """Which function divides the loss, and by what, given the overrides and loss functions of this run."""

    own_loss: bool  # compute_loss is oneloop's
    own_step: bool  # training_step is oneloop's
    loss_takes_items: bool  # compute_loss takes num_items_in_batch
    step_takes_items: bool  # training_step takes num_items_in_batch
    loss_is_share: bool  # what compute_loss returns needs no further division
    counts_batches: bool  # every micro-batch has the same weight, however many items it has
    func_is_share: bool  # the same of compute_loss_func
    sums: bool  # the criterion returns a sum
    # Compute_loss divides by the items of all processes, without regard to the mean over processes.
    divides_itself: bool
    step_divides: bool  # so does training_step, on several processes
    gathers: bool  # overridden methods exchange values: every process has to call them equally often
    is_recorded: bool  # functional autodiff must record a training_step that calls backward itself

    @classmethod
    def of(cls, core: "Internals") -> "LossContract":
        trainer: Any = core.trainer
        function, criterion = loss_function(trainer), trainer.criterion
        own_loss = not is_overridden(trainer, "compute_loss")
        own_step = not is_overridden(trainer, "training_step")
        func_is_share = function is not None and reads(function)
        sums = setting(criterion if function is None else function, "reduction") == "sum" and not func_is_share
        explicit = declared(trainer, "loss_is_divided")
        reads_items = reads(trainer.compute_loss) if explicit is None or own_loss else explicit
        scaled = scaled_for_accumulation(trainer)
        if scaled is not None:
            loss_is_share, sums = scaled, False
        else:
            loss_is_share = own_loss or decided("loss_is_divided", trainer, reads_items) or sums
        divides_itself = not own_loss and loss_is_share and not reads_world_size(trainer.compute_loss)
        return cls(
            own_loss=own_loss,
            own_step=own_step,
            loss_takes_items=accepts(trainer.compute_loss, NUM_ITEMS),
            step_takes_items=accepts(trainer.training_step, NUM_ITEMS),
            loss_is_share=loss_is_share,
            counts_batches=scaled is not None,
            func_is_share=func_is_share,
            sums=sums,
            divides_itself=divides_itself and scaled is None,
            step_divides=core.processes.size > 1 and not own_step and _step_divides(trainer, divides_itself),
            gathers=core.processes.size > 1 and calls_collectives(trainer),
            is_recorded=not own_step and core.backend.engine.WATCHES_OVERRIDES,
        )


def loss_function(trainer: Any) -> Any:
    """compute_loss_func; None if it is no function but a sign, see `scaled_for_accumulation`."""
    return trainer.compute_loss_func if callable(trainer.compute_loss_func) else None


def scaled_for_accumulation(trainer: Any) -> bool | None:
    """What a subclass says in transformers' words: True, its loss is used as it is. False, it is the mean of a
    micro-batch, and the update is the mean of these, whatever their items. None: the rule of this module."""
    said = trainer.loss_is_scaled_for_ga
    if said is None and trainer.compute_loss_func is not None and loss_function(trainer) is None:
        return True  # older versions of TRL say it so: transformers divides no loss if there is a compute_loss_func
    if said is None and trainer.compute_loss_func is None and not trainer.model_accepts_loss_kwargs:
        return False
    return said


def _step_divides(trainer: Any, loss_divides: bool) -> bool:
    """Whether an overridden training_step divides by num_items_in_batch itself, as on one process."""
    explicit = declared(trainer, "step_divides")
    if explicit is not None:
        return decided("step_divides", trainer, explicit)
    step = trainer.training_step
    if not reads(step) or reads_world_size(step):
        return decided("step_divides", trainer, False)
    weighing = {"training_step"} if loss_divides else {"training_step", "compute_loss"}
    return decided("step_divides", trainer, not mentions(step, weighing))


@dataclass(frozen=True)
class ItemCounting:
    """Which items of a batch count in its loss, and whether they must be counted."""

    counts: bool  # the items of each micro-batch are counted
    is_read: bool  # a function of the user reads their number
    is_given: bool  # a function of the user receives their number
    ignore_index: int | None  # None: every label counts
    class_weights: Any  # an array, or None

    @classmethod
    def of(cls, core: "Internals", contract: LossContract, accumulation: int) -> "ItemCounting":
        trainer: Any = core.trainer
        args, backend, function = trainer.args, core.backend, loss_function(trainer)
        criterion = trainer.criterion if function is None else function
        ignored, weight = setting(criterion, "ignore_index"), setting(criterion, "weight")
        ignore_index: int | None = ignored if isinstance(ignored, int) else -100
        if backend.models.counts_ignored(criterion):
            ignore_index = None  # its mean is over all labels
        # Without ignore_index, `weight` does not affect the mean.
        weighs = ignored is not None and backend.tensors.is_tensor(weight)
        weighs = weighs and not contract.sums and not contract.func_is_share
        is_read = (not contract.own_loss and reads(trainer.compute_loss)) or contract.func_is_share
        is_read = is_read or (not contract.own_step and reads(trainer.training_step))
        is_given = not contract.own_loss and contract.loss_takes_items
        is_given = is_given or (not contract.own_step and contract.step_takes_items)
        is_given = is_given or (function is not None and accepts(function, NUM_ITEMS))
        counts = accumulation > 1 or args.auto_find_batch_size or is_read
        if core.processes.size > 1 and args.average_tokens_across_devices:
            counts = True
        return cls(
            counts,
            is_read,
            is_given,
            ignore_index,
            backend.tensors.to_numpy(weight).astype("float64") if weighs else None,
        )


class MicroBatchWeights(NamedTuple):
    """The weight of a micro-batch in its update. Valid only while the micro-batch is computed."""

    items: Any  # in this micro-batch; None if it is not weighted
    # In the update: a number, or a function that blocks until it is known.
    total: int | float | Callable[[], Any] | None
    sharing: int  # processes whose losses are averaged and whose items are summed

    @property
    def divisor(self) -> Any:
        """The divisor that turns the mean loss of the micro-batch into its share of the update; None: no division."""
        if not self.items:
            return None
        total = self.total() if callable(self.total) else self.total
        return total / (self.items * self.sharing)


UNWEIGHTED = MicroBatchWeights(None, None, 1)


def setting(function: Any, name: str) -> Any:
    """A setting of a loss function: an attribute, or a keyword of functools.partial; None if it has neither."""
    value = getattr(function, name, None)
    return getattr(function, "keywords", {}).get(name) if value is None else value


def weigh_labels(labels: Any, weights: Any, ignore_index: int, shifted: bool) -> float:
    """The sum of the class weights of all labels that count in the loss. Labels and weights are arrays."""
    labels = labels[..., 1:] if shifted and labels.ndim > 1 else labels
    known = (labels != ignore_index) & (labels >= 0) & (labels < len(weights))  # the criterion raises for other labels
    return float(weights[labels[known]].sum())


def smoothing_of(core: "Internals") -> float:
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


def external_loss(trainer: "Trainer", model: Any, inputs: Any, num_items: int | None) -> tuple[Any, Any]:
    """(loss, outputs) of a micro-batch whose loss does not come from the model: from criterion, compute_loss_func or
    label smoothing."""
    core = internals_of(trainer)
    update, info = core.run.update, core.model_info
    rest, labels = split_labels(inputs, trainer.label_names)
    if labels is None:
        names = list(inputs) if isinstance(inputs, Mapping) else type(inputs).__name__
        raise DataError(
            f"criterion, compute_loss_func and label_smoothing_factor need labels; the batch has {names} and "
            f"label_names is {trainer.label_names}. Add the labels to the dataset, or list their columns in "
            "label_names."
        )
    function, criterion = loss_function(trainer), trainer.criterion
    needs_labels = criterion is None and function is None and info.makes_decoder_inputs
    outputs = core.backend.models.invoke(model, inputs if needs_labels else rest)
    divided = update.contract.sums
    if function is not None:
        extra = {NUM_ITEMS: num_items} if accepts(function, NUM_ITEMS) else {}
        loss = function(outputs, labels, **extra)
        divided = divided or update.contract.func_is_share
    elif criterion is not None:
        loss = criterion(logits_of(outputs), labels)
        loss = loss[0] if isinstance(loss, (tuple, list)) else loss
    else:
        loss = core.backend.tensors.smoothed_loss(
            # Given labels, a model that returns a tuple puts its own loss first.
            outputs[bool(needs_labels)] if isinstance(outputs, (tuple, list)) else logits_of(outputs),
            labels,
            smoothing_of(core),
            info.shifts_labels,
        )
    loss = update.of_all_processes(loss, num_items) if divided else update.weigh(loss, num_items)
    return loss, outputs if needs_labels else _with_loss(outputs, loss)


def _with_loss(outputs: Any, loss: Any) -> Any:
    """Outputs of a model with an external loss, in the format of a model that returns its own."""
    if type(outputs) is dict:
        return {"loss": loss, **outputs}
    if isinstance(outputs, (tuple, list)):
        return (loss, *outputs)
    return (loss, outputs) if hasattr(outputs, "shape") else outputs
