"""`oneloop compare`: several runs on one page."""

import argparse
import contextlib

from ..formats.terminal import printable
from ..report import write_comparison, write_comparison_csv
from ..storage import view


def command(options: argparse.Namespace) -> int:
    with contextlib.ExitStack() as stack:
        folders = [stack.enter_context(view.local_folder(each)) for each in options.directories]
        print(printable(str(write_comparison(folders, options.output, options.title))))
        if options.csv:
            print(printable(str(write_comparison_csv(folders, options.csv))))
    return 0
