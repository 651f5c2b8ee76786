"""classes.pyi, written from the table of writers: `python -m oneloop.integrations.writers.typing_stub [--check]`."""

import sys
from pathlib import Path

from ...arguments.generated_page import write_or_check
from ...writers import WRITERS

STUB = Path(__file__).with_name("classes.pyi")
OPENING = """\
# Written by `python -m oneloop.integrations.writers.typing_stub`; change table.py, not this file.
# fmt: off
"""


def render() -> str:
    """The stub as text."""
    released = {name: writer.callback for name, writer in WRITERS.items() if writer.released}
    imports = "".join(f"from .{name} import {released[name]}\n" for name in sorted(released))
    names = "".join(f'    "{callback}",\n' for callback in released.values())
    return f"{OPENING}\n{imports}\n__all__ = [\n{names}]\n"


def main(words: list[str]) -> int:
    return write_or_check(STUB, render(), "oneloop.integrations.writers.typing_stub", words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
