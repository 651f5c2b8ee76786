"""What Trainer.__init__ does with its arguments, one small function each."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import backends
from ..arguments import TrainingArguments
from ..backends import registry
from ..callbacks import DefaultFlowCallback, NotebookProgressCallback, PrinterCallback, ProgressCallback, in_notebook
from ..distributed.collectives import ProcessGroup
from ..distributed.strategy import Strategy
from ..errors import ArgumentError
from ..integrations.writers import make_writers
from ..integrations.writers.base import Writer
from ..integrations.writers.json_log import JsonLinesCallback

if TYPE_CHECKING:
    from .internals import Internals

logger = logging.getLogger(__name__)


def is_criterion(value: Any) -> bool:
    """Whether the second positional argument is a criterion, as PaddleNLP has it, and not the arguments."""
    if hasattr(value, "output_dir") or isinstance(value, (dict, str)):
        return False
    return backends.name_of(value) is not None or callable(value)


def is_paddle_order(second: Any, third: Any) -> bool:
    """Whether the arguments stand third, behind a criterion or the None in its place."""
    return is_criterion(second) if second is not None else hasattr(third, "output_dir")


def arguments(args: Any) -> Any:
    """The arguments, checked again; defaults in tmp_trainer when there are none."""
    if args is None:
        logger.info("No TrainingArguments given: the defaults are used, with output_dir='tmp_trainer'.")
        return TrainingArguments(output_dir="tmp_trainer")
    if not isinstance(args, TrainingArguments):
        hint = "TrainingArguments(**args)" if isinstance(args, dict) else "oneloop.TrainingArguments(...)"
        cls = args if isinstance(args, type) else type(args)
        kind = f"the class {cls.__name__}" if cls is args else f"a {cls.__module__}.{cls.__name__}"
        raise ArgumentError(
            f"args is {kind}; expected oneloop's TrainingArguments. "
            f"Use {hint}, which takes the arguments of the other trainers too."
        )
    args.validate()
    return args


def log_levels(args: Any) -> None:
    """log_level "passive" leaves logging alone; anything else sets it for oneloop's loggers."""
    if args.log_level != "passive" or args.process_index != 0:
        logging.getLogger("oneloop").setLevel(args.get_process_log_level())


def bind(args: Any, backend: Any) -> None:
    """The arguments meet the model: what its framework or device refuses is an error now, not at step 400."""
    args.bind(backend.NAME)
    try:
        device = args.device
    except ArgumentError:
        # A device that this machine lacks: a refusal that names the user's own words comes first.
        args.check_backend(backend.NAME, backend.devices.kind(backend.devices.resolve(None)))
        raise
    args.check_backend(backend.NAME, backend.devices.kind(device))
    if args.tf32 is not None:
        backend.devices.allow_tf32(args.tf32)


def strategy(args: Any, backend: Any, processes: ProcessGroup) -> Any:
    """How the processes share the work; a backend that runs on one alone needs no file `parallel`."""
    if backend.parallel is not None:
        return backend.parallel.strategy(args, processes)
    return Strategy(args, processes, backend)


def collator(given: Any, processing_class: Any, framework: str) -> Callable:
    """The collator that was given, or one that pads when there is a tokenizer to pad with."""
    from ..data import collators

    tensors = registry.tensor_format(framework)
    if given is None:
        if processing_class is not None and (
            hasattr(processing_class, "pad") or hasattr(processing_class, "pad_token_id")
        ):
            return collators.DataCollatorWithPadding(processing_class, return_tensors=tensors)
        return collators.DefaultDataCollator(return_tensors=tensors)
    if not callable(given):
        raise ArgumentError(f"data_collator is a {type(given).__name__}; expected a function of a list of samples")
    return given


def callbacks(args: Any, given: Any, run_id: Callable[[], str], figures: Callable[[], dict[str, float]]) -> list[Any]:
    """The default ones, the writers of report_to, then the user's, then the progress display."""
    if given is not None and not isinstance(given, (list, tuple)):
        given = [given]
    found: list[Any] = [DefaultFlowCallback(), *make_writers(args.report_to)]
    if args.should_save:
        found.append(JsonLinesCallback(run_id, figures))
    found.extend(given or ())
    shown = [cb if isinstance(cb, type) else type(cb) for cb in given or ()]
    if not any(issubclass(cls, (ProgressCallback, PrinterCallback)) for cls in shown):
        if args.disable_tqdm:
            found.append(PrinterCallback())
        else:
            found.append(NotebookProgressCallback() if in_notebook() else ProgressCallback())
    return found


def link_writers(core: "Internals") -> None:
    """Lend the writers the id of the run and a way to save the model."""
    for callback in core.trainer.callback_handler.callbacks:
        if isinstance(callback, Writer):
            callback.link(lambda: core.run.id, lambda folder: core.run.checkpointer.model_files.save_quietly(folder))


def half(args: Any) -> str | None:
    """fp16, bf16 or None; fp16_opt_level O0 switches both off."""
    if args.fp16_opt_level == "O0":
        return None
    return "fp16" if args.fp16 else "bf16" if args.bf16 else None


def pure_half(args: Any) -> bool:
    """O3: weights in half precision, and nothing kept in float32."""
    return args.fp16_opt_level == "O3" and half(args) is not None
