"""An HTTP proxy between a client and a server that fails a chosen request."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

Way = Literal["lost", "unanswered", "busy"]
"""The request is cut off before it is forwarded; its response is cut off; it is refused with 503, not forwarded."""

Kill = Literal["kill before", "kill after"]
"""The client is killed with SIGKILL right before a write is forwarded, or after it was done."""


class Cutting:
    """Counter of requests that fails the one with a chosen number, from 1; none at first."""

    def __init__(self, server: str) -> None:
        self.server = urlsplit(server)
        self.requests = 0
        self.most_at_once = 0
        """Maximum number of concurrent requests."""
        self._under_way = 0
        self.kill: Callable[[], None] = lambda: None
        """Kills the client."""
        self.line: float | None = None
        """Bytes per second of a slow line to the client; None if it is not limited."""
        self._fails_at = 0
        self._way: Way | Kill = "lost"
        self._is_gone = False
        self._lock = threading.Lock()

    def fail(self, number: int, way: Way | Kill) -> None:
        """Restart the count, and fail the request with that number once. Kills count writes only."""
        with self._lock:
            self.requests, self._fails_at, self._way = 0, number, way

    @contextmanager
    def gone(self) -> Iterator[None]:
        """Cut off all requests and responses during the block, as if the server were gone."""
        self._is_gone = True
        try:
            yield
        finally:
            self._is_gone = False

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Count a forwarded request during the block."""
        with self._lock:
            self._under_way += 1
            self.most_at_once = max(self.most_at_once, self._under_way)
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1

    def way(self, command: str) -> Way | Kill | None:
        """Return what to do with the next request."""
        with self._lock:
            if self._is_gone:
                return "lost"
            if self._way in ("kill before", "kill after") and command in ("GET", "HEAD"):
                return None
            self.requests += 1
            return self._way if self.requests == self._fails_at else None

    def pieces(self, size: int) -> Iterator[int]:
        """Yield the sizes of the pieces in which `size` bytes pass the line, each when it is due."""
        while size:
            piece = min(size, _PIECE)
            if self.line is not None:
                time.sleep(piece / self.line)  # the delay of a slow line
            yield piece
            size -= piece

    @property
    def is_gone(self) -> bool:
        """Return whether responses are cut off too."""
        return self._is_gone


_PIECE = 1 << 16


@contextmanager
def cutting(server: str) -> Iterator[tuple[str, Cutting]]:
    """Yield the address of a proxy for that server, and its state."""
    state = Cutting(server)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # write the response at once: otherwise the kernel waits for the client's ACK in between
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

        def _forward(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = b"".join([self.rfile.read(piece) for piece in state.pieces(size)])
            way = state.way(self.command)
            if way == "kill before":
                state.kill()
            if way in ("lost", "kill before"):
                self.close_connection = True
                return
            if way == "busy":
                self._answer(503, [("Content-Type", "text/plain")], b"slow down")
                return
            connection = http.client.HTTPConnection(state.server.hostname or "", state.server.port, timeout=30)
            with state.under_way():
                connection.request(self.command, self.path, body, dict(self.headers))
                answer = connection.getresponse()
                data = answer.read()
            connection.close()
            if way == "kill after":
                state.kill()
            if way in ("unanswered", "kill after") or state.is_gone:
                self.close_connection = True
                return
            kept_headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in _OURS]
            if self.command == "HEAD":
                kept_headers.append(("Content-Length", answer.headers.get("Content-Length") or "0"))
            self._answer(answer.status, kept_headers, data)

        def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers:
                self.send_header(name, value)
            if self.command != "HEAD":
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            at = 0
            for piece in state.pieces(len(data)):
                self.wfile.write(data[at : at + piece])
                if state.line is not None:
                    self.wfile.flush()
                at += piece

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _forward

    server_here = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server_here.daemon_threads = True
    thread = threading.Thread(target=server_here.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server_here.server_address[1]}", state
    finally:
        server_here.shutdown()
        thread.join()
        server_here.server_close()


_OURS = {"connection", "transfer-encoding", "content-length", "keep-alive", "server"}
