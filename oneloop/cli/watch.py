"""`oneloop watch`: serve the page of a run during training."""

import argparse
from pathlib import Path

from ..divergence import compare_runs, report
from ..formats import trace_file, urls
from ..report import server
from ..storage import view


def command(options: argparse.Namespace) -> int:
    if not urls.is_url(options.directory):
        return _watch(Path(options.directory), options.port)
    with view.followed(options.directory) as folder:
        return _watch(folder, options.port, options.directory)


def _watch(folder: Path, port: int, name: str | None = None) -> int:
    return server.watch(folder, port, name, lambda run: bool(trace_file.steps_in(run)), _difference)


def _difference(a: Path, b: Path) -> str:
    found = compare_runs(a, b)
    found.names = (a.name, b.name)
    return report.to_html(found)
