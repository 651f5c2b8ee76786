"""Which libraries' scripts this process runs, and the behaviour that they expect of a Trainer.

`redirect` and `oneloop run` call `follow`; a script that imports oneloop itself gets oneloop's own behaviour.
"""

import importlib
from collections.abc import Iterable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from .. import behaviour
from ..behaviour import OWN, Behaviour

_emulated: set[str] = set()
# Libraries with the behaviour of another one, which their Trainer was made from.
_SUCCESSORS = {"paddleformers": "paddlenlp"}


def emulate(library: str) -> None:
    _emulated.add(library)
    behaviour.choose(*expected_by(_emulated))


def _behaviours() -> set[str]:
    return {_SUCCESSORS.get(library, library) for library in _emulated}


def emulates(library: str) -> bool:
    """Whether this process runs a script for that library, or for one with its behaviour."""
    return library in _behaviours()


# -- the behaviour


def expected_by(libraries: Iterable[str]) -> tuple[Behaviour, dict[str, Behaviour]]:
    """What scripts for these libraries expect, and what they expect of the models of a framework."""
    names = {_SUCCESSORS.get(library, library) for library in libraries}
    common = replace(OWN, every_layer_trains=bool(names))
    if "transformers" in names:
        common = _as_transformers(common)
    if "mindnlp" in names:
        common = replace(common, batched_pipelines_keep_batch_size=True)
    if names == {"paddlenlp"}:  # whatever else the library has imported
        common = replace(common, framework="paddle")
    if "paddlenlp" in names:  # it has none of these arguments, or the script would not run there
        common = replace(common, script_fields_win=True)
    return common, {"paddle": _as_paddlenlp(common)} if "paddlenlp" in names else {}


def _as_transformers(common: Behaviour) -> Behaviour:
    return replace(
        common,
        zero_is_no_save_limit=True,  # sentence-transformers' `fit` passes 0
        best_metric_must_be_named=True,
        subclasses_may_skip_validation=True,  # ms-swift has such a class, and makes the arguments from its values
        pins_no_memory_on_cpu=True,
        accepts_options_without_effect=True,
        accumulation_from_accelerator_config=True,
        needs_max_steps_without_length=True,
        parser=parser_of_transformers,
        namespace_has_defaults=True,
        unknown_words_raise=True,
        positional_parameters=_positional_parameters,
        extra_loggers=("transformers",),
        label_names_are_forward_parameters=True,  # such as CLIP's: metrics are those of the outputs alone
        autocast="forward",
        chunks_losses=False,
        loss_func_may_be_sign=True,  # of TRL's GRPO, 0.22 to 1.9
        step_may_update_model=True,
        initial_epoch=0,
        optimizer_factories={"adafactor": adafactor_of_transformers},  # which the script may compare with
        metrics_see_whole_batches=True,
        eval_drops_last=True,
        default_ignored_outputs=(),
        evaluates_first_logged_step=False,
        evaluates_last_step=True,
        logs_train_runtime=True,
        progress_prints_losses=True,
        history_has_added_keys=False,
        prints_logs_only=True,
        early_stopping_checks_arguments=True,
        stop_is_final=False,
        on_save_before_next_step=True,
        missing_checkpoint_is_error=True,
    )


def _as_paddlenlp(common: Behaviour) -> Behaviour:
    return replace(
        common,
        chunks_losses=False,
        optimizer_options_without_rate=True,  # its overrides create the optimizer with a schedule in place of the rate
        collator_sees_all_columns=True,
        evaluates_dataset_as_given=True,  # its overrides treat the Trainer's own dataset differently
        logs_interval_speeds=True,
    )


# The parameters of transformers' Trainer after model_init, in their order. 4.46 and 4.47 have added one each.
_ORDER = (
    *("compute_loss_func", "compute_metrics", "callbacks", "optimizers"),
    *("optimizer_cls_and_kwargs", "preprocess_logits_for_metrics"),
)
_SINCE = {"compute_loss_func": (4, 46), "optimizer_cls_and_kwargs": (4, 47)}


def _positional_parameters() -> tuple[str, ...]:
    """In the order of the installed version."""
    installed = version_of_transformers()
    return tuple(name for name in _ORDER if installed is None or installed >= _SINCE.get(name, (0, 0)))


def version_of_transformers() -> tuple[int, int] | None:
    """The first two numbers of the installed version; None if it is not installed."""
    try:
        first, second = version("transformers").split(".")[:2]
    except PackageNotFoundError:
        return None
    return int(first), int(second)


# -- classes of transformers itself


def parser_of_transformers() -> Any:
    """HfArgumentParser of transformers itself, in a process that runs a script for it; None if it is not installed."""
    return _of_transformers("hf_argparser", "HfArgumentParser")


def adafactor_of_transformers() -> Any:
    """Adafactor of transformers itself, in the same case."""
    return _of_transformers("optimization", "Adafactor")


def _of_transformers(module_name: str, name: str) -> Any:
    if not emulates("transformers"):
        return None
    try:
        module: Any = importlib.import_module(f"transformers.{module_name}")
    except ImportError:
        return None
    # Under `redirect` it is a module of oneloop, which holds that of the library.
    real = module._library_module() if hasattr(module, "_library_module") else module
    return getattr(real, name, None)
