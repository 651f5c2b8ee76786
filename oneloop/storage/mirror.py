"""Uploads of a run: each complete checkpoint, and the other files of the output directory with it.

One thread uploads, a checkpoint at a time: the newest first, and before it what it refers to. What fails is logged and
tried again, and never reaches the training. Older checkpoints are deleted from the storage after a newer one is
complete there.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..checkpoint import file_snapshots, store
from ..checkpoint.store import CheckpointInfo
from ..checkpoint.writer import run_at_low_priority
from ..errors import CheckpointError, StorageError
from . import remote_checkpoints
from .lease import Lease
from .references import References, Upload, best_path, first_existing
from .remote import RemoteDirectory, clean

logger = logging.getLogger(__name__)

LOGS = 60.0  # seconds between two uploads of the logs, and before what has failed is tried again


class Mirror:
    """Created for each run, in the main process."""

    def __init__(self, url: str, folder: Path, record: Callable[..., None] = lambda event, **facts: None) -> None:
        self.remote = RemoteDirectory(url)
        self.folder = folder
        self.lease = Lease(self.remote)
        self.uploaded: dict[str, CheckpointInfo] = {}  # complete checkpoints in the storage
        self._record = record  # adds an event to the record of the run
        self._own: set[str] = set()  # checkpoints that this process has uploaded or downloaded
        self._references = References(self.remote, folder)
        self._queue = _Queue()
        self._thread: threading.Thread | None = None
        self._is_failing = False  # since the last message about it
        self._in_parts: set[str] = set()  # checkpoints that all processes have uploaded, each its own files
        self.transferred: dict[str, int] = {}  # bytes of the files of the current upload

    def refresh(self) -> None:
        """Find the checkpoints in the storage."""
        self.uploaded = remote_checkpoints.complete(remote_checkpoints.manifests(self.remote))

    def lock(self) -> None:
        """Take the lease, or raise an error that names the run that has it. Then complete what an interrupted upload
        has left."""
        if not self.lease.acquire():
            raise CheckpointError(
                f"{self.remote.url} is in use by {self.lease.holder()}: two runs would delete each other's "
                "checkpoints. Wait for it to end, stop it, or choose another output_dir."
            )
        file_snapshots.clear(self.folder)
        for message in remote_checkpoints.recover(self.remote):
            logger.warning("%s: %s.", self.remote.url, message)

    def mark_local(self, names: Iterable[str]) -> None:
        """The local directory has these checkpoints of the storage."""
        self._own.update(names)

    def mark_uploaded(self, name: str, manifest: bytes) -> None:
        """All processes have uploaded their files of a checkpoint, which is complete in the storage."""
        self._own.add(name)
        self._in_parts.add(name)
        self.uploaded |= remote_checkpoints.complete({name: manifest})

    def ensure(self, name: str) -> None:
        """Wait until a checkpoint is in the storage; before the run, upload it. Raises StorageError if it is not."""
        self._queue.wait_for(name)
        if name in self.uploaded:
            return
        if self.is_running:
            raise StorageError(None, f"{name} could not be uploaded to {self.remote.url}")
        self.complete_references(self.folder / name, name)
        remote_checkpoints.put(self.remote, self.folder / name, name)
        self.refresh()

    def complete_references(self, checkpoint: Path, name: str) -> None:
        """Upload what a checkpoint refers to, before it is committed by others than the thread that uploads. Raises
        StorageError."""
        manifest, best = store.read_manifest(checkpoint) or {}, best_path(checkpoint)
        upload = Upload(name, manifest.get("step", 0), manifest.get("run_id", ""))
        if best:
            beside = self.folder / os.path.basename(best)
            upload = replace(upload, best=beside.name, source=first_existing(beside, Path(best)))
        if not self._complete(upload, checkpoint):
            raise StorageError(None, f"{best}, the best checkpoint, could not be uploaded to {self.remote.url}")

    # -- uploads in the background

    def submit(self, upload: Upload) -> None:
        """Upload a checkpoint that is complete in the local directory."""
        self._queue.add(upload)
        self._references.keep(upload, self.uploaded)
        self.start()

    def start(self) -> None:
        """Upload the logs from now on."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=run_at_low_priority, args=(self._work,), name="oneloop-upload", daemon=True
            )
            self._thread.start()

    def finish(self, wait: Callable[["Mirror", threading.Thread], None]) -> None:
        """The run ends: upload what is left, with one more attempt for what has failed. `wait` waits for the thread."""
        if self._thread is not None:
            self._queue.end()
            wait(self, self._thread)
            self._thread = None
            # An attempt that failed while the run was ending may be of a checkpoint that was deleted here since.
            left = [name for name in self._queue.left() if not store.problems(self.folder / name, contents=False)]
            self._queue = _Queue()
            self._references.release(list)
            if left:
                logger.error(
                    "Not uploaded to %s: %s. They are complete in %s. Resume the run on this machine to upload the "
                    "newest, or copy them by hand.",
                    self.remote.url,
                    ", ".join(left),
                    self.folder,
                )
        self.lease.release()

    @property
    def is_running(self) -> bool:
        """Whether files are uploaded in the background."""
        return self._thread is not None

    @property
    def pending_bytes(self) -> int:
        """Bytes of the checkpoints that have not been uploaded yet."""
        return sum(
            path.stat().st_size
            for name in self._queue.names()
            for path in (self.folder / name).rglob("*")
            if path.is_file()
        )

    def upload_files(self) -> None:
        """Upload what has changed outside of checkpoints, now. Raises StorageError."""
        self._references.loose.upload()

    def _work(self) -> None:
        while True:
            upload, is_ending = self._queue.next(LOGS)
            if self.lease.is_lost:
                if upload is not None:
                    self._queue.fail(upload)
                self._queue.stop()
                return
            self._guard("the logs", partial(self._references.loose.upload, upload is not None or is_ending))
            if upload is not None:
                if not self._guard(upload.name, partial(self._upload, upload)):
                    self._queue.fail(upload)
                self._references.release(self._waiting)
            elif is_ending:
                return

    def _guard(self, what: str, work: Callable[[], bool | None]) -> bool:
        """Whether there was no error; it is logged, once until a checkpoint is uploaded again."""
        try:
            is_uploaded = work()
        except Exception as error:  # clients of storages raise anything
            if not self._is_failing:
                self._record("upload_failed", what=what, error=type(error).__name__)
                logger.error(
                    "%s could NOT be uploaded to %s: %s. Training continues, checkpoints in the storage are "
                    "unaffected, and the upload is repeated later.",
                    what,
                    self.remote.url,
                    clean(error),
                )
            self._is_failing = True
            return False
        if self._is_failing and is_uploaded:
            logger.warning("%s is uploaded to %s, after errors.", what, self.remote.url)
            self._is_failing = False
        return True

    def _upload(self, upload: Upload) -> bool:
        """Whether it was uploaded, rather than superseded by a newer one before that."""
        source = self.folder / upload.name
        try:
            stage = file_snapshots.snapshot(
                self.folder, [(path, path.relative_to(source).as_posix()) for path in store.files_below(source)]
            )
        except FileNotFoundError:
            return False
        try:
            is_complete = upload.name in self._in_parts
            if not (stage / store.MANIFEST).exists() if is_complete else store.problems(stage, contents=False):
                return False  # deleted meanwhile
            self.transferred = {}
            started = time.perf_counter()
            if not self._complete(upload, stage):
                return False
            put = remote_checkpoints.add_files if is_complete else remote_checkpoints.put
            with self._references.lock:
                put(self.remote, stage, upload.name, self.transferred.__setitem__)
            data = (stage / store.MANIFEST).read_bytes()
        finally:
            file_snapshots.discard(stage)
        self._own.add(upload.name)
        self._references.committed(upload)
        self.uploaded |= remote_checkpoints.complete({upload.name: data})
        size = sum(self.transferred.values())
        logger.info("Uploaded %s, %.1f MB in %.1f s.", upload.name, size / 1e6, time.perf_counter() - started)
        if upload.rotates and not self.lease.is_lost:
            self._rotate(upload)
        return True

    def _complete(self, upload: Upload, checkpoint: Path) -> bool:
        """Upload what a checkpoint refers to. False if the best one that it names is gone."""
        if upload.best in self._in_parts:
            upload = replace(upload, best=None)
        generation = (store.read_manifest(checkpoint) or {}).get("generation", 0)
        if not self._references.complete(upload, generation, self.uploaded, self.transferred.__setitem__):
            return False
        if upload.best in self.uploaded:
            self._own.add(upload.best)
        return True

    def _waiting(self) -> list[Upload]:
        """Uploads to do of checkpoints that have not been deleted here."""
        return [upload for upload in self._queue.waiting() if (self.folder / upload.name).is_dir()]

    def _rotate(self, upload: Upload) -> None:
        """Delete what this checkpoint supersedes, now that it is complete in the storage."""
        gone = superseded(self.uploaded, upload, self._own, lambda name: (self.folder / name).is_dir())
        needed = {each.best for each in self._waiting() if each.best is not None}
        try:
            names = self._references.deletable(gone, self.uploaded, needed)
        except StorageError as error:
            logger.warning(
                "Checkpoints before %s are not deleted: %s. The next upload tries again.", upload.name, error
            )
            return
        held: set[str] = set()  # named by one that could not be deleted
        for name in names:
            if name in held:
                continue
            try:
                remote_checkpoints.delete(self.remote, name)
            except Exception as error:
                held.add(self._references.best_referenced_by(name))
                logger.warning(
                    "%s could not be deleted from %s: %s. The next upload tries again.",
                    name,
                    self.remote.url,
                    clean(error),
                )
            else:
                self.uploaded.pop(name)


def superseded(
    found: dict[str, CheckpointInfo], upload: Upload, own: set[str], is_local: Callable[[str], bool]
) -> list[str]:
    """Checkpoints of a run to delete after an upload: those that were deleted from the local directory, and of those
    that were never there, what save_total_limit and the best checkpoint do not keep."""
    kept = {upload.name, upload.best, *upload.needed}
    every = sorted((c for c in found.values() if c.run_id == upload.run_id), key=lambda c: (c.step, c.written))
    others = [c for c in every if c.path.name not in kept]
    gone = [c for c in others if c.path.name in own and not is_local(c.path.name)]
    gone += [c for c in others if c not in gone and c.path.name not in own and c.reason == "best"]
    left = [c for c in every if c not in gone]
    gone += store.above_limit(left, upload.limit, lambda c: c.path.name in kept)
    return [c.path.name for c in gone if c.step <= upload.step]


class _Queue:
    """Uploads to do, shared by the thread that trains and the one that uploads."""

    def __init__(self) -> None:
        self._failed: dict[str, Upload] = {}
        self._waiting: dict[str, Upload] = {}
        self._current: str | None = None  # the one that is being uploaded
        self._changed = threading.Condition()
        self._ends = False
        self._is_stopped = False

    def add(self, upload: Upload) -> None:
        with self._changed:
            self._waiting[upload.name] = upload
            self._failed.pop(upload.name, None)
            self._changed.notify()

    def end(self) -> None:
        with self._changed:
            self._retry()
            self._ends = True
            self._changed.notify()

    def fail(self, upload: Upload) -> None:
        with self._changed:
            self._failed[upload.name] = upload

    def wait_for(self, name: str) -> None:
        """Wait until this one is uploaded, or has failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped or (name not in self._waiting and name != self._current))

    def stop(self) -> None:
        """Nothing more will be uploaded, so that nobody waits for it."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def names(self) -> list[str]:
        with self._changed:
            return list(self._waiting)

    def waiting(self) -> list[Upload]:
        """The uploads that are not done, including failed ones."""
        with self._changed:
            return [*self._failed.values(), *self._waiting.values()]

    def left(self) -> list[str]:
        """The names of those that were not uploaded, by step."""
        every = self._failed | self._waiting
        return sorted(every, key=lambda name: every[name].step)

    def _retry(self) -> None:
        self._waiting = self._failed | self._waiting
        self._failed = {}

    def next(self, seconds: float) -> tuple[Upload | None, bool]:
        """The newest one, and whether the run is ending; None after some seconds without any."""
        with self._changed:
            self._current = None
            self._changed.notify_all()
            has_finished_save = self._changed.wait_for(lambda: self._waiting or self._ends, timeout=seconds)
            if not has_finished_save:
                self._retry()
            if not self._waiting:
                return None, self._ends
            newest = max(self._waiting.values(), key=lambda upload: upload.step)
            self._current = newest.name
            return self._waiting.pop(newest.name), self._ends
