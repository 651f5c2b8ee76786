"""PaddleNLP's adapters (LoRAModel, PrefixModelForCausalLM): saved separately, in files that from_pretrained can load.

PaddleNLP writes them as pickles or, in its unified checkpoints, as safetensors with an index. These are the latter.
"""

import json
import logging
import weakref
from pathlib import Path
from typing import Any

import paddle
from paddle import nn

from ...converters import paddlenlp_checkpoint
from ...errors import CheckpointError
from ...formats.safetensors_io import write
from ...formats.structure import indexed_files, is_ours

INDEX = "peft_model.safetensors.index.json"
FILE = "peft_model-00001-of-00001.safetensors"

_LIBRARIES = ("paddlenlp.", "paddleformers.")
_CLASSES = ("LoRAModel", "PrefixModelForCausalLM")
_warned: "weakref.WeakSet[nn.Layer]" = weakref.WeakSet()

logger = logging.getLogger(__name__)


def is_adapter(model: nn.Layer) -> bool:
    return any(base.__name__ in _CLASSES and base.__module__.startswith(_LIBRARIES) for base in type(model).__mro__)


def tensors_of(model: Any) -> dict[str, paddle.Tensor]:
    """What is trained and saved, by PaddleNLP's names."""
    if hasattr(model, "get_trainable_state_dict"):
        return dict(model.get_trainable_state_dict())
    return dict(model.prefix_encoder.state_dict())


def save(model: Any, directory: Path, raw: Any, layout: str) -> None:
    raws = {name: raw(value) for name, value in tensors_of(model).items()}
    write(directory / FILE, raws, {"format": layout})
    size = sum(each.data.nbytes for each in raws.values())
    index = {"metadata": {"total_size": size}, "weight_map": dict.fromkeys(sorted(raws), FILE)}
    (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    for config in (getattr(model, "lora_config", None), getattr(model, "prefix_config", None), model.model.config):
        if config is not None:
            config.save_pretrained(str(directory))


def read(directory: Path, load_tensors: Any, from_raw: Any) -> dict[str, paddle.Tensor]:
    """The adapter in a directory, written here or by PaddleNLP."""
    if is_ours(directory, INDEX):
        tensors: dict[str, paddle.Tensor] = {}
        for file in indexed_files(directory, INDEX):
            tensors |= load_tensors(file)
        return tensors
    if any((directory / name).is_file() for name in paddlenlp_checkpoint.ADAPTERS):
        return {name: from_raw(raw) for name, raw in paddlenlp_checkpoint.weights(directory).items()}
    raise CheckpointError(
        f"{directory} has no adapter ({INDEX}). Pass a checkpoint of a run with this adapter, or remove "
        "resume_from_checkpoint."
    )


def warn_about_layout(model: nn.Layer) -> None:
    """PaddleFormers' from_pretrained transposes weights that it expects in PyTorch's layout, whatever the file says."""
    if type(model).__module__.startswith("paddleformers.") and model not in _warned:
        _warned.add(model)
        logger.warning(
            "Weights are saved in Paddle's layout. PaddleFormers' from_pretrained expects PyTorch's, and loads these "
            "wrongly without an error: write a model for it with trainer.model.save_pretrained(DIRECTORY), or load "
            "this one with from_pretrained(DIRECTORY, load_checkpoint_format='', convert_from_hf=False)."
        )
