"""An editor that drives an ACP agent in its own process, with the protocol's official client."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import warm
from acp import PROTOCOL_VERSION, connect_to_agent
from acp.schema import AllowedOutcome, DeniedOutcome, Implementation, RequestPermissionResponse
from acp.transports import default_environment
from terminal import SECONDS, Terminal

T = TypeVar("T")


@dataclass
class Editor:
    """A client that records what it is shown and answers permission requests with `choose`."""

    choose: str | None = None
    updates: list[Any] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    """Session id of each update."""
    asked: list[Any] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        self.updates.append(update)
        self.sessions.append(session_id)
        self.changed.set()

    async def request_permission(self, session_id: str, tool_call: Any, options: Any, **kwargs: Any):
        self.asked.append((tool_call.title, [option.option_id for option in options]))
        if self.choose is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=self.choose))

    def on_connect(self, conn: Any) -> None:
        pass

    def kinds(self) -> list[str]:
        return [update.session_update for update in self.updates]

    def texts(self, kind: str = "agent_message_chunk", session_id: str | None = None) -> str:
        updates = zip(self.sessions, self.updates, strict=True)
        of_session = (update for update_session, update in updates if session_id in (None, update_session))
        return "".join(update.content.text for update in of_session if update.session_update == kind)

    async def wait_for_kind(self, kind: str) -> None:
        while kind not in self.kinds():
            self.changed.clear()
            await self.changed.wait()


@asynccontextmanager
async def spawned(terminal: Terminal, editor: Editor, *args: str) -> AsyncIterator[tuple[Any, subprocess.Popen[Any]]]:
    """Start an agent and yield the editor's connection and the process. It ends when its stdin is closed."""
    process = warm.perstack(
        *("acp", "--provider", "scripted", *args),
        env=default_environment() | terminal.env,
        cwd=terminal.workspace,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    # the event loop closes the pipes
    heard, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
    spoken, flow = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), process.stdin
    )
    writer = asyncio.StreamWriter(spoken, flow, None, loop)
    agent = connect_to_agent(editor, writer, reader)
    try:
        yield agent, process
        writer.close()
        await asyncio.to_thread(process.wait, SECONDS)
    finally:
        process.kill()
        process.wait(SECONDS)
        await agent.close()
        writer.close()
        heard.close()


@asynccontextmanager
async def editing(terminal: Terminal, editor: Editor, *args: str) -> AsyncIterator[Any]:
    """Start an agent and yield the editor's connection after the handshake."""
    async with asyncio.timeout(SECONDS), spawned(terminal, editor, *args) as (agent, _):
        info = Implementation(name="zed", version="1.2")
        hello = await agent.initialize(protocol_version=PROTOCOL_VERSION, client_info=info)
        assert hello.protocol_version == 1
        assert hello.agent_capabilities.load_session
        yield agent


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)
