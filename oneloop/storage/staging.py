"""The local directory of a run in object storage: which checkpoint to resume, downloaded and verified."""

import logging
import re
from pathlib import Path
from typing import Any

from ..checkpoint import store
from ..errors import CheckpointError
from ..formats import urls
from ..formats.structure import is_inside
from . import remote_checkpoints
from .references import best_of
from .remote import RemoteDirectory

logger = logging.getLogger(__name__)

_NAME = re.compile(rf"{store.PREFIX}-([0-9]+)")


def download(remote: RemoteDirectory, name: str, folder: Path) -> Path:
    """Download a checkpoint, and replace the local one of that name. Raises CheckpointError if it is incomplete or
    corrupt, and StorageError if the storage fails."""
    match = _NAME.fullmatch(name)
    assert match is not None
    stage = store.open_stage(folder, int(match[1]))
    try:
        files = [file for file in remote.sizes(name) if file != remote_checkpoints.MARK and is_inside(file)]
        remote.each(lambda file: remote.download(f"{name}/{file}", stage / file), files)
        wrong = store.problems(stage)
        if not wrong and not _is_of_step(stage, int(match[1])):
            wrong = ["it was saved at another step: it is a renamed copy"]
        if wrong:
            raise CheckpointError("; ".join(wrong))
        store.swap_in(stage, folder / name)
    except FileNotFoundError as error:
        store.discard(stage)
        raise CheckpointError(f"a file was deleted during the download: {error}") from None
    except BaseException:
        store.discard(stage)
        raise
    return folder / name


def _is_of_step(path: Path, step: int) -> bool:
    return (store.read_manifest(path) or {}).get("step") == step


class Candidates:
    """The checkpoints of a run here and in the storage; where both have one of a name, the one written later counts."""

    def __init__(self, remote: RemoteDirectory, folder: Path) -> None:
        self.remote, self.folder = remote, folder
        there = remote_checkpoints.manifests(remote)
        here = {c.path.name: (c.path / store.MANIFEST).read_bytes() for c in store.find(folder) if c.run_id is not None}
        known, local = remote_checkpoints.complete(there), remote_checkpoints.complete(here)
        older = {name for name in known.keys() & local.keys() if local[name].order < known[name].order}
        self.local = local.keys() - older  # if they are equal, nothing has to be downloaded
        self.remote_names = set(known)
        merged = {name: there[name] for name in known} | {name: here[name] for name in self.local}
        with remote_checkpoints.index(merged) as place:
            self.names = [c.path.name for c in store.newest_first(place)]

    def fetch_newest(self) -> tuple[str | None, bool, list[str]]:
        """Make the newest complete one local; its name, whether it was downloaded, and those in the storage that were
        skipped."""
        passed_over: list[str] = []
        for name in self.names:
            if name in self.local and not store.problems(self.folder / name):
                return name, False, passed_over
            if name not in self.remote_names:
                continue  # resuming warns about it
            try:
                download(self.remote, name, self.folder)
            except CheckpointError as error:
                if isinstance(error, OSError):  # the storage has failed, which is no reason to train anew
                    raise
                passed_over.append(f"{name}: {error}")
                place = urls.join(self.remote.url, name)
                logger.warning("Skipping %s, which is incomplete or corrupt: %s.", place, error)
                continue
            return name, True, passed_over
        if self.remote_names:
            raise CheckpointError(
                f"none of the {len(self.names)} checkpoints in {self.remote.url} is complete; see the warnings above. "
                "Remove resume_from_checkpoint to start from the beginning."
            )
        return None, False, passed_over

    def fetch(self, name: str) -> bool:
        """Make one of them local; whether it was downloaded."""
        if self._is_complete_locally(name) or name not in self.remote_names:
            return False
        try:
            download(self.remote, name, self.folder)
        except CheckpointError as error:
            if isinstance(error, OSError):
                raise
            place = urls.join(self.remote.url, name)
            raise CheckpointError(f"the checkpoint {place} is incomplete or corrupt: {error}.") from error
        return True

    def _is_complete_locally(self, name: str) -> bool:
        """Whether it is here with all its files: those of other machines are only in the storage."""
        return name in self.local and not store.problems(self.folder / name, contents=False)

    def fetch_best(self, newest: str) -> str | None:
        """Make the best checkpoint of a run local, as named by its newest one; its name, if it was downloaded."""
        return self._fetch_related(newest, best_of(self.folder / newest), "The best checkpoint")

    def fetch_needed(self, newest: str, step: int) -> str | None:
        """As fetch_best, for the checkpoint of another step that a part of the run may return to."""
        return self._fetch_related(newest, f"{store.PREFIX}-{step}", "The last checkpoint on schedule")

    def _fetch_related(self, newest: str, name: str, title: str) -> str | None:
        if self._is_complete_locally(name) or name not in self.remote_names or name == newest:
            return None
        try:
            download(self.remote, name, self.folder)
        except CheckpointError as error:
            if isinstance(error, OSError):
                raise
            logger.warning("%s, %s, is incomplete or corrupt: %s.", title, name, error)
            return None
        return name


def fetch_from_url(url: str, with_best: bool = False) -> str:
    """The local path of a checkpoint, or of the newest one of a run, that another URL names. The best one of that run
    is beside it, if it is wanted."""
    parent, _, name = urls.checked("resume_from_checkpoint", url).rpartition("/")
    is_one = _NAME.fullmatch(name) is not None
    place = parent if is_one else urls.checked("resume_from_checkpoint", url)
    folder = Path(urls.staging_directory(place))
    found = Candidates(RemoteDirectory(place), folder)
    newest: Any = name
    if is_one:
        if name not in found.names:
            raise CheckpointError(
                f"resume_from_checkpoint={url!r} has no {store.MANIFEST}. Pass a complete checkpoint."
            )
        found.fetch(name)
    else:
        newest, _, _ = found.fetch_newest()
        if newest is None:
            raise CheckpointError(f"resume_from_checkpoint={url!r} has no checkpoint. Pass the output_dir of a run.")
    if with_best:
        found.fetch_best(newest)
    return str(folder / newest)


def newest_checkpoint(folder: str, url: str) -> str | None:
    """The newest checkpoint of a run in the storage, in its local directory, where train() will have downloaded it, or
    as a URL if the directory is one."""
    if urls.is_url(folder):
        return next((urls.join(url, name) for name in Candidates(RemoteDirectory(url), Path()).names), None)
    return next((str(Path(folder, name)) for name in Candidates(RemoteDirectory(url), Path(folder)).names), None)
