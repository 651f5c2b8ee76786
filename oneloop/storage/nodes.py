"""Several machines that share no disk: each has its own local directory for a URL, and downloads what it lacks."""

import hashlib
import json
import logging
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..checkpoint import store
from ..errors import CheckpointError
from ..formats import urls
from ..formats.durable import make_directory
from . import loose_files, staging
from .remote import RemoteDirectory

if TYPE_CHECKING:
    from ..distributed.collectives import ProcessGroup
    from .mirror import Mirror

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Needed:
    """Checkpoints that every machine needs, as the main process has them."""

    url: str
    is_output: bool  # of output_dir, rather than of the local directory of another URL
    digests: dict[str, str]  # of their manifests, by name

    @classmethod
    def of(cls, url: str, is_output: bool, paths: list[Path]) -> "Needed":
        return cls(url, is_output, {path.name: _digest(path) for path in paths})

    def folder(self, output_dir: Path) -> Path:
        """Where they are on this machine."""
        return output_dir if self.is_output else Path(urls.staging_directory(self.url))


def _digest(path: Path) -> str:
    """A digest of the manifest without its time, which differs between copies of several machines; "" without one."""
    manifest = store.read_manifest(path)
    if manifest is None:
        return ""
    manifest.pop("written", None)
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def has_separate_disk(processes: "ProcessGroup", folder: Path) -> bool:
    """Whether this folder is on another disk than that of the main process. A collective."""
    mark = folder / f".oneloop-{uuid.uuid4().hex[:8]}"
    if processes.is_main:
        make_directory(folder)
        mark.touch()
    name = processes.broadcast_object(mark.name)
    is_seen = (folder / name).exists()
    processes.barrier()
    if processes.is_main:
        mark.unlink()
    return not is_seen


def provide(
    processes: "ProcessGroup", needed: Needed, output_dir: Path, mirror: "Mirror | None", downloads: bool
) -> list[Path]:
    """Download the checkpoints on each machine that lacks one; returns what this process has downloaded. Those of a
    machine that `downloads` do it. `mirror` is that of the main process. A collective."""
    folder = needed.folder(output_dir)

    def missing() -> list[str]:
        return [name for name, digest in needed.digests.items() if not _has(folder / name, digest)]

    lacking = missing()
    if not any(lacks for (lacks,) in processes.all_gather([bool(lacking)])):
        return []
    error: CheckpointError | None = None
    if mirror is not None and needed.is_output:
        try:
            for name in needed.digests:
                mirror.ensure(name)
        except CheckpointError as raised:
            error = raised
    _agree(processes, error, "the main process has not uploaded a checkpoint that other machines need")
    if downloads and lacking:
        remote = RemoteDirectory(needed.url)
        try:
            for name in lacking:
                logger.info("Downloading %s from %s.", name, needed.url)
                staging.download(remote, name, folder)
            if needed.is_output and mirror is None:
                loose_files.download_records(remote, folder, is_ahead=True)
            if missing():
                raise CheckpointError(f"{', '.join(missing())} in {needed.url} is not what the main process has")
        except CheckpointError as raised:
            error = raised
    _agree(processes, error, f"another machine could not download {', '.join(needed.digests)}; see its error")
    return [folder / name for name in lacking] if downloads else []


def _has(path: Path, digest: str) -> bool:
    """Contents are verified by those who read them."""
    return bool(digest) and _digest(path) == digest and not store.problems(path, contents=False)


def _agree(processes: "ProcessGroup", error: CheckpointError | None, otherwise: str) -> None:
    """Raise an error in all processes if one of them has one. A collective."""
    if any(failed for (failed,) in processes.all_gather([error is not None])):
        raise error or CheckpointError(f"{otherwise}.")
