"""`oneloop report`, `oneloop compare` and `oneloop watch`."""

import argparse
import contextlib
import sys
from pathlib import Path
from typing import Any

from ..errors import MissingPackageError
from ..formats import urls
from ..formats.terminal import printable
from ..storage import view
from ..storage.remote import RemoteDirectory


def add(commands: Any) -> None:
    """Add the three subcommands."""
    report = commands.add_parser("report", help="write report.png and a self-contained report.html for a run")
    report.add_argument("directory", metavar="DIR", help="the output_dir of a run, or one of its checkpoints; or a URL")
    report.add_argument("--title", help="title of the report; default: the directory's name")
    report.add_argument(
        "--verify", action="store_true", help="verify the checksums of the checkpoints, not only their sizes"
    )
    report.set_defaults(run=_report, failure=1)
    compare = commands.add_parser("compare", help="compare several runs on one page")
    compare.add_argument("directories", metavar="DIR", nargs="+", help="runs, or directories that contain runs")
    compare.add_argument(
        "--output", "-o", default="compare.html", metavar="FILE", help="default: compare.html in the current directory"
    )
    compare.add_argument("--title", help="title of the page")
    compare.set_defaults(run=_compare, failure=1)
    watch = commands.add_parser("watch", help="serve the page of a run on this machine during training")
    watch.add_argument(
        "directory", metavar="DIR", help="the output_dir of a run (it may not exist yet), or a directory with several"
    )
    watch.add_argument("--port", type=int, default=8600, help="default: 8600; 0 selects a free port")
    watch.set_defaults(run=_watch, failure=1)


def _report(options: argparse.Namespace) -> int:
    from ..report import write_page, write_picture

    with view.local_folder(options.directory, is_whole=options.verify) as folder:
        written = []
        html = write_page(folder, title=options.title, verify=options.verify)
        try:
            written.append(write_picture(folder, title=options.title))
        except MissingPackageError as error:
            print(printable(f"oneloop report: {error}"), file=sys.stderr)
        for path in (*written, html):
            print(printable(_uploaded(path, options.directory) if urls.is_url(options.directory) else str(path)))
    return 0


def _uploaded(path: Path, url: str) -> str:
    """The URL of a file of the report, in the storage of its run."""
    RemoteDirectory(url.rstrip("/")).upload(path, path.name)
    return urls.join(url, path.name)


def _compare(options: argparse.Namespace) -> int:
    from ..report import write_comparison

    with contextlib.ExitStack() as stack:
        folders = [stack.enter_context(view.local_folder(each)) for each in options.directories]
        print(printable(str(write_comparison(folders, options.output, options.title))))
    return 0


def _watch(options: argparse.Namespace) -> int:
    from ..report.server import watch

    if not urls.is_url(options.directory):
        return watch(Path(options.directory), options.port)
    with view.followed(options.directory) as folder:
        return watch(folder, options.port, options.directory)
