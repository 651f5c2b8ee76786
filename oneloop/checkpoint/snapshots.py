"""Snapshots: the newest state of a run in the memory of its machine (`snapshot_steps`).

A snapshot is a checkpoint in a directory that is kept in memory (/dev/shm): staged, with checksums, committed by its
manifest. It outlives its processes. A machine that is lost takes it along; then the checkpoints of the output directory
count.

The next run in the output directory takes it, if it is newer than what is there: it becomes a checkpoint like any
other, before the run looks for one. That it is the run's own is told by a mark: a number that every run draws when it
starts, kept in the output directory and beside the snapshot. Where the marks differ, or there is none, something else
has run here since.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..distributed.world import world
from ..errors import ArgumentError, CheckpointError, UnsupportedError
from ..formats.durable import replace_file
from ..introspect import is_overridden
from . import store
from .reader import Checkpoint
from .saved_run import SavedRun

if TYPE_CHECKING:
    from .sharded import ShardedSave

logger = logging.getLogger(__name__)

MEMORY = Path("/dev/shm")
MARK = ".snapshots"
_MARK = re.compile(r"[0-9a-f]{16}")


class Snapshots:
    """Created for each run. Where its saves go that are snapshots; it has the methods of an OutputDirectory that they
    need."""

    generation = 1  # one run alone writes here

    def __init__(self, run: SavedRun) -> None:
        self.run, self.core, self.trainer = run, run.core, run.core.trainer
        self.steps: int | None = self.trainer.args.snapshot_steps
        self._next = 0  # the step of the next one
        self._is_described = False

    @property
    def _output_dir(self) -> Path:
        return self.run.checkpointer.directory.path

    @property
    def path(self) -> Path:
        """The snapshots of this output directory."""
        key = hashlib.sha256(os.fsencode(os.path.realpath(self._output_dir))).hexdigest()[:24]
        return self._memory / f"oneloop-{_user()}" / key

    @property
    def _memory(self) -> Path:
        return Path(self.trainer.args.snapshot_dir or MEMORY)

    @property
    def display_path(self) -> str:
        return str(self.path)

    def is_due(self) -> bool:
        """Whether a snapshot is to be taken at this step."""
        step = self.trainer.state.global_step
        return step >= self._next and not self.run.plan.is_over(step)

    def plan_next(self, is_retried: bool = False) -> None:
        """The state of this step was saved; or it is tried again soon, since a save was still being written."""
        if self.steps:
            self._next = self.trainer.state.global_step + (max(1, self.steps // 10) if is_retried else self.steps)

    # -- a run that starts

    def check(self) -> None:
        """An error for what snapshots do not go with, before the first step."""
        trainer, args = self.trainer, self.trainer.args
        if not self.steps:
            return
        if not self._memory.is_dir():
            raise ArgumentError(
                f"snapshot_steps={self.steps}: there is no directory {self._memory} on this machine. Pass one that is "
                "in memory (a tmpfs) as snapshot_dir."
            )
        if args.output_url:
            raise UnsupportedError(
                f"snapshot_steps={self.steps} is not supported with an output_dir in object storage yet. Use a local "
                "output_dir, or save_steps alone."
            )
        if is_overridden(trainer, "_save_checkpoint"):
            raise UnsupportedError(
                f"snapshot_steps={self.steps}: _save_checkpoint of {type(trainer).__name__} adds files to checkpoints "
                "that a snapshot would not have. Remove snapshot_steps, or write them in _save_rng_state."
            )
        if world().local_size < world().size and (self.core.strategy.is_sharded or args.save_on_each_node):
            raise UnsupportedError(
                f"snapshot_steps={self.steps}: processes on several machines have parts of the state each, and a "
                "snapshot is in the memory of one. Remove snapshot_steps, sharding or save_on_each_node."
            )

    def begin(self) -> None:
        """The run starts: what is here is not its own, or has become a checkpoint. A collective, if it takes some."""
        if self.steps:
            self.plan_next()
            self.core.processes.run_on_main(self._make, "making a directory for snapshots")
        elif self.core.mesh.is_main:
            self.remove()

    def _make(self) -> None:
        self.remove()
        _make_private(self.path.parent)
        _make_private(self.path)
        mark = json.dumps({"mark": store.new_run_id()}).encode()
        for file in (self.path / MARK, self._output_dir / MARK):
            replace_file(file, mark)

    def remove(self) -> None:
        """Free the memory. In the main process."""
        if _is_private(self.path):
            shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            (self._output_dir / MARK).unlink()

    def remove_after(self, step: int) -> None:
        """The run returns to this step. In the main process."""
        for later in store.find(self.path) if _is_private(self.path) else ():
            if later.step > step:
                store.delete(later.path)

    # -- the way back

    def restore(self, wanted: Any) -> None:
        """Before a run looks for its newest checkpoint: make one of the snapshot, if that is newer. In the main
        process."""
        if wanted is not True and wanted != "latest":
            return
        found = self._newest()
        if found is None:
            return
        on_disk = store.latest(self._output_dir)
        if on_disk is not None and on_disk.run_id == found.run_id and on_disk.step >= found.step:
            return
        checkpoint = found.open()
        wrong = checkpoint.problems()
        if wrong:
            logger.warning("The snapshot in %s is incomplete or corrupt, and is not used: %s.", found.path, wrong[0])
            return
        try:
            self._copy(checkpoint, found.run_id)
        except OSError as error:
            logger.warning(
                "The snapshot of step %d in %s could not be copied to %s: %s. The run is resumed from the newest "
                "checkpoint instead.",
                found.step,
                found.path,
                self._output_dir,
                error,
            )
            return
        logger.warning(
            "The newest state of this run was in memory: its snapshot of step %d is now %s.",
            found.step,
            self._output_dir / f"{store.PREFIX}-{found.step}",
        )

    def _newest(self) -> store.CheckpointInfo | None:
        """The newest snapshot of the last run in the output directory."""
        mark = _read_mark(self._output_dir / MARK)
        if mark is None or not _is_private(self.path) or _read_mark(self.path / MARK) != mark:
            return None
        every = [each for each in store.find(self.path) if each.run_id is not None]
        return every[-1] if every else None

    def _copy(self, checkpoint: Checkpoint, run_id: Any) -> None:
        files = checkpoint.manifest["files"]
        stage = store.open_stage(self._output_dir, checkpoint.manifest["step"])
        try:
            for name in files:
                (stage / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(checkpoint.path / name, stage / name, follow_symlinks=False)
            store.commit(stage, checkpoint.manifest["step"], run_id, "snapshot", files)
        except BaseException:
            store.discard(stage)
            raise

    # -- where a snapshot is written

    def open_stage(self, step: int) -> Path:
        return store.open_stage(self.path, step)

    def describe(self, size: int) -> None:
        """Once, before the first one is written: how much memory they take."""
        if not self._is_described:
            self._is_described = True
            free = shutil.disk_usage(self.path).free
            logger.info(
                "Snapshots: one takes %.1f MB of memory in %s, and for a moment two; %.1f MB are free.",
                size / 2**20,
                self.path,
                free / 2**20,
            )

    def delete_superseded(
        self, newest: str, best: str | None, needed: Iterable[Path] = (), opened: Checkpoint | None = None
    ) -> None:
        """Delete the snapshots before this one."""
        for other in store.find(self.path, opened):
            if str(other.path) != newest:
                store.delete(other.path)

    def sharded_save(self, step: int, stage: Path | None) -> "ShardedSave | None":
        if stage is not None:
            store.discard(stage)
        return None


def _user() -> int:
    return getattr(os, "getuid", lambda: 0)()


def _is_private(folder: Path) -> bool:
    """Whether a directory is this user's, and nobody else can write to it or replace it: /dev/shm is everybody's."""
    try:
        facts = [os.lstat(path) for path in (folder, folder.parent)]
    except OSError:
        return False
    return all(map(_is_own, facts))


def _is_own(facts: os.stat_result) -> bool:
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == _user() and not facts.st_mode & 0o022


def _make_private(folder: Path) -> None:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not _is_own(os.lstat(folder)):
        raise CheckpointError(
            f"{folder} is not a directory that belongs to this user alone, so snapshots are not written to it. Remove "
            "it, or name another directory in snapshot_dir."
        )


def _read_mark(path: Path) -> str | None:
    """The number of a run that started; None if there is none that can be read."""
    try:
        with open(path, "rb") as file:
            mark = json.loads(file.read(200))["mark"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return mark if isinstance(mark, str) and _MARK.fullmatch(mark) else None
