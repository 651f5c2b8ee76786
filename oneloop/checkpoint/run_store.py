"""Where the output directory of a run is kept beside the local disk: the interface, and what it is without one."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .sharded import ShardedSave
    from .store import CheckpointInfo


class RunStore:
    """Created for each run. This one keeps everything on the local disk alone, so its methods do nothing."""

    @property
    def is_used(self) -> bool:
        """Whether the run is kept elsewhere too."""
        return False

    @property
    def checkpoints(self) -> "list[CheckpointInfo]":
        """Complete ones in the store, once the run has begun."""
        return []

    def fetch(self, wanted: Any) -> tuple[Any, list[str]]:
        """Before the run, in the main process: download the checkpoint to resume. Returns resume_from_checkpoint as a
        local path or True, and the checkpoints in the store that are incomplete or corrupt."""
        return wanted, []

    def provide_checkpoint(self, checkpoint: Path | None, wanted: Any) -> Path | None:
        """Download the checkpoint to resume on machines that do not have it; returns its path on this machine. A
        collective on several processes."""
        return checkpoint

    def provide_best(self, checkpoint: Path) -> None:
        """Download the best checkpoint on machines that do not have it. A collective on several processes."""

    def start(self) -> None:
        """The run begins."""

    def cleanup_after_resume(self, checkpoint: Path, best: str | None) -> None:
        """The run was resumed from this checkpoint."""

    def sharded_save(self, step: int, stage: Path | None) -> "ShardedSave | None":
        """How the processes of machines that share no disk write a checkpoint; None if they cannot. A collective."""
        return None

    def upload(self, checkpoint: Path, best: str | None, is_whole: bool) -> None:
        """A checkpoint of this run is complete, and callbacks have seen it. If it is not `is_whole`, an override could
        not add its files, and older ones are kept."""

    def upload_files(self, is_strict: bool = True) -> None:
        """Files outside of checkpoints were written."""

    def saving(self, output_dir: Any) -> contextlib.AbstractContextManager[Any]:
        """A context for save_model: the local directory to write to."""
        return contextlib.nullcontext(output_dir)

    def finish(self) -> None:
        """The run has ended: wait for what is under way."""
