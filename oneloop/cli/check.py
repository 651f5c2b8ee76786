"""`oneloop check`: check a script for oneloop without running it."""

import argparse

from ..compat.check.script import run


def command(options: argparse.Namespace) -> int:
    words = options.arguments[1:] if options.arguments[:1] == ["--"] else options.arguments
    return run(options.script, words, options.library, options.json)
