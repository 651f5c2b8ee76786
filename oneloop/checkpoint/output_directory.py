"""The output directory of one run: where it is, that no other run saves into it, and which checkpoints are deleted."""

import errno
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..formats.durable import make_directory
from . import store
from .directory_lock import DirectoryLock, holder, lock_for_saving
from .reader import Checkpoint
from .run_store import RunStore
from .saved_run import SavedRun

logger = logging.getLogger(__name__)


class OutputDirectory:
    """Created for each run. A relative args.output_dir is resolved once, when the run starts, so that a later chdir()
    does not split the run in two. Before that, and if another directory is assigned to the arguments, it is what they
    say."""

    def __init__(self, run: SavedRun) -> None:
        self.run, self.trainer = run, run.core.trainer
        self._lock = DirectoryLock()
        self._given: str | None = None  # args.output_dir at the start
        self._base = ""  # the working directory at the start
        self._generation: int | None = None
        self.storage: RunStore = run.core.extensions.run_store(run) or RunStore()

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
        try:
            self.storage.finish()
        finally:
            self.release()

    @property
    def path(self) -> Path:
        """The output directory; absolute once the run has started."""
        given = self.trainer.args.output_dir
        return self.resolve(given) if given == self._given else Path(given)

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
            stored = store.next_generation_from(self.storage.checkpoints, self.run.id)
            self._generation = max(stored, store.next_generation(self.path, self.run.id))
        return self._generation

    @property
    def has_checkpoints(self) -> bool:
        """Whether there are checkpoints of any run, here or in object storage."""
        return bool(store.find(self.path) or self.storage.checkpoints)

    # -- the lock

    def lock(self) -> None:
        """Lock it, or raise an error that names the run that has it."""
        lock_for_saving(self._lock, self.path)

    def try_lock(self) -> bool:
        """Whether no other run saves into it now; it is locked then, until release()."""
        return self._lock.acquire(self.path, patience=0)

    def release(self) -> None:
        self._lock.release()

    def keep(self) -> None:
        """Before a save: if the directory was deleted, or another is in its place, create and lock it again. Raises
        OSError if another run has locked it meanwhile."""
        path = self.path
        if not self._lock.is_taken or self._lock.covers(path):
            return
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
