"""What is known of other libraries' objects that a run may meet, by their names: `compat` fills it in.

Nothing is imported to recognise them. Without an entry, an object is treated like any other.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .errors import UnsupportedError

StateShapes = Callable[[tuple[int, ...], Mapping[str, Any]], dict[str, tuple[int, ...] | None]]

# Packages with models whose `loss_function`, or the name of whose class, says whether they shift their labels.
MODELS: set[str] = set()
# Packages with models that keep packed documents apart by position_ids that start again, as they need no mask for it.
PACKED_BY_POSITIONS: set[str] = set()
# Modules of data loaders that give each process its own batches already.
SHARDING_LOADERS: set[str] = set()
# Qualified name of an optimizer's class -> what it keeps for a parameter of a shape, with the options of its group: the
# shape of each tensor, of any type; None for a number.
OPTIMIZER_STATES: dict[str, StateShapes] = {}
# Distributions whose versions are recorded with a run, if they are installed.
RECORDED: list[str] = []


class ModelLibrary:
    """What a library offers beside its models. This is none."""

    def attention(self, name: str) -> Callable[..., Any] | None:
        """The attention function that a model's configuration calls by this name."""
        return None

    def add_attention(self, name: str, function: Callable[..., Any], masks_of: str) -> None:
        """Add an attention function, which is given the masks of another one."""
        raise NotImplementedError

    def token_losses(self) -> Mapping[Any, str]:
        """Loss functions that are means over labels -> whether they compare a position with the next label or with
        the same."""
        return {}

    def generation_config(self, path: str | Path) -> Any:
        """The settings for generating text in a file or folder, or those of the model of this name."""
        raise UnsupportedError(f"generation_config={str(path)!r}: pass the configuration as an object.")


_models = ModelLibrary()


def models() -> ModelLibrary:
    return _models


def set_models(library: ModelLibrary) -> None:
    global _models
    _models = library
