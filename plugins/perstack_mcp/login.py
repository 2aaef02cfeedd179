"""`perstack login`: a person's browser is sent to the authorization server and comes back with a code."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from mcp.shared.auth import AuthorizationCodeResult

from perstack.core.definitions import McpSseSkill
from perstack.errors import SkillError
from perstack.ports.skill import SkillContext
from perstack_mcp.loopback import Loopback
from perstack_mcp.personal_login import PersonalLogin
from perstack_mcp.remote import RemoteServer, oauth_of, place_of
from perstack_mcp.session import McpSession

PATIENCE = 300
"""Seconds that a person has."""

_CONNECT = 60
"""Seconds for everything else."""


async def log_in(definition: McpSseSkill, context: SkillContext, present: Callable[[str], Awaitable[None]]) -> None:
    """Connect to a server, and do what it asks for on the way. Raises SkillError."""
    settings = oauth_of(definition, context.env)
    name = definition.name
    if settings.flow == "clientCredentials":
        raise SkillError(f"skill {name!r} needs no login: it logs in by itself (clientCredentials)")
    if any(header.casefold() == "authorization" for header in definition.headers):
        raise SkillError(f"skill {name!r} needs no login: its `headers` have an Authorization")
    async with Loopback.listening() as loopback:

        async def ask(url: str, state: str) -> AuthorizationCodeResult:
            if not definition.allow_local_network and urlsplit(url).scheme != "https":
                raise SkillError(
                    f"the server wants a login at an address that is not https://: {url.partition('?')[0]}"
                )
            answer = loopback.expect(state)
            await present(url)
            return _checked(await _bounded(answer))

        auth = PersonalLogin(
            definition.endpoint, settings, loopback.redirect_uri, ask, place_of(definition, context.env)
        )
        session = McpSession(RemoteServer(definition, context, auth), (PATIENCE + _CONNECT) * 1000)
        try:
            await session.tools()
        except SkillError as error:
            if auth.is_done:
                raise SkillError(f"you are logged in, and still: {error}") from error
            raise
        finally:
            await session.close()
    if not auth.is_done:
        raise SkillError(f"skill {name!r} needs no login: its server let us in without one")


async def _bounded(answer: asyncio.Future[dict[str, str]]) -> dict[str, str]:
    try:
        async with asyncio.timeout(PATIENCE):
            return await answer
    except TimeoutError as error:
        raise SkillError(f"nobody has logged in within {PATIENCE} s") from error


def _checked(answer: dict[str, str]) -> AuthorizationCodeResult:
    if "error" in answer:
        words = ": ".join(answer[name] for name in ("error", "error_description") if name in answer)
        raise SkillError(f"the authorization server refused the login: {words}")
    return AuthorizationCodeResult(code=answer.get("code", ""), state=answer["state"], iss=answer.get("iss"))
