"""`oneloop run`: run a script of another library on oneloop."""

import argparse

from ..compat.run_script import run, run_module


def command(options: argparse.Namespace) -> int:
    return (run_module if options.module else run)(options.script, options.arguments, options.library)
