"""The newest checkpoint of a directory or a URL."""

import os

from ..checkpoint import store
from ..formats import urls


def get_last_checkpoint(folder: str | os.PathLike) -> str | None:
    """Path of the newest checkpoint in a directory, or None. For the output_dir of a run in object storage, it may be
    one that train() is going to download. That of a URL is a URL."""
    url = urls.checked("folder", str(folder)) if urls.is_url(str(folder)) else urls.url_of(folder)
    if url is None:
        return store.get_last_checkpoint(folder)
    from .staging import newest_checkpoint  # quick imports: few directories stand for a URL

    return newest_checkpoint(str(folder), url)
