"""The command `oneloop`."""

import argparse
import sys
from collections.abc import Sequence

from .errors import OneloopError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one sub-command and returns the exit code; an error that oneloop raises on purpose becomes one line."""
    parser = argparse.ArgumentParser(prog="oneloop", description="Tools around training runs.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    report = commands.add_parser("report", help="draw a run as report.png and report.html")
    report.add_argument("directory", metavar="DIR", help="the output_dir of a run, or one of its checkpoints")
    report.add_argument("--title", help="heading of the report; the directory's name without it")
    options = parser.parse_args(argv)
    try:
        return _report(options.directory, options.title)
    except (OneloopError, OSError) as error:
        print(f"oneloop {options.command}: {error}", file=sys.stderr)
        return 1


def _report(directory: str, title: str | None) -> int:
    from .report import write_report

    for path in write_report(directory, title=title):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
