"""Admission of browsers: names, one-time links, cookies, and what a page may load.

A key in a link and the value of a cookie are an expiry, a nonce and a MAC: the studio keeps no list of sessions, so a
browser stays known when the server is restarted. Removing the file of the secret ends all sessions. A link works once,
within ten minutes. Links from before the server's start are refused, since the used ones are only kept in memory.
"""

from __future__ import annotations

import hmac
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import field
from hashlib import sha256
from typing import Literal
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perstack.dataclass import dataclass
from perstack.doors.shared.http_connections import connection_of
from perstack.system.clock import Clock

LINK_MS = 10 * 60_000  # milliseconds for which a link can be used
SESSION_MS = 30 * 24 * 3_600_000  # milliseconds for which a browser stays known
LOOPBACK_NAMES: tuple[str, ...] = ("127.0.0.1", "localhost", "::1")
MAX_USED_LINKS = 10_000
_NONCE_BYTES = 6  # tells apart what is made in one millisecond; only the MAC is a secret
_MAC_BYTES = 16  # 128 bits cannot be guessed, and a link with them fits into 80 columns

_Purpose = Literal["link", "session"]

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer a browser sends forms with `Origin: null`
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every response. A response may set another value."""


@dataclass(slots=True)
class StudioAccess:
    """The secret of a project's studio, and the names under which it may be called."""

    secret: str
    clock: Clock
    names: tuple[str, ...] = LOOPBACK_NAMES  # accepted host names
    is_secure: bool = False  # True with TLS, here or in a proxy: the cookie is only sent over TLS
    used_links: dict[str, int] = field(default_factory=dict[str, int])  # expiry of each used link, by its key
    started_at: int = 0  # milliseconds since 1970; links made earlier are refused

    @property
    def cookie_name(self) -> str:
        """Name of the cookie. It differs between projects, since cookies do not tell ports apart."""
        return f"perstack_studio_{sha256(self.secret.encode()).hexdigest()[:8]}"

    def new_key(self) -> str:
        return self._sign("link", self.clock.now() + LINK_MS)

    def enter(self, key: str) -> str | None:
        """Return the value of the cookie for the key of a link; None if it is forged, has expired or was used."""
        now = self.clock.now()
        expiry = self._verify("link", key)
        if expiry is None or key in self.used_links or expiry - LINK_MS < self.started_at:
            return None
        self.used_links = {used: until for used, until in self.used_links.items() if until > now}
        if len(self.used_links) >= MAX_USED_LINKS:
            return None
        self.used_links[key] = expiry
        return self._sign("session", now + SESSION_MS)

    def admits(self, headers: Headers) -> bool:
        """Return whether a request has the cookie of a known browser."""
        value = cookie_parser(headers.get("cookie", "")).get(self.cookie_name, "")
        return self._verify("session", value) is not None

    def is_own_name(self, host: str) -> bool:
        """Return whether the value of a Host header is a name of this server, against DNS rebinding."""
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        return name in self.names

    def form_token(self, headers: Headers) -> str:
        """Return the token that the forms of this browser's pages carry."""
        value = cookie_parser(headers.get("cookie", "")).get(self.cookie_name, "")
        return self._mac("session", f"form {value}")

    def _sign(self, purpose: _Purpose, expiry: int) -> str:
        text = f"{expiry}.{secrets.token_urlsafe(_NONCE_BYTES)}"
        return f"{text}.{self._mac(purpose, text)}"

    def _verify(self, purpose: _Purpose, value: str) -> int | None:
        """Return the expiry of a value; None if this studio did not sign it or it has expired."""
        text, _, mac = value.rpartition(".")
        if not value.isascii() or not hmac.compare_digest(mac, self._mac(purpose, text)):
            return None
        expiry = int(text.partition(".")[0])
        return expiry if expiry > self.clock.now() else None

    def _mac(self, purpose: _Purpose, text: str) -> str:
        mac = hmac.new(self.secret.encode(), f"{purpose} {text}".encode(), sha256).digest()
        return urlsafe_b64encode(mac[:_MAC_BYTES]).decode().rstrip("=")


class StudioAccessMiddleware:
    """ASGI middleware: refuses unknown names, origins and browsers, and sets `HEADERS` on every response."""

    def __init__(self, app: ASGIApp, access: StudioAccess) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request that is admitted; answer any other."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        connection = connection_of(scope)
        if refusal is not None or connection is None or not self._access.admits(Headers(scope=scope)):
            await (self._app if refusal is None else refusal)(scope, receive, send_with_headers)
            return

        async def receive_in_time() -> Message:
            message = await receive()
            if not message.get("more_body"):
                connection.stop_deadline()
            return message

        # No deadline while the application answers: a page may take longer than a request, and a stream has no end.
        connection.set_authenticated()
        if scope["method"] in ("GET", "HEAD"):
            connection.stop_deadline()
        try:
            await self._app(scope, receive_in_time, send_with_headers)
        finally:
            connection.restart_deadline()

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        """Return the response that refuses a request; None if it is admitted."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or not self._access.is_own_name(host):
            return PlainTextResponse("this is not a name of this studio: see --tls-cert and --behind-proxy", 421)
        origin = headers.get("origin")
        if origin is not None and not _is_own_origin(origin, host, scope["scheme"]):
            return PlainTextResponse("this request comes from another page", 403)
        if scope["method"] not in ("GET", "HEAD") and origin is None:
            return PlainTextResponse("a form is sent by a page of this server, so it has an Origin", 403)
        if scope["path"] == ENTER or scope["path"].startswith("/static/") or self._access.admits(headers):
            return None
        return PlainTextResponse(
            "Open the link that `perstack studio` printed at its terminal. `perstack studio --link` prints another.",
            401,
        )


def _is_own_origin(origin: str, host: str, scheme: str) -> bool:
    """Return whether an Origin is this server's. Over TLS, a page that came without it is another's."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.netloc == host and (scheme != "https" or parts.scheme == scheme)


ENTER = "/enter"  # the path of a one-time link
