"""Tool lists of servers: reading all pages of a list within bounds, and following changes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

from mcp.client import Client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp_types import ListToolsResult, Tool

from perstack.core.definitions.skills import Effect, ToolSpec
from perstack.ports.skill import Toolset
from perstack_mcp.server_interface import describe

_MAX_PAGES = 100
_MAX_LIST_TOOLS = 5_000  # maximum tools in all pages
_MAX_LIST_CHARS = 32 << 20  # maximum characters of descriptions and schemas in all pages
_PAGING_TIMEOUT_S = 10.0  # seconds for all pages after the first, so that a server cannot delay without limit

_UNANNOUNCED_TIMEOUT_S = 3.0  # seconds to wait for a list that the server does not announce

_CHANGE_DELAY_S = 0.1  # seconds in which several change notifications count as one

_SUBSCRIPTION_DELAYS_S = (0.5, 1, 2, 4, 8, 16, 30, 30)  # seconds before each new subscription in a row
_LASTING_SUBSCRIPTION_S = 60.0  # seconds that a subscription must last for the waits to start again from the first

_LIST_TIMEOUT_S = 30.0  # seconds for reading the list again; the first list is part of connecting


class ToolList:
    """Current tools of one connection."""

    def __init__(self, show: Callable[[str], None], patience_s: float) -> None:
        """Start with an empty list. Connecting, including the first list, may take `patience_s` seconds."""
        self._show = show
        self._paging_timeout_s = min(_PAGING_TIMEOUT_S, patience_s / 4)
        self._toolset = Toolset()
        self._has_changed = asyncio.Event()
        self._is_current = asyncio.Event()
        self._is_current.set()

    async def begin(self, client: Client) -> None:
        """Read the first list. Raises its errors."""
        self._toolset = await self._read_toolset(client)

    async def relist(self, client: Client) -> int:
        """Read the list again and return the number of tools. Raises its errors."""
        toolset = await self._read_toolset(client)
        if toolset != self._toolset:
            self._toolset = toolset
        return len(toolset.specs)

    def spec_of(self, name: str) -> ToolSpec | None:
        return next((spec for spec in self._toolset.specs if spec.name == name), None)

    async def current(self) -> Toolset:
        """Return the newest list, after announced changes were read; without changes it is the same object."""
        await self._is_current.wait()
        return self._toolset

    def note_change(self) -> None:
        self._has_changed.set()
        self._is_current.clear()

    async def follow(self, relist: Callable[[], Awaitable[object]]) -> None:
        """Call `relist` after every change of the list, until cancelled. After a failure the old list is kept."""
        try:
            while True:
                await self._has_changed.wait()
                await asyncio.sleep(_CHANGE_DELAY_S)
                self._has_changed.clear()
                await self._relist_within_timeout(relist)
                self._is_current.set()
        finally:
            self._is_current.set()

    async def listen(self, client: Client) -> None:
        """Subscribe to change notifications in stateless protocol revisions, and again when a subscription ends.

        Each new subscription reads the list, since it may have changed while there was none.
        """
        failures, was_open = 0, False
        while True:
            began = time.monotonic()
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    if was_open:
                        self.note_change()
                    was_open = bool(changes.honored.tools_list_changed)
                    async for _ in changes:
                        self.note_change()
                problem = "the server has ended the subscription"
            except (MCPError, SubscriptionLost) as error:
                problem = describe(error)
            if time.monotonic() - began >= _LASTING_SUBSCRIPTION_S:
                failures = 0
            if not was_open or failures == len(_SUBSCRIPTION_DELAYS_S):
                self._show(f"(changes of its tools will not be noticed: {problem})")
                return
            await asyncio.sleep(_SUBSCRIPTION_DELAYS_S[failures])
            failures += 1

    async def _relist_within_timeout(self, relist: Callable[[], Awaitable[object]]) -> None:
        try:
            async with asyncio.timeout(_LIST_TIMEOUT_S):
                await relist()
        except Exception as error:  # noqa: BLE001 - after any answer of the server, the current list stays
            self._show(f"(its tools have changed, but the new list cannot be used: {describe(error)})")

    async def _read_toolset(self, client: Client) -> Toolset:
        return Toolset(await self._read_tools(client), client.instructions or "")

    async def _read_tools(self, client: Client) -> tuple[ToolSpec, ...]:
        """Read the list also from a server that does not announce the capability: many list tools without it."""
        if client.server_capabilities.tools is not None:
            return await self._read_pages(client, await client.list_tools())
        try:
            async with asyncio.timeout(min(_UNANNOUNCED_TIMEOUT_S, self._paging_timeout_s)):
                first = await client.list_tools()
        except MCPError:
            return ()  # the server announced that it has tools
        except TimeoutError:
            self._show("(it does not announce tools, and did not answer a request for them)")
            return ()
        if first.tools:
            self._show("(it does not announce tools, but lists them: they are used)")
        return await self._read_pages(client, first)

    async def _read_pages(self, client: Client, page: ListToolsResult) -> tuple[ToolSpec, ...]:
        """Read the pages after the first. If they do not end properly, keep the received pages and show a note."""
        pages = _Pages()
        problem = pages.add(page)
        try:
            async with asyncio.timeout(self._paging_timeout_s):
                while problem is None and pages.cursor is not None:
                    problem = pages.add(await client.list_tools(cursor=pages.cursor))
        except TimeoutError:
            problem = f"its pages do not end in time ({self._paging_timeout_s:g} s)"
        except MCPError as error:
            problem = f"its {'second page' if pages.count == 1 else 'next page'} could not be read: {describe(error)}"
        if problem is not None:
            self._show(f"(the list of its tools is cut: {problem}; the {len(pages.specs)} received tools are used)")
        return tuple(pages.specs.values())


class _Pages:
    """The received pages of a list."""

    def __init__(self) -> None:
        self.specs: dict[str, ToolSpec] = {}
        self.count = 0
        self.cursor: str | None = None  # cursor of the next page
        self._cursors: set[str] = set()
        self._chars = 0

    def add(self, page: ListToolsResult) -> str | None:
        """Add a page. Return why no further page can be read; None if the list continues or has ended."""
        self.count += 1
        count_before = len(self.specs)
        for tool in page.tools:
            spec = _convert_tool(tool)
            self._chars += len(spec.description) + len(json.dumps(spec.input_schema))
            if len(self.specs) >= _MAX_LIST_TOOLS or self._chars > _MAX_LIST_CHARS:
                return f"it has more than {_MAX_LIST_TOOLS} tools, or {_MAX_LIST_CHARS >> 20} million characters"
            self.specs[spec.name] = spec
        self.cursor = page.next_cursor
        if self.cursor is None:
            return None
        if self.cursor in self._cursors:
            return f"it repeats the cursor {self.cursor[:100]!r}"
        self._cursors.add(self.cursor)
        if page.tools and len(self.specs) == count_before:
            return f"page {self.count} has the same tools again"
        return f"more than {_MAX_PAGES} pages" if self.count >= _MAX_PAGES else None


def _convert_tool(tool: Tool) -> ToolSpec:
    return ToolSpec(
        name=tool.name,
        description=tool.description or tool.title or "",
        input_schema=tool.input_schema,
        effect=_convert_effect(tool),
        polling=(tool.meta or {}).get("perstack/polling") is True,
    )


def _convert_effect(tool: Tool) -> Effect:
    hints = tool.annotations
    if hints is not None and hints.read_only_hint:
        return "readOnly"
    return "idempotent" if hints is not None and hints.idempotent_hint else "sideEffect"
