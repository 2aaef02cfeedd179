"""Leaves out what a server lists and cannot be used, before the SDK sees it: it would refuse the whole list."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

import anyio
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for
from mcp.client import Transport
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse
from mcp_types.methods import validate_server_result
from pydantic import JsonValue, ValidationError

from perstack.core.base import JsonObject

if TYPE_CHECKING:
    from perstack_mcp.sdk import ReadStream, TransportStreams

_DEEPEST = 64
"""Levels of a schema: a deeper one would exhaust the stack of whatever reads it."""


class RepairingReader:
    """A transport's reading end that drops invalid tools, and tells when it ends."""

    def __init__(
        self,
        inner: ReadStream[SessionMessage | Exception],
        version: Callable[[], str],
        on_dropped: Callable[[str], None],
        on_end: Callable[[], None],
    ) -> None:
        self._inner = inner
        self._version = version
        self._on_dropped = on_dropped
        self._on_end = on_end

    @property
    def last_context(self) -> object:
        """What the SDK asks of streams that carry their sender's context."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """The next message, repaired."""
        try:
            return self._repaired(await self._inner.receive())
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._on_end()
            raise

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

    def _repaired(self, item: SessionMessage | Exception) -> SessionMessage | Exception:
        if not isinstance(item, SessionMessage) or not isinstance(item.message, JSONRPCResponse):
            return item
        result = cast("JsonObject", item.message.result)
        tools = result.get("tools")
        if isinstance(tools, list) and "content" not in result:
            result["tools"] = [tool for tool in tools if self._is_usable(tool, result)]
        return item

    def _is_usable(self, tool: JsonValue, result: JsonObject) -> bool:
        problem = _problem(tool, {**result, "tools": [tool]}, self._version())
        if problem is not None:
            name = tool.get("name") if isinstance(tool, dict) else None
            self._on_dropped(f"tool {name or '?'} is left out: {problem}")
        return problem is None


@asynccontextmanager
async def repairing(
    transport: Transport, version: Callable[[], str], on_dropped: Callable[[str], None], on_end: Callable[[], None]
) -> AsyncGenerator[TransportStreams]:
    """A transport with such a reader."""
    async with transport as (reader, writer):
        yield RepairingReader(reader, version, on_dropped, on_end), writer


def _problem(tool: JsonValue, listing: JsonObject, version: str) -> str | None:
    try:
        validate_server_result("tools/list", version, listing)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(str(part) for part in first['loc'][2:])}: {first['msg']}"
    except KeyError:
        return None
    if not isinstance(tool, dict):
        return "not an object"
    return schema_problem(tool.get("inputSchema")) or schema_problem(tool.get("outputSchema"))


def schema_problem(schema: JsonValue) -> str | None:
    """Why nothing can be checked against a schema; None if it can."""
    if not isinstance(schema, dict):
        return None
    try:
        references = list(_references(schema, _DEEPEST))
        validator_for(schema).check_schema(schema)
    except RecursionError:
        return f"its schema is more than {_DEEPEST} levels deep"
    except SchemaError as error:
        return f"its schema is invalid at {'/'.join(map(str, error.absolute_path)) or 'the top'}: {error.message[:200]}"
    broken = next((one for one in references if not _resolves(one, schema)), None)
    return None if broken is None else f"its schema refers to {broken[:200]}, which is not in it"


def _references(value: JsonValue, depth: int) -> Iterator[str]:
    if depth == 0:
        raise RecursionError
    if isinstance(value, dict):
        reference = value.get("$ref")
        if isinstance(reference, str):
            yield reference
        for inner in value.values():
            yield from _references(inner, depth - 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner, depth - 1)


def _resolves(reference: str, schema: JsonObject) -> bool:
    if not reference.startswith("#"):
        return False
    if not reference.startswith("#/"):
        return True
    found: JsonValue = schema
    for part in reference[2:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        inner = _at(found, key)
        if inner is None:
            return False
        found = inner[0]
    return True


def _at(value: JsonValue, key: str) -> tuple[JsonValue] | None:
    if isinstance(value, dict):
        return (value[key],) if key in value else None
    if isinstance(value, list):
        return (value[int(key)],) if key.isdigit() and int(key) < len(value) else None
    return None
