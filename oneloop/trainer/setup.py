"""How Trainer.__init__ processes its arguments, one small function each."""

import dataclasses
import difflib
import inspect
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import backends
from ..arguments import TrainingArguments
from ..arguments.accelerator import accumulation_steps
from ..backends import registry
from ..callbacks import DefaultFlowCallback, NotebookProgressCallback, PrinterCallback, ProgressCallback, in_notebook
from ..compat import mode
from ..distributed.collectives import ProcessGroup
from ..distributed.strategy import Strategy
from ..errors import ArgumentError, InvalidTypeError, UnknownArgumentError
from ..integrations.writers import make_writers
from ..integrations.writers.base import Writer
from ..integrations.writers.json_log import JsonLinesCallback
from ..plan import request as plan_request

if TYPE_CHECKING:
    from .internals import Internals

logger = logging.getLogger(__name__)


# What other libraries call a parameter of the Trainer.
_HABITS = {
    "train_dataset": ("training_dataset", "train_data", "train_set", "train_ds", "dataset", "data", "train_dataloader"),
    "eval_dataset": ("validation_dataset", "val_dataset", "valid_dataset", "dev_dataset", "test_dataset", "eval_data"),
    "data_collator": ("collate_fn", "collator"),
    "compute_metrics": ("metrics", "metric"),
    "optimizers": ("optimizer", "lr_scheduler", "scheduler"),
    "criterion": ("loss_fn", "loss", "loss_function"),
    "args": ("arguments", "training_args", "training_arguments", "config"),
}


def unknown_parameter(cls: type, name: str) -> UnknownArgumentError:
    """An error for a keyword that Trainer does not have."""
    known = [p for p in inspect.signature(cls).parameters if p not in ("positional", "unknown", "args", "kwargs")]
    near = [target for target, habits in _HABITS.items() if name in habits]
    near += difflib.get_close_matches(name, [*known, "args"], n=1, cutoff=0.6)
    if near:
        hint = f"did you mean '{near[0]}'?"
    elif name in {field.name for field in dataclasses.fields(TrainingArguments)}:
        hint = f"it is an argument of TrainingArguments: TrainingArguments({name}=...)."
    else:
        hint = f"it has {', '.join(known)}."
    return UnknownArgumentError(f"{cls.__name__} has no parameter '{name}'; {hint}")


# The parameters of transformers' Trainer after model_init, in their order. 4.46 and 4.47 have added one each.
_ORDER = (
    *("compute_loss_func", "compute_metrics", "callbacks", "optimizers"),
    *("optimizer_cls_and_kwargs", "preprocess_logits_for_metrics"),
)
_SINCE = {"compute_loss_func": (4, 46), "optimizer_cls_and_kwargs": (4, 47)}


def by_position(positional: tuple[Any, ...], named: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values of the parameters in _ORDER, from those passed by position in a script of transformers, in the order
    of the installed version, and those passed by name."""
    if not mode.follows("transformers"):
        raise ArgumentError(
            "Trainer accepts positional arguments up to model_init only, since the order of the others differs "
            "between trainers. Pass compute_metrics, callbacks, optimizers and the rest by keyword."
        )
    version = mode.version_of_transformers()
    order = [name for name in _ORDER if version is None or version >= _SINCE.get(name, (0, 0))]
    if len(positional) > len(order):
        raise InvalidTypeError(f"Trainer has {7 + len(order)} parameters, but {7 + len(positional)} were given.")
    values = dict(zip(_ORDER, named))
    for name, value in zip(order, positional):
        if values[name] not in (None, (None, None)):
            raise InvalidTypeError(f"Trainer got {name} twice: by position and by name.")
        values[name] = value
    return tuple(values.values())


def is_criterion(value: Any) -> bool:
    """Whether the second positional argument is a criterion, as in PaddleNLP, rather than the arguments."""
    if hasattr(value, "output_dir") or isinstance(value, (dict, str)):
        return False
    return backends.name_of(value) is not None or callable(value)


def is_paddle_order(second: Any, third: Any) -> bool:
    """Whether the arguments are third, after a criterion or None in its place."""
    return is_criterion(second) if second is not None else hasattr(third, "output_dir")


def arguments(args: Any) -> Any:
    """The arguments, validated again; without any, the defaults with output_dir='tmp_trainer'."""
    if args is None:
        logger.info("No TrainingArguments given; using the defaults with output_dir='tmp_trainer'.")
        return TrainingArguments(output_dir="tmp_trainer")
    if not isinstance(args, TrainingArguments):
        hint = "TrainingArguments(**args)" if isinstance(args, dict) else "oneloop.TrainingArguments(...)"
        cls = args if isinstance(args, type) else type(args)
        kind = f"the class {cls.__name__}" if cls is args else f"a {cls.__module__}.{cls.__name__}"
        raise ArgumentError(
            f"args is {kind}; expected oneloop's TrainingArguments. "
            f"Use {hint}, which accepts the arguments of the other trainers too."
        )
    args.validate()
    return args


def log_levels(args: Any) -> None:
    """Set the level of oneloop's loggers, and in a script of transformers of its too; log_level "passive" changes
    nothing."""
    if args.log_level != "passive" or args.process_index != 0:
        for library in ("oneloop", *(["transformers"] if mode.follows("transformers") else [])):
            logging.getLogger(library).setLevel(args.get_process_log_level())


def bind(args: Any, backend: Any) -> None:
    """Check the arguments against the framework and device of the model, so that errors come before the first step."""
    args.bind(backend.NAME)
    accumulation_steps(args)
    try:
        device = args.device
    except ArgumentError:
        # The device is missing on this machine. An error about the user's own arguments is more helpful, so it comes
        # first.
        args.check_backend(backend.NAME, backend.devices.kind(backend.devices.resolve(None)))
        raise
    args.check_backend(backend.NAME, backend.devices.kind(device))
    if args.tf32 is not None:
        backend.devices.allow_tf32(args.tf32)


def strategy(args: Any, backend: Any, processes: ProcessGroup) -> Any:
    """The distributed strategy; a backend that supports one process only needs no module `parallel`."""
    if backend.parallel is not None:
        return backend.parallel.strategy(args, processes)
    return Strategy(args, processes, backend)


def collator(given: Any, processing_class: Any, framework: str) -> Callable:
    """The given collator, or the default one, which pads if there is a tokenizer."""
    from ..data import collators

    tensors = registry.tensor_format(framework)
    if given is None:
        if processing_class is not None and (
            hasattr(processing_class, "pad") or hasattr(processing_class, "pad_token_id")
        ):
            return collators.DataCollatorWithPadding(processing_class, return_tensors=tensors)
        return collators.DefaultDataCollator(return_tensors=tensors)
    if not callable(given):
        raise InvalidTypeError(
            f"Invalid data_collator of type {type(given).__name__}: expected a function of a list of samples"
        )
    return given


# Under the names of transformers, for code that compares a Trainer's callbacks with them, or assigns others.
DEFAULT_CALLBACKS = [DefaultFlowCallback, JsonLinesCallback]
DEFAULT_PROGRESS_CALLBACK = ProgressCallback


def callbacks(core: "Internals", given: Any) -> list[Any]:
    """The default callbacks, the writers of report_to, those of the user, then the progress display, in this order."""
    if given is not None and not isinstance(given, (list, tuple)):
        given = [given]
    args = core.trainer.args
    found: list[Any] = [cls() for cls in DEFAULT_CALLBACKS if cls is not JsonLinesCallback]
    found += make_writers(args.report_to)
    if args.should_save:
        # Functions, since each train() makes a new run.
        found.append(
            JsonLinesCallback(
                lambda: core.run.id, lambda: core.run.meter.figures, lambda: core.run.checkpointer.directory.path
            )
        )
    found.extend(given or ())
    shown = [cb if isinstance(cb, type) else type(cb) for cb in given or ()]
    if not any(issubclass(cls, (ProgressCallback, PrinterCallback)) for cls in shown):
        if args.disable_tqdm:
            found.append(PrinterCallback())
        else:
            is_own = DEFAULT_PROGRESS_CALLBACK is ProgressCallback
            found.append(NotebookProgressCallback() if is_own and in_notebook() else DEFAULT_PROGRESS_CALLBACK())
    return found


def make_output_directory(core: "Internals") -> None:
    """Scripts of transformers write into it as soon as there is a Trainer; otherwise the first file creates it."""
    if mode.follows("transformers") and core.trainer.args.should_save and not plan_request.is_active():
        core.run.checkpointer.directory.path.mkdir(parents=True, exist_ok=True)


def link_writers(core: "Internals") -> None:
    """Give the writers access to the id of the run, its directory, and a function that saves the model."""
    for callback in core.trainer.callback_handler.callbacks:
        if isinstance(callback, Writer):
            callback.link(
                lambda: core.run.id,
                lambda folder: core.run.checkpointer.model_files.save_quietly(folder),
                lambda: core.run.checkpointer.directory.path,
            )


def half(args: Any) -> str | None:
    """fp16, bf16 or None; fp16_opt_level O0 disables both."""
    if args.fp16_opt_level == "O0":
        return None
    return "fp16" if args.fp16 else "bf16" if args.bf16 else None


def pure_half(args: Any) -> bool:
    """O3: weights in half precision, without float32 master weights."""
    return args.fp16_opt_level == "O3" and half(args) is not None
