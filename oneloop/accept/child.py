"""One check in a process of its own: `python -m oneloop.accept.child JSON`. Prints its outcome as JSON."""

import contextlib
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

from . import machine
from .checks import BY_NAME
from .outcome import FAILED, NOT_RUN, PASSED, Failed, NotRun
from .place import Place
from .private import cleaned


def outcome(name: str, place: Place) -> dict[str, Any]:
    """Make the check; whatever it raises is its outcome."""
    started = time.perf_counter()
    state, why, figures = PASSED, "", {}
    try:
        figures = BY_NAME[name].run(place)
    except NotRun as reason:
        state, why = NOT_RUN, str(reason)
    except Failed as reason:
        state, why = FAILED, str(reason)
    except Exception as error:
        state, why = FAILED, f"{type(error).__name__}: {error}"
    seconds = round(time.perf_counter() - started, 1)
    found = {"name": name, "title": BY_NAME[name].title, "state": state, "why": why, "seconds": seconds}
    return cleaned(found | {"figures": figures}, place.folder)


def main() -> None:
    options = json.loads(sys.argv[1])
    logging.disable(logging.WARNING)
    with contextlib.redirect_stdout(sys.stderr):
        if options.get("machine"):
            found = machine.describe(options["framework"])
        else:
            place = Place(Path(options["folder"]), options["framework"], options["device"], options["count"])
            found = outcome(options["name"], place)
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
