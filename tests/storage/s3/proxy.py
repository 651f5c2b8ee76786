"""A proxy before an S3 server that fails on demand: errors, dropped connections, answers that never come."""

import http.client
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CHANGES = ("PUT", "POST", "DELETE")
BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def forward(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        proxy = self.server
        with proxy.lock:
            proxy.requests.append((self.command, self.path))
            number = sum(method in CHANGES for method, _ in proxy.requests)
        fault = proxy.fault(self.command, self.path, number) if proxy.fault is not None else None
        if fault == "drop":
            self.close_connection = True
            return
        if fault == "hang":
            time.sleep(proxy.hangs)
            self.close_connection = True
            return
        if fault == "500":
            self.answer(500, [("Content-Type", "application/xml")], BUSY)
            return
        server = http.client.HTTPConnection(*proxy.target)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
        server.request(self.command, self.path, body, headers)
        response = server.getresponse()
        data = response.read()
        server.close()
        if fault == "lose":  # done, but the answer is lost
            self.close_connection = True
            return
        if callable(fault):
            fault()
        sent = data[: len(data) // 2] if fault == "cut" else data
        self.answer(response.status, response.getheaders(), sent, len(data))
        self.close_connection = self.close_connection or fault == "cut"

    def answer(self, status, headers, data, length=None):
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        given = {name.lower(): value for name, value in headers}.get("content-length")
        self.send_header("Content-Length", given if self.command == "HEAD" and given else str(length or len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward

    def log_message(self, *args):
        pass


class Proxy(ThreadingHTTPServer):
    """`fault(method, path, number of changes so far)` returns None, "500", "drop" (before the server sees the request),
    "lose" (after it), "hang", "cut" (half of an answer), or a function to call before the answer is sent."""

    daemon_threads = True

    def __init__(self, target):
        super().__init__(("127.0.0.1", 0), Handler)
        self.target, self.fault, self.requests, self.hangs = target, None, [], 3.0
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address):
        """Of clients that were killed."""
