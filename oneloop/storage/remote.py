"""A directory in object storage: requests that are repeated when they fail, and errors without credentials."""

import contextlib
import inspect
import logging
import os
import random
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from .. import secrets
from ..errors import MissingPackageError, StorageError
from ..formats.urls import require_fsspec

logger = logging.getLogger(__name__)

ATTEMPTS = 5  # of each request, beside those of the storage's own client
FIRST_PAUSE = 0.5  # seconds before the second attempt; twice as long before each further one
LONGEST_PAUSE = 15.0
FILES_AT_ONCE = 4
PARTS_AT_ONCE = 4  # of a large file; they are in memory, 50 MB each
LARGE = 64 << 20  # bytes of a file that is sent alone
PARTIAL = ".oneloop-partial"  # ending of a file on a local disk that is being written
_KEY_ID = re.compile(r"<AWSAccessKeyId>[^<]*</AWSAccessKeyId>")

# Repeating these does not help: there is no such object, or there is one already.
_FINAL = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)

Result = TypeVar("Result")
Progress = Callable[[str, int], None]  # name, bytes of it that were transferred


class RemoteDirectory:
    """Names are relative to its URL. Methods raise StorageError after the last attempt, and FileNotFoundError for an
    object that is not there."""

    def __init__(self, url: str) -> None:
        self.url = url
        fsspec = require_fsspec()
        protocol = url.partition("://")[0].lower()
        options: dict[str, Any] = {"use_listings_cache": False}  # other machines write there too
        if protocol in ("file", "local"):
            options["auto_mkdir"] = True
        if protocol in ("s3", "s3a") and "max_concurrency" not in fsspec.config.conf.get(protocol, {}):
            options["max_concurrency"] = PARTS_AT_ONCE
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url, **options)
        except (ImportError, ValueError) as error:
            raise MissingPackageError(
                f"{url} cannot be opened: {clean(error)}. Install the client of this storage, such as s3fs for s3:// "
                "or gcsfs for gs://, or pass a local directory."
            ) from None

    def __repr__(self) -> str:
        return f"RemoteDirectory({self.url!r})"

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _try(self, what: str, request: Callable[[], Result]) -> Result:
        """The result of a request, which is repeated after a pause if it fails."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return request()
            except _FINAL:
                raise
            except PermissionError as error:
                raise StorageError(
                    None, f"cannot {what} in {self.url}: {clean(error)}. Check the credentials and their permissions."
                ) from None
            except Exception as error:  # clients have errors of their own for what the network does
                if attempt == ATTEMPTS:
                    raise StorageError(None, f"cannot {what} in {self.url}: {clean(error)}") from None
                logger.debug("Attempt %d to %s in %s failed: %s", attempt, what, self.url, clean(error))
                pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (attempt - 1))
                time.sleep(pause * random.uniform(0.8, 1.2))  # nosec: many runs should not repeat at the same time
        raise AssertionError("unreachable")

    # -- reading

    def folders(self) -> list[str]:
        """The names of the directories in it; [] if it does not exist."""
        return sorted(name for name, entry in self._entries("") if entry["type"] == "directory")

    def _entries(self, folder: str) -> list[tuple[str, dict[str, Any]]]:
        def request() -> list[dict[str, Any]]:
            try:
                return self._fs.ls(self._path(folder), detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return []

        own = self._path(folder).strip("/")  # some storages list an object for the directory itself
        paths = [(each["name"].strip("/"), each) for each in self._try("list files", request)]
        return [(path.rpartition("/")[2], each) for path, each in paths if path != own and not path.endswith(PARTIAL)]

    def sizes(self, folder: str = "") -> dict[str, int]:
        """All files below a directory with their sizes, by their names in it. Not by fsspec's find(), which leaves out
        what it cannot list."""
        found: dict[str, int] = {}
        for name, entry in self._entries(folder):
            if entry["type"] == "directory":
                inner = self.sizes(f"{folder}/{name}" if folder else name)
                found |= {f"{name}/{each}": size for each, size in inner.items()}
            else:
                found[name] = int(entry["size"] or 0)
        return found

    def files(self, folder: str = "") -> dict[str, int]:
        """The files in a directory with their sizes, without those of directories in it."""
        return {name: int(entry["size"] or 0) for name, entry in self._entries(folder) if entry["type"] == "file"}

    def read(self, name: str) -> bytes:
        return self._try(f"read {name}", lambda: self._fs.cat_file(self._path(name)))

    def download(self, name: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._try(f"download {name}", lambda: self._fs.get_file(self._path(name), os.fspath(path)))

    # -- writing

    def write(self, name: str, data: bytes) -> None:
        def request() -> None:
            if self._is_local:
                return self._replace(name, lambda path: Path(path).write_bytes(data))
            try:
                self._fs.pipe_file(self._path(name), data)
            except FileNotFoundError:  # of a file system that has real directories
                self._fs.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)
                self._fs.pipe_file(self._path(name), data)

        self._try(f"write {name}", request)

    @property
    def can_create(self) -> bool:
        """Whether create() is one operation of the storage, so that of two processes only one succeeds."""
        from fsspec.spec import AbstractFileSystem

        kind = type(self._fs)
        if self._is_local or self._fs.async_impl:
            method: Any = getattr(kind, "_pipe_file", None) or kind.pipe_file
        else:
            method = None if kind.pipe_file is AbstractFileSystem.pipe_file else kind.pipe_file
        return self._is_local or (method is not None and "mode" in inspect.signature(method).parameters)

    @property
    def _is_local(self) -> bool:
        from fsspec.implementations.local import LocalFileSystem

        return isinstance(self._fs, LocalFileSystem)

    def create(self, name: str, data: bytes) -> None:
        """Write an object that must not exist; raises FileExistsError if it does."""

        def request() -> None:
            path = self._path(name)
            if self._is_local:
                self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
                with open(path, "xb") as f:
                    f.write(data)
                return
            self._fs.pipe_file(path, data, mode="create")

        self._try(f"create {name}", request)

    def upload(self, path: Path, name: str, progress: Progress | None = None) -> None:
        """Upload a file; a client that can do so sends the parts of a large one at the same time."""
        from fsspec.callbacks import Callback

        def tell(size: int | None, value: int, **_: Any) -> None:
            if progress is not None:
                progress(name, value)

        def put(target: str) -> None:
            # A local path with "../" or a pattern in it is taken as it is by put_file, unlike by put.
            self._fs.put_file(os.fspath(path), target, callback=Callback(hooks={"told": tell}))

        self._try(f"upload {name}", lambda: self._replace(name, put) if self._is_local else put(self._path(name)))
        if progress is not None:
            progress(name, path.stat().st_size)

    def _replace(self, name: str, write: Callable[[str], Any]) -> None:
        """Write a file of a local disk whole or not at all, as object storage does with an object."""
        folder, _, file = self._path(name).rpartition("/")
        self._fs.makedirs(folder, exist_ok=True)
        partial = f"{folder}/.{file}{PARTIAL}"
        write(partial)
        os.replace(partial, self._path(name))

    def copy(self, source: str, target: str) -> None:
        """Copy an object within the storage."""
        self._try(f"copy {source}", lambda: self._fs.cp_file(self._path(source), self._path(target)))

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; those that are not there are no error."""

        def remove(name: str) -> None:
            def request() -> None:
                with contextlib.suppress(FileNotFoundError):
                    self._fs.rm_file(self._path(name))

            self._try(f"delete {name}", request)

        self.each(remove, names)

    def remove_folder(self, folder: str) -> None:
        """Remove what is left of a directory after its objects were deleted: only some file systems have them."""
        path = self._path(folder)
        try:
            if not self._fs.async_impl and self._fs.isdir(path):  # buckets, whose clients are asynchronous, have none
                self._fs.rm(path, recursive=True)
        except Exception as error:  # an empty directory is no harm
            logger.debug("%s was not removed: %s", path, clean(error))

    def each(self, work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """Do it for all items, some at the same time; raises the first error after all have ended."""
        items = list(items)
        if len(items) <= 1:
            return [work(item) for item in items]
        with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="oneloop-transfer") as pool:
            return [future.result() for future in [pool.submit(work, item) for item in items]]


def clean(error: BaseException) -> str:
    """An error as text, without credentials: clients quote requests and answers."""
    text = _KEY_ID.sub("<AWS_ACCESS_KEY_ID>", f"{type(error).__name__}: {error}".strip(": "))
    return secrets.clean_text(text)
