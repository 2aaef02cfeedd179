"""The clients to notify when the tools, or the contents of a resource, change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress

from mcp.server import subscriptions
from mcp.server.connection import Connection
from mcp.server.session import ServerSession
from starlette.requests import Request

from perstack.core.base.ids import By
from perstack.doors.mcp.elicitation import Context
from perstack.system.user import this_user

_SESSION_ID = "mcp-session-id"

_NOTIFY_TIMEOUT_S = 2.0  # seconds that a client has to accept a notification


def client_of(context: Context) -> str:
    """Return the id of a request's client: its session over HTTP; empty on a pipe, which has one client."""
    request: object = context.request
    return request.headers.get(_SESSION_ID, "") if isinstance(request, Request) else ""


def caller(context: Context) -> By:
    """Return the author of an answer that a request brings: this user on a pipe, unknown over HTTP."""
    params = context.session.client_params
    client = f"{params.client_info.name} {params.client_info.version}" if params is not None else ""
    is_remote = isinstance(context.request, Request)
    return By(door="mcp", client=client) if is_remote else this_user("mcp", client)


def when_gone(context: Context, callback: Callable[[], object]) -> None:
    """Call `callback` when a request's connection ends: over HTTP, its session, or after the SDK's idle time."""
    # The SDK wants handlers to use the connection's exit stack, but does not expose it yet.
    connection: object = getattr(context.session, "_connection", None)
    if isinstance(connection, Connection):
        connection.exit_stack.callback(callback)


class Clients:
    """Clients with a handshake, and the streams that stateless clients listen to."""

    def __init__(self) -> None:
        """Begin without clients."""
        self._bus = subscriptions.InMemorySubscriptionBus()
        self.listening = subscriptions.ListenHandler(self._bus)
        self._sessions: dict[str, ServerSession] = {}
        self._subscribed: dict[str, dict[str, ServerSession]] = {}

    def add(self, context: Context) -> None:
        """Add a client after its handshake. It is removed when its connection ends."""
        client = client_of(context)
        if client not in self._sessions:
            when_gone(context, lambda: self.remove(client))
        self._sessions[client] = context.session

    def remove(self, client: str) -> None:
        """Remove a client and its subscriptions."""
        self._sessions.pop(client, None)
        for uri in tuple(self._subscribed):
            self._unsubscribe(uri, client)

    def subscribe(self, uri: str, context: Context) -> None:
        """Subscribe a client to changes of a resource."""
        self.add(context)
        self._subscribed.setdefault(uri, {})[client_of(context)] = context.session

    def unsubscribe(self, uri: str, context: Context) -> None:
        """Cancel a client's subscription."""
        self._unsubscribe(uri, client_of(context))

    def _unsubscribe(self, uri: str, client: str) -> None:
        subscribed = self._subscribed.get(uri, {})
        subscribed.pop(client, None)
        if not subscribed:
            self._subscribed.pop(uri, None)

    async def definitions_changed(self) -> None:
        """Send the three `list_changed` notifications to all clients. A client that is gone is no error."""
        for event in (
            subscriptions.ToolsListChanged(),
            subscriptions.PromptsListChanged(),
            subscriptions.ResourcesListChanged(),
        ):
            await self._bus.publish(event)
        await _all_in_time(tell_lists_changed(session) for session in self._sessions.values())

    async def resource_updated(self, uri: str) -> None:
        """Send `notifications/resources/updated` to the resource's subscribers."""
        await self._bus.publish(subscriptions.ResourceUpdated(uri=uri))
        await _all_in_time(session.send_resource_updated(uri) for session in self._subscribed.get(uri, {}).values())


async def tell_lists_changed(session: ServerSession) -> None:
    """Send the three `list_changed` notifications to one client."""
    await session.send_tool_list_changed()
    await session.send_prompt_list_changed()
    await session.send_resource_list_changed()


async def _all_in_time(telling: Iterable[Coroutine[object, object, None]]) -> None:
    """Await all notifications with a timeout each: a client that does not read misses it and delays no other."""

    async def in_time(one: Coroutine[object, object, None]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_NOTIFY_TIMEOUT_S):
                await one

    await asyncio.gather(*(in_time(one) for one in tuple(telling)))
