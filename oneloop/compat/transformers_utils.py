"""Functions of transformers' trainer_utils that scripts import: models, tokens, searches and memory."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from ..backends import loading
from ..converters.transformers_checkpoint import WEIGHTS
from ..errors import CheckpointError, ModelError
from ..formats.structure import weight_map
from ..trainer.meter import MemoryTracker

logger = logging.getLogger(__name__)


# -- models


def _is_peft_model(model: Any) -> bool:
    """Detected from the class, without importing peft."""
    names = {base.__name__ for base in type(model).__mro__ if base.__module__.startswith("peft.")}
    return bool(names & {"PeftModel", "PeftMixedModel"})


def unwrap_peft_model(model: Any) -> Any:
    """The model under PEFT's adapters; any other model unchanged."""
    if not _is_peft_model(model):
        return model
    if hasattr(model, "get_base_model"):
        return model.get_base_model()
    return model.base_model.model  # PeftMixedModel


def validate_quantization_for_training(model: Any) -> None:
    """Raise ModelError for a quantized model that cannot be trained."""
    if not getattr(model, "is_quantized", False) or getattr(model, "_hf_peft_config_loaded", False):
        return
    quantizer = getattr(model, "hf_quantizer", None)
    if hasattr(model, "_orig_mod"):
        raise ModelError("the model is quantized and compiled, which cannot be trained; pass it without torch.compile.")
    if not _is_peft_model(model) and not getattr(quantizer, "is_qat_trainable", False):
        raise ModelError(
            "the model is quantized, and its weights cannot be trained. Add trainable adapters, for example "
            "peft.get_peft_model(model, peft.LoraConfig(...)), or load it without quantization."
        )
    if not getattr(quantizer, "is_trainable", False):
        method = getattr(getattr(quantizer, "quantization_config", None), "quant_method", "this method")
        raise ModelError(
            f"the model is quantized with {getattr(method, 'value', method)}, which does not support gradients. Use a "
            "method that supports training, or load the model without quantization."
        )


class IncompatibleKeys(NamedTuple):
    """Names that only the model has, and names that only the checkpoint has."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def load_sharded_checkpoint(model: Any, folder: Any, strict: bool = True, prefer_safe: bool = True) -> IncompatibleKeys:
    """Load weights from several files with an index. Safetensors are preferred if there are both.

    With strict=False, weights that only one side has are ignored, and returned.
    """
    backend, folder = loading.of_model(model), Path(folder)
    index = folder / f"{WEIGHTS[0]}.index.json"
    if not index.is_file():
        if not (folder / f"{WEIGHTS[1]}.index.json").is_file():
            names = " or ".join(f"{name}.index.json" for name in WEIGHTS[:2])
            raise CheckpointError(f"{folder} has no {names}; pass the folder of a checkpoint in several files.")
        backend.external_checkpoint.load_weights(model, folder)
        return IncompatibleKeys([], [])
    loaded: dict[str, Any] = {}
    for name in sorted(set(weight_map(index).values())):
        loaded |= backend.weights.load_tensors(folder / name)
    own, tied = backend.weights.model_tensors(model)
    same = {name: first for name, first in tied.items() if name in loaded or first in loaded}
    missing = [name for name in own if name not in loaded and name not in same.values()]
    missing += [name for name in tied if name not in same]
    unexpected = [name for name in loaded if name not in own and name not in tied]
    if not strict:
        loaded = {name: value for name, value in loaded.items() if name not in unexpected}
        loaded |= {name: own[name] for name in missing if name in own}
    backend.weights.load_model(model, loaded, same, str(folder))
    return IncompatibleKeys(missing, unexpected)


# -- arguments and tokens


def compare_trainer_and_checkpoint_args(training_args: Any, trainer_state: Any) -> None:
    """Log one warning with the differences between the arguments and a checkpoint's trainer_state.json."""
    pairs = {
        name: (getattr(training_args, name, None), getattr(trainer_state, name, None))
        for name in ("logging_steps", "eval_steps", "save_steps")
    }
    stored = getattr(trainer_state, "train_batch_size", None)
    stored = None if stored is None else stored // max(1, training_args.n_gpu)
    pairs["per_device_train_batch_size"] = (training_args.per_device_train_batch_size, stored)
    differences = [
        f"{n}: now {now}, then {then}" for n, (now, then) in pairs.items() if None not in (now, then) and now != then
    ]
    if differences:
        logger.warning("The arguments differ from those of the checkpoint: %s.", "; ".join(differences))


def align_special_tokens(model: Any, processing_class: Any) -> None:
    """Copy the tokenizer's EOS, BOS and padding tokens to the model's configurations; missing ones are skipped."""
    tokenizer = getattr(processing_class, "tokenizer", processing_class)
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    generation = getattr(model, "generation_config", None)
    changed = {}
    for name in ("eos_token_id", "bos_token_id", "pad_token_id"):
        token = getattr(tokenizer, name, None)
        if token is None:
            continue
        for part in (config, generation):
            held = getattr(part, name, None)
            ids = held if isinstance(held, (list, tuple)) else [held]
            if part is None or token in ids:
                continue
            # Generation may stop at any of several EOS tokens, so existing ones are kept.
            several = name == "eos_token_id" and (part is generation or ids is held)
            setattr(part, name, [token, *(i for i in ids if i is not None)] if several else token)
            changed[name] = token
    if changed:
        logger.warning("Updated the model's configuration with the tokenizer's special tokens: %s", changed)


@contextlib.contextmanager
def suppress_progress_bars() -> Iterator[None]:
    """Disables progress bars of huggingface_hub."""
    try:
        from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    except ImportError:
        yield
        return
    were_off = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not were_off:
            enable_progress_bars()


# -- memory


class TrainerMemoryTracker:
    """Measures memory between start() and stop_and_update_metrics(metrics), for the stage of the calling method."""

    stages: ClassVar[dict[str, str]] = {"__init__": "init", "train": "train", "evaluate": "eval", "predict": "test"}

    def __init__(self, skip_memory_metrics: bool = False, tracker: MemoryTracker | None = None) -> None:
        self.skip_memory_metrics = skip_memory_metrics
        self._tracker = tracker or MemoryTracker(not skip_memory_metrics)
        self._kept: dict[str, Any] = {}  # of a stage without metrics

    def _place(self) -> tuple[Any, Any]:
        backend = loading.default_backend()
        return backend, backend.devices.resolve(None)

    def _stage(self) -> str:
        caller = sys._getframe(2).f_code.co_name
        return self.stages.get(caller, caller)

    def start(self) -> None:
        if not self.skip_memory_metrics:
            self._tracker.start(self._stage(), *self._place())

    def stop_and_update_metrics(self, metrics: dict[str, Any] | None = None) -> None:
        if self.skip_memory_metrics:
            return
        self._tracker.stop(self._stage(), *self._place(), self._kept)
        if metrics is not None:
            metrics.update(self._kept)
            self._kept = {}
