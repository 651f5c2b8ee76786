"""`oneloop report`, `oneloop compare` and `oneloop watch`."""

import argparse
import sys
from pathlib import Path
from typing import Any

from ..errors import MissingPackageError


def add(commands: Any) -> None:
    """The three sub-commands."""
    report = commands.add_parser("report", help="draw a run as report.png and one self-contained page, report.html")
    report.add_argument("directory", metavar="DIR", help="the output_dir of a run, or one of its checkpoints")
    report.add_argument("--title", help="heading of the report; the directory's name without it")
    report.add_argument(
        "--verify", action="store_true", help="read every byte of the checkpoints, not only their sizes"
    )
    report.set_defaults(run=_report, failure=1)
    compare = commands.add_parser("compare", help="lay several runs over each other on one page")
    compare.add_argument("directories", metavar="DIR", nargs="+", help="runs, or directories that hold some")
    compare.add_argument("--output", "-o", default="compare.html", metavar="FILE", help="default: compare.html here")
    compare.add_argument("--title", help="heading of the page")
    compare.set_defaults(run=_compare, failure=1)
    watch = commands.add_parser("watch", help="serve the page of a run to this machine while it is trained")
    watch.add_argument("directory", metavar="DIR", help="the output_dir of a run, there or yet to come, or of several")
    watch.add_argument("--port", type=int, default=8600, help="default: 8600; 0 takes a free one")
    watch.set_defaults(run=_watch, failure=1)


def _report(options: argparse.Namespace) -> int:
    from . import write_page, write_picture

    html = write_page(options.directory, title=options.title, verify=options.verify)
    try:
        print(write_picture(options.directory, title=options.title))
    except MissingPackageError as error:
        print(f"oneloop report: {error}", file=sys.stderr)
    print(html)
    return 0


def _compare(options: argparse.Namespace) -> int:
    from . import write_comparison

    print(write_comparison(options.directories, options.output, options.title))
    return 0


def _watch(options: argparse.Namespace) -> int:
    from .server import watch

    return watch(Path(options.directory), options.port)
