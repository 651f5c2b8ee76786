"""What commands read of a run in object storage: a temporary directory with its small files. Of large ones it has only
the sizes, as files without contents."""

import contextlib
import logging
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ..checkpoint import store
from ..errors import DataError
from ..formats import urls
from . import remote_checkpoints
from .remote import RemoteDirectory, clean

logger = logging.getLogger(__name__)

EVERY = 10.0  # seconds between two looks at a run that is watched
_READ = (".json", ".jsonl")  # manifests, states, arguments and logs


class View:
    """The files of a URL in a local folder, which has the last name of the URL."""

    def __init__(self, url: str, parent: Path, is_whole: bool = False) -> None:
        self.url = urls.checked("URL", url)
        self.remote = RemoteDirectory(self.url)
        self.folder = parent / PurePosixPath(self.url).name
        self.folder.mkdir()
        self._is_whole = is_whole  # large files have their contents too
        self._seen: dict[str, int] = {}

    def refresh(self) -> None:
        """Read what is new. Logs grow, and other files are replaced under other names."""
        sizes = self.remote.sizes()
        uploading = {
            PurePosixPath(name).parent for name in sizes if PurePosixPath(name).name == remote_checkpoints.MARK
        }
        wanted = {}
        for name, size in sizes.items():
            path = PurePosixPath(name)
            is_unfinished = bool(uploading & set(path.parents)) and not self._has_manifest(sizes, path, uploading)
            if path.name != remote_checkpoints.MARK and not is_unfinished:
                wanted[name] = size
        for name in self._seen.keys() - wanted.keys():
            (self.folder / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # other files are in it
                (self.folder / name).parent.rmdir()
        changed = [name for name, size in wanted.items() if self._seen.get(name) != size]
        self.remote.each(lambda name: self._take(name, wanted[name]), changed)
        self._seen = wanted

    def _has_manifest(self, sizes: dict[str, int], path: PurePosixPath, uploading: set[PurePosixPath]) -> bool:
        return all((place / store.MANIFEST).as_posix() in sizes for place in uploading & set(path.parents))

    def _take(self, name: str, size: int) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        stage = path.with_name(f".{path.name}.partial")
        if self._is_whole or path.suffix in _READ:
            try:
                self.remote.download(name, stage)
            except FileNotFoundError:  # deleted meanwhile
                return
        else:
            with open(stage, "wb") as f:
                os.truncate(f.fileno(), size)
        os.replace(stage, path)

    # -- for `oneloop checkpoints`

    def problems(self, path: Path, contents: bool = True) -> list[str]:
        """The problems of a checkpoint in the folder, as from store.problems(); with `contents` it is downloaded."""
        if not contents:
            return store.problems(path, contents=False)
        inside = path.resolve().relative_to(self.folder.resolve()).as_posix()
        prefix = "" if inside == "." else f"{inside}/"
        with tempfile.TemporaryDirectory(prefix="oneloop-verify-") as place:
            target = Path(place) / path.name
            files = [name for name in self._seen if name.startswith(prefix)]
            try:
                self.remote.each(lambda n: self.remote.download(n, target / n.removeprefix(prefix)), files)
            except FileNotFoundError as error:
                return [f"a file was deleted during the download: {error}"]
            return store.problems(target)

    def delete(self, path: Path) -> None:
        """Delete a checkpoint from the storage."""
        remote_checkpoints.delete(self.remote, path.relative_to(self.folder).as_posix())

    def leftovers(self) -> list[str]:
        return remote_checkpoints.leftovers(self.remote)


@contextlib.contextmanager
def opened(url: str, is_whole: bool = False, may_be_empty: bool = False) -> Iterator[View]:
    """The files of a URL as they are now."""
    with tempfile.TemporaryDirectory(prefix="oneloop-view-") as parent:
        view = View(url, Path(parent), is_whole)
        view.refresh()
        if not may_be_empty and not any(view.folder.iterdir()):
            raise DataError(f"{url} is empty or does not exist. Pass the output_dir of a run.")
        yield view


@contextlib.contextmanager
def local_folder(directory: str, is_whole: bool = False) -> Iterator[str]:
    """The directory itself, or the folder of a view if it is a URL."""
    if not urls.is_url(directory):
        yield directory
        return
    with opened(directory, is_whole) as view:
        yield str(view.folder)


@contextlib.contextmanager
def followed(url: str) -> Iterator[Path]:
    """A view that is refreshed until the end of the context; the run may not have begun."""
    ends = threading.Event()

    def follow(view: View) -> None:
        while not ends.wait(EVERY):
            try:
                view.refresh()
            except Exception as error:  # tried again
                logger.warning("%s cannot be read: %s", url, clean(error))

    with opened(url, may_be_empty=True) as view:
        thread = threading.Thread(target=follow, args=(view,), name="oneloop-view", daemon=True)
        thread.start()
        try:
            yield view.folder
        finally:
            ends.set()
            thread.join()
