"""`oneloop compare`: several runs on one page."""

import argparse
import contextlib

from ..formats.terminal import printable
from ..report import write_comparison
from ..storage import view


def command(options: argparse.Namespace) -> int:
    with contextlib.ExitStack() as stack:
        folders = [stack.enter_context(view.local_folder(each)) for each in options.directories]
        print(printable(str(write_comparison(folders, options.output, options.title))))
    return 0
