"""Saving together with overrides of the Trainer's methods.

`_save_optimizer_and_scheduler`, `_save_scaler` and `_save_rng_state` decide what a checkpoint stores: those of oneloop
add their part, and an override that does not call them replaces it by files of its own. It writes into the staged
directory, so its files are committed with the others.

An override of `_save_checkpoint` writes into `checkpoint-N` after `super()._save_checkpoint()` has returned. The
checkpoint is complete by then, without those files. When the override has returned, they are added to the manifest.
"""

import contextlib
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import RefusedError
from ..introspect import is_overridden
from . import store
from .run_state import ATTRIBUTES, BUFFER, GENERATOR, PositionState

if TYPE_CHECKING:
    from ..trainer.internals import Internals

logger = logging.getLogger(__name__)

_PARTS = ("_save_optimizer_and_scheduler", "_save_scaler", "_save_rng_state")


@dataclass
class Gathered:
    """What one save stores apart from the model, gathered from all processes before one of them can write."""

    streams: dict[str, Any]
    position: PositionState
    is_sharded: bool
    optimizer: tuple[dict[str, Any], dict[str, Any]] = field(default_factory=lambda: ({}, {}))
    scheduler: Any = None
    has_optimizer: bool = False
    has_scaler: bool = False
    has_streams: bool = False

    def stored_streams(self) -> dict[str, Any]:
        """Without the RNG state if an override stores it; the data still needs that of the start of the epoch."""
        if self.has_streams:
            return self.streams
        kept = ("epoch/", BUFFER, ATTRIBUTES, GENERATOR)
        return {name: array for name, array in self.streams.items() if any(part in name for part in kept)}


@dataclass(frozen=True)
class Unsealed:
    """A complete checkpoint to which an override of _save_checkpoint may still add files."""

    save: Any
    known: dict[str, tuple[int, int]]  # its files as oneloop wrote them


class SaveOverrides:
    """Created for each run."""

    def __init__(self, core: "Internals") -> None:
        self.core = core
        self.is_saving = False  # the current _save_checkpoint has called oneloop's
        self._open: Gathered | None = None  # of the save whose parts are being gathered
        self.unsealed: list[Unsealed] = []
        self._has_warned = False  # of an optimizer that no checkpoint of the run stores
        self._error: OSError | None = None  # of the current _save_checkpoint, after oneloop's has returned

    # -- parts of a save

    @property
    def write_parts(self) -> bool:
        """Whether an override writes a part of the checkpoint itself."""
        return any(is_overridden(self.core.trainer, name) for name in _PARTS)

    def gather_parts(self, gathered: Gathered, output_dir: Path) -> None:
        """Call the methods that add the parts. Collectives on several processes."""
        trainer = self.core.trainer
        self._open = gathered
        try:
            trainer._save_optimizer_and_scheduler(str(output_dir))
            trainer._save_scaler(str(output_dir))
            trainer._save_rng_state(str(output_dir))
        finally:
            self._open = None
        if not gathered.has_optimizer and not is_overridden(trainer, "_load_optimizer_and_scheduler"):
            self._warn_of_lost_optimizer()

    def _warn_of_lost_optimizer(self) -> None:
        """Once: what an override writes is kept in the checkpoint, and read by nobody."""
        if self._has_warned:
            return
        self._has_warned = True
        logger.warning(
            "_save_optimizer_and_scheduler of %s does not call super(), and there is no override of "
            "_load_optimizer_and_scheduler that reads its files: a run that is resumed from this checkpoint starts "
            "with a new optimizer. Call super()._save_optimizer_and_scheduler(output_dir), or override the other too.",
            type(self.core.trainer).__name__,
        )

    def add_optimizer_and_scheduler(self) -> None:
        part, strategy, trainer = self._part(), self.core.strategy, self.core.trainer
        state_of = strategy.optimizer_part if part.is_sharded else strategy.optimizer_state
        part.optimizer = state_of(trainer.optimizer, trainer.model)
        part.scheduler = _json_state(trainer.lr_scheduler)
        part.has_optimizer = True

    def add_scaler(self) -> None:
        self._part().has_scaler = True

    def add_streams(self) -> None:
        self._part().has_streams = True

    def _part(self) -> Gathered:
        if self._open is None:
            raise RefusedError(
                f"{', '.join(_PARTS)} can only be called within a save, whose checkpoint they are a part of. Call "
                "super()._save_checkpoint(model, trial), which saves everything."
            )
        return self._open

    # -- files that are added to a complete checkpoint

    @property
    def add_files(self) -> bool:
        """Whether an override of _save_checkpoint may write into the checkpoint after it is complete."""
        return is_overridden(self.core.trainer, "_save_checkpoint")

    def begin(self) -> None:
        self.is_saving, self._error = False, None

    def fail(self, error: OSError) -> None:
        """The override could not write its files. The run continues, as with any other error of the disk."""
        self._error = error
        logger.error(
            "_save_checkpoint of %s failed: %s. The files that it adds to the checkpoint may be missing. Training "
            "continues, and no older checkpoint is deleted. Free some space or repair the disk; the next save tries "
            "again.",
            type(self.core.trainer).__name__,
            error,
        )

    def called(self) -> None:
        self.is_saving = True

    def leave_open(self, save: Any) -> None:
        """Called when a checkpoint is complete that an override may add files to."""
        known: dict[str, tuple[int, int]] = {}
        if self.core.trainer.args.should_save:
            with contextlib.suppress(OSError):  # then seal() reads all files
                known = store.fingerprints(save.path)
        self.unsealed.append(Unsealed(save, known))

    def take_unsealed(self) -> tuple[list[Any], bool]:
        """Add the new files of each such checkpoint to its manifest, unless an override has failed in any process;
        returns the saves, and whether they have all files. A collective on several processes, each of which may have
        written files."""
        found, self.unsealed = self.unsealed, []
        if not found:
            return [], True
        is_whole = not any(failed for (failed,) in self.core.processes.all_gather([self._error is not None]))
        if self.core.trainer.args.should_save and is_whole:
            for each in found:
                _seal(each.save.path, each.known)
        self.core.processes.barrier()
        return [each.save for each in found], is_whole


def _seal(path: Path, known: dict[str, tuple[int, int]]) -> None:
    try:
        store.seal(path, known)
    except OSError as error:
        logger.error(
            "%s is saved, but the files that _save_checkpoint of the Trainer's class added could not be added to its "
            "manifest: %s. They are kept, and not verified.",
            path,
            error,
        )


def _json_state(scheduler: Any) -> Any:
    """A scheduler's state without what JSON cannot represent (functions, the optimizer)."""
    if not hasattr(scheduler, "state_dict"):
        return None

    def plain(value: Any) -> bool:
        if isinstance(value, dict):
            return all(plain(v) for v in value.values())
        if isinstance(value, (list, tuple)):
            return all(plain(v) for v in value)
        return isinstance(value, (int, float, str, bool, type(None)))

    return {key: value for key, value in scheduler.state_dict().items() if plain(value)}
