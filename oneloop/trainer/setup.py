"""How Trainer.__init__ processes its arguments, one small function each."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import behaviour
from ..arguments import TrainingArguments
from ..arguments.accelerator import accumulation_steps
from ..backends import registry
from ..callbacks import (
    CallbackHandler,
    DefaultFlowCallback,
    NotebookProgressCallback,
    PrinterCallback,
    ProgressCallback,
    in_notebook,
)
from ..callbacks.json_log import JsonLinesCallback
from ..data import collators
from ..data.mixture import parts_of, training_data
from ..distributed.collectives import ProcessGroup
from ..distributed.mesh import Mesh
from ..distributed.strategy import Strategy
from ..errors import ArgumentError, InvalidTypeError
from ..introspect import is_overridden
from ..randomness import enable_full_determinism, set_seed
from . import map_function

if TYPE_CHECKING:
    from ..backends.base import Backend
    from .constructor import TrainerInit
    from .core import Core
    from .trainer import Trainer

logger = logging.getLogger(__name__)


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
    """Set the level of oneloop's loggers, and of others that belong to the script; log_level "passive" changes
    nothing."""
    if args.log_level != "passive" or args.process_index != 0:
        for name in ("oneloop", *behaviour.current().extra_loggers):
            logging.getLogger(name).setLevel(args.get_process_log_level())
    own = logging.getLogger("oneloop")
    if args.log_level != "passive" and not own.hasHandlers():  # logging is not configured: only warnings would be seen
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        own.addHandler(handler)


def seed(args: Any) -> None:
    """Seed all random streams, with full_determinism so that kernels are deterministic too."""
    (enable_full_determinism if args.full_determinism else set_seed)(args.seed)


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


def adopt_layout(args: Any, model: Any, backend: "Backend") -> None:
    """A model that was divided when it was loaded sets tensor_parallel_size."""
    size = backend.models.tensor_parallel_size(model)
    if size == 1 or size == args.tensor_parallel_size:
        return
    if args.tensor_parallel_size > 1:
        raise ArgumentError(
            f"tensor_parallel_size={args.tensor_parallel_size}, but the layers of the model are already divided "
            f"over {size} processes. Remove the argument, or load the model whole."
        )
    args.tensor_parallel_size = size


def strategy(args: Any, backend: "Backend", processes: ProcessGroup, mesh: Mesh) -> Strategy:
    """The distributed strategy; a backend that supports one process only needs no module `parallel`."""
    if backend.parallel is not None:
        return backend.parallel.strategy(args, processes, mesh)
    return Strategy(args, processes, backend, mesh)


def datasets(trainer: "Trainer", given: "TrainerInit") -> tuple[Any, Any]:
    """The data for training and for evaluation: several as a Mixture, and with map_fn applied."""
    train = given.train_dataset
    if not is_overridden(trainer, "get_train_dataloader"):
        train = training_data(train, trainer.args)
    train = map_function.training_set(train, given.map_fn)
    return train, map_function.evaluation_sets(parts_of(given.eval_dataset), given.map_fn)


def collator(given: Any, processing_class: Any, framework: str) -> Callable:
    """The given collator, or the default one, which pads if there is a tokenizer."""
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


# Under the names that scripts know, for code that compares a Trainer's callbacks with them, or assigns others.
DEFAULT_CALLBACKS = [DefaultFlowCallback, JsonLinesCallback]
DEFAULT_PROGRESS_CALLBACK = ProgressCallback


def callbacks(core: "Core", given: Any) -> list[Any]:
    """The default callbacks, the writers of report_to, those of the user, then the progress display, in this order."""
    if given is not None and not isinstance(given, (list, tuple)):
        given = [given]
    args = core.trainer.args
    found: list[Any] = [cls() for cls in DEFAULT_CALLBACKS if cls is not JsonLinesCallback]
    found += core.extensions.callbacks()
    if args.should_save:
        # Functions, since each train() makes a new run.
        found.append(
            JsonLinesCallback(lambda: core.run.id, lambda: core.run.meter.figures, lambda: core.run.output_dir)
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


def callback_handler(core: "Core", given: Any) -> CallbackHandler:
    trainer = core.trainer
    return CallbackHandler(
        callbacks(core, given), trainer.model, trainer.processing_class, trainer.optimizer, trainer.lr_scheduler
    )


def half(args: Any) -> str | None:
    """fp16, bf16 or None; fp16_opt_level O0 disables both."""
    if args.fp16_opt_level == "O0":
        return None
    return "fp16" if args.fp16 else "bf16" if args.bf16 else None


def pure_half(args: Any) -> bool:
    """O3: weights in half precision, without float32 master weights."""
    return args.fp16_opt_level == "O3" and half(args) is not None
