"""Who is to be told when something changes: the tools, or what an address shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress

from mcp.server.connection import Connection
from mcp.server.session import ServerSession
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from starlette.requests import Request

from perstack.core.by import By
from perstack.engine.who import this_user
from perstack.frontends.mcp_server.asking import Context

_SESSION_ID = "mcp-session-id"

_PATIENCE = 2.0
"""Seconds that a client has to take a notification."""


def client_of(context: Context) -> str:
    """Which client a request is from: over HTTP that of its session, on a pipe the only one."""
    request: object = context.request
    return request.headers.get(_SESSION_ID, "") if isinstance(request, Request) else ""


def caller(context: Context) -> By:
    """Who an answer that comes with a request is from. On a pipe it is this user; over HTTP, nobody knows."""
    params = context.session.client_params
    client = f"{params.client_info.name} {params.client_info.version}" if params is not None else ""
    is_remote = isinstance(context.request, Request)
    return By(door="mcp", client=client) if is_remote else this_user("mcp", client)


def when_gone(context: Context, callback: Callable[[], object]) -> None:
    """Have something done when the connection that a request came on ends.

    Over HTTP that is when the client ends its session, or has not been heard of for as long as the SDK waits.
    """
    # handlers are to use the connection's exit stack, says the SDK, and as yet shows it to none
    connection: object = getattr(context.session, "_connection", None)
    if isinstance(connection, Connection):
        connection.exit_stack.callback(callback)


class Clients:
    """Clients of the handshake, and streams that clients of the stateless era listen to."""

    def __init__(self) -> None:
        self._bus = InMemorySubscriptionBus()
        self.listening = ListenHandler(self._bus)
        """Answers `subscriptions/listen`."""
        self._sessions: dict[str, ServerSession] = {}
        self._subscribed: dict[str, dict[str, ServerSession]] = {}

    def add(self, context: Context) -> None:
        """A client whose handshake is done. It is forgotten when its connection ends."""
        client = client_of(context)
        if client not in self._sessions:
            when_gone(context, lambda: self.remove(client))
        self._sessions[client] = context.session

    def remove(self, client: str) -> None:
        """It is told nothing any more."""
        self._sessions.pop(client, None)
        for uri in tuple(self._subscribed):
            self._unsubscribe(uri, client)

    def subscribe(self, uri: str, context: Context) -> None:
        """A client wants to be told when what this address shows has changed."""
        self.add(context)
        self._subscribed.setdefault(uri, {})[client_of(context)] = context.session

    def unsubscribe(self, uri: str, context: Context) -> None:
        """It no longer does."""
        self._unsubscribe(uri, client_of(context))

    def _unsubscribe(self, uri: str, client: str) -> None:
        subscribed = self._subscribed.get(uri, {})
        subscribed.pop(client, None)
        if not subscribed:
            self._subscribed.pop(uri, None)

    async def definitions_changed(self) -> None:
        """The three `list_changed` notifications to all of them. To one that has gone it is not an error."""
        for event in (ToolsListChanged(), PromptsListChanged(), ResourcesListChanged()):
            await self._bus.publish(event)
        await _all_in_time(tell_lists_changed(session) for session in self._sessions.values())

    async def resource_updated(self, uri: str) -> None:
        """`notifications/resources/updated` to those that subscribed to it."""
        await self._bus.publish(ResourceUpdated(uri=uri))
        await _all_in_time(session.send_resource_updated(uri) for session in self._subscribed.get(uri, {}).values())


async def tell_lists_changed(session: ServerSession) -> None:
    """The three `list_changed` notifications to one client."""
    await session.send_tool_list_changed()
    await session.send_prompt_list_changed()
    await session.send_resource_list_changed()


async def _all_in_time(telling: Iterable[Coroutine[object, object, None]]) -> None:
    """A client that does not read goes without, and holds up no other."""

    async def in_time(one: Coroutine[object, object, None]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await one

    await asyncio.gather(*(in_time(one) for one in tuple(telling)))
