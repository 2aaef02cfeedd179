"""Interactive login at a server: OAuth's authorization code flow with a browser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from secrets import compare_digest
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull
from pydantic import AnyUrl
from typing_extensions import override

from perstack.core.definitions.skills import McpSseSkill, OAuth
from perstack.errors import SkillError
from perstack.ports.skill import SkillContext
from perstack_mcp.login_store import Login, LoginFile
from perstack_mcp.oauth import ClientMetadata, ProviderLogin, Tokens
from perstack_mcp.remote_server import RemoteServer, login_file_of, oauth_of
from perstack_mcp.session import McpSession
from perstack_mcp.stored_login import login_of


class PersonalLogin(ProviderLogin):
    """Authorization code flow with PKCE. `ask` sends the person to an address and returns the callback."""

    def __init__(
        self,
        endpoint: str,
        settings: OAuth,
        redirect_uri: str,
        ask: Callable[[str, str], Awaitable[AuthorizationCodeResult]],
        file: LoginFile,
    ) -> None:
        """Prepare a login whose tokens are written to `file`."""
        stored_login = file.read()
        missing_scopes = None if stored_login is None else stored_login.wanted
        is_document = (settings.client_id or "").startswith("https://")
        tokens = Tokens(None if is_document else _known_client(settings, redirect_uri))
        provider = OAuthClientProvider(
            endpoint,
            ClientMetadata.of(settings, missing_scopes, redirect_uris=[redirect_uri], client_name="Perstack"),
            tokens,
            self._remember_url,
            self._await_callback,
            client_metadata_url=settings.client_id if is_document else None,
        )
        super().__init__(settings, provider, tokens)
        self._flow_state = provider.context
        self._login = Login(endpoint=endpoint, wanted=missing_scopes)
        self._ask = ask
        self._file = file
        self._url = ""
        self._requests: set[tuple[str, str | None]] = set()
        self.is_done = False

    async def _remember_url(self, url: str) -> None:
        """Keep the login's address for `_await_callback`. Raises OAuthFlowError if it was requested before."""
        self.check_issuer()
        request = url.partition("?")[0], self._flow_state.client_metadata.scope
        if request in self._requests:
            raise OAuthFlowError("the server rejects the login that it requested")
        self._requests.add(request)
        self._url = url

    async def _await_callback(self) -> AuthorizationCodeResult:
        return await self._ask(self._url, str(httpx2.URL(self._url).params["state"]))

    @override
    async def keep(self) -> None:
        async with self._file.locked():
            self._file.write(login_of(self._flow_state, self._login, self._settings))
        self.is_done = True


def _known_client(settings: OAuth, redirect_uri: str) -> OAuthClientInformationFull | None:
    if settings.client_id is None:
        return None
    return OAuthClientInformationFull(
        client_id=settings.client_id,
        client_secret=settings.client_secret,
        token_endpoint_auth_method="client_secret_basic" if settings.client_secret else None,
        redirect_uris=[AnyUrl(redirect_uri)],
    )


# Loopback redirection (RFC 8252): the browser returns to an address of this machine.

PATH = "/callback"

_MAX_REQUEST_BYTES = 16_384
_REQUEST_TIMEOUT_S = 10.0  # seconds that a browser may take to send its request

_PAGE = "<!doctype html><meta charset=utf-8><title>Perstack</title><p>{}</p>"
_DONE = "Perstack has received the answer. You may close this window."
_UNEXPECTED = "This is not the answer to the login that Perstack is waiting for."


class CallbackServer:
    """Listener for the browser's callback. Requests without an expected state are rejected and do not end the login."""

    def __init__(self) -> None:
        self._expected: dict[str, asyncio.Future[dict[str, str]]] = {}
        self.redirect_uri = ""

    @classmethod
    @asynccontextmanager
    async def listen(cls) -> AsyncGenerator[CallbackServer]:
        """Listen on a free port of 127.0.0.1."""
        loopback = cls()
        server = await asyncio.start_server(loopback._serve_connection, "127.0.0.1", 0, limit=_MAX_REQUEST_BYTES)
        async with server:
            port = server.sockets[0].getsockname()[1]
            loopback.redirect_uri = f"http://127.0.0.1:{port}{PATH}"
            yield loopback

    def expect(self, state: str) -> asyncio.Future[dict[str, str]]:
        """Return a future of the callback's parameters for this state (RFC 6749, sections 4.1.2 and 4.1.2.1)."""
        return self._expected.setdefault(state, asyncio.get_running_loop().create_future())

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request of a browser. Errors end only its connection."""
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                status, text = self._handle_request(head.decode("latin-1").partition("\r\n")[0])
                body = _PAGE.format(text).encode()
                length = f"Content-Length: {len(body)}\r\nConnection: close\r\nCache-Control: no-store"
                writer.write(f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\n{length}\r\n\r\n".encode() + body)
                await writer.drain()
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, TimeoutError):
            pass
        finally:
            writer.close()

    def _handle_request(self, line: str) -> tuple[str, str]:
        """Pass the callback's parameters to the login that expects its state. Return status and text."""
        method, _, rest = line.partition(" ")
        target = urlsplit(rest.partition(" ")[0])
        answer = {name: values[0] for name, values in parse_qs(target.query).items()}
        state = answer.get("state", "")
        callback = next(
            (
                callback
                for expected_state, callback in self._expected.items()
                if compare_digest(expected_state.encode(), state.encode())
            ),
            None,
        )
        if method != "GET" or target.path != PATH or callback is None:
            return "404 Not Found", _UNEXPECTED
        if not callback.done():
            callback.set_result(answer)
        return "200 OK", _DONE


LOGIN_TIMEOUT_S = 300  # seconds that a person has to log in

_CONNECT_TIMEOUT_S = 60  # seconds for the rest of the connection


async def log_in(definition: McpSseSkill, context: SkillContext, present: Callable[[str], Awaitable[None]]) -> None:
    """Connect to a server with an interactive login (`perstack login`). Raises SkillError."""
    settings = oauth_of(definition, context.env)
    name = definition.name
    if settings.flow != "authorizationCode":
        raise SkillError(f"skill {name!r} needs no login: it logs in by itself ({settings.flow})")
    if any(header.casefold() == "authorization" for header in definition.headers):
        raise SkillError(f"skill {name!r} needs no login: its `headers` have an Authorization")
    async with CallbackServer.listen() as loopback:

        async def ask(url: str, state: str) -> AuthorizationCodeResult:
            if not definition.allow_local_network and urlsplit(url).scheme != "https":
                raise SkillError(
                    f"the server requests a login at an address that is not https://: {url.partition('?')[0]}"
                )
            answer = loopback.expect(state)
            await present(url)
            return _convert_callback(await _await_with_timeout(answer))

        auth = PersonalLogin(
            definition.endpoint, settings, loopback.redirect_uri, ask, login_file_of(definition, context.env)
        )
        mcp_session = McpSession(RemoteServer(definition, context, auth), (LOGIN_TIMEOUT_S + _CONNECT_TIMEOUT_S) * 1000)
        try:
            await mcp_session.tools()
        except SkillError as error:
            if auth.is_done:
                raise SkillError(f"you are logged in, but the connection failed: {error}") from error
            raise
        finally:
            await mcp_session.close()
    if not auth.is_done:
        raise SkillError(f"skill {name!r} needs no login: its server accepts connections without one")


async def _await_with_timeout(answer: asyncio.Future[dict[str, str]]) -> dict[str, str]:
    try:
        async with asyncio.timeout(LOGIN_TIMEOUT_S):
            return await answer
    except TimeoutError as error:
        raise SkillError(f"there was no login within {LOGIN_TIMEOUT_S} s") from error


def _convert_callback(answer: dict[str, str]) -> AuthorizationCodeResult:
    """Return the authorization code. Raises SkillError if the authorization server refused."""
    if "error" in answer:
        message = ": ".join(answer[name] for name in ("error", "error_description") if name in answer)
        raise SkillError(f"the authorization server refused the login: {message}")
    return AuthorizationCodeResult(code=answer.get("code", ""), state=answer["state"], iss=answer.get("iss"))
