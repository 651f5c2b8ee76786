"""push_to_hub: which files go when, and the model card."""

import copy
import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...checkpoint import store
from ...checkpoint.model_files import writing
from ...checkpoint.run_state import OPTIMIZER, RANDOM, RUN, STATE
from ...errors import HubError
from ...extension import Extension
from ...secrets import clean_text, public
from . import card, uploads

if TYPE_CHECKING:
    from ...trainer.core import Core

logger = logging.getLogger(__name__)

LAST = "last-checkpoint"
# What a checkpoint has beside the model: it belongs to the run, not to whoever uses the model.
COURSE = (OPTIMIZER, RANDOM, RUN, STATE, store.MANIFEST)


class HubPushes(Extension):
    """Uploads follow the commit of a checkpoint and run in the background; none of them stops or fails a training.

    Lives as long as the Trainer.
    """

    def __init__(self, core: "Core") -> None:
        super().__init__(core)
        self.repository: uploads.Hub | None = None
        self._pushed_step: int | None = None  # of the last push that was started
        self._card_facts: dict[str, Any] = {}  # what create_model_card was told, for the cards of later pushes
        self._saved: Any = None  # the state at the last save

    @property
    def repo_id(self) -> str | None:
        """The repository with its owner, once it is known."""
        return self.repository.repo_id if self.repository is not None else self.trainer.args.hub_model_id

    def open(self, token: str | None = None) -> None:
        """Make the repository of args.hub_model_id, unless it is there."""
        trainer = self.trainer
        if not trainer.is_world_process_zero():
            return
        args = trainer.args
        name = args.hub_model_id or Path(args.output_dir).absolute().name
        self.repository = uploads.Hub(name, token or args.hub_token, args.hub_private_repo, args.hub_revision)
        uploads.clear(args.output_dir)

    def created(self) -> None:
        if self.trainer.args.push_to_hub:
            self.trainer.init_hf_repo()

    def model_saved(self) -> None:
        if self.trainer.args.push_to_hub:
            self.trainer.push_to_hub("Model save", blocking=False)

    # -- while training

    @property
    def uploads(self) -> uploads.Started | None:
        """The uploads that were started; None before the first."""
        return None if self.repository is None else self.repository.started

    def checkpoint_saved(self, state: Any) -> None:
        """A checkpoint has been committed: push it, through the method of the Trainer that may be overridden."""
        if self.repository is None:
            return
        trainer, directory, self._saved = self.trainer, self.core.run.directory, state
        output_dir = directory.path
        before = {name for name in COURSE if (output_dir / name).exists()}
        shown = Path(directory.display_path)
        trainer._push_from_checkpoint(str(shown / f"{store.PREFIX}-{state.global_step}"))
        for name in set(COURSE) - before:
            # An override may have copied the whole checkpoint, but the state of the run is no part of the model.
            (output_dir / name).unlink(missing_ok=True)

    def push_checkpoint(self, folder: Path) -> None:
        """Push what hub_strategy asks for of a checkpoint."""
        args, state = self.trainer.args, self._saved or self.trainer.state
        if self.repository is None or args.hub_strategy == "end":
            return
        if self.repository.busy and not args.hub_always_push:
            logger.info("Skipping the push of step %d: the previous one is still in progress.", state.global_step)
            return
        place = {"checkpoint": LAST, "all_checkpoints": folder.name}.get(args.hub_strategy)
        self._start_push(state, _files(folder, place), LAST if place == LAST else None)

    def _start_push(self, state: Any, files: Any, replaced: str | None = None) -> Any:
        trainer, hub = self.trainer, self.repository
        assert hub is not None
        step = state.global_step
        trainer.callback_handler.on_push_begin(trainer.args, trainer.state, trainer.control)
        self._pushed_step = step
        try:
            stage = uploads.snapshot(self.core.run.output_dir, files)
            if not (stage / "README.md").exists():
                (stage / "README.md").write_text(self._card(state), encoding="utf-8")
            delete = f"{replaced}/*" if replaced else None
            message = f"Training in progress, step {step}"
            return hub.push(stage, message, delete=delete, after=partial(self._on_pushed, step))
        except Exception as error:  # no disk space for the copies, say
            logger.error("Step %d was NOT pushed: %s", step, hub.clean(str(error)))
            self._pushed_step = None

    def _on_pushed(self, step: int, well: bool) -> None:
        if not well and self._pushed_step == step:
            self._pushed_step = None  # so that the end of training tries again

    def run_ended(self) -> None:
        """The end of training: the final model is pushed, unless the last push has just that, and all pushes end."""
        trainer = self.trainer
        args, state = trainer.args, trainer.state
        if not args.push_to_hub:
            return
        if self.repository is not None:
            self.repository.wait()
        best = args.load_best_model_at_end and state.best_global_step != state.global_step
        # Of several processes only one knows of pushes, but all of them save.
        if best or args.world_size > 1 or self._pushed_step != state.global_step:
            try:
                trainer.push_to_hub(blocking=False)
            except (HubError, OSError) as error:
                logger.error("The model was NOT pushed at the end of training: %s", clean_text(str(error)))
            if self.repository is not None:
                self.repository.wait()

    # -- for scripts

    def push(
        self, commit_message: str | None, blocking: bool, token: str | None, revision: str | None, facts: dict[str, Any]
    ) -> Any:
        """Save the model with its card and push output_dir, without checkpoints."""
        trainer = self.trainer
        args = trainer.args
        checkpointer = self.core.run.checkpointer
        checkpointer.model_files.save_without_side_effects(checkpointer.directory.display_path)
        if not trainer.is_world_process_zero():
            return None
        if self.repository is None:
            trainer.init_hf_repo(token)
        hub = self.repository
        assert hub is not None
        trainer.callback_handler.on_push_begin(args, trainer.state, trainer.control)
        trainer.create_model_card(**{"model_name": hub.repo_id.rpartition("/")[2], **facts})
        stage = uploads.snapshot(checkpointer.directory.path, _results(checkpointer.directory.path))
        step = self._pushed_step = trainer.state.global_step
        after = partial(self._on_pushed, step)
        push = hub.push(stage, commit_message or "End of training", revision=revision, token=token, after=after)
        if not blocking:
            return push
        hub.wait()
        error = push.exception()
        if error is not None:
            raise hub.error(f"the model was not pushed to {hub.repo_id}", error) from None
        return push.result()

    def write_card(self, facts: dict[str, Any]) -> None:
        """README.md in output_dir. A card that somebody wrote or changed by hand stays as it is."""
        trainer = self.trainer
        if not trainer.is_world_process_zero():
            return
        self._card_facts = {**self._card_facts, **facts}
        path = self.core.run.output_dir / "README.md"
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file() and not card.is_ours(path.read_text(encoding="utf-8")):
                logger.warning("%s was written or changed by somebody else, and is left as it is.", path)
                return
            path.write_text(self._card(trainer.state), encoding="utf-8")

    def _card(self, state: Any) -> str:
        trainer, backend = self.trainer, self.core.backend
        model = backend.models.unwrap(trainer.model)
        config: Any = getattr(model, "config", None)
        base = getattr(config, "_name_or_path", None) or None
        facts = {
            "model_name": (self.repo_id or trainer.args.output_dir).rstrip("/").rpartition("/")[2],
            "finetuned_from": None if base is None or Path(base).exists() else base,
            "library_name": card.library_of(model),
            "class": type(model).__name__,
            "framework": backend.NAME,
            **self._card_facts,
        }
        base = facts["finetuned_from"]
        if base is not None and Path(base).is_dir():  # which the Hub does not have, and whose path says nothing there
            facts |= {"finetuned_from": None, "finetuned_from_folder": Path(base).absolute().name}
        arguments = public(trainer.args.to_dict())
        defaults = type(trainer.args)(output_dir=trainer.args.output_dir).to_dict()
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
    """The files of an output directory to upload: no checkpoints and no hidden files."""
    for path in sorted(output_dir.rglob("*")):
        name = path.relative_to(output_dir)
        if path.is_file() and not name.parts[0].startswith((".", "_", f"{store.PREFIX}-")):
            yield path, name.as_posix()
