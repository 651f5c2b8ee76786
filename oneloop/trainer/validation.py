"""Validation of what is passed to a Trainer. Each error message says what was expected."""

import inspect
import logging
import os
from typing import TYPE_CHECKING, Any

from .. import behaviour
from ..errors import ArgumentError, ConflictError, DataError, ModelError, a_type
from ..introspect import class_overrides, is_overridden

if TYPE_CHECKING:
    from ..backends.base import Backend
    from .constructor import TrainerInit
    from .trainer import Trainer

logger = logging.getLogger(__name__)

_FUNCTIONS = ("model_init", "criterion", "compute_loss_func", "compute_metrics", "preprocess_logits_for_metrics")


def has_length(dataset: Any) -> bool:
    """Whether len() works."""
    try:
        return len(dataset) is not None
    except (TypeError, AttributeError, NotImplementedError, ValueError, RuntimeError):  # Paddle raises the last two
        return False


def model(given: Any) -> Any:
    """Raise ModelError unless this is an instance of a model."""
    if given is None:
        raise ModelError("no model given: pass model= or model_init=")
    if isinstance(given, type):
        raise ModelError(f"model is the class {given.__name__}; pass an instance: {given.__name__}(...)")
    return given


def functions(given: "TrainerInit", trainer_class: type) -> None:
    """Raise ArgumentError unless each function is callable or None. A Trainer of a library with a compute_loss of its
    own may pass anything as compute_loss_func, to say that its loss is used as it is."""
    has_sign = behaviour.current().loss_func_may_be_sign and class_overrides(trainer_class, "compute_loss")
    for name in _FUNCTIONS:
        value = getattr(given, name)
        if value is not None and not callable(value) and not (name == "compute_loss_func" and has_sign):
            raise ArgumentError(
                f"Invalid {name} of type {type(value).__name__}: expected a function, not its name or its result."
            )


def tokenizer(given: Any, processing_class: Any) -> Any:
    """The tokenizer, passed under either name."""
    if given is not None and processing_class is not None and given is not processing_class:
        raise ArgumentError("tokenizer and processing_class are the same argument, but differ; pass one of them.")
    found = processing_class if processing_class is not None else given
    if isinstance(found, str):
        raise ArgumentError(
            f"tokenizer (processing_class) is the string {found[:60]!r}; expected the tokenizer itself, such as "
            "AutoTokenizer.from_pretrained(...) returns."
        )
    return found


def optimizers(given: Any, cls_and_kwargs: Any, model_init: Any, backend: "Backend") -> tuple[Any, Any]:
    """(optimizer, scheduler) from the argument `optimizers`, which cannot be combined with the two others."""
    if cls_and_kwargs is not None and (not isinstance(cls_and_kwargs, (tuple, list)) or len(cls_and_kwargs) != 2):
        raise ArgumentError(
            "Invalid optimizer_cls_and_kwargs: expected a pair of the optimizer's class and a dict of its options."
        )
    if given is None:
        return None, None
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise ArgumentError("Invalid optimizers: expected a pair (optimizer, lr_scheduler); either may be None.")
    optimizer, scheduler = given
    known = backend.optimizers.is_optimizer
    if optimizer is not None and not known(optimizer):
        what = f"the class {optimizer.__name__}" if isinstance(optimizer, type) else f"{a_type(optimizer)}"
        raise ArgumentError(
            f"Invalid optimizers: the first is {what}; expected an optimizer over the model's parameters. To build it "
            "from its class, use optimizer_cls_and_kwargs."
        )
    if scheduler is not None and (known(scheduler) or not hasattr(scheduler, "step")):
        raise ArgumentError(
            f"Invalid optimizers: the second is {a_type(scheduler)}; expected a learning-rate schedule, or "
            "None. The optimizer comes first."
        )
    if model_init is not None and any(part is not None for part in given):
        raise ConflictError(
            "optimizers and model_init cannot be combined: the optimizer holds the parameters of a model that "
            "model_init would replace. Override create_optimizer instead."
        )
    if cls_and_kwargs is not None and optimizer is not None:
        raise ConflictError("optimizers and optimizer_cls_and_kwargs cannot be combined; pass one of them.")
    return optimizer, scheduler


def data(trainer: "Trainer", backend: "Backend") -> None:
    """Raise an error unless the arguments, the datasets and the functions over them fit together."""
    args = trainer.args
    if args.eval_strategy != "no" and trainer.eval_dataset is None:
        raise DataError(
            f"eval_strategy={str(getattr(args.eval_strategy, 'value', args.eval_strategy))!r} needs an evaluation "
            "dataset: pass eval_dataset=, or set eval_strategy='no'"
        )
    _check_expected(args, trainer.train_dataset)
    for name, each in _own_datasets(trainer).items():
        if each is not None:
            dataset(name, each, backend)
    if args.label_smoothing_factor and (trainer.criterion is not None or trainer.compute_loss_func is not None):
        logger.warning(
            "label_smoothing_factor=%s has no effect: the loss comes from %s, which does its own smoothing or none.",
            args.label_smoothing_factor,
            "criterion" if trainer.criterion is not None else "compute_loss_func",
        )
    if args.batch_eval_metrics and trainer.compute_metrics is not None:
        batch_metrics(trainer.compute_metrics)


def _own_datasets(trainer: "Trainer") -> dict[str, Any]:
    """The datasets that the Trainer makes loaders of, by their names in messages: an overridden get_..._dataloader may
    accept anything."""
    found = {}
    if not is_overridden(trainer, "get_train_dataloader"):
        found["train_dataset"] = trainer.train_dataset
    if not is_overridden(trainer, "get_eval_dataloader"):
        several = trainer.eval_dataset if isinstance(trainer.eval_dataset, dict) else {"": trainer.eval_dataset}
        found |= {f"eval_dataset[{name!r}]" if name else "eval_dataset": each for name, each in several.items()}
    return found


def dataset(name: str, given: Any, backend: "Backend") -> None:
    """Raise DataError unless this is a map-style or an iterable dataset."""
    expected = "expected a list of samples, a Dataset with __len__ and __getitem__, or an iterable dataset"
    if isinstance(given, (str, bytes, os.PathLike)):
        raise DataError(f"{name} is the string {str(given)[:60]!r}; {expected}. Load the data first.")
    if isinstance(given, dict) and 0 not in given:
        keys = ", ".join(repr(key) for key in list(given)[:8])
        raise DataError(
            f"{name} is {a_type(given)} with the keys {keys}; {expected}. Select one of the datasets, or "
            "convert columns into samples with datasets.Dataset.from_dict."
        )
    if hasattr(given, "iloc") and hasattr(given, "to_dict"):  # a table that is indexed by the names of its columns
        raise DataError(
            f"{name} is {a_type(given)}, which is indexed by column; {expected}. Pass its rows: "
            f"{name}.to_dict('records')."
        )
    if backend.loaders.is_loader(given):
        raise DataError(
            f"{name} is {a_type(given)}, which yields batches; {expected}, since the Trainer creates batches "
            "itself. Pass its dataset, and its collate_fn as data_collator, or override get_train_dataloader "
            "(get_eval_dataloader)."
        )
    if backend.loaders.is_iterable(given):
        if not hasattr(given, "__iter__"):
            raise DataError(f"{name} is {a_type(given)}; {expected}.")
    elif not has_length(given):
        raise DataError(f"{name}, {a_type(given)}, has __getitem__ but no length; {expected}. Add a __len__.")


def _check_expected(args: Any, train_dataset: Any) -> None:
    """Raise the errors that a script relies on; oneloop itself needs neither."""
    expected = behaviour.current()
    saves_best = args.save_strategy == "best" or args.load_best_model_at_end
    if expected.best_metric_must_be_named and args.metric_for_best_model is None and saves_best:
        raise ArgumentError(
            "save_strategy='best' and load_best_model_at_end=True need metric_for_best_model, such as 'eval_loss'"
        )
    has_none = train_dataset is not None and not has_length(train_dataset)
    if expected.needs_max_steps_without_length and has_none and args.max_steps <= 0:
        raise ArgumentError(
            f"train_dataset, {a_type(train_dataset)}, has no length, so max_steps has to be set: the "
            "learning-rate schedule needs the number of steps"
        )


def batch_metrics(compute_metrics: Any) -> None:
    """Raise ArgumentError unless compute_metrics accepts compute_result, which batch_eval_metrics requires."""
    parameters = inspect.signature(compute_metrics).parameters.values()
    if not any(p.name == "compute_result" or p.kind == p.VAR_KEYWORD for p in parameters):
        raise ArgumentError(
            "batch_eval_metrics=True calls compute_metrics(prediction, compute_result=False) for each batch and with "
            "compute_result=True for the last one; this compute_metrics does not accept compute_result. Add that "
            "parameter."
        )
