"""An MCP server of the SDK that wants a login, with its authorization server; prints its port.

Its path, which is its argument, is /mcp, or /sse for that transport. It registers every client and lets every person
in. `/did` lists what was asked of it, and `/reset` makes it new. `/expire` makes it forget the access tokens, `/revoke`
the refresh tokens too. `/deny` lets nobody in, `/restrict` makes the tool ask for one more scope, `/down` gives no more
tokens, and after `/unsaid` it no longer says how long a token is good for. After `/machine` the client `known` gets
tokens for its secret alone, or for an assertion of the identity provider at `/identity`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import socket
import sys
import time
from collections.abc import Mapping

import uvicorn
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    AuthorizeError,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyUrl
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

SCOPES = ["read", "write"]


class Known(OAuthClientInformationFull):
    """A client that somebody has registered, for a loopback address with whatever port (RFC 8252, section 7.3)."""

    def validate_redirect_uri(self, redirect_uri: AnyUrl | None) -> AnyUrl:
        assert redirect_uri is not None
        return redirect_uri


class Provider:
    """Everything in memory; refresh tokens are good for one use."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.lifetime: int | None = 3600
        self.did: list[str] = []
        self.denies = False
        self.restricts = False
        self.is_down = False
        self.takes_machines = False
        known = Known(
            client_id="known",
            client_secret="s3cret-of-known",
            scope=" ".join(SCOPES),
            token_endpoint_auth_method="client_secret_basic",
        )
        self.clients: dict[str, OAuthClientInformationFull] = {"known": known}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self.refresh: dict[str, RefreshToken] = {}

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.did.append("register")
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        self.did.append(f"authorize {' '.join(params.scopes or [])}")
        if self.denies:
            raise AuthorizeError("access_denied", "you said no")
        code = AuthorizationCode(
            code=f"code-{secrets.token_hex(16)}",
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=True,
            resource=params.resource,
        )
        self.codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        self.did.append("exchange")
        del self.codes[authorization_code.code]
        return self._tokens(client, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        self.did.append("renew")
        del self.refresh[refresh_token.token]
        return self._tokens(client, refresh_token.scopes, refresh_token.resource)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    def for_secret(self, request: Request, form: Mapping[str, object]) -> Response:
        """The grant of client credentials (RFC 6749, section 4.4), which the SDK's servers do not have."""
        secret = base64.b64encode(b"known:s3cret-of-known").decode()
        is_known = request.headers.get("authorization") == f"Basic {secret}"
        if str(form.get("assertion")).startswith("assertion-") and is_known:
            self.did.append(f"for {form['assertion']}")
        elif form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer":
            return JSONResponse({"error": "invalid_grant"}, 400)
        elif not is_known or form["grant_type"] != "client_credentials":
            return JSONResponse({"error": "invalid_client"}, 401)
        else:
            self.did.append("for a secret")
        token = self._tokens(self.clients["known"], ["read"], str(form["resource"]))
        return JSONResponse(token.model_dump(exclude={"refresh_token"}, exclude_none=True))

    def exchanged(self, request: Request, form: Mapping[str, object]) -> Response:
        """The identity provider: an assertion for the token that it gave a person (RFC 8693)."""
        kind = "urn:ietf:params:oauth:token-type:id-jag"
        login = base64.b64encode(b"at-provider:s3cret%20there").decode()
        if request.headers.get("authorization") != f"Basic {login}":
            return JSONResponse({"error": "invalid_client"}, 401)
        if form["requested_token_type"] != kind or form["subject_token"] != "token-of-ann":
            said = f"what is {form['subject_token']}?"
            return JSONResponse({"error": "invalid_grant", "error_description": said}, 400)
        self.did.append(f"exchange for {form['audience']} and {form['resource']}")
        issued = "urn:ietf:params:oauth:token-type:access_token" if self.denies else kind
        answer = {"access_token": "assertion-of-ann", "issued_token_type": issued, "token_type": "N_A"}
        return JSONResponse(answer)

    def _tokens(self, client: OAuthClientInformationFull, scopes: list[str], resource: str | None) -> OAuthToken:
        access, refresh = f"access-{secrets.token_hex(16)}", f"refresh-{secrets.token_hex(16)}"
        self.access[access] = AccessToken(token=access, client_id=client.client_id, scopes=scopes, resource=resource)
        self.refresh[refresh] = RefreshToken(
            token=refresh, client_id=client.client_id, scopes=scopes, resource=resource
        )
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=self.lifetime, scope=" ".join(scopes))


async def main(path: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        provider = Provider()
        both = asyncio.Barrier(2)
        base = f"http://127.0.0.1:{port}"
        server = MCPServer(
            "guarded",
            auth_server_provider=provider,
            auth=AuthSettings(
                issuer_url=base,
                resource_server_url=f"{base}{path}",
                validate_token_resource=True,
                required_scopes=["read"],
                client_registration_options=ClientRegistrationOptions(enabled=True, valid_scopes=SCOPES),
            ),
        )

        @server.tool()
        def whoami() -> str:
            """The scopes of the caller."""
            token = get_access_token()
            return " ".join(token.scopes) if token else "nobody"

        @server.tool()
        async def together() -> str:
            """Waits until it is called twice at once."""
            await both.wait()
            return "together"

        @server.custom_route("/{action}", methods=["GET"])
        async def act(request: Request) -> Response:
            action = request.path_params["action"]
            if action == "reset":
                provider.reset()
            if action in ("expire", "revoke"):
                provider.access.clear()
            if action == "revoke":
                provider.refresh.clear()
            if action == "deny":
                provider.denies = True
            if action == "restrict":
                provider.restricts = True
            if action == "down":
                provider.is_down = True
            if action == "machine":
                provider.takes_machines = True
            if action == "unsaid":
                provider.lifetime = None
            return JSONResponse(provider.did)

        app = server.sse_app() if path == "/sse" else server.streamable_http_app(json_response=True)
        app = Restricting(app, provider)
        run = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        print(port, flush=True)
        await run.serve(sockets=[listening])


class Restricting:
    """Refuses calls of tools whose token has no scope `write`, once it was told to, and is down, or for machines."""

    def __init__(self, app, provider: Provider) -> None:
        self.app = app
        self.provider = provider

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "http" and scope["path"] == "/token":
            if self.provider.is_down:
                return await Response(status_code=503)(scope, receive, send)
            if self.provider.takes_machines:
                request = Request(scope, receive)
                answer = self.provider.for_secret(request, await request.form())
                return await answer(scope, receive, send)
        if scope["type"] == "http" and scope["path"] == "/identity":
            request = Request(scope, receive)
            answer = self.provider.exchanged(request, await request.form())
            return await answer(scope, receive, send)
        is_call = scope["type"] == "http" and (scope["method"], scope["path"]) == ("POST", "/mcp")
        if not is_call or not self.provider.restricts:
            return await self.app(scope, receive, send)
        first = await receive()
        bearer = dict(scope["headers"]).get(b"authorization", b"").decode().removeprefix("Bearer ")
        token = self.provider.access.get(bearer)
        if json.loads(first["body"]).get("method") == "tools/call" and (token is None or "write" not in token.scopes):
            challenge = 'Bearer error="insufficient_scope", scope="write"'
            return await Response(status_code=403, headers={"WWW-Authenticate": challenge})(scope, receive, send)
        messages = [first]

        async def again():
            return messages.pop() if messages else await receive()

        return await self.app(scope, again, send)


asyncio.run(main(sys.argv[1]))
