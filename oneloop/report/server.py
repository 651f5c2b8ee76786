"""`oneloop watch DIR`: the page of a run, or of several, served to this machine while they go on.

No address names a file: there is the page, what is new on it, and the same for each run by a number that was given when
the run was found. So no address can lead out of the directory.
"""

import re
import sys
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np

from ..errors import ArgumentError
from . import comparison, page, page_data, summary
from .follow import Runs
from .log_reader import NOT_CURVES, Directory, number

HOST, PORT = "127.0.0.1", 8600
LOCAL = {"127.0.0.1", "localhost", "[::1]"}
CHECK = 10.0  # seconds between two looks at the checkpoints
ADDRESS = re.compile(r"/(?:run/(\d{1,9}))?(/?data)?")
MOST_KNOWN = 1 << 16  # characters of a question


class Watched:
    """A directory and the runs in it, as the pages see them.

    Every change gets a number, greater than those of a server before this one, by which a page says what it has seen;
    so a thousand runs that do nothing cost an answer nothing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs = Runs(folder)
        self._checked: dict[int, tuple[float, list[dict[str, Any]]]] = {}
        self._version = time.time_ns() // 1000
        self._told: dict[int, dict[str, Any]] = {}  # what the table says of each run
        self._seen: dict[int, tuple[Any, ...]] = {}  # what that was made of
        self._changed: dict[int, int] = {}
        self._common: dict[str, Any] = comparison.common([])
        self._names: list[str] = []

    def close(self) -> None:
        self._runs.close()

    @property
    def several(self) -> bool:
        found = self._runs.found
        return len(found) > 1 or any(directory.folder != self.folder for directory in found)

    def page(self, run: int | None) -> str | None:
        """The page of a run, or of what the directory holds; None for a run that is not there."""
        with self._runs.lock:
            self._runs.look()
            if run is None and self.several:
                data = self._comparison({}, 0)
                facts = data.pop("facts")
                return page.html(data | facts | {"title": self.folder.resolve().name}, live="data")
            directory = self._directory(run)
            if directory is None:
                return None
            packed = page_data.packed(directory, directory.folder.name, 4000) | {"id": run or 0}
            data = {"kind": "run", "title": directory.folder.resolve().name, "runs": [packed], "version": self._version}
            data |= self._of_run(directory, run or 0)
            return page.html(data, live="data" if run is None else f"{run}/data")

    def news(self, run: int | None, known: dict[int, tuple[int, int]], since: int = 0) -> dict[str, Any] | None:
        """What a page does not have yet that has seen the changes up to `since`, and knows so many entries of runs."""
        with self._runs.lock:
            self._runs.look()
            if run is None and self.several:
                return self._comparison(known, since)
            directory = self._directory(run)
            if directory is None:
                return None
            i = run or 0
            fresh = self._added(directory, known.get(i))
            if fresh is None:
                fresh = page_data.packed(directory, directory.folder.name, 4000) | {"whole": True}
            fresh |= {"id": i, "generation": directory.generation, "entries": directory.points.entries}
            return {"kind": "run", "version": self._version, "runs": [fresh], "facts": self._of_run(directory, i)}

    def _directory(self, run: int | None) -> Directory | None:
        found = self._runs.found
        if run is None and not found:
            return Directory(self.folder)
        return found[run or 0] if (run or 0) < len(found) else None

    def _of_run(self, directory: Directory, run: int) -> dict[str, Any]:
        last, found = self._checked.get(run, (-CHECK, []))
        if time.monotonic() - last >= CHECK:
            found = summary.checkpoints(directory.folder)
            self._checked[run] = (time.monotonic(), found)
        return page_data.run_facts(directory, found) | {"reading": int(run in self._runs.unread)}

    # -- several runs

    def _comparison(self, known: dict[int, tuple[int, int]], since: int) -> dict[str, Any]:
        self._refresh()
        names = self._common["differing"]
        told = list(self._told.values())
        limit = comparison.limit_of(told, len(self._runs.found))
        runs = []
        for i, directory in self._runs.ready():
            if self._changed[i] <= since:
                continue
            fresh = comparison.in_table(self._told[i], names) | {"id": i, "link": f"run/{i}"}
            added = self._added(directory, known.get(i))
            if added is None:
                points = comparison.curves(directory, limit)
                added = comparison.packed_points(points, directory.clock(64), limit) | {"whole": True}
            runs.append(fresh | added)
        shared = self._common | {"written": summary.moment(summary.now()), "reading": len(self._runs.unread)}
        return {"kind": "compare", "version": self._version, "runs": runs, "facts": shared}

    def _refresh(self) -> None:
        """Bring up to date what the table says of the runs in which something has changed."""
        if len(self._names) != len(self._runs.found):
            self._names = page_data.names_of([directory.folder for directory in self._runs.found])
        self._version += 1
        now, before = summary.now(), self._common["differing"]
        changed = False
        for i, directory in self._runs.ready():
            read = (directory.generation, directory.points.entries, len(directory.events))
            seen = (*read, self._names[i], summary.status(directory, now))
            if self._seen.get(i) != seen:
                self._told[i], self._seen[i] = comparison.told(directory, self._names[i]), seen
                self._changed[i], changed = self._version, True
        if changed:
            self._common = comparison.common([self._told[i] for i in sorted(self._told)])
        if self._common["differing"] != before:  # then every row has other columns
            self._changed = dict.fromkeys(self._changed, self._version)

    def _added(self, directory: Directory, known: tuple[int, int] | None) -> dict[str, Any] | None:
        """The points after those that are known; None where the run has to be sent whole."""
        points = directory.points
        missing = points.entries - known[1] if known else -1
        if known is None or known[0] != directory.generation or not 0 <= missing <= len(points.recent):
            return None
        entries = list(points.recent)[len(points.recent) - missing :]
        added: dict[str, list[list[float | None]]] = {}
        for entry in entries:
            for key in entry:
                value = number(entry[key])
                if value is not None and page_data.is_curve(key) and key not in NOT_CURVES:
                    steps, values = added.setdefault(key, [[], []])
                    steps.append(float(entry["step"]))
                    values.append(value if np.isfinite(value) else None)
        return {"added": added, "clock": self._clock(directory, [float(entry["step"]) for entry in entries])}

    def _clock(self, directory: Directory, steps: list[float]) -> list[list[float]]:
        if not steps:
            return []
        known, seconds = directory.clock()
        return [[step, float(np.interp(step, known, seconds))] for step in sorted(set(steps))] if len(known) else []


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
            asked = parse_qs(address.query)
            since = asked.get("since", ["0"])[0]
            known = known_of(asked.get("known", [""])[0])
            news = self.watched.news(run, known, int(since) if re.fullmatch(r"\d{1,18}", since) else 0)
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
    watched: Watched

    def server_close(self) -> None:
        super().server_close()
        self.watched.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is no news; anything else is said."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            print(f"oneloop watch: {type(error).__name__}: {error}", file=sys.stderr)


def serve(folder: Path, port: int = PORT) -> Server:
    """A server for the directory, bound and not yet running; port 0 takes a free one."""
    if folder.exists() and not folder.is_dir():
        raise ArgumentError(f"{folder} is a file; give the output_dir of a run, or a directory with several of them")
    watched = Watched(folder)
    kind = type("Server", (Server,), {"watched": watched})  # it closes itself when the port cannot be had
    try:
        return kind((HOST, port), type("Handler", (Handler,), {"watched": watched}))
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
