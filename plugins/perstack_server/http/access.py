"""Access to the HTTP server: its allowed names, the token, and limits on request bodies."""

from __future__ import annotations

import hmac

from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perstack.core.base.records import read_json
from perstack.dataclass import dataclass
from perstack.doors.shared.http_connections import ListenAddress, connection_of
from perstack.errors import UsageError
from perstack_server.http.routes import MAX_BODY_BYTES, is_open
from perstack_server.mcp.notifications import MAY_DECIDE

# Request bodies are read completely, and checked to be JSON that can be stored.


class _BodyTooLarge(Exception):
    """Error for a body that is larger than allowed."""


class _ClientGone(Exception):
    """Error for a client that closed the connection before its request was complete."""


async def _read_body(receive: Receive, max_bytes: int) -> bytes:
    """Return the request's body. Raises _BodyTooLarge above `max_bytes`, _ClientGone if the client closed first."""
    content = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise _ClientGone
        content += message.get("body", b"")
        if len(content) > max_bytes:
            raise _BodyTooLarge
        if not message.get("more_body", False):
            return bytes(content)


def _replay_body(body: bytes, receive: Receive) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again


def problem_of(body: bytes) -> str | None:
    """Return why a body is not JSON that can be stored (depth, NaN, lone surrogates); None if it is."""
    try:
        read_json(body)
    except ValueError as error:
        return f"the body is not JSON: {error}"
    return None


TOKEN_VARIABLE = "PERSTACK_MCP_TOKEN"  # noqa: S105 - the name of an environment variable
DECISION_VARIABLE = "PERSTACK_DECISION_TOKEN"
MIN_TOKEN_CHARS = 32  # minimum characters of a token

PATH = "/mcp"
MAX_REQUEST_BYTES = 16 << 20
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_CLOSE = {"Connection": "close"}
_PARSE_ERROR = -32700


@dataclass(frozen=True, slots=True)
class AccessRules:
    """Names and tokens with which clients may use the server at an address."""

    address: ListenAddress
    token: str | None  # None only for a Unix socket, where the system reports the peer's user
    decision_token: str | None = None  # token that also gives the right to make a person's decisions; None without one
    names: tuple[str, ...] = ()  # host names that clients may use, in addition to the address

    def check(self) -> None:
        """Raise UsageError if unauthorized clients could connect or make decisions."""
        if self.decision_token is not None:
            _check_length(DECISION_VARIABLE, self.decision_token)
            if self.decision_token == self.token:
                raise UsageError(f"{DECISION_VARIABLE} is the same as {TOKEN_VARIABLE}: every client could decide")
        if self.address.socket_path is not None:
            return
        if self.token is None:
            raise UsageError(
                f"{self.address.host} can be reached by others: set {TOKEN_VARIABLE} to a secret of {MIN_TOKEN_CHARS}"
                " characters or more, which clients send as `Authorization: Bearer …`"
            )
        _check_length(TOKEN_VARIABLE, self.token)
        if self.address.is_everywhere and not self.names:
            raise UsageError(f"{self.address.host} is not a name that clients can use: name theirs with --allow-host")

    def security(self) -> TransportSecuritySettings:
        """Return the accepted Host and Origin values, against DNS rebinding (MCP, transports, security warning)."""
        own_names = (
            ()
            if self.address.is_everywhere
            else (f"[{self.address.host}]" if ":" in self.address.host else self.address.host,)
        )
        names = dict.fromkeys((*_LOOPBACK, *own_names, *self.names))
        return TransportSecuritySettings(
            allowed_hosts=[host for name in names for host in (name, f"{name}:*")],
            allowed_origins=[
                origin
                for name in names
                for scheme in ("http", "https")
                for origin in (f"{scheme}://{name}", f"{scheme}://{name}:*")
            ],
        )


def _check_length(name: str, token: str) -> None:
    if len(token) < MIN_TOKEN_CHARS:
        raise UsageError(
            f"{name} has {len(token)} characters, so it can be guessed: use one of"
            f" {MIN_TOKEN_CHARS} or more, as with `openssl rand -hex 32`"
        )


class AccessMiddleware:
    """ASGI middleware that passes on complete requests with the token (RFC 6750) and an accepted server name."""

    def __init__(self, app: ASGIApp, access_rules: AccessRules) -> None:
        self._app = app
        self._expected = _bearer(access_rules.token)
        self._expected_to_decide = _bearer(access_rules.decision_token)
        self._names = TransportSecurityMiddleware(access_rules.security())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the names and the token, then read the whole body, then call the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        connection = connection_of(scope)
        refusal = await self._names.validate_request(Request(scope)) or self._check_token(scope)
        if refusal is not None:
            # Close the connection rather than read the body of a refused request.
            refusal.headers.update(_CLOSE)
            await refusal(scope, receive, send)
            return
        if connection is not None and not is_open(scope["path"]):
            connection.set_authenticated()
        try:
            body = await _read_body(receive, MAX_BODY_BYTES if is_open(scope["path"]) else MAX_REQUEST_BYTES)
        except _ClientGone:
            return
        except _BodyTooLarge:
            await PlainTextResponse("the body is too large", 413, _CLOSE)(scope, receive, send)
            return
        if connection is not None:
            connection.stop_deadline()
        problem = problem_of(body) if body.strip() else None
        app = self._app if problem is None else _bad_request(scope["path"], problem)
        await app(scope, _replay_body(body, receive), send)
        if connection is not None:
            connection.restart_deadline()

    def _check_token(self, scope: Scope) -> Response | None:
        """Return the refusal of a request without a valid token; otherwise None. Marks a caller that may decide."""
        token_header = dict(scope["headers"]).get(b"authorization", b"")
        if self._expected_to_decide is not None and hmac.compare_digest(token_header, self._expected_to_decide):
            scope[MAY_DECIDE] = True
            return None
        if self._expected is None or is_open(scope["path"]) or hmac.compare_digest(token_header, self._expected):
            return None
        return PlainTextResponse("unauthorized", 401, {"WWW-Authenticate": "Bearer"})


def _bearer(token: str | None) -> bytes | None:
    return None if token is None else f"Bearer {token}".encode()


def _bad_request(path: str, problem: str) -> Response:
    """Return the refusal of an invalid body, as a JSON-RPC error for MCP and otherwise as problem details."""
    if path == PATH:
        error = {"jsonrpc": "2.0", "id": None, "error": {"code": _PARSE_ERROR, "message": problem}}
        return JSONResponse(error, 400)
    details = {"title": UsageError.__name__, "detail": problem, "status": 400}
    return JSONResponse(details, 400, media_type="application/problem+json")
