"""Saving together with overrides of the Trainer's methods.

`_save_optimizer_and_scheduler`, `_save_scaler` and `_save_rng_state` decide what a checkpoint stores: those of oneloop
add their part, and an override that does not call them replaces it by files of its own. It writes into the staged
directory, so its files are committed with the others.

An override of `_save_checkpoint` writes into `checkpoint-N` after `super()._save_checkpoint()` has returned. The
checkpoint is complete by then, without those files. When the override has returned, they are added to the manifest.
"""

import contextlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UnsupportedError
from ..introspect import is_overridden
from . import store
from .capture import GatheredState
from .saved_run import SavedTrainer

logger = logging.getLogger(__name__)

_PARTS = ("_save_optimizer_and_scheduler", "_save_scaler", "_save_rng_state")


@dataclass(frozen=True)
class OpenCheckpoint:
    """A complete checkpoint to which an override of _save_checkpoint may still add files."""

    save: Any
    known: dict[str, tuple[int, int]]  # its files as oneloop wrote them


class SaveOverrides:
    """Created for each run. `writes`: this process writes whole checkpoints."""

    def __init__(self, core: SavedTrainer, writes: bool) -> None:
        self.core, self.trainer, self._writes = core, core.trainer, writes
        self.is_saving = False  # the current _save_checkpoint has called oneloop's
        self._open: GatheredState | None = None  # of the save whose parts are being gathered
        self.open_checkpoints: list[OpenCheckpoint] = []
        self._has_warned = False  # of an optimizer that no checkpoint of the run stores
        self._error: OSError | None = None  # of the current _save_checkpoint, after oneloop's has returned

    # -- parts of a save

    @property
    def write_parts(self) -> bool:
        """Whether an override writes a part of the checkpoint itself."""
        return any(is_overridden(self.trainer, name) for name in _PARTS)

    def gather_parts(self, gathered: GatheredState, output_dir: Path) -> None:
        """Call the methods that add the parts. Collectives on several processes."""
        trainer = self.trainer
        self._open = gathered
        try:
            trainer._save_optimizer_and_scheduler(str(output_dir))
            trainer._save_scaler(str(output_dir))
            trainer._save_rng_state(str(output_dir))
        finally:
            self._open = None
        if not gathered.has_optimizer and not is_overridden(trainer, "_load_optimizer_and_scheduler"):
            self._warn_optimizer_ignored()

    def _warn_optimizer_ignored(self) -> None:
        """Once: what an override writes is kept in the checkpoint, and read by nobody."""
        if self._has_warned:
            return
        self._has_warned = True
        logger.warning(
            "_save_optimizer_and_scheduler of %s does not call super(), and there is no override of "
            "_load_optimizer_and_scheduler that reads its files: a run that is resumed from this checkpoint starts "
            "with a new optimizer. Call super()._save_optimizer_and_scheduler(output_dir), or override the other too.",
            type(self.trainer).__name__,
        )

    def add_optimizer_and_scheduler(self) -> None:
        part, strategy, trainer = self._part(), self.core.strategy, self.trainer
        state_of = strategy.local_optimizer_state if part.is_sharded else strategy.optimizer_state
        part.optimizer, part.optimizer_options = state_of(trainer.optimizer, trainer.model)
        part.scheduler = _json_state(trainer.lr_scheduler)
        part.has_optimizer = True

    def add_scaler(self) -> None:
        self._part().has_scaler = True

    def add_rng_state(self) -> None:
        self._part().has_rng_state = True

    def _part(self) -> GatheredState:
        if self._open is None:
            raise UnsupportedError(
                f"{', '.join(_PARTS)} can only be called within a save, whose checkpoint they are a part of. Call "
                "super()._save_checkpoint(model, trial), which saves everything."
            )
        return self._open

    # -- files that are added to a complete checkpoint

    @property
    def add_files(self) -> bool:
        """Whether an override of _save_checkpoint may write into the checkpoint after it is complete."""
        return is_overridden(self.trainer, "_save_checkpoint")

    def begin(self) -> None:
        self.is_saving, self._error = False, None

    def fail(self, error: OSError) -> None:
        """The override could not write its files. The run continues, as with any other error of the disk."""
        self._error = error
        logger.error(
            "_save_checkpoint of %s failed: %s. The files that it adds to the checkpoint may be missing. Training "
            "continues, and no older checkpoint is deleted. Free some space or repair the disk; the next save tries "
            "again.",
            type(self.trainer).__name__,
            error,
        )

    def mark_called(self) -> None:
        self.is_saving = True

    def keep_open(self, save: Any) -> None:
        """Called when a checkpoint is complete that an override may add files to."""
        known: dict[str, tuple[int, int]] = {}
        if self._writes:
            with contextlib.suppress(OSError):  # then finalize_manifest() reads all files
                known = store.fingerprints(save.path)
        self.open_checkpoints.append(OpenCheckpoint(save, known))

    def finalize_manifests(self) -> tuple[list[Any], bool]:
        """Add the new files of each such checkpoint to its manifest, unless an override has failed in any process;
        returns the saves, and whether they have all files. A collective on several processes, each of which may have
        written files."""
        found, self.open_checkpoints = self.open_checkpoints, []
        if not found:
            return [], True
        is_whole = not any(failed for (failed,) in self.core.processes.all_gather([self._error is not None]))
        if self._writes and is_whole:
            for each in found:
                _finalize(each.save.path, each.known)
        self.core.processes.barrier()
        return [each.save for each in found], is_whole


def _finalize(path: Path, known: dict[str, tuple[int, int]]) -> None:
    try:
        store.finalize_manifest(path, known)
    except OSError as error:
        logger.error(
            "%s is saved, but the files that _save_checkpoint of the Trainer's class added could not be added to its "
            "manifest: %s. They are kept, and not verified.",
            path,
            error,
        )


def _json_state(scheduler: Any) -> Any:
    """A scheduler's state without what JSON cannot represent (functions, the optimizer). Tensors of one number, which a
    learning rate may be, are stored as that number; see `resume.in_current_types`."""
    if not hasattr(scheduler, "state_dict"):
        return None
    found = {key: _plain(value) for key, value in scheduler.state_dict().items()}
    return {key: value for key, value in found.items() if value is not _NOT_PLAIN}


_NOT_PLAIN = object()


def _plain(value: Any) -> Any:
    """The value as JSON can represent it; _NOT_PLAIN if it cannot."""
    if isinstance(value, dict):
        entries = {key: _plain(each) for key, each in value.items()}
        return _NOT_PLAIN if any(each is _NOT_PLAIN for each in entries.values()) else entries
    if isinstance(value, (list, tuple)):
        values = [_plain(each) for each in value]
        return _NOT_PLAIN if any(each is _NOT_PLAIN for each in values) else values
    if isinstance(value, (int, float, str, bool, type(None))):
        return value
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else _NOT_PLAIN
