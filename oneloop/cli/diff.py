"""`oneloop diff`: the first place where two runs part."""

import argparse
import contextlib
from pathlib import Path

from ..divergence import compare_runs, report
from ..divergence.comparison import Comparison
from ..divergence.following import follow
from ..divergence.runs import read_mapping, to_json
from ..formats import urls
from ..formats.terminal import printable
from ..storage import view


def command(options: argparse.Namespace) -> int:
    mapping = read_mapping(options.map)
    with contextlib.ExitStack() as stack:
        folders = (stack.enter_context(_folder(each, options.follow)) for each in (options.a, options.b))
        a, b = map(Path, folders)
        if options.follow:
            found = _follow(options, a, b, mapping)
        else:
            found = _with_page(options, compare_runs(a, b, mapping))
    print(to_json(found) if options.json else printable(report.to_text(found)))
    return 0 if found.agrees else 1


def _folder(given: str, is_followed: bool) -> contextlib.AbstractContextManager[Path | str]:
    return view.followed(given) if is_followed and urls.is_url(given) else view.local_folder(given)


def _follow(options: argparse.Namespace, a: Path, b: Path, mapping: dict[str, str]) -> Comparison:
    """The last comparison of two runs that train."""
    found = None
    try:
        for found in follow(a, b, mapping):
            _with_page(options, found)
            if found.agrees and not options.json:
                print(printable(report.headline(found)), flush=True)
    except KeyboardInterrupt:
        if found is None:
            raise
    assert found is not None
    return found


def _with_page(options: argparse.Namespace, found: Comparison) -> Comparison:
    found.names = (options.a, options.b)
    if options.html:
        Path(options.html).write_text(report.to_html(found), encoding="utf-8", errors="backslashreplace")
    return found
