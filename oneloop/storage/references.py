"""What a checkpoint refers to outside of itself: the logs, which have its oldest entries, and the best checkpoint.

A checkpoint in the storage refers only to what is complete there: this is uploaded before it is committed, and deleted
after it.
"""

import json
import logging
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ..checkpoint import file_snapshots, store
from ..checkpoint.store import CheckpointInfo
from ..errors import CheckpointError, StorageError
from ..formats.reading import json_object
from ..formats.structure import STATE
from . import loose_files, remote_checkpoints
from .remote import Progress, RemoteDirectory

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Upload:
    """A checkpoint to upload, and what it supersedes."""

    name: str
    step: int
    run_id: str
    best: str | None = None  # the name of the best checkpoint at that time
    limit: int | None = None  # save_total_limit
    rotates: bool = True
    source: Path | None = None  # where the best checkpoint was on this disk then; None if it was not
    needed: tuple[str, ...] = ()  # other checkpoints, which parts of the run may return to


def best_path(checkpoint: Path) -> str:
    """The best checkpoint of a run, as of this one; "" if there is none. The path may be that of another machine."""
    best = json_object(checkpoint / STATE).get("best_model_checkpoint")
    return best if isinstance(best, str) else ""


def best_of(checkpoint: Path) -> str:
    """The name of the best checkpoint."""
    return os.path.basename(best_path(checkpoint))


def first_existing(*places: Path) -> Path | None:
    """The first of these places that is there."""
    return next((place for place in places if place.is_dir()), None)


class References:
    """Created for each run."""

    def __init__(self, remote: RemoteDirectory, folder: Path) -> None:
        self.remote = remote
        self.folder = folder
        self.loose = loose_files.LooseFiles(remote, folder)
        self._best: dict[str, str] = {}  # the best checkpoint that one in the storage names, as far as it is known
        self._kept: dict[str, Path] = {}  # copies of best checkpoints, which may be deleted here before their upload
        self._is_warned = False
        self.lock = threading.RLock()  # two uploads of one checkpoint would delete each other's files

    def keep(self, upload: Upload, found: dict[str, CheckpointInfo]) -> None:
        """Keep the best checkpoint that this one names until it is uploaded, by hard links: a newer one may supersede
        it here before. Where the disk has none, it is not copied, since training waits for this."""
        if upload.source is None or upload.best is None or self._is_there(upload, found):
            return
        if upload.best in self._kept:
            if _written(self._kept[upload.best]) == _written(upload.source):
                return
            self._discard(upload.best)  # that of its step which was saved before
        copy = _copied(self.folder, upload.source, is_linked=True)
        if copy is not None:
            self._kept[upload.best] = copy

    def release(self, waiting: Callable[[], Iterable[Upload]]) -> None:
        """Delete copies that no checkpoint needs which waits for its upload."""
        names = list(self._kept)  # before `waiting` is asked: what keep() adds meanwhile is for one that waits already
        needed = {upload.best for upload in waiting()}
        for name in names:
            if name not in needed:
                self._discard(name)

    def _discard(self, name: str) -> None:
        copy = self._kept.pop(name, None)
        if copy is not None:
            file_snapshots.discard(copy)

    def _is_there(self, upload: Upload, found: dict[str, CheckpointInfo]) -> bool:
        """Whether the storage has it, and not another one of its step."""
        if upload.best is None or upload.best == upload.name:
            return True
        known = found.get(upload.best)
        places = [place for place in (upload.source, self._kept.get(upload.best)) if place is not None]
        here = next((written for place in places if (written := _written(place)) is not None), None)
        return known is not None and here in (None, known.written)

    def complete(
        self, upload: Upload, generation: int, found: dict[str, CheckpointInfo], progress: Progress | None = None
    ) -> bool:
        """Upload what a checkpoint refers to, and add it to `found`. False if that is no longer possible: then it must
        not be committed. Raises StorageError."""
        self.loose.upload(is_all=False)
        if upload.best is None or self._is_there(upload, found):
            return True
        with self.lock:
            return self._is_there(upload, found) or self._upload_best(upload, generation, found, progress)

    def _upload_best(
        self, upload: Upload, generation: int, found: dict[str, CheckpointInfo], progress: Progress | None
    ) -> bool:
        name, source = str(upload.best), upload.source
        copy = None if source is None else _copied(self.folder, source)
        if copy is None:
            copy = self._kept.pop(name, None)
        if copy is None:
            return self._may_commit_without_best(upload)
        try:
            if source is not None and os.path.abspath(source.parent) != os.path.abspath(self.folder):
                _adopt(copy, upload.run_id, generation)
            remote_checkpoints.put(self.remote, copy, name, progress)
            found |= remote_checkpoints.complete({name: (copy / store.MANIFEST).read_bytes()})
        except BaseException:
            if self._kept.setdefault(name, copy) is not copy:
                file_snapshots.discard(copy)
            raise
        file_snapshots.discard(copy)
        self._best.pop(name, None)
        logger.info("Uploaded %s, the best checkpoint, before %s.", name, upload.name)
        return True

    def _may_commit_without_best(self, upload: Upload) -> bool:
        """Whether a checkpoint may be committed whose best one is neither there nor whole here. If that was deleted
        since, there is a newer one to resume from; otherwise no checkpoint of the run could be better."""
        if upload.source is not None and not upload.source.exists():
            logger.warning(
                "%s is not uploaded to %s: the best checkpoint at that time, %s, was deleted before it could be "
                "uploaded. Later checkpoints are not affected.",
                upload.name,
                self.remote.url,
                upload.best,
            )
            return False
        if not self._is_warned:
            logger.warning(
                "%s names %s as the best checkpoint, which is not in %s and cannot be uploaded: it is missing, damaged "
                "or of another trainer. On another machine, tracking the best model restarts.",
                upload.name,
                upload.best,
                self.remote.url,
            )
        self._is_warned = True
        return True

    # -- deletion

    def committed(self, upload: Upload) -> None:
        self._best[upload.name] = upload.best or ""

    def best_referenced_by(self, name: str) -> str:
        """The best checkpoint that one in the storage names; read there if another process has uploaded it."""
        if name not in self._best:
            self._best[name] = self._read_best(name)
        return self._best[name]

    def _read_best(self, name: str) -> str:
        try:
            best = json.loads(self.remote.read(f"{name}/{STATE}")).get("best_model_checkpoint")
        except StorageError:
            raise
        except (FileNotFoundError, ValueError, AttributeError):  # it is damaged, and nobody can resume from it
            return ""
        return os.path.basename(best) if isinstance(best, str) else ""

    def deletable(self, gone: Iterable[str], found: dict[str, CheckpointInfo], waiting: Iterable[str]) -> list[str]:
        """Those that no checkpoint names which stays in the storage or is `waiting`; the newest first, so that each is
        deleted before the best one that it names. Raises StorageError."""
        doomed = set(gone)
        if not doomed:
            return []
        names = list(waiting) + [self.best_referenced_by(name) for name in found if name not in doomed]
        while names:
            name = names.pop()
            if name in doomed:
                doomed.discard(name)
                names.append(self.best_referenced_by(name))
        return sorted(doomed, key=lambda name: found[name].step, reverse=True)


def _written(checkpoint: Path) -> float | None:
    """When a checkpoint was written, by which it differs from others of its step."""
    manifest = store.read_manifest(checkpoint)
    return None if manifest is None else float(manifest["written"])


def _copied(folder: Path, source: Path, is_linked: bool = False) -> Path | None:
    """A copy of a complete checkpoint; None if there is none, or it cannot be made by hard links although it has to
    be."""
    try:
        files = [(path, path.relative_to(source).as_posix()) for path in store.files_below(source)]
        copy = file_snapshots.snapshot(folder, files, is_linked)
    except OSError:
        if is_linked or not source.exists():
            return None
        raise
    if store.read_manifest(copy) is None or store.problems(copy, contents=False):
        file_snapshots.discard(copy)
        return None
    return copy


def _adopt(copy: Path, run_id: str, generation: int) -> None:
    """Make a checkpoint of the run that this one is branched from one of this run, which keeps it while it is the
    best. Otherwise it might be taken for the newest."""
    manifest = store.read_manifest(copy)
    if manifest is None:
        raise CheckpointError(f"{copy} has no {store.MANIFEST}")
    manifest |= {"run_id": run_id, "reason": "best", "generation": generation}
    (copy / store.MANIFEST).write_text(json.dumps(manifest, indent=1))
