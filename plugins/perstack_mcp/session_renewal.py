"""Renewal of a session that a remote server has lost, for example in a restart.

A server answers a request of a session that it does not know with status 404 and does not execute it; the client must
then begin a new session (the protocol's session management). All refused requests share one new session,
after which the tools are listed again. The caller repeats each refused call once, so a server that always refuses costs
one new session per call, never a loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context

from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    InitializedNotification,
    InitializeRequest,
    InitializeRequestParams,
    InitializeResult,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from perstack.core.base.records import JsonObject
from perstack.errors import SkillError
from perstack_mcp.server_interface import LOST_SESSION, describe


def is_lost_session(error: MCPError) -> bool:
    """Return whether a request was refused, without being executed, because its session is lost."""
    data: object = error.error.data
    return data == LOST_SESSION


class SessionRenewal:
    """The sessions of one connection, with a server of a revision that has the handshake."""

    def __init__(
        self, client: Client, relist: Callable[[], Awaitable[int]], show: Callable[[str], None], leave: asyncio.Event
    ) -> None:
        """Renew sessions of `client`, which is connected; `relist` lists the tools again and returns their number.

        `leave` ends the connection: if no new session begins, the next call connects again.
        """
        self._client = client
        self._relist = relist
        self._show = show
        self._leave = leave
        self._renewing: asyncio.Task[None] | None = None
        self.count = 0  # number of sessions after the first

    async def renew(self, before: int, greeting: JsonObject | None) -> None:
        """Begin a new session, unless one has begun since the count was `before`. Raises SkillError.

        `greeting` holds the parameters of the first handshake.
        """
        if self.count != before:
            return
        if self._renewing is None:
            # Not in a call's context: the new stream of the server's own messages would be attributed to that call.
            self._renewing = asyncio.create_task(self._begin_session(greeting or {}), context=Context())
            self._renewing.add_done_callback(self._clear_renewal)
        await asyncio.shield(self._renewing)

    def _clear_renewal(self, done: asyncio.Task[None]) -> None:
        self._renewing = None
        if not done.cancelled():
            done.exception()  # retrieve the error, or asyncio would report it; the waiting calls raise it

    async def _begin_session(self, greeting: JsonObject) -> None:
        """Repeat the handshake and list the tools again; after a failure end the connection. Raises SkillError."""
        session = self._client.session
        try:
            async with asyncio.timeout(_RENEWAL_TIMEOUT_S):
                request = InitializeRequest(params=InitializeRequestParams.model_validate(greeting, by_name=False))
                result = await session.send_request(request, InitializeResult)
                if result.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
                    raise SkillError(f"it now speaks the revision {result.protocol_version[:50]!r}")
                session.adopt(result)
                await session.send_notification(InitializedNotification())
                self.count += 1
                number = await self._relist()
        except (MCPError, SkillError, ValueError, TimeoutError) as error:
            self._leave.set()
            problem = describe(error) if str(error) else f"no answer within {_RENEWAL_TIMEOUT_S:g} s"
            self._show(f"(the server has lost its session, and does not begin a new one: {problem})")
            raise SkillError(f"the server has lost its session, and does not begin a new one: {problem}") from error
        self._show(
            f"(the server had lost its session, as after a restart: a new one was begun, and its {number} tools were"
            " listed again)"
        )


_RENEWAL_TIMEOUT_S = 30.0
