"""An MCP server over streamable HTTP in this process whose sessions a test can lose, as a restart does."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Condition, Thread
from typing import Any

JSON, EVENTS = "application/json", "text/event-stream"
PLAIN = (404, "text/plain", "Not Found")
Refusal = tuple[int, str, str]


class SessionServer:
    """Server that counts its requests, and misbehaves as a test sets it."""

    def __init__(self) -> None:
        self.refusal: Refusal = PLAIN  # how a request of an unknown session is refused
        self.tools: list[dict[str, Any]] = [tool("hello"), tool("slow")]
        self.asked: Counter[str] = Counter()  # requests by method, those that were refused too
        self.executed: list[str] = []  # calls that had their effect, by the key of the call
        self.versions = ["2025-06-18"]  # revision of each new session; the last stays
        self.forgets_always = False  # True if no session lives longer than its handshake
        self.gives_sessions = True
        self.stream_refusal: int | None = None  # status in place of a stream of its own messages
        self.greets: Callable[[], Refusal | None] = lambda: None  # refuses a handshake
        self.before_call: Callable[[str, str], None] = lambda name, session: None
        self.on_call: Callable[[dict[str, Any]], tuple[int, str, bytes] | None] = lambda message: None
        self.headers: dict[str, str] = {}  # further headers of answers that `on_call` makes
        self.sent_with_greeting: list[str | None] = []  # session ids that came with a handshake
        self.sessions: list[str] = []
        self.changed = Condition()
        self.streams = 0  # streams of its own messages that are open
        self.generation = 0
        self._ids = count(1)

    def lose_sessions(self) -> None:
        """Forget every session and end every stream, as a restart does."""
        with self.changed:
            self.sessions.clear()
            self.generation += 1
            self.changed.notify_all()

    def wait_until(self, condition: Callable[[], bool], seconds: float = 20) -> bool:
        with self.changed:
            return self.changed.wait_for(condition, seconds)

    def note(self, method: str) -> None:
        with self.changed:
            self.asked[method] += 1
            self.changed.notify_all()

    def greet(self, message: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
        with self.changed:
            session = f"session-{next(self._ids)}"
            if not self.forgets_always and self.gives_sessions:
                self.sessions.append(session)
            version = self.versions.pop(0) if len(self.versions) > 1 else self.versions[0]
        info = {"name": "sessions", "version": "1"}
        capabilities = {"tools": {"listChanged": True}}
        result = {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}, session if self.gives_sessions else None

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        params = message.get("params") or {}
        if message["method"] == "tools/list":
            result: dict[str, Any] = {"tools": self.tools}
        else:
            with self.changed:
                self.executed.append(params["_meta"]["perstack/callId"])
                self.changed.notify_all()
            result = {"content": [{"type": "text", "text": f"marker42 {params['name']}"}]}
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def tool(name: str, description: str = "") -> dict[str, Any]:
    return {"name": name, "description": description or name, "inputSchema": {"type": "object", "properties": {}}}


def _handler(server: SessionServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["content-length"])))
            method, session = message.get("method", "answer"), self.headers.get("mcp-session-id")
            server.note(method)
            if method == "server/discover":
                error = {"code": -32601, "message": "no such method"}
                return self.reply(200, JSON, {"jsonrpc": "2.0", "id": message["id"], "error": error})
            if method == "initialize":
                server.sent_with_greeting.append(session)
                refused = server.greets()
                if refused is not None:
                    return self.reply(*refused)
                answer, new = server.greet(message)
                return self.reply(200, JSON, answer, new)
            if (
                server.gives_sessions
                and session not in server.sessions
                and not (server.forgets_always and method.startswith("notifications/"))
            ):
                return self.reply(*server.refusal)
            if "id" not in message:
                return self.reply(202, "", b"")
            if method == "tools/call":
                server.before_call(message["params"]["name"], session or "")
                made = server.on_call(message)
                if made is not None:
                    return self.reply(*made, **server.headers)
            return self.reply(200, JSON, server.answer(message))

        def do_GET(self) -> None:
            server.note("GET")
            if server.stream_refusal is not None:
                self.reply(server.stream_refusal, "", b"")
                return
            if self.headers.get("mcp-session-id") not in server.sessions:
                self.reply(404, "text/plain", b"no such session")
                return
            self.wfile.write(
                f"HTTP/1.1 200 OK\r\ncontent-type: {EVENTS}\r\nconnection: close\r\n\r\n: open\n\n".encode()
            )
            self.close_connection = True
            with server.changed:
                generation = server.generation
                server.streams += 1
                server.changed.notify_all()
                server.changed.wait_for(lambda: server.generation != generation, 60)
                server.streams -= 1

        def do_DELETE(self) -> None:
            server.note("DELETE")
            self.reply(200, "", b"")

        def reply(self, status: int, kind: str, body: Any, session: str | None = None, **more: str) -> None:
            data = (
                json.dumps(body).encode()
                if isinstance(body, dict)
                else body
                if isinstance(body, bytes)
                else body.encode()
            )
            head = f"HTTP/1.1 {status} S\r\ncontent-length: {len(data)}\r\n"
            head += f"content-type: {kind}\r\n" if kind else ""
            head += f"mcp-session-id: {session}\r\n" if session else ""
            head += "".join(f"{name}: {value}\r\n" for name, value in more.items())
            self.wfile.write(head.encode() + b"\r\n" + data)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@contextmanager
def listening(server: SessionServer, port: int = 0) -> Iterator[str]:
    """Yield the server's address while it listens."""
    with _Listener(("127.0.0.1", port), _handler(server)) as listener:
        thread = Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.server_address[1]}/mcp"
        finally:
            server.lose_sessions()
            listener.shutdown()
            thread.join()
            listener.close_connections()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, *args: Any) -> None:
        self._open: list[socket.socket] = []
        super().__init__(*args)

    def get_request(self) -> Any:
        connection, address = super().get_request()
        self._open.append(connection)
        return connection, address

    def close_connections(self) -> None:
        for connection in self._open:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def soon(seconds: float, do: Callable[[], object]) -> Thread:
    """Call a function after a delay, in a thread."""

    def later() -> None:
        time.sleep(seconds)
        do()

    thread = Thread(target=later)
    thread.start()
    return thread
