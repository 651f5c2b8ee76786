"""The subcommands `run` and `check`."""

import argparse
from typing import Any

from ..compat.redirected_names import LIBRARIES


def add(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        help="run an unmodified script written for transformers, PaddleNLP or MindNLP on oneloop",
        description="Run a script with its Trainer imports redirected to oneloop; everything else stays the library's.",
        epilog="Exit status: the script's. Several processes: torchrun --nproc_per_node 2 -m oneloop run script.py",
    )
    run.add_argument(
        "--as", dest="library", choices=LIBRARIES, help="the library; default: detected from the script's imports"
    )
    run.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module, as in python -m")
    run.add_argument("script", metavar="SCRIPT", help="the path of the script, or a command such as trl")
    run.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")
    run.set_defaults(run=_run, failure=2)
    check = commands.add_parser(
        "check",
        help="check a script for oneloop without running it",
        description="Reads a script, and the modules in its directory that it imports, without running anything. Lists "
        "what works, maps, changes its meaning, depends on the machine, is refused, or cannot be determined.",
        epilog="Exit status: 0 if nothing is refused, 1 if something is, 2 if the script cannot be read.",
    )
    check.add_argument(
        "--as", dest="library", choices=LIBRARIES, help="the library; default: detected from its imports"
    )
    check.add_argument("--json", action="store_true", help="print JSON instead of text")
    check.add_argument("script", metavar="SCRIPT", help="the path of the script")
    check.add_argument("arguments", nargs=argparse.REMAINDER, metavar="-- ...", help="arguments to check with it")
    check.set_defaults(run=_check, failure=2)


def _run(options: argparse.Namespace) -> int:
    from ..compat.run_script import run, run_module

    return (run_module if options.module else run)(options.script, options.arguments, options.library)


def _check(options: argparse.Namespace) -> int:
    from ..compat.check.script import run

    words = options.arguments[1:] if options.arguments[:1] == ["--"] else options.arguments
    return run(options.script, words, options.library, options.json)
