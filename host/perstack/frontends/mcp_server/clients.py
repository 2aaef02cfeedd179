"""Who is to be told when something changes: the tools, or what an address shows."""

from __future__ import annotations

from mcp.server.session import ServerSession
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from starlette.requests import Request

from perstack.frontends.mcp_server.asking import Context

_MOST = 10_000
"""Clients that are kept in mind; over HTTP they come and go without a word, and the longest known is forgotten."""

_SESSION_ID = "mcp-session-id"


def client_of(context: Context) -> str:
    """Which client a request is from: over HTTP that of its session, on a pipe the only one."""
    request: object = context.request
    return request.headers.get(_SESSION_ID, "") if isinstance(request, Request) else ""


class Clients:
    """Clients of the handshake, and streams that clients of the stateless era listen to."""

    def __init__(self) -> None:
        self.bus = InMemorySubscriptionBus()
        self._sessions: dict[str, ServerSession] = {}
        self._subscribed: dict[str, dict[str, ServerSession]] = {}

    def add(self, context: Context) -> None:
        """A client whose handshake is done."""
        self._sessions[client_of(context)] = context.session
        while len(self._sessions) > _MOST:
            del self._sessions[next(iter(self._sessions))]

    def subscribe(self, uri: str, context: Context) -> None:
        """A client wants to be told when what this address shows has changed."""
        self._subscribed.setdefault(uri, {})[client_of(context)] = context.session

    def unsubscribe(self, uri: str, context: Context) -> None:
        """It no longer does."""
        subscribed = self._subscribed.get(uri, {})
        subscribed.pop(client_of(context), None)
        if not subscribed:
            self._subscribed.pop(uri, None)

    async def definitions_changed(self) -> None:
        """The three `list_changed` notifications to all of them. To one that has gone it is no error."""
        for event in (ToolsListChanged(), PromptsListChanged(), ResourcesListChanged()):
            await self.bus.publish(event)
        for session in tuple(self._sessions.values()):
            await session.send_tool_list_changed()
            await session.send_prompt_list_changed()
            await session.send_resource_list_changed()

    async def resource_updated(self, uri: str) -> None:
        """`notifications/resources/updated` to those that subscribed to it."""
        await self.bus.publish(ResourceUpdated(uri=uri))
        for session in tuple(self._subscribed.get(uri, {}).values()):
            await session.send_resource_updated(uri)
