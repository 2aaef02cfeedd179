"""Who is to be told when the tools change."""

from __future__ import annotations

from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ToolsListChanged


class Clients:
    """Clients of the handshake, and streams that clients of the stateless era listen to."""

    def __init__(self) -> None:
        self.bus = InMemorySubscriptionBus()
        self._sessions: list[ServerSession] = []

    def add(self, session: ServerSession) -> None:
        """A client whose handshake is done."""
        self._sessions.append(session)

    async def tools_changed(self) -> None:
        """`notifications/tools/list_changed` to all of them. To one that has gone it is no error."""
        await self.bus.publish(ToolsListChanged())
        for session in tuple(self._sessions):
            await session.send_tool_list_changed()
