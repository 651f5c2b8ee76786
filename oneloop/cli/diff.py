"""`oneloop diff`: the first place where two runs part."""

import argparse
import contextlib
from pathlib import Path
from typing import Any

from ..formats.terminal import printable
from ..storage import view


def add(commands: Any) -> None:
    """Add the subcommand."""
    diff = commands.add_parser(
        "diff",
        help="find the first layer and step in which two recorded runs differ",
        description="Compare the recordings of two runs (trace_steps): the first layer, and the kind of difference, "
        "that rounding does not explain.",
        epilog="Exit status: 0 if the runs agree, 1 if they differ, 2 if the command failed.",
    )
    diff.add_argument("a", metavar="RUN_A", help="the output_dir of a run, or a URL; the one that is taken to be right")
    diff.add_argument("b", metavar="RUN_B", help="the output_dir of the other run, or a URL")
    diff.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="NAME_IN_A=NAME_IN_B",
        help="a layer or parameter, or the beginning of names, that is called otherwise in B; or a JSON file",
    )
    diff.add_argument("--json", action="store_true", help="print JSON instead of text")
    diff.add_argument("--html", metavar="FILE", help="also write a page")
    diff.set_defaults(run=_run, failure=2)


def _run(options: argparse.Namespace) -> int:
    from ..divergence import compare_runs, report
    from ..divergence.runs import read_mapping, to_json

    mapping = read_mapping(options.map)
    with contextlib.ExitStack() as stack:
        a, b = (stack.enter_context(view.local_folder(each)) for each in (options.a, options.b))
        found = compare_runs(Path(a), Path(b), mapping)
    found.names = (options.a, options.b)
    if options.html:
        Path(options.html).write_text(report.to_html(found), encoding="utf-8")
    print(to_json(found) if options.json else printable(report.to_text(found)))
    return 0 if found.agrees else 1
