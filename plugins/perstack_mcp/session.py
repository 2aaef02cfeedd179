"""Session of a skill that is an MCP server: connects when first needed and reconnects after the server has died."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from importlib import import_module
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from perstack.core.runs.facts import Question
from perstack.errors import SkillError
from perstack.next_steps import NextStep
from perstack.ports.skill import SkillSession, ToolCall, ToolResult, Toolset
from perstack_mcp.server_interface import McpServer, ServerEnded, describe, next_steps_of

if TYPE_CHECKING:
    from perstack_mcp.client import McpClient

DEFAULT_TIMEOUT_MS = 60_000  # milliseconds to connect, and for a call without progress


class McpSession(SkillSession):
    """A server connection that all Runs of a Job share."""

    def __init__(self, server: McpServer, timeout_ms: int | None, *, may_sample: bool = False) -> None:
        """Prepare without connecting; `timeout_ms` None means DEFAULT_TIMEOUT."""
        self._server = server
        self._may_sample = may_sample
        self._patience_s = (timeout_ms or DEFAULT_TIMEOUT_MS) / 1000
        self._lock = asyncio.Lock()
        self._connection: _ConnectionTask | None = None
        self._toolset: Toolset | None = None
        self._is_closed = False

    async def tools(self) -> Toolset:
        """Return the current tools, or the last known ones while disconnected."""
        client = await self._connected_client() if self._toolset is None else self._open_client()
        if client is not None:
            toolset = await client.toolset()
            if toolset != self._toolset:
                self._toolset = toolset
        return self._toolset or Toolset()

    async def call(self, tool_call: ToolCall) -> ToolResult | Question:
        """Call a tool. Raises SkillError for the model. A server that died earlier is restarted once for this call."""
        connection = self._connection
        try:
            if connection is not None and not connection.is_up and tool_call.key in connection.waiting_calls:
                raise ServerEnded
            client = await self._connected_client()
            connection = self._connection
            return await client.call(tool_call, self._patience_s)
        except ServerEnded as error:
            summary = await connection.failure_summary() if connection is not None else ""
            raise SkillError(
                f"{tool_call.tool_name}: the server ended during the call, which may have had its effect and was not"
                f" repeated{summary}; the next call restarts the server"
            ) from error

    @property
    @override
    def has_waiting_call(self) -> bool:
        return self._connection is not None and bool(self._connection.waiting_calls)

    @override
    async def close(self) -> None:
        self._is_closed = True
        if self._connection is not None:
            await self._connection.end()

    def _open_client(self) -> McpClient | None:
        return self._connection.client if self._connection is not None else None

    async def _connected_client(self) -> McpClient:
        async with self._lock:
            if self._is_closed:
                raise SkillError(f"skill {self._server.name!r} has been closed")
            if self._connection is not None and self._connection.is_up:
                return await self._connection.wait_until_ready(self._patience_s)
            if self._connection is not None:
                await self._connection.end()
                self._server.show(f"(the server had ended{await self._connection.failure_summary()}: it is restarted)")
            self._connection = _ConnectionTask(self._server, self._patience_s, may_sample=self._may_sample)
            return await self._connection.wait_until_ready(self._patience_s)


class _ConnectionTask:
    """A task that starts a server, connects and shuts it down: the SDK requires all three in one task."""

    def __init__(self, server: McpServer, patience_s: float, *, may_sample: bool) -> None:
        self._server = server
        self._patience_s = patience_s
        self._may_sample = may_sample
        self._leave = asyncio.Event()
        self._ready: asyncio.Future[McpClient] = asyncio.get_running_loop().create_future()
        self._failure = ""
        self._steps: tuple[NextStep, ...] = ()
        self._task = asyncio.create_task(self._run_server())

    @property
    def is_up(self) -> bool:
        """True while the server is starting or ready for calls."""
        return not self._leave.is_set() and not self._task.done()

    @property
    def client(self) -> McpClient | None:
        """The connected client; None while the server is starting and after it has ended."""
        return self._ready.result() if self.is_up and self._ready.done() else None

    @property
    def waiting_calls(self) -> Collection[str]:
        """The keys of calls that wait for a person's answer, or waited when the server ended."""
        return self._ready.result().waiting_calls if self._ready.done() else ()

    async def wait_until_ready(self, timeout_s: float) -> McpClient:
        """Return the client within `timeout_s` seconds. Raises SkillError, with everything shut down."""
        outcomes: set[asyncio.Future[Any]] = {self._ready, self._task}
        await asyncio.wait(outcomes, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self._ready.done():
            return self._ready.result()
        is_late = not self._task.done()
        if is_late:
            await self._cancel_task()
            self._failure = f"no answer within {timeout_s:g} s; a longer `timeout` of the skill waits longer"
        summary = await self.failure_summary()
        raise SkillError(f"skill {self._server.name!r} could not be connected to{summary}", next_steps=self._steps)

    async def end(self) -> None:
        """Shut the server down; immediately if this is cancelled."""
        self._leave.set()
        if not self._ready.done():
            self._task.cancel()
        try:
            await asyncio.shield(asyncio.wait({self._task}))
        except asyncio.CancelledError:
            await self._cancel_task()
            raise

    async def failure_summary(self) -> str:
        """Wait for the end and describe it, as a suffix of another message."""
        await asyncio.wait({self._task})
        description = "; ".join(part for part in (self._failure, self._server.exit_summary()) if part)
        return f": {description}" if description else ""

    async def _cancel_task(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run_server(self) -> None:
        """Start, connect and serve; keep an error for `failure_summary`."""
        try:
            async with self._server.up():
                # the process starts while this thread imports the SDK
                await asyncio.to_thread(import_module, "perstack_mcp.client")
                from perstack_mcp.client import connect

                await connect(
                    self._server,
                    self._ready.set_result,
                    self._leave,
                    patience_s=self._patience_s,
                    may_sample=self._may_sample,
                )
        except Exception as error:  # noqa: BLE001 - the model sees the message of any error of the SDK or the server
            self._failure, self._steps = describe(error), next_steps_of(error)
