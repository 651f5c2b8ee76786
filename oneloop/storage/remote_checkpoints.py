"""Checkpoints in object storage: found by their manifests, committed by them, deleted from them on."""

import contextlib
import json
import re
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from ..checkpoint import store
from ..checkpoint.store import CheckpointInfo
from ..errors import StorageError
from .remote import LARGE, Progress, RemoteDirectory

MARK = ".uploading"  # in a checkpoint from its first file on until it is complete
_NAME = re.compile(rf"{store.PREFIX}-[0-9]+")
_HIDDEN = re.compile(rf"\.({store.PREFIX}-[0-9]+)\.[0-9a-f]{{8}}\.partial")


def manifests(remote: RemoteDirectory) -> dict[str, bytes]:
    """The manifests of the checkpoints in a directory, by the checkpoints' names."""
    return _manifests(remote, [name for name in remote.folders() if _NAME.fullmatch(name)])


def _manifests(remote: RemoteDirectory, names: list[str]) -> dict[str, bytes]:
    def read(name: str) -> bytes | None:
        try:
            return remote.read(f"{name}/{store.MANIFEST}")
        except FileNotFoundError:
            return None

    return {name: data for name, data in zip(names, remote.each(read, names)) if data is not None}


@contextlib.contextmanager
def index(found: dict[str, bytes]) -> Iterator[Path]:
    """A temporary directory with the manifests alone, in which store.find() and store.newest_first() find them."""
    with tempfile.TemporaryDirectory(prefix="oneloop-index-") as folder:
        for name, data in found.items():
            (Path(folder) / name).mkdir()
            (Path(folder) / name / store.MANIFEST).write_bytes(data)
        yield Path(folder)


def complete(found: dict[str, bytes]) -> dict[str, CheckpointInfo]:
    """The checkpoints with these manifests, by name; without those that cannot be read."""
    with index(found) as folder:
        return {each.path.name: each for each in store.find(folder) if each.run_id is not None}


def put(remote: RemoteDirectory, folder: Path, name: str, progress: Progress | None = None) -> None:
    """Upload a complete checkpoint. One that is already there under this name stays complete until the new one is."""
    there = remote.sizes(name)
    if store.MANIFEST not in there:
        remote.delete(f"{name}/{file}" for file in there)  # remains of an interrupted upload
        _put_files(remote, folder, name, progress)
        return
    if remote.read(f"{name}/{store.MANIFEST}") == (folder / store.MANIFEST).read_bytes():
        remote.delete([f"{name}/{MARK}"] if MARK in there else [])
        return
    hidden = f".{name}.{uuid.uuid4().hex[:8]}.partial"
    _put_files(remote, folder, hidden, progress)
    install(remote, hidden, name)


def _put_files(remote: RemoteDirectory, folder: Path, name: str, progress: Progress | None) -> None:
    """Upload to a place where nothing is; the manifest last, when all others have arrived."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    manifest = files.pop(store.MANIFEST)
    remote.write(f"{name}/{MARK}", b"")
    put_files(remote, files, name, progress)
    check_arrived(remote, name, remote.sizes(name), {file: path.stat().st_size for file, path in files.items()})
    remote.upload(manifest, f"{name}/{store.MANIFEST}", progress)
    remote.delete([f"{name}/{MARK}"])


def put_files(remote: RemoteDirectory, files: dict[str, Path], name: str, progress: Progress | None = None) -> None:
    """Upload files to a checkpoint, by their names in it."""
    large = [file for file, path in files.items() if path.stat().st_size > LARGE]
    for file in large:  # clients send its parts at the same time
        remote.upload(files[file], f"{name}/{file}", progress)
    remote.each(lambda file: remote.upload(files[file], f"{name}/{file}", progress), files.keys() - large)


def check_arrived(remote: RemoteDirectory, name: str, arrived: dict[str, int], sizes: dict[str, int]) -> None:
    """Raise StorageError unless all files have arrived with their sizes."""
    for file, size in sizes.items():
        if arrived.get(file) != size:
            raise StorageError(None, f"{name}/{file} has {arrived.get(file)} bytes in {remote.url} instead of {size}")


def add_files(remote: RemoteDirectory, folder: Path, name: str, progress: Progress | None = None) -> None:
    """Upload what was added to a checkpoint after its commit in the storage; the manifest last, if it has changed."""
    before, data = remote.read(f"{name}/{store.MANIFEST}"), (folder / store.MANIFEST).read_bytes()
    known, now = (json.loads(text)["files"] for text in (before, data))
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    del files[store.MANIFEST]
    changed = {file: path for file, path in files.items() if file not in known or known[file] != now.get(file)}
    put_files(remote, changed, name, progress)
    if data != before:
        remote.write(f"{name}/{store.MANIFEST}", data)


def install(remote: RemoteDirectory, hidden: str, name: str) -> None:
    """Put a complete hidden checkpoint in the place of another. It may be continued after an interruption."""
    delete(remote, name)
    files = [file for file in remote.sizes(hidden) if file not in (store.MANIFEST, MARK)]
    remote.write(f"{name}/{MARK}", b"")
    remote.each(lambda file: remote.copy(f"{hidden}/{file}", f"{name}/{file}"), files)
    remote.copy(f"{hidden}/{store.MANIFEST}", f"{name}/{store.MANIFEST}")
    remote.delete([f"{name}/{MARK}"])
    delete(remote, hidden)


def delete(remote: RemoteDirectory, name: str) -> None:
    """Delete a checkpoint: its manifest first, so that a partly deleted one is never taken for complete. The mark says
    that the rest may be deleted if this is interrupted."""
    files = list(remote.sizes(name))
    if not files:
        return
    if store.MANIFEST in files:
        remote.write(f"{name}/{MARK}", b"")
        remote.delete([f"{name}/{store.MANIFEST}"])
    remote.delete(f"{name}/{file}" for file in files if file not in (store.MANIFEST, MARK))
    remote.delete([f"{name}/{MARK}"])
    remote.remove_folder(name)


def recover(remote: RemoteDirectory) -> list[str]:
    """Complete or delete what interrupted uploads and deletions have left; returns what was done, for the log. Only for
    the run that has the lease: another one may be uploading."""
    done, folders = [], remote.folders()
    hidden = {name: match[1] for name in folders if (match := _HIDDEN.fullmatch(name))}
    own = [name for name in folders if _NAME.fullmatch(name)]
    whole = _manifests(remote, [*own, *hidden])
    for name, target in hidden.items():
        if name in whole and complete({target: whole[name]}):
            install(remote, name, target)
            done.append(f"{target} is complete: the upload that was to replace it was interrupted")
        else:
            delete(remote, name)
            done.append(f"{name}, the remains of an interrupted upload, is deleted")
    for name in own:
        if name not in whole and MARK in remote.sizes(name) and name not in hidden.values():
            delete(remote, name)
            done.append(f"{name}, the remains of an interrupted upload, is deleted")
    return done


def leftovers(remote: RemoteDirectory) -> list[str]:
    """The names of what interrupted uploads have left, or a run is uploading now."""
    folders = remote.folders()
    whole = _manifests(remote, [name for name in folders if _NAME.fullmatch(name)])
    torn = [name for name in folders if _NAME.fullmatch(name) and name not in whole]
    return sorted([name for name in folders if _HIDDEN.fullmatch(name)] + [n for n in torn if MARK in remote.sizes(n)])
