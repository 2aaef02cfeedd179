"""`perstack mcp` in its own process, and its clients: the SDK's for both protocol versions, and one for raw lines."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import warm
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp_stdio import Streams, spoken_to
from mcp_types import CallToolResult, ElicitRequestFormParams, ElicitRequestParams, ElicitResult, TextContent
from terminal import SECONDS, Terminal

ERAS = {"handshake": "legacy", "stateless": "auto", "unasked": "2026-07-28"}
"""The SDK client's mode for each way to start a session."""

Fill = Callable[[ElicitRequestParams], ElicitResult]
"""A person's answer to a form."""


def decides(word: str = "yes", **answers: str) -> Fill:
    """Return a person who says `word` to every decision, and gives these answers to questions that contain the key."""

    def fill(params: ElicitRequestParams) -> ElicitResult:
        assert isinstance(params, ElicitRequestFormParams)
        if "decision" in params.requested_schema["properties"]:
            return ElicitResult(action="accept", content={"decision": word})
        answer = next(answer for text, answer in answers.items() if text in params.message)
        return ElicitResult(action="accept", content={"answer": answer})

    return fill


def argv(*args: str) -> list[str]:
    return [sys.executable, "-m", "perstack", "mcp", "--provider", "scripted", *args]


@dataclass
class Editor:
    """A connected client."""

    client: Client
    said: list[str] = field(default_factory=list)
    """Progress messages of all calls."""
    shown: list[ElicitRequestParams] = field(default_factory=list)
    """Forms that the person was shown."""

    async def call(self, tool: str, /, **arguments: object) -> CallToolResult:
        return await self.client.call_tool(tool, arguments, progress_callback=self._hear)

    async def job(self, job_id: str) -> dict[str, Any]:
        return structure(await self.call("get_job", job=job_id))

    async def wait_for_status(self, job_id: str, status: str) -> dict[str, Any]:
        """Return the Job once it has that status. Polls without pause; the test's timeout limits it."""
        while (job := await self.job(job_id))["status"] != status:
            pass
        return job

    async def _hear(self, progress: float, total: float | None, message: str | None) -> None:
        self.said.append(message or "")


@asynccontextmanager
async def connected(
    terminal: Terminal, *args: str, era: str = "handshake", fill: Fill | None = None, **client: Any
) -> AsyncIterator[Editor]:
    """Yield an editor with its own server, started as editors start it. It shows forms if `fill` is given."""
    command, *rest = argv(*args)
    server = StdioServerParameters(command=command, args=rest, cwd=terminal.workspace, env=terminal.env)
    async with _editor(server, era, fill, client) as editor:
        yield editor


@asynccontextmanager
async def attached(
    terminal: Terminal, *args: str, era: str = "handshake", fill: Fill | None = None, **client: Any
) -> AsyncIterator[Editor]:
    """Yield an editor with a forked server, which takes a fifth of the time."""
    async with _editor(spoken_to(terminal, *argv(*args)[3:]), era, fill, client) as editor:
        yield editor


@asynccontextmanager
async def _editor(
    server: StdioServerParameters | AbstractAsyncContextManager[Streams],
    era: str,
    fill: Fill | None,
    client: dict[str, Any],
) -> AsyncIterator[Editor]:
    shown: list[ElicitRequestParams] = []

    async def elicit(context: object, params: ElicitRequestParams) -> ElicitResult:
        shown.append(params)
        assert fill is not None
        return fill(params)

    callback = None if fill is None else elicit
    async with (
        asyncio.timeout(SECONDS),
        Client(server, mode=ERAS[era], elicitation_callback=callback, **client) as connection,
    ):
        yield Editor(connection, shown=shown)


def texts(result: CallToolResult) -> list[str]:
    return [block.text for block in result.content if isinstance(block, TextContent)]


def structure(result: CallToolResult) -> dict[str, Any]:
    assert isinstance(result.structured_content, dict), texts(result)
    return result.structured_content


class Pipe:
    """A client that writes raw lines and records every byte from the server."""

    def __init__(self, terminal: Terminal, *args: str) -> None:
        self.process = warm.perstack(
            *argv(*args)[3:],
            cwd=terminal.workspace,
            env=terminal.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.seen: list[bytes] = []

    def write(self, method: str, request_id: int | None = None, **params: object) -> None:
        message: dict[str, object] = {"jsonrpc": "2.0", "method": method, "params": params}
        if request_id is not None:
            message["id"] = request_id
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        """Return the next message; the test's timeout limits the wait."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.seen.append(line)
        return json.loads(line)

    def answer_to(self, request_id: int) -> dict[str, Any]:
        while (message := self.read()).get("id") != request_id:
            pass
        return message

    def greet(self, version: str = "2025-11-25", **capabilities: object) -> dict[str, Any]:
        """Do the handshake and return the server's answer."""
        client = {"name": "pipe", "version": "1"}
        self.write("initialize", 0, protocolVersion=version, capabilities=capabilities, clientInfo=client)
        answer = self.answer_to(0)
        self.write("notifications/initialized")
        return answer

    def call(self, request_id: int, tool: str, /, **arguments: object) -> None:
        self.write("tools/call", request_id, name=tool, arguments=arguments)

    def hear(self, text: str, request_id: int) -> None:
        """Wait for a progress message with this text."""
        while (message := self.read()).get("method") != "notifications/progress" or text not in str(message):
            assert message.get("id") != request_id, message

    def close(self) -> tuple[int, str]:
        """Close the server's stdin and wait for its end. Return its exit status and stderr."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None
        out, err = self.process.communicate(timeout=SECONDS)
        self.seen += out.splitlines(keepends=True)
        return self.process.returncode, err.decode()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=SECONDS)
