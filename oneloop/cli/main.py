"""The command `oneloop`."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from .. import __version__
from ..errors import ArgumentError, OneloopError
from ..formats.terminal import printable
from ..secrets import clean_text
from . import diff as diffs
from . import migration, recipes
from . import plan as plans
from . import report as pages


def parser() -> argparse.ArgumentParser:
    """The parser of the command line, with all subcommands."""
    parser = argparse.ArgumentParser(prog="oneloop", description="Tools for training runs.")
    parser.add_argument("--version", action="version", version=f"oneloop {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    recipes.add(commands)
    pages.add(commands)
    diffs.add(commands)
    _add_checkpoints(commands)
    doctor = commands.add_parser("doctor", help="show the installed frameworks and what each supports on this machine")
    doctor.add_argument("--json", action="store_true", help="print JSON instead of text")
    doctor.set_defaults(run=_doctor, failure=1)
    plans.add(commands)
    migration.add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code; an OneloopError is printed as one line."""
    options = parser().parse_args(argv)
    try:
        return options.run(options)
    except (OneloopError, OSError) as error:
        print(printable(clean_text(f"oneloop {options.command}: {error}")), file=sys.stderr)
        return options.failure


def _doctor(options: argparse.Namespace) -> int:
    from . import doctor

    return doctor.run(options.json)


def _add_checkpoints(commands: Any) -> None:
    checkpoints = commands.add_parser(
        "checkpoints",
        help="list, verify and prune the checkpoints of a run",
        description="List the checkpoints of a run, verify them, and delete those that are not needed.",
        epilog="Exit status: 0 if all checkpoints are complete, 1 if any is damaged, 2 if the command failed.",
    )
    checkpoints.add_argument(
        "directory", metavar="DIR", help="the output_dir of a run, or one of its checkpoints; or a URL"
    )
    checkpoints.add_argument(
        "action",
        nargs="?",
        default="list",
        choices=("list", "verify", "prune"),
        help="list (default) compares sizes; verify reads every byte and compares checksums; prune deletes",
    )
    add = checkpoints.add_argument
    add("--json", action="store_true", help="print JSON instead of text")
    add("--keep", type=int, metavar="N", help="prune: keep the newest N complete checkpoints of each run, and its best")
    add("--damaged", action="store_true", help="prune: also delete damaged checkpoints")
    add(
        "--foreign",
        action="store_true",
        help="prune: also delete checkpoints of transformers' Trainer, as a separate run",
    )
    add("--dry-run", action="store_true", help="prune: only print what would be deleted")
    checkpoints.set_defaults(run=_checkpoints, failure=2)


def _checkpoints(options: argparse.Namespace) -> int:
    from . import checkpoints as command

    given = [name for name in ("keep", "damaged", "foreign", "dry_run") if getattr(options, name) not in (None, False)]
    if given and options.action != "prune":
        raise ArgumentError(f"--{given[0].replace('_', '-')} is an option of prune: oneloop checkpoints DIR prune ...")
    return command.run(
        options.action,
        options.directory,
        options.keep,
        options.damaged,
        options.foreign,
        options.dry_run,
        options.json,
    )


if __name__ == "__main__":
    sys.exit(main())
