"""`mcpSseSkill`: a server on the web."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from perstack.core.definitions import McpSseSkill
from perstack.errors import SkillError
from perstack.ports.skill import SkillContext
from perstack_mcp.addresses import refuse_private
from perstack_mcp.ways import AUTO, LEGACY, Way

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class RemoteServer:
    """Raises SkillError for an endpoint that may not be connected to, and for a variable that is not set."""

    def __init__(self, definition: McpSseSkill, context: SkillContext) -> None:
        self.name = definition.name
        self.workspace: Path = context.workspace
        self.show = context.on_stderr
        self._endpoint = definition.endpoint
        self._may_be_local = definition.allow_local_network
        self._headers = headers_of(definition, context.env)
        _check(definition)

    @asynccontextmanager
    async def up(self) -> AsyncGenerator[None]:
        """Nothing has to be started."""
        yield

    def ways(self) -> Sequence[Way]:
        """Streamable HTTP, then the transport that it replaced; the other way round where the address says so."""
        from perstack_mcp.web import sse, streamable

        arguments = (self._endpoint, self._headers, self._may_be_local)
        ways = [Way(AUTO, partial(streamable, *arguments)), Way(LEGACY, partial(sse, *arguments))]
        return ways[::-1] if urlsplit(self._endpoint).path.rstrip("/").endswith("/sse") else ways

    def last_words(self) -> str:
        """A server elsewhere leaves none."""
        return ""


def headers_of(definition: McpSseSkill, env: Mapping[str, str]) -> dict[str, str]:
    """The headers, with `${NAME}` replaced from the environment."""
    wanted = {name for value in definition.headers.values() for name in _VARIABLE.findall(value)}
    missing = ", ".join(sorted(name for name in wanted if not env.get(name)))
    if missing:
        raise SkillError(
            f"skill {definition.name!r} needs {missing} for its headers: set it in the environment or in a .env file"
        )
    return {name: _VARIABLE.sub(lambda found: env[found.group(1)], value) for name, value in definition.headers.items()}


def _check(definition: McpSseSkill) -> None:
    parts = urlsplit(definition.endpoint)
    host = parts.hostname
    allowed = ("https", "http") if definition.allow_local_network else ("https",)
    if host is None or parts.scheme not in allowed:
        raise SkillError(
            f"skill {definition.name!r}: `endpoint` must be an https:// address, not {definition.endpoint!r};"
            " `allowLocalNetwork = true` allows http:// and local ones"
        )
    if not definition.allow_local_network:
        with suppress(ValueError):
            refuse_private(host, host)
