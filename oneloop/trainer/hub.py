"""push_to_hub: which files go when, and the model card."""

import copy
import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ..arguments.values import is_secret
from ..checkpoint import store
from ..errors import HubError
from ..hub import card, uploads
from .course import OPTIMIZER, RANDOM, RUN, STATE
from .model_files import writing
from .parts import TrainerParts

logger = logging.getLogger(__name__)

LAST = "last-checkpoint"
# What a checkpoint has beside the model: it belongs to the run, not to whoever uses the model.
COURSE = (OPTIMIZER, RANDOM, RUN, STATE, store.MANIFEST)


class TrainerHub(TrainerParts):
    """Uploads follow the commit of a checkpoint and run in the background; none of them stops or fails a training."""

    _hub: uploads.Hub | None = None
    _pushed_step: int | None = None  # of the last push that was started
    _card_facts: dict[str, Any] = {}  # what create_model_card was told, for the cards of later pushes

    @property
    def hub_model_id(self) -> str | None:
        """The repository with its owner, once it is known."""
        return self._hub.repo_id if self._hub is not None else self.args.hub_model_id

    def init_hf_repo(self, token: str | None = None) -> None:
        """Make the repository of args.hub_model_id, unless it is there."""
        if not self.is_world_process_zero():
            return
        args = self.args
        name = args.hub_model_id or Path(args.output_dir).absolute().name
        self._hub = uploads.Hub(name, token or args.hub_token, args.hub_private_repo, args.hub_revision)
        uploads.clear(args.output_dir)

    # -- while training

    def _push_checkpoint(self, state: Any) -> None:
        """A checkpoint has been committed: push what hub_strategy asks for."""
        args = self.args
        if self._hub is None or args.hub_strategy == "end":
            return
        if self._hub.busy and not args.hub_always_push:
            logger.info("The push of step %d is left out: the one before is under way.", state.global_step)
            return
        folder = Path(args.output_dir) / f"{store.PREFIX}-{state.global_step}"
        place = {"checkpoint": LAST, "all_checkpoints": folder.name}.get(args.hub_strategy)
        self._start_push(state, _files(folder, place), LAST if place == LAST else None)

    def _start_push(self, state: Any, files: Any, replaced: str | None = None) -> Any:
        args, step = self.args, state.global_step
        self.callback_handler.on_push_begin(args, self.state, self.control)
        self._pushed_step = step
        try:
            stage = uploads.snapshot(args.output_dir, files)
            if not (stage / "README.md").exists():
                (stage / "README.md").write_text(self._card(state), encoding="utf-8")
            assert self._hub is not None
            delete = f"{replaced}/*" if replaced else None
            message = f"Training in progress, step {step}"
            return self._hub.push(stage, message, delete=delete, after=partial(self._note_push, step))
        except Exception as error:  # no disk space for the copies, say
            logger.error("Step %d was NOT pushed: %s", step, self._hub.clean(str(error)) if self._hub else error)
            self._pushed_step = None

    def _note_push(self, step: int, well: bool) -> None:
        if not well and self._pushed_step == step:
            self._pushed_step = None  # so that the end of training tries again

    def _finish_pushes(self) -> None:
        """The end of training: the final model is pushed, unless the last push has just that, and all pushes end."""
        if not self.args.push_to_hub:
            return
        if self._hub is not None:
            self._hub.wait()
        best = self.args.load_best_model_at_end and self.state.best_global_step != self.state.global_step
        # Of several processes only one knows of pushes, but all of them save.
        if best or self.args.world_size > 1 or self._pushed_step != self.state.global_step:
            try:
                self.push_to_hub(blocking=False)
            except (HubError, OSError) as error:
                logger.error("The model was NOT pushed at the end of training: %s", error)
            if self._hub is not None:
                self._hub.wait()

    # -- for scripts

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Save the model with its card and push output_dir, without checkpoints. kwargs go to create_model_card.

        What the Hub answers, or with blocking=False a future of it; None where another process does it.
        """
        self._save_quietly(self.args.output_dir)
        if not self.is_world_process_zero():
            return None
        if self._hub is None:
            self.init_hf_repo(token)
        hub = self._hub
        assert hub is not None
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        self.create_model_card(**{"model_name": hub.repo_id.rpartition("/")[2], **kwargs})
        stage = uploads.snapshot(self.args.output_dir, _results(Path(self.args.output_dir)))
        step = self._pushed_step = self.state.global_step
        after = partial(self._note_push, step)
        push = hub.push(stage, commit_message or "End of training", revision=revision, token=token, after=after)
        if not blocking:
            return push
        hub.wait()
        error = push.exception()
        if error is not None:
            raise hub.error(f"the model was not pushed to {hub.repo_id}", error) from None
        return push.result()

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
        """README.md in output_dir: the arguments, the metrics and where they come from. A card that somebody wrote or
        changed by hand stays as it is."""
        if not self.is_world_process_zero():
            return
        given = {key: value for key, value in locals().items() if key != "self" and value is not None}
        self._card_facts = {**self._card_facts, **given}
        path = Path(self.args.output_dir) / "README.md"
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file() and not card.is_ours(path.read_text(encoding="utf-8")):
                logger.warning("%s was written or changed by somebody else, and is left as it is.", path)
                return
            path.write_text(self._card(self.state), encoding="utf-8")

    def _card(self, state: Any) -> str:
        model = self.backend.models.unwrap(self.model)
        config: Any = getattr(model, "config", None)
        base = getattr(config, "_name_or_path", None) or None
        peft = getattr(model, "peft_config", None)
        known = any(cls.__module__.partition(".")[0] == "transformers" for cls in type(model).__mro__)
        facts = {
            "model_name": (self.hub_model_id or self.args.output_dir).rstrip("/").rpartition("/")[2],
            "finetuned_from": None if base is None or Path(base).exists() else base,
            "library_name": "peft" if peft else "transformers" if known else None,
            "class": type(model).__name__,
            "framework": self.backend.NAME,
            **self._card_facts,
        }
        plain = self.args.to_dict()
        arguments = {name: value for name, value in plain.items() if not is_secret(name)}
        defaults = type(self.args)(output_dir=self.args.output_dir).to_dict()
        return card.write(facts, arguments, defaults, copy.copy(state.log_history))


def _files(checkpoint: Path, place: str | None) -> Iterator[tuple[Path, str]]:
    """The model at the root of the repository and, in `place`, the whole checkpoint."""
    for path in sorted(checkpoint.rglob("*")):
        if not path.is_file():
            continue
        name = path.relative_to(checkpoint).as_posix()
        if name not in COURSE:
            yield path, name
        if place is not None:
            yield path, f"{place}/{name}"


def _results(output_dir: Path) -> Iterator[tuple[Path, str]]:
    """All that an output directory has for others: no checkpoints, and nothing hidden."""
    for path in sorted(output_dir.rglob("*")):
        name = path.relative_to(output_dir)
        if path.is_file() and not name.parts[0].startswith((".", "_", f"{store.PREFIX}-")):
            yield path, name.as_posix()
