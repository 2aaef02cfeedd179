"""Leaves out what a server lists and cannot be used, before the SDK sees it: it would refuse the whole list."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

import anyio
import anyio.to_thread
from mcp.client import Transport
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse
from mcp_types.methods import validate_server_result
from pydantic import JsonValue, ValidationError

from perstack.core.base import JsonObject
from perstack.core.checking import FULL, schema_problem
from perstack.core.schema_keywords import Meter
from perstack_mcp.outputs import OutputSchemas

if TYPE_CHECKING:
    from perstack_mcp.sdk import ReadStream, TransportStreams

_STEPS = 4 * FULL
"""For all the schemas of one list."""
_MOST_TOOLS = 2_000


class RepairingReader:
    """A transport's reading end that drops invalid tools, and tells when it ends."""

    def __init__(
        self,
        inner: ReadStream[SessionMessage | Exception],
        version: Callable[[], str],
        outputs: OutputSchemas,
        on_dropped: Callable[[str], None],
        on_end: Callable[[], None],
    ) -> None:
        self._inner = inner
        self._version = version
        self._outputs = outputs
        self._on_dropped = on_dropped
        self._on_end = on_end

    @property
    def last_context(self) -> object:
        """What the SDK asks of streams that carry their sender's context."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """The next message, repaired."""
        try:
            item = await self._inner.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._on_end()
            raise
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
            result = cast("JsonObject", item.message.result)
            tools = result.get("tools")
            if isinstance(tools, list) and "content" not in result:
                # in a thread: a long list, or a schema made to be long to check, must not keep the loop
                usable = partial(self._usable, tools, result)
                result["tools"] = await anyio.to_thread.run_sync(usable, abandon_on_cancel=True)
        return item

    async def aclose(self) -> None:
        """Close the transport's end."""
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.aclose()

    def _usable(self, tools: list[JsonValue], result: JsonObject) -> list[JsonValue]:
        meter = Meter(_STEPS)
        # only what is short: it is read again with each tool
        around = {name: value for name, value in result.items() if not isinstance(value, list | dict)}
        usable: list[JsonValue] = []
        for tool in tools[:_MOST_TOOLS]:
            problem = _problem(tool, {**around, "tools": [tool]}, self._version(), meter)
            if problem is None and isinstance(tool, dict):
                usable.append(self._outputs.take(tool))
            else:
                name = tool.get("name") if isinstance(tool, dict) else None
                self._on_dropped(f"tool {name or '?'} is left out: {problem}")
        if len(tools) > _MOST_TOOLS:
            self._on_dropped(f"{len(tools) - _MOST_TOOLS} tools are left out: more than {_MOST_TOOLS} at once")
        return usable


@asynccontextmanager
async def repairing(
    transport: Transport,
    version: Callable[[], str],
    outputs: OutputSchemas,
    on_dropped: Callable[[str], None],
    on_end: Callable[[], None],
) -> AsyncGenerator[TransportStreams]:
    """A transport with such a reader."""
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
