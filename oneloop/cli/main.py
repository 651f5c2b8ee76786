"""The command `oneloop`: each of its commands is a module of this folder, with `command(options)`."""

import sys
from collections.abc import Sequence
from importlib import import_module

from ..errors import OneloopError
from ..formats.terminal import printable
from ..secrets import clean_text
from .options import parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; an OneloopError is printed as one line."""
    options = parser().parse_args(argv)
    try:
        # Only the module of this command is imported: some take a second.
        return import_module(f".{options.command}", __package__).command(options)
    except (OneloopError, OSError) as error:
        print(printable(clean_text(f"oneloop {options.command}: {error}")), file=sys.stderr)
        return options.failure


if __name__ == "__main__":
    sys.exit(main())
