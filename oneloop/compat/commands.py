"""The sub-commands `run` and `check`."""

import argparse
from typing import Any

from .redirected_names import LIBRARIES


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
    check = commands.add_parser(
        "check",
        help="what a script would meet under oneloop, before anything runs",
        description="Reads a script, and the modules beside it that it imports, and runs nothing. Lists what works, "
        "maps, changes its meaning, depends on the machine, is refused, or cannot be seen.",
        epilog="Exit status: 0 when nothing is refused, 1 when something is, 2 when the script cannot be read.",
    )
    check.add_argument("--as", dest="library", choices=LIBRARIES, help="the library; without it, what it imports")
    check.add_argument("--json", action="store_true", help="print JSON instead of text")
    check.add_argument("script", metavar="SCRIPT", help="the path of the script")
    check.add_argument("arguments", nargs=argparse.REMAINDER, metavar="-- ...", help="arguments to check with it")
    check.set_defaults(run=_check, failure=2)


def _run(options: argparse.Namespace) -> int:
    from .run_script import run

    return run(options.script, options.arguments, options.library)


def _check(options: argparse.Namespace) -> int:
    from .check.script import run

    words = options.arguments[1:] if options.arguments[:1] == ["--"] else options.arguments
    return run(options.script, words, options.library, options.json)
