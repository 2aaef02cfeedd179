"""Client of one running server: connect, call its tools, keep the list of them, and end.

`connect` tries the server's connection attempts in order. The first that succeeds serves a `McpClient` until the caller
sets `leave`, or the server ends. A call is a `PendingCall`: it ends with a result, or returns with a question for a
person. Then its request stays open at the server (the call is held), and the same call, repeated with the answer,
continues it. A call that may have had its effect is never repeated: every error says whether it was made.

No type of the SDK leaves this module, apart from results, which `tool_results` converts.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import nullcontext
from functools import partial
from importlib.metadata import version
from typing import Any, cast

import anyio
import httpx2
from mcp.client import Client, ClientRequestContext
from mcp.client.session import IncomingMessage
from mcp.client.streamable_http import StreamableHTTPError
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    CallToolResult,
    Implementation,
    ListRootsResult,
    LoggingMessageNotificationParams,
    RequestParamsMeta,
    Root,
    ToolListChangedNotification,
)
from pydantic import FileUrl, ValidationError

from perstack.core.runs.facts import Question
from perstack.errors import PerstackError, SkillError
from perstack.ports.skill import ToolCall, ToolResult, Toolset
from perstack_mcp.repairing_transport import Repairs, repairing
from perstack_mcp.server_interface import (
    BROKEN,
    LOST_SESSION,
    NOT_SENT,
    ConnectionAttempt,
    McpServer,
    RateLimitedOutput,
    ServerEnded,
    describe,
    next_steps_of,
    root_cause,
)
from perstack_mcp.server_requests import CALL_KEY, OpenCalls, PendingCall, Requests, required_question
from perstack_mcp.session_renewal import SessionRenewal, is_lost_session
from perstack_mcp.tool_list import ToolList
from perstack_mcp.tool_repairs import OutputSchemas
from perstack_mcp.tool_results import result_of

_PERSTACK = Implementation(name="perstack", version=version("perstack"))

for _name in ("mcp", "client"):
    # The SDK logs the errors that it raises, with tracebacks, which Python prints if no handler is configured.
    logging.getLogger(_name).addHandler(logging.NullHandler())


class McpClient:
    """Connected client. It belongs to the task that opened it; any task may call it."""

    def __init__(
        self,
        client: Client,
        listing: ToolList,
        outputs: OutputSchemas,
        calls: OpenCalls,
        repairs: Repairs,
        show: Callable[[str], None],
        leave: asyncio.Event,
    ) -> None:
        """Use a connected client of the SDK."""
        self._client = client
        self._repairs = repairs
        self._show = show
        self._leave = leave
        self._sessions = SessionRenewal(client, partial(listing.relist, client), show, leave)
        self._outputs = outputs
        self._listing = listing
        self._calls = calls
        self._repeated_call_lock = asyncio.Lock()
        self._held_calls: dict[str, PendingCall] = {}  # calls that wait for a person's answer, by their keys

    async def toolset(self) -> Toolset:
        return await self._listing.current()

    @property
    def waiting_calls(self) -> Collection[str]:
        """Keys of the calls that wait for a person's answer, in the order in which they asked."""
        return self._held_calls.keys()

    async def call(self, tool_call: ToolCall, idle_s: float) -> ToolResult | Question:
        """Call a tool. Raises SkillError, for example after `idle_s` seconds without progress reports.

        Calls that are made again with answers, because they are not held any more, run one at a time. The server then
        asks again, and over a pipe its questions name no call: in parallel, one call could get the answer to another.
        """
        async with (
            self._repeated_call_lock if tool_call.answers and tool_call.key not in self._held_calls else nullcontext()
        ):
            return await self._call_or_resume(tool_call, idle_s)

    async def _call_or_resume(self, tool_call: ToolCall, idle_s: float) -> ToolResult | Question:
        """Resume the held call that this one repeats, or make a new one. Raises SkillError on a timeout."""
        pending = self._held_calls.pop(tool_call.key, None)
        if pending is None or not pending.resume(tool_call):
            if pending is not None:
                await self._cancel_call(pending)
            pending = PendingCall(tool_call, idle_s)
        with self._calls.register(pending):
            try:
                async with pending.limit:
                    return await self._await_result(pending)
            except TimeoutError as error:
                if not pending.limit.expired():
                    raise
                raise SkillError(
                    f"{tool_call.tool_name}: no answer and no progress for {idle_s:g} s, so the call was cancelled;"
                    " it may have had its effect. A longer `timeout` of the skill waits longer"
                ) from error

    async def _await_result(self, pending: PendingCall) -> ToolResult | Question:
        """Return the call's result, or the question with which it must return; the call is then held."""
        work = pending.work = pending.work or asyncio.create_task(self._request_result(pending))
        try:
            outcomes: set[asyncio.Future[Any]] = {work, pending.asked_question}
            await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return await work
            pending.is_held = True
            self._held_calls[pending.tool_call.key] = pending
            work.add_done_callback(lambda done: self._calls.reassign_question())
            return pending.asked_question.result().question
        finally:
            if not work.done() and not pending.is_held:
                work.cancel()  # the SDK notifies the server
                await asyncio.wait({work})

    async def cancel_held(self) -> None:
        """Cancel the calls that wait for an answer, before the connection is closed."""
        await asyncio.gather(*map(self._cancel_call, self._held_calls.values()))

    async def _cancel_call(self, pending: PendingCall) -> None:
        await pending.end()
        self._calls.drop(pending)

    async def _request_result(self, pending: PendingCall) -> ToolResult | Question:
        """Request the call and convert its result. Raises SkillError, and ServerEnded after `leave`."""
        tool_call = pending.tool_call
        # the repeated call replaces `pending.tool_call`, so read it for each line; nobody watches a held call
        show = RateLimitedOutput(lambda line: None if pending.is_held else pending.tool_call.on_progress(line))

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            pending.on_activity()
            note = f"{message} " if message else ""
            limit = "" if total is None else f"/{total:g}"
            show(f"{tool_call.tool_name}: {note}{progress:g}{limit}")

        meta = cast("RequestParamsMeta", {CALL_KEY: tool_call.key})
        request = partial(self._client.call_tool, progress_callback=on_progress, meta=meta)
        try:
            result = await self._with_session_renewal(
                pending, partial(request, tool_call.tool_name, dict(tool_call.args))
            )
        except MCPError as error:
            if error.code == CONNECTION_CLOSED and self._leave.is_set():
                raise ServerEnded from error
            if error.code == CONNECTION_CLOSED or error.error.data == BROKEN:
                raise SkillError(
                    f"{tool_call.tool_name}: {describe(error)}: the call may have had its effect, and was not repeated"
                ) from error
            if error.error.data in (LOST_SESSION, NOT_SENT):
                raise SkillError(f"{tool_call.tool_name}: {describe(error)}: the call was not made") from error
            tool_question = required_question(error, pending)
            if tool_question is not None:
                return tool_question
            raise SkillError(f"{tool_call.tool_name}: {describe(error)}") from error
        except (RuntimeError, ValidationError) as error:
            raise SkillError(
                f"{tool_call.tool_name}: the server's answer is invalid: {_describe_failure(error)}"
            ) from error
        problem = await self._outputs.problem(tool_call.tool_name, result)
        if problem is not None:
            # not an error: the tool has done its work, and the model needs its text
            self._show(f"({tool_call.tool_name}: {problem})")
        return await result_of(result, pending.tool_call.blobs)

    async def _with_session_renewal(
        self, pending: PendingCall, request: Callable[[], Awaitable[CallToolResult]]
    ) -> CallToolResult:
        """Make a call; if the server refuses it because it lost the session, repeat it once in a new session.

        Raises SkillError instead if the server has reacted to the call, which may thus have had its effect, or if the
        tool's definition has changed, so that the decision to allow the call no longer applies.
        """
        name, sessions_before = pending.tool_call.tool_name, self._sessions.count
        spec_before = self._listing.spec_of(name)
        try:
            return await request()
        except MCPError as error:
            if not is_lost_session(error):
                raise
            if pending.has_reacted:
                raise SkillError(
                    f"{name}: the server has lost its session during the call, which may have had its effect and is"
                    " not repeated"
                ) from error
            try:
                await self._sessions.renew(sessions_before, self._repairs.greeting)
            except SkillError as failure:
                raise SkillError(f"{name}: {failure.message}; the call was not made") from failure
            if self._listing.spec_of(name) != spec_before:
                raise SkillError(
                    f"{name}: the server was started again with another definition of this tool; the call was not made"
                ) from error
        return await request()

    async def relist(self) -> None:
        """List the tools again, in a new session if the server has lost this one. Raises its errors."""
        sessions_before = self._sessions.count
        try:
            await self._listing.relist(self._client)
        except MCPError as error:
            if not is_lost_session(error):
                raise
            await self._sessions.renew(sessions_before, self._repairs.greeting)


async def connect(
    server: McpServer,
    on_ready: Callable[[McpClient], None],
    leave: asyncio.Event,
    *,
    patience_s: float,
    may_sample: bool,
) -> None:
    """Connect by the first attempt that succeeds, and serve until `leave` or the end. Raises SkillError.

    `patience_s`: seconds in which the caller wants to be connected; listing the tools may take a quarter of them.
    """
    attempts = server.attempts()
    refusals: list[str] = []
    for number, attempt in enumerate(attempts, 1):
        connection = _Connection(server, attempt, on_ready, leave, patience_s=patience_s, may_sample=may_sample)
        try:
            await connection.run()
        except Exception as error:
            is_last = connection.is_ready or connection.repairs.has_taken_handshake or number == len(attempts)
            if is_last or not _is_refusal(error):
                refusals.append(_describe_failure(error))
                raise SkillError("; then ".join(dict.fromkeys(refusals)), next_steps=next_steps_of(error)) from error
            refusals.append(_describe_failure(error))
        else:
            return


def _describe_failure(error: BaseException) -> str:
    """Describe an error; a connection error also names the host, without the path, which may hold a secret."""
    cause = root_cause(error)
    if isinstance(cause, ValidationError):
        first = cause.errors(include_url=False, include_input=False)[0]
        return f"its answer is not an MCP message: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    if _is_programming_error(cause):
        return f"an error in perstack or the MCP SDK, {type(cause).__name__}: {describe(error)}"
    if not isinstance(cause, httpx2.ConnectError):
        return describe(error)
    return f"there is no answer from {cause.request.url.netloc.decode()} ({describe(error)})"


_REFUSALS = (
    MCPError,
    httpx2.HTTPError,
    StreamableHTTPError,
    ValidationError,
    UnicodeError,
    json.JSONDecodeError,
    RuntimeError,
    OSError,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
)
"""Errors that the SDK raises when a server declines a connection attempt or answers in another way.

An unknown version is a RuntimeError, an invalid body a ValidationError.
"""


def _is_refusal(error: BaseException) -> bool:
    """Return whether the server declined this attempt, so that another may succeed. False for errors in our code."""
    cause = root_cause(error)
    is_closed = isinstance(cause, MCPError) and cause.code == CONNECTION_CLOSED
    return isinstance(cause, _REFUSALS) and not _is_programming_error(cause) and not is_closed


def _is_programming_error(error: BaseException) -> bool:
    """Return whether an error is none that a server can cause."""
    is_unexpected = isinstance(error, NotImplementedError | RecursionError)
    return is_unexpected or not isinstance(error, (*_REFUSALS, ValueError, PerstackError))


class _Connection:
    """Connection by one attempt: its client, and the state that tells whether another attempt may follow."""

    def __init__(
        self,
        server: McpServer,
        attempt: ConnectionAttempt,
        on_ready: Callable[[McpClient], None],
        leave: asyncio.Event,
        *,
        patience_s: float,
        may_sample: bool,
    ) -> None:
        self._server = server
        self._attempt = attempt
        self._may_sample = may_sample
        self._listing = ToolList(server.show, patience_s)
        self._outputs = OutputSchemas()
        self.repairs = Repairs(self._protocol_version, self._outputs, server.show, leave.set)
        self._on_ready = on_ready
        self._leave = leave
        self._client: Client | None = None
        self.is_ready = False

    async def run(self) -> None:
        """Connect and serve until `leave`. Raises the SDK's errors."""
        transport = repairing(self._attempt.transport(), self.repairs)
        calls = OpenCalls(self._server.show)
        requests = Requests(calls, self._server.show)
        client = Client(
            transport,
            mode=self._attempt.mode,
            client_info=_PERSTACK,
            elicitation_callback=requests.elicit,
            sampling_callback=requests.sample if self._may_sample else None,
            list_roots_callback=self._list_roots,
            message_handler=self._on_message,
            logging_callback=self._on_log,
            log_level="info",
            cache=None,
        )
        self._client = client
        async with client:
            await self._listing.begin(client)
            if self._attempt.on_success is not None:
                await self._attempt.on_success(_is_stateless(client))
            self.is_ready = True
            async with asyncio.TaskGroup() as group:
                connected = McpClient(
                    client, self._listing, self._outputs, calls, self.repairs, self._server.show, self._leave
                )
                background = [group.create_task(self._listing.follow(connected.relist))]
                if _announces_changes_by_subscription(client):
                    background.append(group.create_task(self._listing.listen(client)))
                self._on_ready(connected)
                try:
                    await self._leave.wait()
                finally:
                    await connected.cancel_held()
                for task in background:
                    task.cancel()

    def _protocol_version(self) -> str:
        return self._client.protocol_version if self._client is not None else ""

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._listing.note_change()

    async def _list_roots(self, context: ClientRequestContext) -> ListRootsResult:
        workspace = self._server.workspace
        return ListRootsResult(roots=[Root(uri=FileUrl(workspace.as_uri()), name=workspace.name or None)])

    async def _on_log(self, params: LoggingMessageNotificationParams) -> None:
        data: object = params.data
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, default=str)
        self._server.show(f"[{params.level}] {text}")


def _announces_changes_by_subscription(client: Client) -> bool:
    tools = client.server_capabilities.tools
    return _is_stateless(client) and tools is not None and bool(tools.list_changed)


def _is_stateless(client: Client) -> bool:
    """Return whether the server speaks a stateless revision of the protocol, which has no handshake."""
    return client.session.initialize_result is None
