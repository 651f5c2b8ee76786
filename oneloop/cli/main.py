"""The command `oneloop`: each of its commands is a module of this folder, with `command(options)`."""

import os
import select
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TextIO

from ..errors import OneloopError
from ..formats.terminal import printable
from ..secrets import clean_text
from .options import parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; an OneloopError is printed as one line."""
    options = parser().parse_args(argv)
    try:
        # Only the module of this command is imported: some take a second.
        status = import_module(f".{options.command}", __package__).command(options)
        sys.stdout.flush()
        return status
    except (OneloopError, OSError) as error:
        if isinstance(error, BrokenPipeError) and _is_unread(sys.stdout):
            return 128 + 13  # as a program that SIGPIPE has ended
        print(printable(clean_text(f"oneloop {options.command}: {error}")), file=sys.stderr)
        return options.failure


def _is_unread(stream: TextIO) -> bool:
    """Whether nobody reads what is printed any more, as after `| head`. The rest of it is dropped."""
    try:
        watched = select.poll()
        watched.register(stream, select.POLLOUT)
    except (AttributeError, OSError, ValueError):  # Windows; a stream that is no file
        return False
    if not any(state & (select.POLLERR | select.POLLHUP) for _, state in watched.poll(0)):
        return False
    # At its end the interpreter writes what is left in the buffer, and would complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return True


if __name__ == "__main__":
    sys.exit(main())
