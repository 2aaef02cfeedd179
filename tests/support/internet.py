"""A fake internet of a few names whose public addresses all lead to one HTTPS server of the test.

It replaces system functions: DNS, routes to public addresses, and trusted authorities.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpcore2
import httpx2
import pytest
from signing_keys import certificate

PUBLIC = "93.184.216.34"


@dataclass(frozen=True)
class Request:
    """A received request."""

    host: str
    method: str
    path: str
    headers: dict[str, str]


@dataclass(frozen=True)
class Reply:
    """A prepared response."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""


@dataclass
class Internet:
    """The fake internet; `answer` responds to each request."""

    answer: Callable[[Request], Reply]
    names: dict[str, list[str]] = field(default_factory=dict)
    """Addresses of each name: each DNS query takes the next one, the last one stays."""
    requests: list[Request] = field(default_factory=list)
    connected: list[tuple[str, int]] = field(default_factory=list)
    """Addresses of opened connections."""


@contextmanager
def internet(folder: Path, monkeypatch: pytest.MonkeyPatch, net: Internet) -> Iterator[Internet]:
    """Install the fake internet until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._send_reply()

        def do_GET(self) -> None:
            self._send_reply()

        def _send_reply(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(headers.get("host", ""), self.command, self.path, headers)
            net.requests.append(request)
            reply = net.answer(request)
            self.send_response(reply.status)
            for name, value in {**reply.headers, "Content-Length": str(len(reply.body)), "Connection": "close"}.items():
                self.send_header(name, value)
            with suppress(OSError):  # a client that refuses the status disconnects before the end
                self.end_headers()
                self.wfile.write(reply.body.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    cert, private = certificate(folder, *net.names)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, private)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    _replace_resolver(monkeypatch, net, server.server_address[1], cert)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield net
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _replace_resolver(monkeypatch: pytest.MonkeyPatch, net: Internet, port: int, authority: Path) -> None:
    ask, connect = socket.getaddrinfo, httpcore2.AnyIOBackend.connect_tcp

    def getaddrinfo(host, *args, **options):
        if host not in net.names:
            return ask(host, *args, **options)
        addresses = net.names[host]
        address = addresses.pop(0) if len(addresses) > 1 else addresses[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]

    async def connect_tcp(self, host, asked, *args, **options):
        net.connected.append((host, asked))
        if host != PUBLIC:
            raise httpcore2.ConnectError(f"a connection to {host} was made")
        return await connect(self, "127.0.0.1", port, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(httpcore2.AnyIOBackend, "connect_tcp", connect_tcp)
    monkeypatch.setattr(httpx2, "create_ssl_context", lambda **options: ssl.create_default_context(cafile=authority))
