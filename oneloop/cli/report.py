"""`oneloop report`: the page and the picture of a run."""

import argparse
import sys
from pathlib import Path

from ..errors import MissingPackageError
from ..formats import urls
from ..formats.terminal import printable
from ..report import write_csv, write_page, write_picture
from ..storage import view
from ..storage.remote import RemoteDirectory


def command(options: argparse.Namespace) -> int:
    with view.local_folder(options.directory, is_whole=options.verify) as folder:
        written = []
        html = write_page(folder, title=options.title, verify=options.verify)
        try:
            written.append(write_picture(folder, title=options.title))
        except MissingPackageError as error:
            print(printable(f"oneloop report: {error}"), file=sys.stderr)
        for path in (*written, html):
            print(printable(_uploaded(path, options.directory) if urls.is_url(options.directory) else str(path)))
        if options.csv:
            print(printable(str(write_csv(folder, options.csv))))
    return 0


def _uploaded(path: Path, url: str) -> str:
    """The URL of a file of the report, in the storage of its run."""
    RemoteDirectory(url.rstrip("/")).upload(path, path.name)
    return urls.join(url, path.name)
