"""The server over streamable HTTP, for several clients at once."""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import stat
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path

import uvicorn
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from perstack.config.places import find_config
from perstack.engine.notices import notice
from perstack.errors import UsageError
from perstack.frontends.mcp_server.server import build_server
from perstack.frontends.mcp_server.workspaces import Offer, OpenRoot, Workspace, Workspaces, serving_all
from perstack.frontends.stopping import stop_signals
from perstack.frontends.tasks.http import is_open, routes

PATH = "/mcp"
TOKEN_VARIABLE = "PERSTACK_MCP_TOKEN"  # noqa: S105 - the name of a variable

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_LARGEST_REQUEST = 16 << 20
_PATIENCE = 5
"""Seconds for open connections to end once the Jobs have been stopped."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int
    """0: any that is free."""

    @classmethod
    def parse(cls, text: str) -> Address:
        """`HOST:PORT`, `[::1]:PORT`, or `PORT` on loopback. Raises UsageError."""
        host, separator, port = text.rpartition(":")
        if not port.isdigit() or int(port) > 65535 or (separator and not host):
            raise UsageError(f"--http {text}: write HOST:PORT, such as 127.0.0.1:8765")
        return cls(host.strip("[]") or "127.0.0.1", int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def is_everywhere(self) -> bool:
        """Whether it is no one address, but all that the machine has."""
        try:
            return ip_address(self.host).is_unspecified
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class Guard:
    """Who is let in."""

    address: Address
    token: str | None
    names: tuple[str, ...] = ()
    """Names that clients know the server by, besides its address."""

    def check(self) -> None:
        """Raises UsageError if strangers could get in."""
        if self.token is None and not self.address.is_loopback:
            raise UsageError(
                f"{self.address.host} can be reached by others: set {TOKEN_VARIABLE} to a long secret, which clients"
                " send as `Authorization: Bearer …`"
            )
        if self.address.is_everywhere and not self.names:
            raise UsageError(f"{self.address.host} is no name for clients: say by --allow-host which one they use")

    def security(self) -> TransportSecuritySettings:
        """Which Host and Origin are answered: against DNS rebinding (MCP, transports, security warning)."""
        own = (
            ()
            if self.address.is_everywhere
            else (f"[{self.address.host}]" if ":" in self.address.host else self.address.host,)
        )
        names = dict.fromkeys((*_LOOPBACK, *own, *self.names))
        return TransportSecuritySettings(
            allowed_hosts=[host for name in names for host in (name, f"{name}:*")],
            allowed_origins=[
                origin
                for name in names
                for scheme in ("http", "https")
                for origin in (f"{scheme}://{name}", f"{scheme}://{name}:*")
            ],
        )


async def serve_http(offer: Offer, guard: Guard) -> None:
    """Serve until a signal comes. The Jobs that are driven then are recorded as interrupted.

    Raises UsageError if the address cannot be listened on.
    """
    guard.check()
    async with serving_all(replace(offer, open_root=_only_own(offer.open_root))) as workspaces:
        with _listening(guard.address) as listener:
            app = build_server(workspaces).streamable_http_app(
                custom_starlette_routes=routes(workspaces.home.host.memory),
                streamable_http_path=PATH,
                transport_security=guard.security(),
                max_request_body_size=_LARGEST_REQUEST,
            )
            server = _Server(
                uvicorn.Config(
                    _Door(app, guard),
                    http="h11",  # the other parser leaves blanks after a header's value, which mean nothing
                    log_level="warning",
                    access_log=False,
                    timeout_graceful_shutdown=_PATIENCE,
                )
            )
            with _stopped_by_signals(workspaces, server):
                notice(f"serving MCP at {_url(listener)}")
                await server.serve([listener])


def _only_own(open_root: OpenRoot | None) -> OpenRoot | None:
    """Not what another user of this machine has laid out: whoever reaches a port names the folder, and a definition
    is a program.
    """
    if open_root is None:
        return None

    def opened(folder: Path) -> Workspace:
        config = find_config(folder)
        for path in (folder, *((config, config.parent) if config is not None else ())):
            found = path.stat()
            if found.st_uid != os.geteuid() or found.st_mode & stat.S_IWOTH:
                raise UsageError(f"{path} is another user's, or everyone can write to it: over HTTP it is not served")
        return open_root(folder)

    return opened


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Signals are ours: the Jobs are stopped first, so that the calls that wait for them can end."""
        yield


class _Door:
    """Lets in who knows the token (RFC 6750), and who asks for this server by one of its names."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._expected = None if guard.token is None else f"Bearer {guard.token}".encode()
        self._names = TransportSecurityMiddleware(guard.security())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refusal = await self._names.validate_request(Request(scope)) or self._unknown(scope)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _unknown(self, scope: Scope) -> Response | None:
        if self._expected is None or is_open(scope["path"]):
            return None
        given = dict(scope["headers"]).get(b"authorization", b"")
        if hmac.compare_digest(given, self._expected):
            return None
        return PlainTextResponse("unauthorized", 401, {"WWW-Authenticate": "Bearer"})


@contextmanager
def _listening(address: Address) -> Generator[socket.socket]:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        listener = socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        raise UsageError(f"--http {address.host}:{address.port}: {error.strerror or error}") from error
    with listener:
        yield listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{PATH}"


@contextmanager
def _stopped_by_signals(workspaces: Workspaces, server: uvicorn.Server) -> Generator[None]:
    loop = asyncio.get_running_loop()
    stopping: list[asyncio.Task[None]] = []

    async def stop() -> None:
        await workspaces.stop_jobs()
        server.should_exit = True

    def on_signal() -> None:
        if stopping:
            server.force_exit = True
        stopping.append(asyncio.create_task(stop()))

    signals = stop_signals()
    for number in signals:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
