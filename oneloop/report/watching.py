"""`oneloop watch DIR`: the page of a run, or of several, served to this machine while they go on.

No address names a file: there is the page, what is new on it, and the same for each run by a number that was given when
the run was found. So no address can lead out of the directory.
"""

import re
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np

from ..errors import ArgumentError
from . import comparing, contents, facts, page
from .reading import Directory, find_runs, number

HOST, PORT = "127.0.0.1", 8600
LOCAL = {"127.0.0.1", "localhost", "[::1]"}
SEARCH = 5.0  # seconds between two looks for new runs
CHECK = 10.0  # and at the checkpoints
ADDRESS = re.compile(r"/(?:run/(\d{1,9}))?(/?data)?")
MOST_KNOWN = 1 << 16  # characters of a question


class Watched:
    """A directory and the runs in it, followed for everybody who looks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._found: list[Directory] = []  # a run's number is its place here
        self._searched = 0.0
        self._checked: dict[int, tuple[float, list[dict[str, Any]]]] = {}

    def look(self) -> None:
        """Find new runs, and read what the known ones have written."""
        if time.monotonic() - self._searched >= SEARCH or not self._found:
            self._searched = time.monotonic()
            known = {directory.folder for directory in self._found}
            # Until a run is there, the directory itself is where one is expected.
            self._found += [Directory(path) for path in find_runs(self.folder) if path not in known]
        for directory in self._found:
            directory.look()

    @property
    def several(self) -> bool:
        return len(self._found) > 1 or any(directory.folder != self.folder for directory in self._found)

    def page(self, run: int | None) -> str | None:
        """The page of a run, or of what the directory holds; None for a run that is not there."""
        with self._lock:
            self.look()
            if run is None and self.several:
                data = self._comparison()
                runs = [packed | {"id": i, "link": f"run/{i}"} for i, packed in enumerate(data["runs"])]
                return page.html(data | {"runs": runs, "title": self.folder.resolve().name}, live="data")
            directory = self._directory(run)
            if directory is None:
                return None
            data = self._of_run(directory, run or 0)
            packed = contents.packed(directory, directory.curves(4000), directory.folder.name) | {"id": run or 0}
            data |= {"kind": "run", "title": directory.folder.resolve().name, "runs": [packed]}
            return page.html(data, live="data" if run is None else f"{run}/data")

    def news(self, run: int | None, known: dict[int, tuple[int, int]]) -> dict[str, Any] | None:
        """What a page that knows so many entries of each run does not have yet."""
        with self._lock:
            self.look()
            if run is None and self.several:
                data = self._comparison()
                runs = data.pop("runs")
                fresh = [
                    self._fresh(directory, known.get(i), runs[i] | {"link": f"run/{i}"}) | {"id": i}
                    for i, directory in enumerate(self._found)
                ]
                return {"kind": "compare", "runs": fresh, "facts": data}
            directory = self._directory(run)
            if directory is None:
                return None
            i = run or 0
            packed = contents.packed(directory, directory.curves(4000), directory.folder.name)
            return {
                "kind": "run",
                "runs": [self._fresh(directory, known.get(i), packed) | {"id": i}],
                "facts": self._of_run(directory, i),
            }

    def _directory(self, run: int | None) -> Directory | None:
        if run is None and not self._found:
            return Directory(self.folder)
        return self._found[run or 0] if (run or 0) < len(self._found) else None

    def _comparison(self) -> dict[str, Any]:
        names = contents.names_of([directory.folder for directory in self._found])
        limit = max(comparing.FEWEST, min(comparing.MOST, comparing.POINTS // max(1, len(names))))
        return comparing.assemble([comparing.read(d, name, limit) for d, name in zip(self._found, names)])

    def _of_run(self, directory: Directory, run: int) -> dict[str, Any]:
        last, found = self._checked.get(run, (-CHECK, []))
        if time.monotonic() - last >= CHECK:
            found = facts.checkpoints(directory.folder)
            self._checked[run] = (time.monotonic(), found)
        return contents.run_facts(directory, directory.curves(4000), checkpoints=found)

    def _fresh(self, directory: Directory, known: tuple[int, int] | None, packed: dict[str, Any]) -> dict[str, Any]:
        """The run whole, or only the points after those that are known."""
        points = directory.points
        missing = points.entries - known[1] if known else -1
        if known is None or known[0] != directory.generation or not 0 <= missing <= len(points.recent):
            return packed | {"whole": True}
        rest = {key: value for key, value in packed.items() if key not in ("points", "clock")}
        entries = list(points.recent)[len(points.recent) - missing :]
        added: dict[str, list[list[float | None]]] = {}
        for entry in entries:
            for key in entry:
                value = number(entry[key])
                if value is not None and contents.is_curve(key) and key not in ("run", "step", "time", "epoch"):
                    steps, values = added.setdefault(key, [[], []])
                    steps.append(float(entry["step"]))
                    values.append(value if np.isfinite(value) else None)
        return rest | {"added": added, "clock": self._clock(directory, [float(entry["step"]) for entry in entries])}

    def _clock(self, directory: Directory, steps: list[float]) -> list[list[float]]:
        known, seconds = directory.clock()
        if not len(known) or not steps:
            return []
        return [[step, float(np.interp(step, known, seconds))] for step in sorted(set(steps))]


class Handler(BaseHTTPRequestHandler):
    """Answers GET for the few addresses there are."""

    server_version, sys_version = "oneloop", ""
    protocol_version = "HTTP/1.1"
    timeout = 60
    watched: Watched

    def do_GET(self) -> None:
        # A page of another site can make a browser ask here under a name of its own; it must not get an answer.
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0] if ":" in (self.headers.get("Host") or "") else ""
        if (host or self.headers.get("Host")) not in LOCAL:
            return self._answer(HTTPStatus.FORBIDDEN, "only for this machine", "text/plain")
        address = urlsplit(self.path)
        found = ADDRESS.fullmatch(address.path)
        if found is None or len(address.query) > MOST_KNOWN:
            return self._answer(HTTPStatus.NOT_FOUND, "no such page", "text/plain")
        run = int(found[1]) if found[1] else None
        if found[2]:
            news = self.watched.news(run, known_of(parse_qs(address.query).get("known", [""])[0]))
            text, kind = None if news is None else page.encoded(news), "application/json"
        else:
            text, kind = self.watched.page(run), "text/html"
        if text is None:
            return self._answer(HTTPStatus.NOT_FOUND, "no such run", "text/plain")
        self._answer(HTTPStatus.OK, text, kind)

    def _answer(self, status: HTTPStatus, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Content-Security-Policy": "frame-ancestors 'none'",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads a line for every question of every page."""


def known_of(text: str) -> dict[int, tuple[int, int]]:
    """{run: (generation, entries)} of "run:generation:entries,..."; what is not of that shape is not known."""
    found = re.findall(r"(?:^|,)(\d{1,9}):(\d{1,9}):(\d{1,15})(?=,|$)", text[:MOST_KNOWN])
    return {int(run): (int(generation), int(entries)) for run, generation, entries in found}


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is no news; anything else is said."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            print(f"oneloop watch: {type(error).__name__}: {error}", file=sys.stderr)


def serve(folder: Path, port: int = PORT) -> Server:
    """A server for the directory, bound and not yet running; port 0 takes a free one."""
    if folder.exists() and not folder.is_dir():
        raise ArgumentError(f"{folder} is a file; give the output_dir of a run, or a directory with several of them")
    handler = type("Handler", (Handler,), {"watched": Watched(folder)})
    try:
        return Server((HOST, port), handler)
    except OSError as error:
        raise ArgumentError(
            f"port {port} cannot be used ({error.strerror}); choose another one with --port, or --port 0 for a free one"
        ) from error
    except OverflowError as error:
        raise ArgumentError(f"--port {port} is no port; expected 0 to 65535") from error


def watch(folder: Path, port: int = PORT) -> int:
    """Serve until Ctrl-C."""
    with serve(folder, port) as server:
        print(f"watching {folder}: http://{HOST}:{server.server_address[1]}/ (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            print("\nno longer watching", flush=True)
    return 0
