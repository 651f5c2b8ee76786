"""Parts of the Trainer's surface that this release does not have yet: each says so in words."""

from typing import Any, NoReturn

from ..errors import RefusedError
from .parts import TrainerParts


def _refuse(what: str, instead: str) -> NoReturn:
    raise RefusedError(f"{what} is not part of this release of oneloop yet. {instead}")


class TrainerLater(TrainerParts):
    """Search and hub."""

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse("hyperparameter_search", "Call train() in a loop over your settings, with model_init.")

    def push_to_hub(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse("push_to_hub", "Use save_model() and huggingface_hub.upload_folder.")

    def init_hf_repo(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse("init_hf_repo", "Use huggingface_hub.create_repo.")

    def create_model_card(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse("create_model_card", "Write README.md by hand; all_results.json has the metrics.")
