"""The output directory of a run in object storage: downloads before the run, uploads during and after it."""

import contextlib
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from ..checkpoint import store
from ..checkpoint.output_directory import OutputDirectory
from ..errors import StorageError
from ..formats import urls
from . import loose_files, nodes, references, staging
from .mirror import Mirror
from .multi_node_upload import MultiNodeUpload, new_place
from .remote import RemoteDirectory

if TYPE_CHECKING:
    from ..checkpoint.sharded import ShardedSave
    from ..trainer.run import Run

logger = logging.getLogger(__name__)


class MirroredDirectory(OutputDirectory):
    """Created for each run. Without an output_url it is a local directory, apart from URLs to resume from and to save
    to. The main process uploads, except for shards of machines that share no disk."""

    def __init__(self, run: "Run") -> None:
        super().__init__(run)
        self.core = run.core
        self._mirror: Mirror | None = None
        self._has_separate_disk = False  # the local directory is on another disk than that of the main process
        self._downloaded: list[Path] = []  # checkpoints that a machine apart needs for a moment only
        self._begun: set[str] = set()  # checkpoints of which this run has uploaded parts

    @property
    def mirror(self) -> Mirror | None:
        """What uploads the output directory; None in other processes, and without an output_url."""
        trainer = self.trainer
        if trainer.args.output_url is None or not trainer.is_world_process_zero():
            return None
        if self._mirror is None:
            self._mirror = Mirror(trainer.args.output_url, self.path, self.run.events.add)
        return self._mirror

    @property
    def checkpoints_elsewhere(self) -> list[store.CheckpointInfo]:
        return [] if self._mirror is None else list(self._mirror.uploaded.values())

    # -- before the run

    def fetch(self, wanted: Any) -> tuple[Any, list[str]]:
        """Lock the storage, and download the checkpoint to resume. Returns resume_from_checkpoint as a local path or
        True, and the checkpoints in the storage that are incomplete or corrupt."""
        if self.mirror is None and not urls.is_url(wanted):
            return wanted, []
        mirror, url = self.mirror, wanted.rstrip("/") if urls.is_url(wanted) else None
        if mirror is not None:
            mirror.lock()
            mirror.refresh()
        name = None if mirror is None else self._checkpoint_in_output_dir(wanted, mirror.remote.url)
        if url is not None and name is None and (mirror is None or url != mirror.remote.url):
            return staging.fetch_from_url(url, self.trainer.args.load_best_model_at_end), []
        assert mirror is not None
        found, is_ahead = staging.Candidates(mirror.remote, self.path), False
        passed_over: list[str] = []
        if name is not None:
            is_ahead = found.fetch(name)
        elif wanted is not None and wanted is not False:
            name, is_ahead, passed_over = found.fetch_newest()
        loose_files.download_records(mirror.remote, self.path, is_ahead)
        if name is None:
            return wanted, passed_over
        best = found.fetch_best(name) if self.trainer.args.load_best_model_at_end else None
        needed = (part.checkpoint_needed(self.path / name) for part in self.run.parts)
        others = [found.fetch_needed(name, step) for step in needed if step is not None]
        mirror.mark_local(each for each in (name, best, *others) if each in mirror.uploaded)
        return (True if wanted is True or url == mirror.remote.url else str(self.path / name)), passed_over

    def _checkpoint_in_output_dir(self, wanted: Any, url: str) -> str | None:
        """The checkpoint of this run that resume_from_checkpoint names, in output_dir or in the storage."""
        text = os.fspath(wanted) if isinstance(wanted, (str, os.PathLike)) else ""
        parent, _, name = text.rstrip("/").rpartition("/")
        is_here = parent == url or (not urls.is_url(text) and os.path.abspath(parent) == str(self.path))
        return name if is_here and name.startswith("checkpoint-") else None

    def provide_checkpoint(self, checkpoint: Path | None, wanted: Any) -> Path | None:
        """Download the checkpoint to resume on machines that do not have it; returns its path on this machine. A
        collective on several processes."""
        core = self.core
        url = core.trainer.args.output_url
        if core.mesh.is_single or not (url is not None or urls.is_url(wanted)):
            return checkpoint
        if url is not None:
            self._has_separate_disk = nodes.has_separate_disk(core.processes, self.path)
            if self._has_separate_disk and core.trainer.is_local_process_zero():
                store.remove_leftovers(self.path)
        needed = core.processes.broadcast_object(self._needed(checkpoint, wanted))
        if needed is None or checkpoint is None:
            return checkpoint
        self._provide(needed)
        return needed.folder(self.path) / checkpoint.name

    def _needed(self, checkpoint: Path | None, wanted: Any) -> Any:
        """The request for nodes.provide(), in the main process; None if the storage does not have the checkpoint."""
        trainer = self.trainer
        if checkpoint is None or not trainer.is_world_process_zero():
            return None
        is_output = trainer.args.output_url is not None and os.path.abspath(checkpoint.parent) == str(self.path)
        best = references.best_of(checkpoint) if trainer.args.load_best_model_at_end else ""
        paths = [checkpoint] + ([checkpoint.parent / best] if best and best != checkpoint.name else [])
        if is_output:
            url = trainer.args.output_url or ""
        elif urls.is_url(wanted):
            url = wanted.rstrip("/").removesuffix(f"/{checkpoint.name}")
        else:
            return None
        return nodes.Needed.of(url, is_output, [path for path in paths if path.is_dir()])

    def provide_best(self, checkpoint: Path) -> None:
        """Download the best checkpoint on machines that do not have all of it, once it is uploaded. A collective on
        several processes."""
        core = self.core
        if core.mesh.is_single or core.trainer.args.output_url is None:
            return
        needed = nodes.Needed.of(str(core.trainer.args.output_url), True, [checkpoint])
        self._provide(core.processes.broadcast_object(needed))

    def _provide(self, needed: Any) -> None:
        core = self.core
        downloads = core.trainer.is_local_process_zero()
        found = nodes.provide(core.processes, needed, self.path, self.mirror, downloads)
        if self._has_separate_disk and needed.is_output and not core.trainer.args.save_on_each_node:
            self._downloaded += found

    # -- during the run

    def start_uploads(self) -> None:
        """Upload the logs of the run from now on."""
        if self._mirror is not None:
            self._mirror.start()

    def sharded_save(self, step: int, stage: Path | None) -> "ShardedSave | None":
        """Each process writes to the disk of its machine, and uploads its files. None if one of them cannot write to
        its disk, or another run has the storage now. A collective."""
        if self.trainer.args.output_url is None:
            return super().sharded_save(step, stage)
        core, mirror = self.core, self.mirror
        name, place = f"{store.PREFIX}-{step}", ""
        if mirror is not None and not mirror.lease.is_lost:
            place = new_place(name, name in mirror.uploaded or name in self._begun)
            self._begun.add(name)
        place = core.processes.broadcast_object(place)
        if mirror is None:
            with contextlib.suppress(OSError):
                stage = store.open_stage(self.path, step)
        if any(failed for (failed,) in core.processes.all_gather([stage is None or not place])):
            if stage is not None:
                store.discard(stage)
            return None
        assert stage is not None
        remote = RemoteDirectory(str(core.trainer.args.output_url)) if mirror is None else mirror.remote
        return MultiNodeUpload(remote, stage, name, place, mirror)

    def upload(self, checkpoint: Path, best: str | None, is_whole: bool) -> None:
        """Unless the storage has it, and delete there what it supersedes: a run that died may have done neither."""
        if self._mirror is None or os.path.abspath(checkpoint.parent) != os.path.abspath(self.path):
            return
        limit, step = self.trainer.args.save_total_limit, int(checkpoint.name.rpartition("-")[2])
        source = None
        if best is not None:
            path = self.resolve(best)
            best, source = path.name, references.first_existing(path, self.path / path.name)
        needed = tuple(path.name for path in self.run.parts.checkpoints_to_keep())
        self._mirror.submit(
            references.Upload(checkpoint.name, step, self.run.id, best, limit, is_whole, source, needed)
        )

    # -- after it

    def __exit__(self, *error: Any) -> None:
        """Wait for the uploads; what has failed is logged."""
        try:
            if self._mirror is not None:
                self._mirror.finish(self._wait)
            for path in self._downloaded:  # nobody else would delete them
                with contextlib.suppress(OSError):
                    shutil.rmtree(path)
            self._downloaded = []
        finally:
            super().__exit__(*error)

    def upload_files(self, is_strict: bool = True) -> None:
        """After a run they are uploaded now, and if that `is_strict`, an error is raised; during a run, with its next
        checkpoint."""
        mirror = self.mirror
        if mirror is None or mirror.is_running:
            return
        try:
            mirror.upload_files()
        except StorageError as error:
            if is_strict:
                raise
            logger.error("The files in %s were not uploaded: %s", self.path, error)

    @contextlib.contextmanager
    def saving(self, output_dir: Any) -> Iterator[Any]:
        """A context for save_model: the local directory to write to, which is uploaded at its end."""
        url = self.trainer.args.output_url
        if isinstance(output_dir, os.PathLike) and urls.is_url(os.fspath(output_dir)):
            output_dir = os.fspath(output_dir)
        if not urls.is_url(output_dir):
            yield output_dir
            self.upload_files()
            return
        text = urls.checked("output_dir", output_dir)
        if url is not None and (text == url or text.startswith(f"{url}/")):
            yield str(self.path) + text.removeprefix(url)
            self.upload_files()
            return
        with tempfile.TemporaryDirectory(prefix="oneloop-model-") as folder:
            yield folder
            loose_files.LooseFiles(RemoteDirectory(text), Path(folder)).upload()

    def _wait(self, mirror: Mirror, thread: threading.Thread) -> None:
        """Wait with a progress bar, if it takes longer than a moment."""
        thread.join(1.0)
        if not thread.is_alive():
            return
        logger.info("Waiting for the uploads to %s.", mirror.remote.url)
        done, hidden = 0, self.trainer.args.disable_tqdm
        with tqdm(desc=f"uploading to {mirror.remote.url}", unit="B", unit_scale=True, disable=hidden) as bar:
            while thread.is_alive():
                thread.join(0.5)
                now = sum(dict(mirror.transferred).values())
                bar.total = bar.n + mirror.pending_bytes
                bar.update(now - done if now >= done else now)
                done = now
