"""The output directory of one run: where it is, that no other run saves into it, and which checkpoints are deleted."""

import contextlib
import errno
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError
from ..formats.durable import make_directory
from . import store
from .directory_lock import DirectoryLock, holder, lock_for_saving
from .reader import Checkpoint
from .saved_run import SavedRun

if TYPE_CHECKING:
    from .sharded import ShardedSave

logger = logging.getLogger(__name__)


class OutputDirectory:
    """Created for each run. A relative args.output_dir is resolved once, when the run starts, so that a later chdir()
    does not split the run in two. Before that, and if another directory is assigned to the arguments, it is what they
    say.

    This one is on the local disk alone. An extension may have a subclass that also keeps it elsewhere.
    """

    def __init__(self, run: SavedRun) -> None:
        self.run, self.trainer = run, run.core.trainer
        self._lock = DirectoryLock()
        self._given: str | None = None  # args.output_dir at the start
        self._base = ""  # the working directory at the start
        self._generation: int | None = None

    def __enter__(self) -> "OutputDirectory":
        """Resolve it: the run starts."""
        given = self.trainer.args.output_dir
        try:
            self._base = os.getcwd()
        except OSError as error:
            if not os.path.isabs(given):
                raise CheckpointError(
                    f"output_dir {given!r} cannot be resolved: the working directory was deleted. Change to another "
                    "one, or pass an absolute path."
                ) from error
        self._given = given
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()

    @property
    def path(self) -> Path:
        """The output directory; absolute once the run has started."""
        given = self.trainer.args.output_dir
        return Path(self._base, given) if given == self._given else Path(given)

    @property
    def display_path(self) -> str:
        """The path as given in the arguments, if it still leads there; passed to methods that may be overridden."""
        given = str(self.trainer.args.output_dir)
        try:
            return given if os.path.abspath(given) == os.path.abspath(self.path) else str(self.path)
        except OSError:  # the working directory was deleted
            return str(self.path)

    def resolve(self, path: str | Path) -> Path:
        """A path of this run, such as that of a checkpoint in its state."""
        return Path(self._base, path)

    @property
    def generation(self) -> int:
        """The generation of this run's checkpoints, determined once, at its first save."""
        if self._generation is None:
            places = self.checkpoints_elsewhere, store.find(self.path)
            self._generation = max(store.next_generation(every, self.run.id) for every in places)
        return self._generation

    @property
    def has_checkpoints(self) -> bool:
        """Whether there are checkpoints of any run, here or elsewhere."""
        return bool(store.find(self.path) or self.checkpoints_elsewhere)

    # -- where it is kept beside the local disk: nowhere

    @property
    def checkpoints_elsewhere(self) -> list[store.CheckpointInfo]:
        """Complete ones in another place, once the run has begun."""
        return []

    def fetch(self, wanted: Any) -> tuple[Any, list[str]]:
        """Before the run, in the main process: download the checkpoint to resume. Returns resume_from_checkpoint as a
        local path or True, and the checkpoints in the other place that are incomplete or corrupt."""
        return wanted, []

    def provide_checkpoint(self, checkpoint: Path | None, wanted: Any) -> Path | None:
        """Download the checkpoint to resume on machines that do not have it; returns its path on this machine. A
        collective on several processes."""
        return checkpoint

    def provide_best(self, checkpoint: Path) -> None:
        """Download the best checkpoint on machines that do not have it. A collective on several processes."""

    def start_uploads(self) -> None:
        """The run begins."""

    def upload(self, checkpoint: Path, best: str | None, is_whole: bool) -> None:
        """A checkpoint of this run is complete and callbacks have seen it, or the run was resumed from it. If it is not
        `is_whole`, an override could not add its files, and older ones are kept."""

    def upload_files(self, is_strict: bool = True) -> None:
        """Files outside of checkpoints were written."""

    def saving(self, output_dir: Any) -> contextlib.AbstractContextManager[Any]:
        """A context for save_model: the local directory to write to."""
        return contextlib.nullcontext(output_dir)

    def sharded_save(self, step: int, stage: Path | None) -> "ShardedSave | None":
        """How the processes of machines that share no disk write a checkpoint; `stage` is that of the main process.
        None: the main process has to write all of it. A collective."""
        if stage is not None:
            store.discard(stage)
        if self.run.events.is_first_report("disk is not shared"):
            logger.warning(
                "%s is not visible to all processes, so the main process gathers the whole state and writes it. Use an "
                "output_dir on a disk that all machines share, or in object storage, so that each process writes its "
                "own shard.",
                self.path,
            )
        return None

    def describe(self, size: int) -> None:
        """Of snapshots: how much memory they take."""

    # -- the lock

    def lock(self) -> None:
        """Lock it, or raise an error that names the run that has it."""
        lock_for_saving(self._lock, self.path)

    def try_lock(self) -> bool:
        """Whether no other run saves into it now; it is locked then, until release()."""
        return self._lock.acquire(self.path, patience=0)

    def release(self) -> None:
        self._lock.release()

    def open_stage(self, step: int) -> Path:
        """Where to write a checkpoint. If the directory was deleted, or another is in its place, create and lock it
        again; OSError if another run has locked it meanwhile."""
        path = self.path
        if self._lock.is_taken and not self._lock.covers(path):
            self._move_lock(path)
        return store.open_stage(path, step)

    def _move_lock(self, path: Path) -> None:
        make_directory(path)
        if not self._lock.move_to(path):
            raise OSError(
                errno.EBUSY, f"the directory was deleted during the run, and {holder(path)} uses the new one", str(path)
            )
        self.run.events.add("directory_replaced")
        logger.warning(
            "%s was deleted or replaced during the run. This run continues in the new directory; checkpoints and logs "
            "that were in the old one are not there.",
            path,
        )

    # -- old checkpoints

    def delete_superseded(
        self, newest: str, best: str | None, needed: Iterable[Path] = (), opened: Checkpoint | None = None
    ) -> None:
        """Delete checkpoints of the run that are neither among the newest nor the best, nor `needed`, after a newer one
        is complete. That one may be `opened`."""
        limit = self.trainer.args.save_total_limit
        best = None if best is None else str(self.resolve(best))
        newest = str(self.resolve(newest))
        kept = {newest, best or newest, *map(str, needed)}
        try:
            store.rotate(self.path, self.run.id, limit, kept, self._not_deleted, best, opened)
        except OSError as error:
            logger.error("%s is saved, but old checkpoints could not be deleted: %s.", newest, error)

    def delete_later(self, step: int) -> None:
        """Delete the checkpoints that the run has after a step to which it returns."""
        for later in store.find(self.path):
            if later.run_id == self.run.id and later.step > step:
                try:
                    store.delete(later.path)
                except OSError as error:
                    self._not_deleted(later.path, error)

    def _not_deleted(self, path: Path, error: OSError) -> None:
        if self.run.events.is_first_report("not deleted", path.name):
            logger.warning(
                "%s could not be deleted, and still takes up space: %s. Remove it by hand, or change its permissions. "
                "New checkpoints are not affected.",
                path,
                error,
            )
