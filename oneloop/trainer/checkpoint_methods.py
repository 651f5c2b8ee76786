"""Methods of the Trainer that save and load one part of a checkpoint, as subclasses override them.

An override that calls super() gets oneloop's part and can add its own; one that does not replaces it.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint import resume
from ..checkpoint.reader import Checkpoint
from ..errors import UnsupportedError
from .signatures import any_parameters, typed_as

if TYPE_CHECKING:
    from .core import Core

logger = logging.getLogger(__name__)


class CheckpointMethods:
    """The parts of a checkpoint. Within a save, output_dir is the directory that is going to be the checkpoint."""

    if TYPE_CHECKING:  # what Trainer has
        args: Any
        model: Any
        model_wrapped: Any
        _oneloop: "Core"

    # -- saving: each is called in all processes, and not with save_only_model

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Add the optimizer and the schedule to the checkpoint that is being saved. A collective."""
        checkpointer = self._oneloop.run.checkpointer
        checkpointer.capture.add_optimizer_and_scheduler()

    def _save_scaler(self, output_dir: str) -> None:
        """Add the loss scaler of fp16 to the checkpoint that is being saved."""
        checkpointer = self._oneloop.run.checkpointer
        checkpointer.capture.gathering().has_scaler = True

    def _save_rng_state(self, output_dir: str) -> None:
        """Add the RNG state of all processes to the checkpoint that is being saved."""
        checkpointer = self._oneloop.run.checkpointer
        checkpointer.capture.gathering().has_rng_state = True

    def _rotate_checkpoints(self, use_mtime: bool = False, output_dir: Any = None) -> None:
        """Delete the checkpoints that save_total_limit does not keep."""
        self._oneloop.run.checkpointer.rotate()

    # -- loading: called when a run is resumed

    @typed_as(any_parameters)
    def _load_from_checkpoint(self, resume_from_checkpoint: Any = None, model: Any = None) -> None:
        """Load the weights of a checkpoint into the model. True is the last checkpoint in output_dir; without a
        checkpoint, it does nothing."""
        if not resume_from_checkpoint:
            return
        if model is not None and model is not self.model and model is not self.model_wrapped:
            raise UnsupportedError(
                "_load_from_checkpoint loads into the Trainer's own model only; set trainer.model first."
            )
        core = self._oneloop
        checkpointer = core.run.checkpointer
        if resume_from_checkpoint == checkpointer.last_saved:  # has been verified
            checkpoint: Checkpoint | None = checkpointer.open(resume_from_checkpoint)
        else:
            checkpoint, _ = resume.find(resume_from_checkpoint, checkpointer.directory.display_path)
        if checkpoint is not None:
            resume.load_weights(core, checkpoint)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Warn of the keys that load_state_dict(strict=False) has not found or not used: for a copied method, since
        oneloop itself loads all or raises an error. Keys that the model does not save may be missing."""
        model = self._oneloop.backend.models.unwrap(self.model)
        unsaved = getattr(model, "_keys_to_ignore_on_save", None) or ()
        missing = [key for key in load_result.missing_keys if key not in unsaved]
        if missing:
            logger.warning("The checkpoint has no weights for these parts of the model: %s.", missing)
        if load_result.unexpected_keys:
            logger.warning(
                "The checkpoint has weights that the model does not have: %s.", list(load_result.unexpected_keys)
            )

    def _load_callback_state(self) -> None:
        """Restore the callbacks from the state of the run."""
        resume.load_callbacks(self)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Restore the optimizer and the schedule from a checkpoint."""
        if checkpoint is not None:
            run = self._oneloop.run
            resume.load_optimizer_and_scheduler(run, run.checkpointer.open(checkpoint))

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Restore the loss scaler of fp16 from a checkpoint."""
        if checkpoint is not None:
            run = self._oneloop.run
            resume.load_scaler(run, run.checkpointer.open(checkpoint))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Restore the RNG state of this process from a checkpoint."""
        if checkpoint is not None:
            self._oneloop.run.epochs.load_rng_state(Path(checkpoint))

    def _load_best_model(self) -> None:
        """Load the weights of the best checkpoint into the model."""
        run = self._oneloop.run
        resume.load_best_model(run, run.checkpointer.last_saved)
