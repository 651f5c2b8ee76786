"""`oneloop watch`: serve the page of a run during training."""

import argparse
from pathlib import Path

from ..formats import urls
from ..report import server
from ..storage import view


def command(options: argparse.Namespace) -> int:
    if not urls.is_url(options.directory):
        return server.watch(Path(options.directory), options.port)
    with view.followed(options.directory) as folder:
        return server.watch(folder, options.port, options.directory)
