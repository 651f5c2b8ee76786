"""Uploads to the Hub: one after the other, in the background; errors never reach the training."""

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ... import secrets
from ...checkpoint.file_snapshots import STAGE, clear, discard, snapshot
from ...errors import HubError, MissingPackageError

__all__ = ["STAGE", "Hub", "Started", "clear", "discard", "snapshot"]

logger = logging.getLogger(__name__)


def package() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingPackageError(
            "push_to_hub requires the package huggingface_hub, which is not installed: pip install huggingface_hub, or "
            "remove push_to_hub"
        ) from error
    return huggingface_hub


class Started:
    """The uploads that a repository was asked for, under the names that scripts read."""

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub

    def is_done(self) -> bool:
        return not self._hub.busy

    def wait_until_done(self) -> None:
        self._hub.wait()


class Hub:
    """One repository. The token appears in no message."""

    def __init__(self, repo_id: str, token: str | None, private: bool | None, revision: str | None) -> None:
        self._token = token
        self._seen = {token}  # all that it was ever given: errors may quote them
        self.revision = revision
        api = package().HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=token, library_name="oneloop")
        self._api = api
        try:
            self.repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
            if revision:
                api.create_branch(self.repo_id, branch=revision, exist_ok=True)
        except Exception as error:
            raise self.error(f"the repository {repo_id!r} is not accessible", error) from None
        self._lock = threading.Lock()
        self._under_way: list[tuple[Future, threading.Event]] = []
        self.started: Started | None = None  # None before the first upload

    def __repr__(self) -> str:
        return f"Hub({self.repo_id!r})"

    def error(self, what: str, error: BaseException) -> HubError:
        """The error without any token; raise it `from None`, since the cause may contain one."""
        return HubError(
            f"{what}: {type(error).__name__}: {self.clean(str(error))} Check hub_model_id, the token and the network; "
            "or remove push_to_hub."
        )

    def clean(self, text: str) -> str:
        tokens = {token for token in (*self._seen, package().get_token()) if token}
        for token in sorted(tokens, key=len, reverse=True):  # one may begin with another
            # An error may contain the token escaped, if it has a line break, which is invalid in a header.
            for piece in (token, repr(token)[1:-1], *token.split()):
                text = text.replace(piece, "<HUB_TOKEN>") if piece else text
        return secrets.clean_text(text)

    @property
    def busy(self) -> bool:
        with self._lock:
            self._under_way = [
                (push, fixed_argument) for push, fixed_argument in self._under_way if not fixed_argument.is_set()
            ]
            return bool(self._under_way)

    def push(
        self,
        folder: Path,
        message: str,
        delete: str | None = None,
        revision: str | None = None,
        token: str | None = None,
        after: Callable[[bool], None] | None = None,
    ) -> Future:
        """Upload a folder as one commit, then delete it. Failures are logged; the future has the error."""

        self._seen.add(token)
        fixed_argument = threading.Event()  # the future is done before its folder is deleted

        def done(push: Future) -> None:
            discard(folder)
            error = push.exception()
            if error is not None:
                logger.error(
                    "%r was NOT pushed to %s: %s: %s The files are on disk; the next push will retry.",
                    message,
                    self.repo_id,
                    type(error).__name__,
                    self.clean(str(error)),
                )
            if after is not None:
                after(error is None)
            fixed_argument.set()

        push = self._api.upload_folder(
            repo_id=self.repo_id,
            folder_path=str(folder),
            commit_message=message,
            revision=revision or self.revision,
            delete_patterns=delete,
            token=token or self._token,
            run_as_future=True,
        )
        if not isinstance(push, Future):  # of a replaced function, which has finished
            result, push = push, Future()
            push.set_result(result)
        with self._lock:
            self._under_way.append((push, fixed_argument))
            self.started = self.started or Started(self)
        push.add_done_callback(done)
        return push

    def wait(self) -> None:
        """Wait for all uploads; errors have been logged."""
        with self._lock:
            under_way = list(self._under_way)
        if any(not fixed_argument.is_set() for _, fixed_argument in under_way):
            logger.info("Waiting for the push to %s to finish.", self.repo_id)
        for _, fixed_argument in under_way:
            fixed_argument.wait()
