"""Remote server (`mcpSseSkill`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from perstack.core.definitions.skills import McpSseSkill, OAuth
from perstack.core.secrets.masking import masked_address
from perstack.errors import SkillError
from perstack.ports.skill import SkillContext
from perstack.support.variables import fill, require_secrets_known
from perstack_mcp.http_transports import refuse_private
from perstack_mcp.login_store import LoginFile, Logins
from perstack_mcp.server_interface import AUTO, LEGACY, ConnectionAttempt, RateLimitedOutput, ServerProtocols

if TYPE_CHECKING:
    import httpx2


class RemoteServer:
    """Remote server, connected by HTTP."""

    def __init__(self, definition: McpSseSkill, context: SkillContext, auth: httpx2.Auth | None = None) -> None:
        """Check the definition; `auth` is interactive or None. Raises SkillError."""
        self.name = definition.name
        self.workspace: Path = context.workspace
        self.show = RateLimitedOutput(context.on_stderr)
        self._endpoint = definition.endpoint
        self._may_be_local = definition.allow_local_network
        self._headers = headers_of(definition, context.env)
        self._oauth = oauth_of(definition, context.env)
        self._place = login_file_of(definition, context.env)
        self._auth = auth
        self._protocols = ServerProtocols.of_user(context.env)
        _check_endpoint(definition)

    @asynccontextmanager
    async def up(self) -> AsyncGenerator[None]:
        """Do nothing: a remote server need not be started."""
        yield

    def attempts(self) -> Sequence[ConnectionAttempt]:
        """Return the attempts: streamable HTTP, then SSE; the reverse for an address that ends in `/sse`."""
        from perstack_mcp.http_transports import connect_streamable, sse

        self._auth = self._auth or self._default_auth()
        arguments = (self._endpoint, self._headers, self._may_be_local, self._auth, self.show)
        http, older = partial(connect_streamable, *arguments), ConnectionAttempt(LEGACY, partial(sse, *arguments))
        probing = ConnectionAttempt(AUTO, http, self._remember)
        newer = (
            [ConnectionAttempt(LEGACY, http), probing] if self._protocols.takes_handshake(self._endpoint) else [probing]
        )
        return [older, *newer] if urlsplit(self._endpoint).path.rstrip("/").endswith("/sse") else [*newer, older]

    async def _remember(self, is_stateless: bool) -> None:
        if not is_stateless:
            await asyncio.to_thread(self._protocols.remember_handshake, self._endpoint)

    def _default_auth(self) -> httpx2.Auth:
        from perstack_mcp.machine_logins import machine_login
        from perstack_mcp.oauth import FixedAuthorization
        from perstack_mcp.stored_login import StoredLogin

        if any(name.casefold() == "authorization" for name in self._headers):
            return FixedAuthorization()
        if self._oauth.flow != "authorizationCode":
            return machine_login(self._endpoint, self._oauth, self._may_be_local)
        return StoredLogin(self._endpoint, self._oauth, self.name, self._place)

    def exit_summary(self) -> str:
        """Return an empty text: the end of a remote server is not observed."""
        return ""


def fill_endpoint(definition: McpSseSkill, env: Mapping[str, str]) -> McpSseSkill:
    """Return the definition with `${NAME}` in its address replaced from the environment. Raises SkillError."""
    require_secrets_known((definition.endpoint,), definition.name)
    endpoint = fill({"endpoint": definition.endpoint}, env, definition.name, "endpoint")
    return definition.model_copy(update=endpoint)


def headers_of(definition: McpSseSkill, env: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with `${NAME}` replaced from the environment."""
    return fill(definition.headers, env, definition.name, "headers")


def oauth_of(definition: McpSseSkill, env: Mapping[str, str]) -> OAuth:
    """Return the OAuth settings with `${NAME}` replaced from the environment."""
    oauth = definition.oauth or OAuth()
    texts = {name: value for name in _TEXTS if isinstance(value := getattr(oauth, name), str)}
    return oauth.model_copy(update=fill(texts, env, definition.name, "oauth"))


def login_file_of(definition: McpSseSkill, env: Mapping[str, str]) -> LoginFile:
    """Return the file of a skill's login."""
    return Logins.of_user(env).file_of(definition.endpoint, oauth_of(definition, env).client_id)


_TEXTS = (
    "client_id",
    "client_secret",
    "private_key",
    "identity_file",
    "issuer",
    "identity_endpoint",
    "identity_client_id",
    "identity_client_secret",
)


def _check_endpoint(definition: McpSseSkill) -> None:
    """Raise SkillError unless the definition allows the address."""
    parts = urlsplit(definition.endpoint)
    host = parts.hostname
    allowed_schemes = ("https", "http") if definition.allow_local_network else ("https",)
    if host is None or parts.scheme not in allowed_schemes:
        masked_endpoint = masked_address(definition.endpoint)
        raise SkillError(
            f"skill {definition.name!r}: `endpoint` must be an https:// address, not {masked_endpoint!r};"
            " `allowLocalNetwork = true` allows http:// and local ones"
        )
    if not definition.allow_local_network:
        with suppress(ValueError):
            refuse_private(host, host)
