"""Parts of the Trainer's surface that this release does not have yet: each says so in words."""

from typing import Any, NoReturn

from ..errors import RefusedError
from .parts import TrainerParts


def _refuse(what: str, instead: str) -> NoReturn:
    raise RefusedError(f"{what} is not part of this release of oneloop yet. {instead}")


class TrainerLater(TrainerParts):
    """Search."""

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse("hyperparameter_search", "Call train() in a loop over your settings, with model_init.")
