"""What a server lists, and lists anew when it says that it has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mcp.client import Client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp_types import Tool

from perstack.core.tools import Effect, ToolSpec
from perstack.errors import SkillError
from perstack.ports.skill import Toolset
from perstack_mcp.failures import words

_MOST_PAGES = 100

_TOGETHER = 0.1
"""Seconds in which changes are taken for one."""

_PATIENCE = 30.0
"""Seconds for a new list; the first has the time that connecting may take."""


class Listing:
    """The tools of one connection."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._toolset = Toolset()
        self._stale = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()

    async def begin(self, client: Client) -> None:
        """The first list. Raises what goes wrong with it."""
        self._toolset = await _toolset_of(client)

    async def current(self) -> Toolset:
        """The newest list: the same object while nothing has changed. A change that was told of is waited for."""
        await self._settled.wait()
        return self._toolset

    def changed(self) -> None:
        """The server says so."""
        self._stale.set()
        self._settled.clear()

    async def follow(self, client: Client) -> None:
        """List again whenever something has changed, until cancelled. A list that cannot be had changes nothing."""
        try:
            while True:
                await self._stale.wait()
                await asyncio.sleep(_TOGETHER)
                self._stale.clear()
                await self._list(client)
                self._settled.set()
        finally:
            self._settled.set()

    async def listen(self, client: Client) -> None:
        """In the stateless era: ask to be told of changes."""
        try:
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self.changed()
        except (MCPError, SubscriptionLost) as error:
            self._show(f"(changes of its tools will not be noticed: {words(error)})")

    async def _list(self, client: Client) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                found = await _toolset_of(client)
        except Exception as error:  # noqa: BLE001 - whatever the server sends, the list that is there stays
            self._show(f"(its tools have changed, but the new list cannot be used: {words(error)})")
            return
        if found != self._toolset:
            self._toolset = found


async def _toolset_of(client: Client) -> Toolset:
    return Toolset(await _listed(client), client.instructions or "")


async def _listed(client: Client) -> tuple[ToolSpec, ...]:
    capabilities = client.server_capabilities
    if client.session.initialize_result is not None and capabilities.tools is None:
        return ()
    found: list[ToolSpec] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += [_spec(tool) for tool in page.tools]
        cursor = page.next_cursor
        if cursor is None:
            return tuple({spec.name: spec for spec in found}.values())
    raise SkillError(f"the list of its tools has no end: more than {_MOST_PAGES} pages")


def _spec(tool: Tool) -> ToolSpec:
    return ToolSpec(
        name=tool.name,
        description=tool.description or tool.title or "",
        input_schema=tool.input_schema,
        effect=_effect(tool),
        polling=(tool.meta or {}).get("perstack/polling") is True,
    )


def _effect(tool: Tool) -> Effect:
    hints = tool.annotations
    if hints is not None and hints.read_only_hint:
        return "readOnly"
    return "idempotent" if hints is not None and hints.idempotent_hint else "sideEffect"
