"""Clients over HTTP that disappear: their Jobs continue, and the server keeps no state of the clients."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import pytest
import uvicorn
from editor import ERAS, structure, texts
from hosts import wait_for
from http_server import AUTH_HEADERS, authorized_client, serving
from mcp.client import Client
from mcp.server.connection import Connection
from mcp_types import CallToolResult, ListRootsResult, Root
from starlette.requests import Request
from terminal import SECONDS, Terminal, reply

from perstack.definition_files import load_project
from perstack.host import Host
from perstack_server.mcp import notifications as clients_told
from perstack_server.mcp import workspaces as asking_for_roots
from perstack_server.mcp.server import build_server
from perstack_server.mcp.workspaces import ServeOptions, Workspaces, serve_projects

ACCEPT = {"Accept": "application/json, text/event-stream"}
SUPPORT = str(Path(__file__).parents[2] / "support")
WAITING = ("exec", {"command": "sh", "args": ["-c", "while [ ! -e go ]; do sleep 0.05; done"], "timeout": 60_000})

CALLER = """
import asyncio, sys
from http_server import authorized_client

async def hear(progress, total, message):
    print(message, flush=True)

async def main(url, mode):
    async with authorized_client(url, mode) as client:
        await client.call_tool("solo", {"query": "go"}, progress_callback=hear)

asyncio.run(main(*sys.argv[1:]))
"""


def waiting(terminal: Terminal) -> Terminal:
    """Write a script in which the second step of `solo` waits for a file."""
    turns = [reply("", ("todo", {"newTodos": ["kept"]})), reply("", WAITING), reply("", ("todo", {})), reply("on")]
    return terminal.script(**{"[[solo]]": turns})


@contextmanager
def calling(url: str, era: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a client in its own process, in the middle of the second step of its call."""
    process = subprocess.Popen(
        [sys.executable, "-c", CALLER, url, ERAS[era]],
        env={**os.environ, "PYTHONPATH": SUPPORT},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert any(line.startswith("step 2: exec") for line in process.stdout), process.communicate()
        yield process
    finally:
        process.kill()
        process.communicate(timeout=SECONDS)


def test_the_job_of_a_client_that_is_killed_in_mid_call_goes_on_and_is_found(terminal: Terminal, era: str) -> None:
    async def find(url: str) -> None:
        async with asyncio.timeout(SECONDS), authorized_client(url, ERAS[era]) as client:
            (job,) = structure(await client.call_tool("list_jobs"))["jobs"]
            assert job["status"] == "running"
            (terminal.workspace / "go").touch()
            while structure(response := await client.call_tool("get_job", {"job": job["id"]}))["status"] == "running":
                pass
            assert structure(response)["status"] == "completed"
            assert texts(response)[0] == "on"

    with serving(waiting(terminal)) as (url, _):
        with calling(url, era) as process:
            process.kill()
            process.wait(SECONDS)
        wait_for(find(url), SECONDS)
    (job,) = terminal.call("jobs", "--json").events
    assert terminal.call("verify", job["id"]).code == 0


class Rude:
    """A client that sends bare requests and never ends its session."""

    def __init__(self, url: str) -> None:
        self.http = httpx.AsyncClient(timeout=SECONDS, headers={**AUTH_HEADERS, **ACCEPT})
        self.url = url

    async def __aenter__(self) -> Rude:
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        met = await self.post(id=1, method="initialize", params=hello)
        self.http.headers["mcp-session-id"] = met.headers["mcp-session-id"]
        await self.post(method="notifications/initialized")
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.http.aclose()

    async def post(self, **message: object) -> httpx.Response:
        return await self.http.post(self.url, json={"jsonrpc": "2.0", **message})


def test_the_job_of_a_session_that_is_ended_in_mid_call_goes_on(terminal: Terminal) -> None:
    async def work(url: str) -> None:
        async with asyncio.timeout(SECONDS), Rude(url) as client, authorized_client(url, "legacy") as other:
            call = asyncio.create_task(
                client.post(id=2, method="tools/call", params={"name": "solo", "arguments": {"query": "go"}})
            )
            jobs: list[dict[str, Any]] = []
            while not jobs:
                jobs = structure(await other.call_tool("list_jobs"))["jobs"]
            while structure(await other.call_tool("get_job", {"job": jobs[0]["id"]}))["totalSteps"] < 2:
                pass
            assert (await client.http.delete(url)).status_code == 200
            await asyncio.gather(call, return_exceptions=True)
            (terminal.workspace / "go").touch()
            while (
                structure(response := await other.call_tool("get_job", {"job": jobs[0]["id"]}))["status"] == "running"
            ):
                pass
            assert texts(response)[0] == "on"

    with serving(waiting(terminal)) as (url, _):
        wait_for(work(url), SECONDS)


def test_a_client_that_cancels_its_call_stops_its_own_job_only(terminal: Terminal) -> None:
    async def call(client: Client, is_waiting: asyncio.Event) -> CallToolResult:
        async def hear(progress: float, total: float | None, message: str | None) -> None:
            if message and message.startswith("step 2: exec"):
                is_waiting.set()

        return await client.call_tool("solo", {"query": "go"}, progress_callback=hear)

    async def work(url: str) -> None:
        async with (
            asyncio.timeout(SECONDS),
            authorized_client(url, "legacy") as one,
            authorized_client(url, "legacy") as other,
        ):
            events = [asyncio.Event(), asyncio.Event()]
            # both number their calls alike
            goes_on = asyncio.create_task(call(other, events[1]))
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(call, one, events[0])
                    for event in events:
                        await event.wait()
                    scope.cancel()
            statuses: list[str] = []
            while "stoppedByInterrupt" not in statuses:
                statuses = [job["status"] for job in structure(await one.call_tool("list_jobs"))["jobs"]]
            (terminal.workspace / "go").touch()
            assert texts(await goes_on)[0] == "on"
            statuses = [job["status"] for job in structure(await one.call_tool("list_jobs"))["jobs"]]
            assert sorted(statuses) == ["completed", "stoppedByInterrupt"]

    with serving(waiting(terminal)) as (url, _):
        wait_for(work(url), SECONDS)


@asynccontextmanager
async def listening(workspaces: Workspaces, idle: float) -> AsyncIterator[str]:
    """Run the server in this process, so that tests can examine its state, and yield its address."""
    app = build_server(workspaces).streamable_http_app(session_idle_timeout=idle)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        running = asyncio.create_task(server.serve([listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        server.should_exit = True
        await running


def connections() -> int:
    gc.collect()
    return sum(isinstance(item, Connection) for item in gc.get_objects())


async def until_none_is_left() -> None:
    async with asyncio.timeout(SECONDS):
        while connections():
            await asyncio.sleep(0.02)  # a poll of what the server keeps, bounded above


@pytest.mark.filterwarnings("ignore:resources/subscribe", "ignore:The roots capability is deprecated")
def test_nothing_is_kept_of_sessions_that_ended_or_were_abandoned(terminal: Terminal) -> None:
    other = terminal.workspace / "other"
    other.mkdir()
    (other / "perstack.toml").write_text('[experts.there]\ninstruction = "x"\n')

    def open_host(folder: Path) -> tuple[Host, object]:
        loaded = load_project(folder / "perstack.toml")
        return Host(loaded.project, workspace=folder, env=terminal.env), loaded

    async def roots(context: object) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=other.as_uri())])  # type: ignore[arg-type]

    async def polite(url: str, **callbacks: object) -> None:
        async with Client(url, mode="legacy", **callbacks) as client:  # type: ignore[arg-type]
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert ("there" in names) == bool(callbacks)
            await client.subscribe_resource("perstack://jobs/none")
            await client.list_resources()

    async def rude(url: str) -> None:
        async with Rude(url) as client:
            listed = await client.post(id=2, method="tools/list")
            (told,) = [line for line in listed.text.splitlines() if line.startswith("data: {")]
            assert json.loads(told.removeprefix("data: "))["result"]["tools"]

    async def work() -> None:
        async with serve_projects(ServeOptions(open_host(terminal.workspace), open_host)) as workspaces:  # type: ignore[arg-type]
            async with listening(workspaces, idle=SECONDS) as url:
                await asyncio.gather(
                    *(polite(url) for _ in range(5)), *(polite(url, list_roots_callback=roots) for _ in range(5))
                )
                await until_none_is_left()
            async with listening(workspaces, idle=0.3) as url:
                await asyncio.gather(*(rude(url) for _ in range(5)))
                await until_none_is_left()

    wait_for(work(), SECONDS)


@pytest.mark.filterwarnings("ignore:The roots capability is deprecated")
def test_a_client_that_never_says_what_it_has_open_is_served_home_after_a_while(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(asking_for_roots, "_ROOTS_TIMEOUT_S", 0.05)
    loaded = load_project(terminal.workspace / "perstack.toml")
    home = Host(loaded.project, workspace=terminal.workspace, env=terminal.env), loaded

    async def never(context: object) -> ListRootsResult:
        await asyncio.Event().wait()
        raise AssertionError

    async def work() -> None:
        async with (
            serve_projects(ServeOptions(home, lambda folder: home)) as workspaces,
            listening(workspaces, idle=SECONDS) as url,
            Client(url, mode="legacy", list_roots_callback=never) as client,
        ):
            assert "solo" in {tool.name for tool in (await client.list_tools()).tools}

    wait_for(work(), SECONDS)
    assert "does not report which folders it has open" in capsys.readouterr().err


def test_a_client_that_does_not_read_keeps_no_other_from_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_told, "_NOTIFY_TIMEOUT_S", 0.05)

    class Session:
        def __init__(self, *, reads: bool) -> None:
            self.reads = reads
            self.told: list[str] = []

        async def send_resource_updated(self, uri: str) -> None:
            if not self.reads:
                await asyncio.Event().wait()
            self.told.append(uri)

    stuck, alert = Session(reads=False), Session(reads=True)

    async def work() -> None:
        clients = clients_told.Clients()
        for number, session in enumerate((stuck, alert)):
            request = Request({"type": "http", "headers": [(b"mcp-session-id", str(number).encode())]})
            clients.subscribe("perstack://jobs/x", SimpleNamespace(session=session, request=request))  # type: ignore[arg-type]
        await clients.resource_updated("perstack://jobs/x")

    wait_for(work())
    assert (stuck.told, alert.told) == ([], ["perstack://jobs/x"])
