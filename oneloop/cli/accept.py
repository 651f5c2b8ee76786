"""`oneloop accept`: try on this machine what oneloop promises."""

import argparse
import json
from pathlib import Path

from ..accept import page, running
from ..formats.terminal import printable


def command(options: argparse.Namespace) -> int:
    found = running.run(
        options.framework,
        options.device,
        options.checks,
        lambda text: print(printable(text), flush=True),
        options.minutes * 60,
    )
    Path(options.output).mkdir(parents=True, exist_ok=True)
    for name, text in (("accept.json", json.dumps(found, indent=1)), ("accept.html", page.html(found))):
        (Path(options.output) / name).write_text(text, encoding="utf-8")
        print(printable(str(Path(options.output) / name)))
    print(page.headline(found))
    return int(any(each["state"] == "failed" for each in found["checks"]))
