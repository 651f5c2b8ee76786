"""A Hub in a thread: the part of its HTTP API that creating repositories and pushing folders uses, in memory."""

import base64
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Commit:
    def __init__(self, revision, message, files, deleted):
        self.revision, self.message, self.files, self.deleted = revision, message, files, deleted


class Hub:
    """What was created and committed, and how it should fail."""

    def __init__(self):
        self.repositories = {}  # name -> private, or None if the request does not say
        self.branches = []
        self.commits = []
        self.files = {}  # (repository, revision) -> {path: bytes}
        self.tokens = set()
        self.refuses = None  # a status for every commit, when set
        self.gate = threading.Event()  # commits wait for it
        self.gate.set()

    def tree(self, revision="main", repository="me/model"):
        return self.files.get((repository, revision), {})

    def answer(self, method, path, body):
        """(status, answer) of a request."""
        path, _, query = path.partition("?")
        if path == "/api/repos/create":
            given = json.loads(body)
            name = f"{given.get('organization') or 'me'}/{given['name']}"
            known = name in self.repositories
            asked = {"private": True, "public": False}.get(given.get("visibility"), given.get("private"))
            self.repositories.setdefault(name, asked)
            return (409 if known else 200), {
                "url": f"{self.url}/{name}",
                "error": "You already created this model repo",
            }
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        found = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(branch|preupload|commit|tree)/([^/]+)(/.*)?", path)
        if found is None:
            return 404, {"error": f"no {method} {path}"}
        repository, what, revision = found[1], found[2], found[3]
        if what == "branch":
            self.branches.append(revision)
            return 200, {}
        if what == "preupload":
            files = json.loads(body)["files"]
            return 200, {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]}
        if what == "tree":
            return 200, [{"type": "file", "path": p, "size": 1, "oid": "0"} for p in self.tree(revision, repository)]
        return self.commit(repository, revision, body)

    def commit(self, repository, revision, body):
        self.gate.wait(30)
        if self.refuses:
            return self.refuses, {"error": "the stand-in refuses"}
        files, deleted, message = {}, [], ""
        for line in body.decode().splitlines():
            part = json.loads(line)
            if part["key"] == "header":
                message = part["value"]["summary"]
            elif part["key"] == "file":
                files[part["value"]["path"]] = base64.b64decode(part["value"]["content"])
            elif part["key"] == "deletedFile":
                deleted.append(part["value"]["path"])
        tree = self.files.setdefault((repository, revision), {})
        for path in deleted:
            tree.pop(path, None)
        tree.update(files)
        self.commits.append(Commit(revision, message, files, deleted))
        oid = f"{len(self.commits):040x}"
        return 200, {"commitUrl": f"{self.url}/{repository}/commit/{oid}", "commitOid": oid, "success": True}


@contextmanager
def serving():
    """A Hub that listens on a port of this machine."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def respond(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            hub.tokens.add((self.headers.get("Authorization") or "").removeprefix("Bearer "))
            status, answer = hub.answer(self.command, self.path, body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = respond

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()
