"""Who is let in over HTTP, and with what: names of the server, the token, and bodies within bounds."""

from __future__ import annotations

import hmac

from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from perstack.dataclass import dataclass
from perstack.errors import UsageError
from perstack.frontends.mcp_server.bodies import Gone, TooLarge, problem_of, read, replayed
from perstack.frontends.mcp_server.connections import connection_of
from perstack.frontends.mcp_server.tokens import SHORTEST, TOKEN_VARIABLE
from perstack.frontends.shared.listening import Address
from perstack.frontends.tasks.http import LARGEST, is_open

PATH = "/mcp"
LARGEST_REQUEST = 16 << 20

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_CLOSE = {"Connection": "close"}
_PARSE_ERROR = -32700


@dataclass(frozen=True, slots=True)
class Guard:
    """Who is let in."""

    address: Address
    token: str | None
    """None: only for a Unix socket, where the system says whose the other end is."""
    names: tuple[str, ...] = ()
    """Names that clients know the server by, besides its address."""

    def check(self) -> None:
        """Raises UsageError if strangers could get in."""
        if self.address.socket_path is not None:
            return
        if self.token is None:
            raise UsageError(
                f"{self.address.host} can be reached by others: set {TOKEN_VARIABLE} to a secret of {SHORTEST}"
                " characters or more, which clients send as `Authorization: Bearer …`"
            )
        if len(self.token) < SHORTEST:
            raise UsageError(
                f"{TOKEN_VARIABLE} has {len(self.token)} characters, which can be guessed: make one of {SHORTEST} or"
                " more, as with `openssl rand -hex 32`"
            )
        if self.address.is_everywhere and not self.names:
            raise UsageError(
                f"{self.address.host} is not a name that clients can use: say with --allow-host which one they do"
            )

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


class Door:
    """Lets in whole requests of those who know the token (RFC 6750) and one of the server's names."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._expected = None if guard.token is None else f"Bearer {guard.token}".encode()
        self._names = TransportSecurityMiddleware(guard.security())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        connection = connection_of(scope)
        refusal = await self._names.validate_request(Request(scope)) or self._unknown(scope)
        if refusal is not None:
            # of a request that is refused nothing more is read
            refusal.headers.update(_CLOSE)
            await refusal(scope, receive, send)
            return
        if connection is not None and not is_open(scope["path"]):
            connection.knows()
        try:
            body = await read(receive, LARGEST if is_open(scope["path"]) else LARGEST_REQUEST)
        except Gone:
            return
        except TooLarge:
            await PlainTextResponse("the body is too large", 413, _CLOSE)(scope, receive, send)
            return
        if connection is not None:
            connection.has_request()
        problem = problem_of(body) if body.strip() else None
        answer = self._app if problem is None else _bad(scope["path"], problem)
        await answer(scope, replayed(body, receive), send)
        if connection is not None:
            connection.has_answered()

    def _unknown(self, scope: Scope) -> Response | None:
        if self._expected is None or is_open(scope["path"]):
            return None
        given = dict(scope["headers"]).get(b"authorization", b"")
        if hmac.compare_digest(given, self._expected):
            return None
        return PlainTextResponse("unauthorized", 401, {"WWW-Authenticate": "Bearer"})


def _bad(path: str, problem: str) -> Response:
    if path == PATH:
        error = {"jsonrpc": "2.0", "id": None, "error": {"code": _PARSE_ERROR, "message": problem}}
        return JSONResponse(error, 400)
    told = {"title": UsageError.__name__, "detail": problem, "status": 400}
    return JSONResponse(told, 400, media_type="application/problem+json")
