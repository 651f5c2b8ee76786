"""`oneloop init`: write a recipe."""

import argparse
import os
from pathlib import Path

from ..errors import ArgumentError
from ..formats.durable import replace_file
from ..parser.options import nearest
from ..recipes import template
from ..recipes.tasks import TASKS


def command(options: argparse.Namespace) -> int:
    if options.task not in TASKS:
        near = nearest(options.task, TASKS)
        hint = f" Did you mean {near}?" if near else ""
        raise ArgumentError(f"unknown task {options.task!r}: expected one of {', '.join(TASKS)}.{hint}")
    path = Path(options.file)
    if os.path.lexists(path) and not options.force:
        raise ArgumentError(f"{path} exists. Choose another name, or pass --force to replace it.")
    replace_file(path, template.write(options.task).encode())
    print(f"{path}: set model and data, then run `oneloop train {path}`")
    return 0
