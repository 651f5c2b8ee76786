"""URLs of object storage, and the local directories that stand for them."""

import hashlib
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..errors import ArgumentError, MissingPackageError

# At least two letters: a single one is a drive of Windows. A chain (simplecache::s3://...) and a URL that has lost a
# slash in a pathlib.Path are URLs too, which checked() refuses: as paths, they would be directories named like secrets.
_URL = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*::)*[A-Za-z][A-Za-z0-9+.-]+:/")
_CONTAINER_SCHEMES = ("abfs", "abfss", "wasb", "wasbs")  # container@account: what stands before the @ is no user
_ADDRESS = re.compile(r"\[[0-9A-Fa-f:.]*\]")  # of IPv6
_staged: dict[str, str] = {}  # local directory -> its URL, for those of this process


def is_url(value: object) -> bool:
    """Whether this is a URL rather than a path."""
    return isinstance(value, str) and _URL.match(value) is not None


def checked(name: str, url: str) -> str:
    """A URL that may be written to files and logs, without a slash at the end."""
    if "::" in _ADDRESS.sub("", url):
        raise ArgumentError(
            f"Invalid {name}: a chain of file systems (cache::scheme://...) cannot hold the files of a run. Pass the "
            "URL of the storage itself, such as s3://bucket/run."
        )
    if "://" not in url:
        raise ArgumentError(
            f"Invalid {name}: a URL has lost a slash, as in a pathlib.Path. Pass it as text, such as 's3://bucket/run'."
        )
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    is_container = parts.scheme in _CONTAINER_SCHEMES and host and user and not set(user) & set("@:")
    if (at and not is_container) or parts.query:
        raise ArgumentError(
            f"Invalid {name}: a URL with a user, a password or options would be written to files and logs. Pass it "
            "without them; credentials come from the environment or the configuration of the storage's client."
        )
    if not (parts.netloc + parts.path).strip("/"):
        raise ArgumentError(f"Invalid {name}={url!r}: expected a place within the storage, such as s3://bucket/run")
    return url.rstrip("/")


def join(url: str, name: str) -> str:
    return f"{url.rstrip('/')}/{name}"


def staging_directory(url: str) -> str:
    """The local directory of a run in object storage, in the cache of this user. It has the name of the run."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    digest = hashlib.sha256(url.encode()).hexdigest()[:12]
    return os.path.join(cache, "oneloop", "storage", digest, url.rstrip("/").rpartition("/")[2])


def remember(folder: str, url: str) -> None:
    """This directory stands for the URL, in this process."""
    _staged[os.path.abspath(folder)] = url


def url_of(folder: str | os.PathLike) -> str | None:
    """The URL that a local directory stands for; None if it is only a directory."""
    return _staged.get(os.path.abspath(Path(folder)))


def require_fsspec() -> Any:
    """The package that opens URLs, or an error that says how to install it."""
    try:
        import fsspec
    except ImportError as error:
        raise MissingPackageError(
            "a URL as output_dir requires the package fsspec, which is not installed: pip install "
            "'oneloop[storage]', or pass a local directory"
        ) from error
    return fsspec
