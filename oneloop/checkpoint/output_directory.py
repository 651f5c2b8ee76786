"""The output directory of one run: where it is, and that no other run saves into it."""

import errno
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError
from ..formats.durable import make_directory
from . import store
from .directory_lock import DirectoryLock, holder, lock_for_saving
from .run_store import RunStore

if TYPE_CHECKING:
    from ..trainer.run import Run

logger = logging.getLogger(__name__)


class OutputDirectory:
    """Created for each run. A relative args.output_dir is resolved once, when the run starts, so that a later chdir()
    does not split the run in two. Before that, and if another directory is assigned to the arguments, it is what they
    say."""

    def __init__(self, run: "Run") -> None:
        self.run = run
        self._lock = DirectoryLock()
        self._given: str | None = None  # args.output_dir at the start
        self._base = ""  # the working directory at the start
        self._generation: int | None = None
        self.storage: RunStore = run.core.extensions.run_store(run) or RunStore()

    def __enter__(self) -> "OutputDirectory":
        """Resolve it: the run starts."""
        given = self.run.core.trainer.args.output_dir
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
        """Absolute, once the run has started."""
        given = self.run.core.trainer.args.output_dir
        return self.resolve(given) if given == self._given else Path(given)

    @property
    def shown(self) -> str:
        """As in the arguments, if that still leads there; for methods that may be overridden."""
        given = str(self.run.core.trainer.args.output_dir)
        try:
            return given if os.path.abspath(given) == os.path.abspath(self.path) else str(self.path)
        except OSError:  # the working directory was deleted
            return str(self.path)

    def resolve(self, path: str | Path) -> Path:
        """A path of this run, such as that of a checkpoint in its state."""
        return Path(self._base, path)

    @property
    def generation(self) -> int:
        """Of the checkpoints of this run; found out once, at its first save."""
        if self._generation is None:
            stored = store.generation_after(self.storage.checkpoints, self.run.id)
            self._generation = max(stored, store.next_generation(self.path, self.run.id))
        return self._generation

    @property
    def has_checkpoints(self) -> bool:
        """Of any run, here or in object storage."""
        return bool(store.find(self.path) or self.storage.checkpoints)

    # -- the lock

    def lock(self) -> None:
        """Lock it, or raise an error that names the run that has it."""
        lock_for_saving(self._lock, self.path)

    def is_free(self) -> bool:
        """Whether no other run saves into it now; it is locked then, until release()."""
        return self._lock.take(self.path, patience=0)

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
