"""Talking to one server that is up, through the SDK. Nothing of the SDK's types leaves this module."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, cast

import httpx2
from mcp.client import Client, ClientRequestContext
from mcp.client.session import IncomingMessage
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    Implementation,
    ListRootsResult,
    LoggingMessageNotificationParams,
    RequestParamsMeta,
    Root,
    ToolListChangedNotification,
)
from pydantic import FileUrl, ValidationError

from perstack.core.questions import Question
from perstack.errors import SkillError
from perstack.ports.skill import ToolCall, ToolResult, Toolset
from perstack_mcp.contents import result_of
from perstack_mcp.failures import ServerEnded, leaf, steps, words
from perstack_mcp.listing import Listing
from perstack_mcp.open_calls import OpenCall, OpenCalls
from perstack_mcp.outputs import OutputSchemas
from perstack_mcp.repair import repairing
from perstack_mcp.requests import Requests, demanded
from perstack_mcp.shown import Shown
from perstack_mcp.ways import Server, Way

CALL_KEY = "perstack/callId"
"""Where in `_meta` a server finds the call's key."""

_PERSTACK = Implementation(name="perstack", version=version("perstack"))

for _name in ("mcp", "client"):
    # the SDK logs with tracebacks what it raises as well, which Python prints if nobody has said where logs go
    logging.getLogger(_name).addHandler(logging.NullHandler())


class Conversation:
    """A connected client, which belongs to the task that entered it; calls may come from any."""

    def __init__(self, client: Client, listing: Listing, outputs: OutputSchemas, calls: OpenCalls) -> None:
        self._client = client
        self._outputs = outputs
        self._listing = listing
        self._calls = calls
        self._turn = asyncio.Lock()
        self._is_in_turn = False

    async def toolset(self) -> Toolset:
        """What the server lists now."""
        return await self._listing.current()

    async def call(self, call: ToolCall, idle: float) -> ToolResult | Question:
        """Raises SkillError. Silence for `idle` seconds ends it; a report of progress starts the count again."""
        if not self._is_in_turn:
            result = await self._made(call, idle)
            if result is not None:
                return result
            self._is_in_turn = True
        while True:
            async with self._turn:
                result = await self._made(call, idle)
            if result is not None:
                return result

    async def _made(self, call: ToolCall, idle: float) -> ToolResult | Question | None:
        """None if it is to be made again when no other is in flight."""
        with self._calls.opened(call, idle) as one:
            try:
                async with one.limit:
                    return await self._until_given_up(one)
            except TimeoutError as error:
                if not one.limit.expired():
                    raise
                raise SkillError(
                    f"{call.tool_name}: no answer and no progress for {idle:g} s, so the call was cancelled, and may"
                    " have had its effect; a longer `timeout` of the skill would wait longer"
                ) from error

    async def _until_given_up(self, one: OpenCall) -> ToolResult | Question | None:
        work = asyncio.create_task(self._sent(one))
        try:
            both: set[asyncio.Future[Any]] = {work, one.given_up}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            return await work if work.done() else one.given_up.result()
        finally:
            if not work.done():
                # the SDK tells the server
                work.cancel()
                await asyncio.wait({work})

    async def _sent(self, one: OpenCall) -> ToolResult | Question:
        call = one.call
        show = Shown(call.on_progress)

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            one.heard()
            of = "" if total is None else f"/{total:g}"
            show(f"{call.tool_name}: {message or ''} {progress:g}{of}".replace(":  ", ": "))

        meta = cast("RequestParamsMeta", {CALL_KEY: call.key})
        try:
            result = await self._client.call_tool(
                call.tool_name, dict(call.args), progress_callback=on_progress, meta=meta
            )
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise ServerEnded from error
            question = demanded(error, one)
            if question is not None:
                return question
            raise SkillError(f"{call.tool_name}: {words(error)}") from error
        except (RuntimeError, ValidationError) as error:
            raise SkillError(f"{call.tool_name}: the server's answer is not as it should be: {words(error)}") from error
        problem = await self._outputs.problem(call.tool_name, result)
        if problem is not None:
            raise SkillError(f"{call.tool_name}: {problem}")
        return await result_of(result, call.blobs)


async def converse(
    server: Server, on_ready: Callable[[Conversation], None], leave: asyncio.Event, *, may_sample: bool
) -> None:
    """Talk to a server until told to leave, or until it ends. Raises whatever keeps it from beginning."""
    ways = server.ways()
    refusals: list[str] = []
    for number, way in enumerate(ways, 1):
        talk = _Talk(server, way, on_ready, leave, may_sample=may_sample)
        try:
            await talk.run()
        except Exception as error:
            if talk.is_ready or number == len(ways) or not _is_refusal(error):
                refusals.append(_words(error))
                raise SkillError("; then ".join(dict.fromkeys(refusals)), next_steps=steps(error)) from error
            refusals.append(_words(error))
        else:
            return


def _words(error: BaseException) -> str:
    """With the address, where there is one that nobody answers at; the path may hold a secret."""
    found = leaf(error)
    if not isinstance(found, httpx2.ConnectError):
        return words(error)
    return f"nobody answers at {found.request.url.netloc.decode()} ({words(error)})"


def _is_refusal(error: BaseException) -> bool:
    """Whether another way may do, because somebody is there who declined this one."""
    found = leaf(error)
    return not isinstance(found, SkillError) and not (isinstance(found, MCPError) and found.code == CONNECTION_CLOSED)


class _Talk:
    """One attempt, in one way."""

    def __init__(
        self,
        server: Server,
        way: Way,
        on_ready: Callable[[Conversation], None],
        leave: asyncio.Event,
        *,
        may_sample: bool,
    ) -> None:
        self._server = server
        self._way = way
        self._may_sample = may_sample
        self._listing = Listing(server.show)
        self._on_ready = on_ready
        self._leave = leave
        self._client: Client | None = None
        self.is_ready = False

    async def run(self) -> None:
        outputs = OutputSchemas()
        transport = repairing(self._way.transport(), self._version, outputs, self._server.show, self._leave.set)
        calls = OpenCalls(self._server.show)
        requests = Requests(calls, self._server.show)
        client = Client(
            transport,
            mode=self._way.mode,
            client_info=_PERSTACK,
            elicitation_callback=requests.elicit,
            sampling_callback=requests.sample if self._may_sample else None,
            list_roots_callback=self._roots,
            message_handler=self._notice,
            logging_callback=self._log,
            log_level="info",
            cache=None,
        )
        self._client = client
        async with client:
            await self._listing.begin(client)
            if self._way.worked is not None:
                await self._way.worked(client.session.initialize_result is None)
            self.is_ready = True
            async with asyncio.TaskGroup() as group:
                following = [group.create_task(self._listing.follow(client))]
                if _tells_of_changes_when_asked(client):
                    following.append(group.create_task(self._listing.listen(client)))
                self._on_ready(Conversation(client, self._listing, outputs, calls))
                await self._leave.wait()
                for task in following:
                    task.cancel()

    def _version(self) -> str:
        return self._client.protocol_version if self._client is not None else ""

    async def _notice(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._listing.changed()

    async def _roots(self, context: ClientRequestContext) -> ListRootsResult:
        workspace = self._server.workspace
        return ListRootsResult(roots=[Root(uri=FileUrl(workspace.as_uri()), name=workspace.name or None)])

    async def _log(self, params: LoggingMessageNotificationParams) -> None:
        data: object = params.data
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, default=str)
        self._server.show(f"[{params.level}] {text}")


def _tells_of_changes_when_asked(client: Client) -> bool:
    tools = client.server_capabilities.tools
    return client.session.initialize_result is None and tools is not None and bool(tools.list_changed)
