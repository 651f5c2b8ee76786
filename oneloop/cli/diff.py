"""`oneloop diff`: the first place where two runs part."""

import argparse
import contextlib
from pathlib import Path

from ..divergence import compare_runs, report
from ..divergence.runs import read_mapping, to_json
from ..formats.terminal import printable
from ..storage import view


def command(options: argparse.Namespace) -> int:
    mapping = read_mapping(options.map)
    with contextlib.ExitStack() as stack:
        a, b = (stack.enter_context(view.local_folder(each)) for each in (options.a, options.b))
        found = compare_runs(Path(a), Path(b), mapping)
    found.names = (options.a, options.b)
    if options.html:
        Path(options.html).write_text(report.to_html(found), encoding="utf-8", errors="backslashreplace")
    print(to_json(found) if options.json else printable(report.to_text(found)))
    return 0 if found.agrees else 1
