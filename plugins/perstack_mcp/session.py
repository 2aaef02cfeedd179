"""A skill that is an MCP server: connected when first needed, connected again when it has died, ended at the end."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any

from perstack.core.questions import Question
from perstack.errors import SkillError
from perstack.next_steps import NextStep
from perstack.ports.skill import ToolCall, ToolResult, Toolset
from perstack_mcp.failures import ServerEnded, steps, words
from perstack_mcp.ways import Server

if TYPE_CHECKING:
    from perstack_mcp.conversation import Conversation

DEFAULT_TIMEOUT = 60_000
"""Milliseconds to connect in, and of silence that a call may keep."""


class McpSession:
    """One server for all Runs of a Job."""

    def __init__(self, server: Server, timeout_ms: int | None, *, may_sample: bool = False) -> None:
        self._server = server
        self._may_sample = may_sample
        self._patience = (timeout_ms or DEFAULT_TIMEOUT) / 1000
        self._lock = asyncio.Lock()
        self._connection: _Connection | None = None
        self._toolset: Toolset | None = None
        self._is_closed = False

    async def tools(self) -> Toolset:
        """What the server lists, or listed last. Raises SkillError if it was never connected to and cannot be."""
        conversation = await self._conversation() if self._toolset is None else self._at_hand()
        if conversation is not None:
            found = await conversation.toolset()
            if found != self._toolset:
                self._toolset = found
        return self._toolset or Toolset()

    async def call(self, call: ToolCall) -> ToolResult | Question:
        """Raises SkillError for the model. A server that has died before is started again, once for this call."""
        conversation = await self._conversation()
        connection = self._connection
        try:
            return await conversation.call(call, self._patience)
        except ServerEnded as error:
            why = await connection.epitaph() if connection is not None else ""
            raise SkillError(
                f"{call.tool_name}: the server ended during the call, which may have had its effect and is not"
                f" repeated{why}; the next call starts it again"
            ) from error

    async def close(self) -> None:
        """End the server."""
        self._is_closed = True
        if self._connection is not None:
            await self._connection.end()

    def _at_hand(self) -> Conversation | None:
        return self._connection.conversation if self._connection is not None else None

    async def _conversation(self) -> Conversation:
        async with self._lock:
            if self._is_closed:
                raise SkillError(f"skill {self._server.name!r} has been closed")
            if self._connection is not None and self._connection.is_up:
                return await self._connection.ready(self._patience)
            if self._connection is not None:
                await self._connection.end()
                self._server.show(f"(the server had ended{await self._connection.epitaph()}: it is started again)")
            self._connection = _Connection(self._server, may_sample=self._may_sample)
            return await self._connection.ready(self._patience)


class _Connection:
    """A task that brings a server up, talks to it and takes it down: the SDK wants all three to be done by the same."""

    def __init__(self, server: Server, *, may_sample: bool) -> None:
        self._server = server
        self._may_sample = may_sample
        self._leave = asyncio.Event()
        self._ready: asyncio.Future[Conversation] = asyncio.get_running_loop().create_future()
        self._failure = ""
        self._steps: tuple[NextStep, ...] = ()
        self._task = asyncio.create_task(self._own())

    @property
    def is_up(self) -> bool:
        """Whether it is starting, or there to be called."""
        return not self._leave.is_set() and not self._task.done()

    @property
    def conversation(self) -> Conversation | None:
        """None while it is starting, and when it has ended."""
        return self._ready.result() if self.is_up and self._ready.done() else None

    async def ready(self, deadline: float) -> Conversation:
        """The conversation. Raises SkillError, and nothing is left, if there is none within some seconds."""
        both: set[asyncio.Future[Any]] = {self._ready, self._task}
        await asyncio.wait(both, timeout=deadline, return_when=asyncio.FIRST_COMPLETED)
        if self._ready.done():
            return self._ready.result()
        is_late = not self._task.done()
        if is_late:
            await self._stop()
            self._failure = f"no answer within {deadline:g} s; a longer `timeout` of the skill would wait longer"
        why = await self.epitaph()
        raise SkillError(f"skill {self._server.name!r} could not be connected to{why}", next_steps=self._steps)

    async def end(self) -> None:
        """Take it down, at once if this is cancelled."""
        self._leave.set()
        if not self._ready.done():
            self._task.cancel()
        try:
            await asyncio.shield(asyncio.wait({self._task}))
        except asyncio.CancelledError:
            await self._stop()
            raise

    async def epitaph(self) -> str:
        """Why it ended, once it has, in words that follow others."""
        await asyncio.wait({self._task})
        known = "; ".join(part for part in (self._failure, self._server.last_words()) if part)
        return f": {known}" if known else ""

    async def _stop(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _own(self) -> None:
        try:
            async with self._server.up():
                # the process starts up while this thread imports
                await asyncio.to_thread(import_module, "perstack_mcp.conversation")
                from perstack_mcp.conversation import converse

                await converse(self._server, self._ready.set_result, self._leave, may_sample=self._may_sample)
        except Exception as error:  # noqa: BLE001 - whatever the SDK or the server raises, the model is told its words
            self._failure, self._steps = words(error), steps(error)
