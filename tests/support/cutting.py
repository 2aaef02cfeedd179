"""A server of HTTP between a client and another: it passes requests on, and fails one of them."""

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
"""The request is cut off before it is passed on; its answer is; it is refused with 503, and not passed on."""

Kill = Literal["kill before", "kill after"]
"""The client ends by SIGKILL right before a write is passed on, or when it was done."""


class Cutting:
    """Counts requests, and fails the one of a number, from 1 on; none at first."""

    def __init__(self, server: str) -> None:
        self.server = urlsplit(server)
        self.requests = 0
        self.most_at_once = 0
        """How many were under way at a time, at most."""
        self._under_way = 0
        self.kill: Callable[[], None] = lambda: None
        """Ends the client."""
        self.line: float | None = None
        """Bytes a second of a slow line to the client; None if it is quick."""
        self._fails_at = 0
        self._way: Way | Kill = "lost"
        self._is_gone = False
        self._lock = threading.Lock()

    def fail(self, number: int, way: Way | Kill) -> None:
        """Count anew, and fail the request of that number once; those that kill count writes only."""
        with self._lock:
            self.requests, self._fails_at, self._way = 0, number, way

    @contextmanager
    def gone(self) -> Iterator[None]:
        """Meanwhile no request is passed on, and no answer: all are cut off, as by a server that is not there."""
        self._is_gone = True
        try:
            yield
        finally:
            self._is_gone = False

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """While one is passed on."""
        with self._lock:
            self._under_way += 1
            self.most_at_once = max(self.most_at_once, self._under_way)
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1

    def way(self, command: str) -> Way | Kill | None:
        """What is done to the next request."""
        with self._lock:
            if self._is_gone:
                return "lost"
            if self._way in ("kill before", "kill after") and command in ("GET", "HEAD"):
                return None
            self.requests += 1
            return self._way if self.requests == self._fails_at else None

    def pieces(self, size: int) -> Iterator[int]:
        """In which pieces so many bytes come over the line, each when it is time for it."""
        while size:
            piece = min(size, _PIECE)
            if self.line is not None:
                time.sleep(piece / self.line)  # what a slow line is
            yield piece
            size -= piece

    @property
    def is_gone(self) -> bool:
        """Whether answers are cut off too."""
        return self._is_gone


_PIECE = 1 << 16


@contextmanager
def cutting(server: str) -> Iterator[tuple[str, Cutting]]:
    """The address of one before that server, and its count."""
    state = Cutting(server)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # an answer in one write: else the kernel waits for the client's word in between
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

        def _pass_on(self) -> None:
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
            there = http.client.HTTPConnection(state.server.hostname or "", state.server.port, timeout=30)
            with state.under_way():
                there.request(self.command, self.path, body, dict(self.headers))
                answer = there.getresponse()
                data = answer.read()
            there.close()
            if way == "kill after":
                state.kill()
            if way in ("unanswered", "kill after") or state.is_gone:
                self.close_connection = True
                return
            kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in _OURS]
            if self.command == "HEAD":
                kept.append(("Content-Length", answer.headers.get("Content-Length") or "0"))
            self._answer(answer.status, kept, data)

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

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

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
