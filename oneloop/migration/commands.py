"""The sub-commands `run` and `check`."""

import argparse
from typing import Any

from .names import LIBRARIES


def add(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        help="run an unmodified script of transformers, PaddleNLP or MindNLP on oneloop",
        description="Runs a script with its Trainer imports redirected to oneloop; the rest stays the library's own.",
        epilog="Exit status: the script's own. Several processes: torchrun --nproc_per_node 2 -m oneloop run script.py",
    )
    run.add_argument("--as", dest="library", choices=LIBRARIES, help="the library; without it, what the script imports")
    run.add_argument("script", metavar="SCRIPT", help="the path of the script")
    run.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments, as they are")
    run.set_defaults(run=_run, failure=2)


def _run(options: argparse.Namespace) -> int:
    from .running import run

    return run(options.script, options.arguments, options.library)
