"""One batch of an evaluation: the loss, the outputs without it, and the labels."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .. import behaviour
from ..introspect import NUM_ITEMS
from . import label_shift
from .core import core_of
from .loss import smoothing_of, split_labels

if TYPE_CHECKING:
    from .trainer import Trainer


def predict_batch(
    trainer: "Trainer", model: Any, inputs: Any, loss_only: bool, ignore_keys: list[str] | None
) -> tuple[Any, Any, Any]:
    """Trainer.prediction_step."""
    core = core_of(trainer)
    tensors, update = core.backend.tensors, core.run.update
    items = {}
    if update.counting.is_read or smoothing_of(core):
        label_shift.find(core, [inputs])
    if update.counting.is_read and update.contract.loss_takes_items:
        items = {NUM_ITEMS: update.count_items(inputs)}
    inputs = trainer._prepare_inputs(inputs)
    labels, has_labels = _labels_of(trainer, inputs)
    ignored = [*(_ignored_keys(trainer) if ignore_keys is None else ignore_keys), "loss"]
    loss = None
    with core.backend.engine.no_gradients(), trainer.compute_loss_context_manager():
        if has_labels or (labels is None and trainer.can_return_loss):
            if loss_only and update.contract.has_default_loss:
                loss, logits = trainer.compute_loss(model, inputs, **items), None
            else:
                loss, outputs = trainer.compute_loss(model, inputs, return_outputs=True, **items)
                logits = _without(outputs, ignored, drop_first=True)
            loss = tensors.detach(loss).mean() if tensors.is_tensor(loss) else loss
        else:
            outputs = core.backend.models.invoke(model, inputs)
            logits = _without(outputs, ignored, drop_first=False)
            if trainer.args.past_index >= 0:
                update.store_past(outputs)
    if loss_only:
        return loss, None, None
    logits = tensors.detach(logits)
    if isinstance(logits, (tuple, list)) and len(logits) == 1:
        logits = logits[0]
    return loss, logits, tensors.detach(labels) if has_labels else None


def _labels_of(trainer: "Trainer", inputs: Any) -> tuple[Any, bool]:
    """The labels, and whether the batch has all that its loss needs."""
    _, labels = split_labels(inputs, trainer.label_names)
    if not isinstance(inputs, Mapping):
        return labels, labels is not None
    if not trainer.label_names:
        wanted = inputs.get("return_loss")
        # No labels: compute_metrics is called with the predictions alone.
        return (), bool(trainer.can_return_loss if wanted is None else wanted)
    return labels, labels is not None and all(name in inputs for name in trainer.label_names)


def _ignored_keys(trainer: "Trainer") -> list[str]:
    """Keys of the outputs that are left out unless the caller lists others."""
    config = core_of(trainer).backend.models.config_of(trainer.model)
    default = behaviour.current().default_ignored_outputs if config is None else ("past_key_values",)
    return list(getattr(config, "keys_to_ignore_at_inference", default) or ())


def _without(outputs: Any, ignored: list[str], drop_first: bool) -> Any:
    """The outputs of a model without its loss, as a tuple or a single array."""
    if isinstance(outputs, Mapping):
        return tuple(value for key, value in outputs.items() if key not in ignored and value is not None)
    if isinstance(outputs, (tuple, list)):
        return tuple(outputs[1:]) if drop_first else tuple(outputs)
    if hasattr(outputs, "shape"):
        return outputs
    values = vars(outputs) if hasattr(outputs, "__dict__") else {}
    return tuple(v for k, v in values.items() if k not in ignored and v is not None and hasattr(v, "shape"))
