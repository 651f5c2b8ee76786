"""The methods of the Trainer for the Hub."""

from typing import TYPE_CHECKING, Any

from ...trainer.generic import Args_co, TrainerBase
from .pushing import HubPushes

if TYPE_CHECKING:
    from ...trainer import Trainer as Base
else:
    Base = TrainerBase


class HubMethods(Base[Args_co]):
    """A part of the Trainer. HubPushes does the work."""

    @property
    def hub_model_id(self) -> str | None:
        """The repository with its owner, if known."""
        return self._oneloop.extensions.of(HubPushes).repo_id

    def init_hf_repo(self, token: str | None = None) -> None:
        """Create the repository of args.hub_model_id, unless it exists."""
        self._oneloop.extensions.of(HubPushes).open(token)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Save the model with its card, and push output_dir without its checkpoints.

        Args:
            commit_message: The message of the commit.
            blocking: Whether to wait for the upload.
            token: The token; by default args.hub_token, or that of the machine.
            revision: The branch to push to.
            kwargs: Arguments of create_model_card.

        Returns:
            The response of the Hub, or with blocking=False a future of it; None in processes that do not push.
        """
        return self._oneloop.extensions.of(HubPushes).push(commit_message, blocking, token, revision, kwargs)

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """Write README.md to output_dir: the arguments, the metrics and the data.

        A card that was written or changed by hand is not overwritten.

        Args:
            language: The language of the model.
            license: The licence of the model.
            tags: Tags for the Hub.
            model_name: The name in the title.
            finetuned_from: The name of the model that this one was fine-tuned from.
            tasks: Tasks, such as text-classification.
            dataset_tags: Identifiers of the datasets on the Hub.
            dataset: Names of the datasets.
            dataset_args: Configurations of the datasets.
        """
        given = {key: value for key, value in locals().items() if key != "self" and value is not None}
        self._oneloop.extensions.of(HubPushes).write_card(given)
