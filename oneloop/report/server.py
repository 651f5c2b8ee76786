"""`oneloop watch DIR`: serves the page of one or several runs on this machine during training.

No URL contains a file name: there is the page, its updates, the same for each run by a number assigned when the run
was found, and the difference of two recorded runs. So no URL can reach outside the directory.

Other users of the machine can reach the port, so every request needs the token in the URL that is printed. The first
page moves it into a cookie, which keeps it out of the browser's history and of links.
"""

import hmac
import itertools
import re
import secrets
import sys
import time
from collections.abc import Callable
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np

from ..errors import ArgumentError, DataError, OneloopError
from ..formats.terminal import printable
from ..secrets import clean_text
from . import comparison, page, page_data, summary
from .follow import Runs
from .log_reader import NOT_CURVES, Directory, number

HOST, PORT = "127.0.0.1", 8600
LOCAL = {"127.0.0.1", "localhost", "[::1]"}
CHECK = 10.0  # seconds between checks of the checkpoints
ADDRESS = re.compile(r"/(?:run/(\d{1,9}))?(/?data)?")
DIFFERENCE = re.compile(r"/diff/(\d{1,9})/(\d{1,9})")
MOST_LINKS = 10
MOST_KNOWN = 1 << 16  # characters of a query

Recordings = Callable[[Path], bool]  # whether a run has some
Differ = Callable[[Path, Path], str]  # the page that compares those of two runs


class Watched:
    """A directory and its runs, as served to the pages.

    Every change gets a number, greater than those of any earlier server, with which a page tells what it has seen; so a
    thousand idle runs add nothing to a response.
    """

    def __init__(self, folder: Path, is_recorded: Recordings | None = None, differ: Differ | None = None) -> None:
        self.folder = folder
        self._runs = Runs(folder)
        self._is_recorded, self._differ = is_recorded, differ
        self._checked: dict[int, tuple[float, list[dict[str, Any]]]] = {}
        self._version = time.time_ns() // 1000
        self._rows: dict[int, dict[str, Any]] = {}  # the table row of each run
        self._seen: dict[int, tuple[Any, ...]] = {}  # what that row was computed from
        self._changed: dict[int, int] = {}
        self._common: dict[str, Any] = comparison.common([])
        self._names: list[str] = []

    def close(self) -> None:
        self._runs.close()

    @property
    def several(self) -> bool:
        found = self._runs.directories
        return len(found) > 1 or any(directory.folder != self.folder for directory in found)

    def page(self, run: int | None) -> str | None:
        """The page of a run, or of the whole directory; None for an unknown run."""
        with self._runs.lock:
            self._runs.refresh()
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

    def updates_for(self, run: int | None, known: dict[int, tuple[int, int]], since: int = 0) -> dict[str, Any] | None:
        """The updates for a page that has seen the changes up to `since` and has the entries in `known`."""
        with self._runs.lock:
            self._runs.refresh()
            if run is None and self.several:
                return self._comparison(known, since)
            directory = self._directory(run)
            if directory is None:
                return None
            i = run or 0
            fresh = self._added(directory, known.get(i), 4000)
            if fresh is None:
                fresh = page_data.packed(directory, directory.folder.name, 4000) | {"whole": True}
            fresh |= {"id": i, "generation": directory.generation, "entries": directory.points.entries}
            return {"kind": "run", "version": self._version, "runs": [fresh], "facts": self._of_run(directory, i)}

    def _directory(self, run: int | None) -> Directory | None:
        found = self._runs.directories
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
        run_data = list(self._rows.values())
        limit = comparison.limit_of(run_data, len(self._runs.directories))
        runs = []
        changed = [(i, directory) for i, directory in self._runs.ready() if self._changed[i] > since]
        places = {i: place for place, i in enumerate(self._rows)}
        rows = comparison.table_rows(run_data, names, [places[i] for i, _ in changed])
        for (i, directory), row in zip(changed, rows):
            fresh = row | {"id": i, "link": f"run/{i}"}
            added = self._added(directory, known.get(i), limit)
            if added is None:
                points = comparison.curves(directory, limit)
                added = comparison.packed_points(points, directory.clock(64), limit) | {"whole": True}
            runs.append(fresh | added)
        shared = self._common | {"written": summary.moment(summary.now()), "reading": len(self._runs.unread)}
        shared["differences"] = self._links()
        return {"kind": "compare", "version": self._version, "runs": runs, "facts": shared}

    def _links(self) -> list[list[str]]:
        """[text, address] of the comparisons of the first recorded run with others."""
        if self._is_recorded is None:
            return []
        recorded = (i for i, each in enumerate(self._runs.directories) if self._is_recorded(each.folder))
        found = list(itertools.islice(recorded, 1 + MOST_LINKS))
        return [[f"{self._names[found[0]]} and {self._names[i]}", f"diff/{found[0]}/{i}"] for i in found[1:]]

    def difference(self, a: int, b: int) -> str | None:
        """The page with the first difference of two runs; None for an unknown one."""
        with self._runs.lock:
            self._runs.refresh()
            found = self._runs.directories
            if self._differ is None or max(a, b) >= len(found):
                return None
            folders = found[a].folder, found[b].folder
        return self._differ(*folders)

    def _refresh(self) -> None:
        """Update the table rows of the runs that have changed."""
        if len(self._names) != len(self._runs.directories):
            self._names = page_data.names_of([directory.folder for directory in self._runs.directories])
        self._version += 1
        now, before = summary.now(), self._common["csv"]
        changed = False
        for i, directory in self._runs.ready():
            read = (directory.generation, directory.points.entries, len(directory.events))
            seen = (*read, self._names[i], summary.status(directory, now))
            if self._seen.get(i) != seen:
                self._rows[i], self._seen[i] = comparison.run_data(directory, self._names[i]), seen
                self._changed[i], changed = self._version, True
        if changed:
            self._common = comparison.common([self._rows[i] for i in sorted(self._rows)])
        if self._common["csv"] != before:  # then every row has different columns
            self._changed = dict.fromkeys(self._changed, self._version)

    def _added(self, directory: Directory, known: tuple[int, int] | None, limit: int) -> dict[str, Any] | None:
        """The points after the known ones; None if all points must be sent. A training loss that has finer points than
        the log is sent as a whole: which logged values they replace changes."""
        points = directory.points
        missing = points.entries - known[1] if known else -1
        if known is None or known[0] != directory.generation or not 0 <= missing <= len(points.recent):
            return None
        entries = list(points.recent)[len(points.recent) - missing :]
        added: dict[str, list[list[float | None]]] = {}
        replaced = set(points.finer) if entries else set()
        for entry in entries:
            for key in entry:
                value = number(entry[key])
                if value is not None and page_data.is_curve(key) and key not in NOT_CURVES and key not in replaced:
                    steps, values = added.setdefault(key, [[], []])
                    steps.append(float(entry["step"]))
                    values.append(value if np.isfinite(value) else None)
        return {
            "added": added,
            "replaced": {key: page_data.pack(*directory.curve(key, limit)) for key in replaced},
            "clock": self._clock(directory, [float(entry["step"]) for entry in entries]),
        }

    def _clock(self, directory: Directory, steps: list[float]) -> list[list[float]]:
        if not steps:
            return []
        known, seconds = directory.clock()
        return [[step, float(np.interp(step, known, seconds))] for step in sorted(set(steps))] if len(known) else []


class Handler(BaseHTTPRequestHandler):
    """Handles GET requests."""

    server_version, sys_version = "oneloop", ""
    protocol_version = "HTTP/1.1"
    timeout = 60
    watched: Watched
    token: str

    def do_GET(self) -> None:
        # Protects against DNS rebinding: a page of another site must not get a response under its own host name.
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0] if ":" in (self.headers.get("Host") or "") else ""
        if (host or self.headers.get("Host")) not in LOCAL:
            return self._answer(HTTPStatus.FORBIDDEN, "only available on this machine", "text/plain")
        address = urlsplit(self.path)
        found, two = ADDRESS.fullmatch(address.path), DIFFERENCE.fullmatch(address.path)
        if (found is None and two is None) or len(address.query) > MOST_KNOWN:
            return self._answer(HTTPStatus.NOT_FOUND, "no such page", "text/plain")
        asked = parse_qs(address.query)
        if self._is_token(asked.get("token", [""])[0]):
            cookie = f"{self._cookie}={self.token}; Path=/; HttpOnly; SameSite=Lax"
            more = {"Location": address.path, "Set-Cookie": cookie}
            return self._answer(HTTPStatus.SEE_OTHER, "", "text/plain", more)
        if not self._has_cookie():
            hint = "open the whole address that `oneloop watch` printed: it ends in a token"
            return self._answer(HTTPStatus.FORBIDDEN, hint, "text/plain")
        if found is None:
            assert two is not None
            return self._answer_difference(int(two[1]), int(two[2]))
        run = int(found[1]) if found[1] else None
        if found[2]:
            since = asked.get("since", ["0"])[0]
            known = known_of(asked.get("known", [""])[0])
            news = self.watched.updates_for(run, known, int(since) if re.fullmatch(r"\d{1,18}", since) else 0)
            text, kind = None if news is None else page.encoded(news), "application/json"
        else:
            text, kind = self.watched.page(run), "text/html"
        if text is None:
            return self._answer(HTTPStatus.NOT_FOUND, "no such run", "text/plain")
        self._answer(HTTPStatus.OK, text, kind)

    def _answer_difference(self, a: int, b: int) -> None:
        try:
            text = self.watched.difference(a, b)
        except OneloopError as error:
            return self._answer(HTTPStatus.OK, clean_text(str(error)), "text/plain", {"Refresh": "5"})
        if text is None:
            return self._answer(HTTPStatus.NOT_FOUND, "no such run", "text/plain")
        self._answer(HTTPStatus.OK, text, "text/html", {"Refresh": "5"})

    @property
    def _cookie(self) -> str:
        """The cookie's name. It contains the port, since browsers send a cookie to every port of a host."""
        server: Any = self.server
        return f"oneloop-{server.server_address[1]}"

    def _has_cookie(self) -> bool:
        try:
            found = SimpleCookie(self.headers.get("Cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return found is not None and self._is_token(found.value)

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "replace"), self.token.encode())

    def _answer(self, status: HTTPStatus, text: str, kind: str, more: dict[str, str] | None = None) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Content-Security-Policy": "frame-ancestors 'none'",
            **(more or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """No log line per request."""


def known_of(text: str) -> dict[int, tuple[int, int]]:
    """{run: (generation, entries)} of "run:generation:entries,..."; malformed parts are ignored."""
    found = re.findall(r"(?:^|,)(\d{1,9}):(\d{1,9}):(\d{1,15})(?=,|$)", text[:MOST_KNOWN])
    return {int(run): (int(generation), int(entries)) for run, generation, entries in found}


class Server(ThreadingHTTPServer):
    daemon_threads = True
    watched: Watched
    token: str

    @property
    def url(self) -> str:
        """The address to open in a browser."""
        return f"http://{HOST}:{self.server_address[1]}/?token={self.token}"

    def server_close(self) -> None:
        super().server_close()
        self.watched.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that disconnects during a response; print other errors."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            print(printable(clean_text(f"oneloop watch: {type(error).__name__}: {error}")), file=sys.stderr)


def serve(
    folder: Path, port: int = PORT, is_recorded: Recordings | None = None, differ: Differ | None = None
) -> Server:
    """A server for the directory, bound but not yet running; port 0 selects a free port."""
    if folder.exists() and not folder.is_dir():
        raise ArgumentError(f"{folder} is a file; pass the output_dir of a run, or a directory with several of them")
    shared = {"watched": Watched(folder, is_recorded, differ), "token": secrets.token_urlsafe(24)}
    kind = type("Server", (Server,), shared)  # it closes itself if the port is not available
    try:
        return kind((HOST, port), type("Handler", (Handler,), shared))
    except OSError as error:
        raise ArgumentError(
            f"port {port} is not available ({error.strerror}); select another one with --port, or a free one with "
            "--port 0"
        ) from error
    except OverflowError as error:
        raise ArgumentError(f"Invalid --port {port}: expected 0 to 65535") from error


def watch(
    folder: Path,
    port: int = PORT,
    name: str | None = None,
    is_recorded: Recordings | None = None,
    differ: Differ | None = None,
) -> int:
    """Serve until Ctrl-C. `name`: what the user calls the folder, if it only stands for something else."""
    if not folder.resolve().parent.is_dir():
        raise DataError(f"{folder} does not exist, nor does the directory above it. Pass the output_dir of a run.")
    with serve(folder, port, is_recorded, differ) as server:
        print(f"Watching {printable(str(name or folder))}: {server.url} (Ctrl-C to stop)", flush=True)
        if not folder.is_dir():
            print(f"{folder} does not exist yet: the page waits for a run to begin in it.", flush=True)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            print("\nStopped watching.", flush=True)
    return 0
