"""Talking to one server that is up, through the SDK. Nothing of the SDK's types leaves this module."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from importlib.metadata import version
from typing import cast

from mcp.client import Client, ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    Implementation,
    ListRootsResult,
    LoggingMessageNotificationParams,
    RequestParamsMeta,
    Root,
    Tool,
)
from pydantic import FileUrl, ValidationError

from perstack.core.tools import Effect, ToolSpec
from perstack.errors import SkillError
from perstack.ports.skill import ToolCall, ToolResult, Toolset
from perstack_mcp.contents import result_of
from perstack_mcp.failures import ServerEnded, leaf, words
from perstack_mcp.repair import repairing
from perstack_mcp.ways import Server, Way

CALL_KEY = "perstack/callId"
"""Where in `_meta` a server finds the call's key."""

_MOST_PAGES = 100
_PERSTACK = Implementation(name="perstack", version=version("perstack"))

for _name in ("mcp", "client"):
    # the SDK logs with tracebacks what it raises as well, which Python prints if nobody has said where logs go
    logging.getLogger(_name).addHandler(logging.NullHandler())


class Conversation:
    """A connected client, which belongs to the task that entered it; calls may come from any."""

    def __init__(self, client: Client, toolset: Toolset) -> None:
        self._client = client
        self.toolset = toolset

    async def call(self, call: ToolCall, idle: float) -> ToolResult:
        """Raises SkillError. Silence for `idle` seconds ends it; a report of progress starts the count again."""
        now = asyncio.get_running_loop().time
        limit = asyncio.timeout(idle)

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            if not limit.expired():
                limit.reschedule(now() + idle)
            of = "" if total is None else f"/{total:g}"
            call.on_progress(f"{call.tool_name}: {message or ''} {progress:g}{of}".replace(":  ", ": "))

        meta = cast("RequestParamsMeta", {CALL_KEY: call.key})
        try:
            async with limit:
                result = await self._client.call_tool(
                    call.tool_name, dict(call.args), progress_callback=on_progress, meta=meta
                )
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise SkillError(
                f"{call.tool_name}: no answer and no progress for {idle:g} s, so the call was cancelled, and may have"
                " had its effect; a longer `timeout` of the skill would wait longer"
            ) from error
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise ServerEnded from error
            raise SkillError(f"{call.tool_name}: {words(error)}") from error
        except (RuntimeError, ValidationError) as error:
            raise SkillError(f"{call.tool_name}: the server's answer is not as it should be: {words(error)}") from error
        return await result_of(result, call.blobs)


async def converse(server: Server, on_ready: Callable[[Conversation], None], leave: asyncio.Event) -> None:
    """Talk to a server until told to leave, or until it ends. Raises whatever keeps it from beginning."""
    ways = server.ways()
    refusals: list[str] = []
    for number, way in enumerate(ways, 1):
        talk = _Talk(server, way, on_ready, leave)
        try:
            await talk.run()
        except Exception as error:
            if talk.is_ready or number == len(ways) or not _is_refusal(error):
                refusals.append(words(error))
                raise SkillError("; then ".join(dict.fromkeys(refusals))) from error
            refusals.append(words(error))
        else:
            return


def _is_refusal(error: BaseException) -> bool:
    """Whether another way may do, because somebody is there who declined this one."""
    found = leaf(error)
    return not isinstance(found, SkillError) and not (isinstance(found, MCPError) and found.code == CONNECTION_CLOSED)


class _Talk:
    """One attempt, in one way."""

    def __init__(
        self, server: Server, way: Way, on_ready: Callable[[Conversation], None], leave: asyncio.Event
    ) -> None:
        self._server = server
        self._way = way
        self._on_ready = on_ready
        self._leave = leave
        self._client: Client | None = None
        self.is_ready = False

    async def run(self) -> None:
        transport = repairing(self._way.transport(), self._version, self._server.show, self._leave.set)
        client = Client(
            transport,
            mode=self._way.mode,
            client_info=_PERSTACK,
            list_roots_callback=self._roots,
            logging_callback=self._log,
            log_level="info",
            cache=None,
        )
        self._client = client
        async with client:
            toolset = Toolset(await _listed(client), client.instructions or "")
            if self._way.worked is not None:
                await self._way.worked()
            self.is_ready = True
            self._on_ready(Conversation(client, toolset))
            await self._leave.wait()

    def _version(self) -> str:
        return self._client.protocol_version if self._client is not None else ""

    async def _roots(self, context: ClientRequestContext) -> ListRootsResult:
        workspace = self._server.workspace
        return ListRootsResult(roots=[Root(uri=FileUrl(workspace.as_uri()), name=workspace.name or None)])

    async def _log(self, params: LoggingMessageNotificationParams) -> None:
        data: object = params.data
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, default=str)
        self._server.show(f"[{params.level}] {text}")


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
    )


def _effect(tool: Tool) -> Effect:
    hints = tool.annotations
    if hints is not None and hints.read_only_hint:
        return "readOnly"
    return "idempotent" if hints is not None and hints.idempotent_hint else "sideEffect"
