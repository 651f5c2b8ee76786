"""transformers as the library of models: its attention functions, losses and generation settings."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, MissingPackageError
from ..libraries import ModelLibrary


class TransformersLibrary(ModelLibrary):
    def attention(self, name: str) -> Callable[..., Any] | None:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        return ALL_ATTENTION_FUNCTIONS.get(name)

    def add_attention(self, name: str, function: Callable[..., Any], masks_of: str) -> None:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

        AttentionInterface.register(name, function)
        if masks_of in ALL_MASK_ATTENTION_FUNCTIONS:
            AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[masks_of])

    def token_losses(self) -> Mapping[Any, str]:
        from transformers.loss import loss_utils

        return {
            loss_utils.ForCausalLMLoss: "next",
            loss_utils.ForMaskedLMLoss: "same",
            loss_utils.ForTokenClassification: "same",
        }

    def generation_config(self, path: str | Path) -> Any:
        try:
            from transformers import GenerationConfig
        except ImportError as error:
            raise MissingPackageError(
                f"generation_config={str(path)!r} needs transformers, which is not installed: run "
                "pip install transformers, or pass the configuration as an object."
            ) from error
        file = Path(path)
        try:
            if file.is_file():
                return GenerationConfig.from_pretrained(str(file.parent), file.name)
            return GenerationConfig.from_pretrained(str(path))
        except OSError as error:
            raise ArgumentError(
                f"Cannot load generation_config={str(path)!r} ({str(error).splitlines()[0]}). Pass a "
                "folder with a generation_config.json, such a file, the name of a model, or a GenerationConfig."
            ) from error
