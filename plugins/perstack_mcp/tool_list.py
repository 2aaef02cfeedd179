"""Tool lists of servers: reading and following them, and filtering invalid tools before the SDK sees them.

The SDK would reject a whole list because of one invalid tool.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

import anyio
import anyio.to_thread
from mcp.client import Client, Transport
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import CallToolResult, JSONRPCResponse, Tool
from mcp_types.methods import validate_server_result
from pydantic import JsonValue, ValidationError

from perstack.core.base.json_schema import FULL_STEPS, Checker, Meter, schema_problem
from perstack.core.base.records import JsonObject
from perstack.core.definitions.skills import Effect, ToolSpec
from perstack.errors import SkillError
from perstack.ports.skill import Toolset
from perstack.system.concurrency import violation_of
from perstack_mcp.server_interface import describe

if TYPE_CHECKING:
    from perstack_mcp.sdk import ReadStream, TransportStreams


_MAX_PAGES = 100

_CHANGE_DELAY_S = 0.1  # seconds in which several change notifications count as one

_LIST_TIMEOUT_S = 30.0  # seconds for a new list; the first one is part of connecting


class ToolList:
    """Current tools of one connection."""

    def __init__(self, show: Callable[[str], None]) -> None:
        """Start with an empty list."""
        self._show = show
        self._toolset = Toolset()
        self._stale = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()

    async def begin(self, client: Client) -> None:
        """Read the first list. Raises its errors."""
        self._toolset = await _toolset_of(client)

    async def current(self) -> Toolset:
        """Return the newest list, after announced changes were read; without changes an identical object."""
        await self._settled.wait()
        return self._toolset

    def note_change(self) -> None:
        """Note that the server has announced a change."""
        self._stale.set()
        self._settled.clear()

    async def follow(self, client: Client) -> None:
        """Read the list after every change, until cancelled. A failed read keeps the old list."""
        try:
            while True:
                await self._stale.wait()
                await asyncio.sleep(_CHANGE_DELAY_S)
                self._stale.clear()
                await self._list(client)
                self._settled.set()
        finally:
            self._settled.set()

    async def listen(self, client: Client) -> None:
        """Subscribe to change notifications in stateless protocol revisions."""
        try:
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self.note_change()
        except (MCPError, SubscriptionLost) as error:
            self._show(f"(changes of its tools will not be noticed: {describe(error)})")

    async def _list(self, client: Client) -> None:
        try:
            async with asyncio.timeout(_LIST_TIMEOUT_S):
                found = await _toolset_of(client)
        except Exception as error:  # noqa: BLE001 - after any answer of the server, the list that is there stays
            self._show(f"(its tools have changed, but the new list cannot be used: {describe(error)})")
            return
        if found != self._toolset:
            self._toolset = found


async def _toolset_of(client: Client) -> Toolset:
    return Toolset(await _list_tools(client), client.instructions or "")


async def _list_tools(client: Client) -> tuple[ToolSpec, ...]:
    capabilities = client.server_capabilities
    if client.session.initialize_result is not None and capabilities.tools is None:
        return ()
    found: list[ToolSpec] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += [_spec(tool) for tool in page.tools]
        cursor = page.next_cursor
        if cursor is None:
            return tuple({spec.name: spec for spec in found}.values())
    raise SkillError(f"the list of its tools has no end: more than {_MAX_PAGES} pages")


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


# Output schemas are hidden from the SDK, which would validate against them on the event loop for as long as it takes.


class OutputSchemas:
    """Output schemas of a server's tools."""

    def __init__(self) -> None:
        """Start without schemas."""
        self._checkers: dict[str, Checker] = {}

    def take(self, tool: JsonObject) -> JsonObject:
        """Return a listed tool without its output schema, which is kept here."""
        name, schema = str(tool.get("name")), tool.get("outputSchema")
        if isinstance(schema, dict):
            self._checkers[name] = Checker(schema)
        else:
            self._checkers.pop(name, None)
        return {key: value for key, value in tool.items() if key != "outputSchema"}

    async def problem(self, name: str, result: CallToolResult) -> str | None:
        """Describe how a result breaks its tool's output schema, for the model; None if it does not."""
        checker = self._checkers.get(name)
        if checker is None or result.is_error:
            return None
        if "structured_content" not in result.model_fields_set:
            return "the tool has an output schema, and the server's answer has no structured content"
        found = await violation_of(checker, cast("JsonValue", result.structured_content))
        if found is None:
            return None
        place = f" at {found.place}" if found.place else ""
        return f"the server's structured output breaks the tool's own output schema{place}: {found.message[:200]}"


_MAX_SCHEMA_STEPS = 4 * FULL_STEPS  # validation steps for all schemas of one list
_MAX_TOOLS = 2_000


class RepairingReader:
    """Reading end of a transport that drops invalid tools and reports the end of the stream."""

    def __init__(
        self,
        inner: ReadStream[SessionMessage | Exception],
        version: Callable[[], str],
        outputs: OutputSchemas,
        on_dropped: Callable[[str], None],
        on_end: Callable[[], None],
    ) -> None:
        """Wrap the reading end `inner`."""
        self._inner = inner
        self._version = version
        self._outputs = outputs
        self._on_dropped = on_dropped
        self._on_end = on_end

    @property
    def last_context(self) -> object:
        """Context of the last message's sender, which the SDK reads from streams that carry it."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message, with invalid tools removed."""
        try:
            item = await self._inner.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._on_end()
            raise
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
            result = cast("JsonObject", item.message.result)
            tools = result.get("tools")
            if isinstance(tools, list) and "content" not in result:
                # In a thread: a long list, or a schema made to be slow to check, must not block the event loop.
                usable = partial(self._usable, tools, result)
                result["tools"] = await anyio.to_thread.run_sync(usable, abandon_on_cancel=True)
        return item

    async def aclose(self) -> None:
        """Close the wrapped reading end."""
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        """Return the reader."""
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        """Return the next message."""
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        """Return the reader."""
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        """Close the reader."""
        await self.aclose()

    def _usable(self, tools: list[JsonValue], result: JsonObject) -> list[JsonValue]:
        meter = Meter(_MAX_SCHEMA_STEPS)
        # only short values, since they are validated again with each tool
        around = {name: value for name, value in result.items() if not isinstance(value, list | dict)}
        usable: list[JsonValue] = []
        for tool in tools[:_MAX_TOOLS]:
            problem = _problem(tool, {**around, "tools": [tool]}, self._version(), meter)
            if problem is None and isinstance(tool, dict):
                usable.append(self._outputs.take(tool))
            else:
                name = tool.get("name") if isinstance(tool, dict) else None
                self._on_dropped(f"tool {name or '?'} is left out: {problem}")
        if len(tools) > _MAX_TOOLS:
            self._on_dropped(f"{len(tools) - _MAX_TOOLS} tools are left out: more than {_MAX_TOOLS} at once")
        return usable


@asynccontextmanager
async def filter_tool_lists(
    transport: Transport,
    version: Callable[[], str],
    outputs: OutputSchemas,
    on_dropped: Callable[[str], None],
    on_end: Callable[[], None],
) -> AsyncGenerator[TransportStreams]:
    """Wrap a transport with a RepairingReader."""
    async with transport as (reader, writer):
        yield RepairingReader(reader, version, outputs, on_dropped, on_end), writer


def _problem(tool: JsonValue, listing: JsonObject, version: str, meter: Meter) -> str | None:
    try:
        validate_server_result("tools/list", version, listing)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(str(part) for part in first['loc'][2:])}: {first['msg']}"
    except KeyError:
        return None
    if not isinstance(tool, dict):
        return "not an object"
    return schema_problem(tool.get("inputSchema"), meter) or schema_problem(tool.get("outputSchema"), meter)
