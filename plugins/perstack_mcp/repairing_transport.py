"""Transport that repairs a server's messages before the SDK validates them, and shows notes on the repairs.

It records the method of each request, so that the answer is repaired by its kind: greeting, list of tools or result.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

import anyio
import anyio.to_thread
from mcp.client import Transport
from mcp.shared.message import SessionMessage
from mcp_types import CallToolResult, JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from mcp_types.methods import validate_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from perstack.core.base.records import JsonObject
from perstack_mcp.message_repairs import UNKNOWN_ID, repaired_greeting, unwrapped_result
from perstack_mcp.result_repairs import is_plain, repaired_result
from perstack_mcp.server_interface import ShownOnce
from perstack_mcp.tool_repairs import OutputSchemas, repaired_page

if TYPE_CHECKING:
    from mcp_types import RequestId

    from perstack_mcp.sdk import ReadStream, TransportStreams, WriteStream

_GREETINGS = ("initialize", "server/discover")

_NUMBER = re.compile("[0-9]{1,15}")

_LATEST_HANDSHAKE = "2025-11-25"  # revision used before one is negotiated


class Repairs:
    """Repairs of one connection's messages, with a record of its requests."""

    def __init__(
        self,
        version: Callable[[], str],
        outputs: OutputSchemas,
        show: Callable[[str], None],
        on_end: Callable[[], None],
    ) -> None:
        """Show notes with `show`; call `on_end` when the server's messages have ended."""
        self._version = version
        self._outputs = outputs
        self._show = show
        self.on_end = on_end
        self._requests: dict[RequestId, tuple[str, str]] = {}  # method, and name of the tool, by request
        self._notes_output = ShownOnce(show)
        self.greeting: JsonObject | None = None
        """Parameters of the last handshake."""
        self.has_taken_handshake = False
        """True once the server has answered `initialize` with a result: it uses a revision with the handshake."""

    def note_request(self, message: object) -> None:
        if isinstance(message, JSONRPCRequest):
            name = (message.params or {}).get("name")
            self._requests[message.id] = message.method, name if isinstance(name, str) else ""
            if message.method == "initialize":
                self.greeting = message.params
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self._requests.pop((message.params or {}).get("requestId", UNKNOWN_ID), None)

    async def repair(self, message: object) -> None:
        """Repair an answer in place."""
        if not isinstance(message, JSONRPCResponse | JSONRPCError):
            return
        message.id = self._resolve_id(message.id)
        method, name = self._requests.pop(message.id, ("", ""))
        if isinstance(message, JSONRPCError):
            return
        result = cast("JsonObject", message.result)
        if method in _GREETINGS:
            self.has_taken_handshake = self.has_taken_handshake or method == "initialize"
            message.result, notes = repaired_greeting(result)
            self._notes_output(f"its answer to {method} was repaired", notes)
        elif method == "tools/list":
            # In a thread: a long list, or a schema designed to be slow, must not block the event loop.
            repair = partial(
                repaired_page, unwrapped_result(result), self._version() or _LATEST_HANDSHAKE, self._outputs
            )
            message.result, lines = await anyio.to_thread.run_sync(repair, abandon_on_cancel=True)
            for line in lines:
                self._show(line)
        elif method == "tools/call":
            message.result = await self._repair_call_result(name, result)
        elif unwrapped_result(result) is not result:
            message.result = {}

    def _resolve_id(self, identity: RequestId | None) -> RequestId:
        """Return the id of the request that an answer belongs to, whose own id may be missing, or a number as text."""
        if identity is None or identity == UNKNOWN_ID:
            return next(iter(self._requests)) if len(self._requests) == 1 else UNKNOWN_ID
        if identity in self._requests or not isinstance(identity, str) or _NUMBER.fullmatch(identity) is None:
            return identity
        return int(identity)

    async def _repair_call_result(self, name: str, result: JsonObject) -> JsonObject:
        """Return a tool's result, repaired unless it is valid."""
        version = self._version()
        is_modern = version in MODERN_PROTOCOL_VERSIONS
        if is_modern and result.get("resultType") == "input_required":
            return result
        is_valid = partial(is_valid_result, version)
        if is_plain(result) and is_valid(result):
            return result
        # in a thread: a result may have many blocks
        repair = partial(repaired_result, result, is_valid, is_stateless=is_modern)
        repaired, notes = await anyio.to_thread.run_sync(repair, abandon_on_cancel=True)
        self._notes_output(f"{name}: an invalid result was repaired", notes)
        return repaired


def is_valid_result(version: str, result: JsonObject) -> bool:
    """Return whether a tool's result is valid for the revision and the SDK."""
    try:
        validate_server_result("tools/call", version, result)
        CallToolResult.model_validate(result, by_name=False)
    except (ValidationError, KeyError):
        return False
    return True


class RepairingReader:
    """Reading end of a transport. It repairs messages and reports the end of the stream."""

    def __init__(self, inner: ReadStream[SessionMessage | Exception], repairs: Repairs) -> None:
        self._inner = inner
        self._repairs = repairs

    @property
    def last_context(self) -> object:
        """The context of the last message's sender, which the SDK reads from such streams."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message, repaired."""
        try:
            item = await self._inner.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._repairs.on_end()
            raise
        if isinstance(item, SessionMessage):
            await self._repairs.repair(item.message)
        return item

    async def aclose(self) -> None:
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


class NotingWriter:
    """Writing end of a transport. It records each request."""

    def __init__(self, inner: WriteStream[SessionMessage], repairs: Repairs) -> None:
        self._inner = inner
        self._repairs = repairs

    async def send(self, item: SessionMessage, /) -> None:
        self._repairs.note_request(item.message)
        await self._inner.send(item)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.aclose()


@asynccontextmanager
async def repairing(transport: Transport, repairs: Repairs) -> AsyncGenerator[TransportStreams]:
    """Wrap a transport so that its messages are repaired."""
    async with transport as (reader, writer):
        yield RepairingReader(reader, repairs), NotingWriter(writer, repairs)
