"""Sessions over HTTP that clients never close expire, and all their resources are released."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from pathlib import Path

import httpx
from hosts import wait_for
from http_server import AUTH_HEADERS, TOKEN
from mcp.server.session import ServerSession
from mcp.server.streamable_http import StreamableHTTPServerTransport
from terminal import SECONDS

from perstack.doors.shared.http_connections import ListenAddress
from perstack.host import Host
from perstack.trust.definition_files import load_project
from perstack_server.http.access import AccessRules
from perstack_server.http.server import serve_http
from perstack_server.mcp.workspaces import ServeOptions

SESSIONS = 200
IDLE = 0.5
ACCEPT = {"Accept": "application/json, text/event-stream"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
}


def open_counts() -> tuple[int, int]:
    """Return the number of session objects of the SDK and the server, and of running tasks."""
    gc.collect()
    kinds = (StreamableHTTPServerTransport, ServerSession)
    return sum(isinstance(item, kinds) for item in gc.get_objects()), len(asyncio.all_tasks())


def test_sessions_that_nobody_closes_are_given_up_and_leave_nothing_open(tmp_path: Path, capfd) -> None:
    (tmp_path / "perstack.toml").write_text('[experts.one]\ninstruction = "x"\n')
    loaded = load_project(tmp_path / "perstack.toml")

    async def serving_address() -> str:
        while "serving MCP at " not in (said := capfd.readouterr().err):
            await asyncio.sleep(0.01)  # a look at what the server says, bounded by the test
        return said.split("serving MCP at ")[1].strip()

    async def work() -> None:
        offer = ServeOptions((Host(loaded.project, workspace=tmp_path), loaded))
        serving = asyncio.create_task(serve_http(offer, AccessRules(ListenAddress.parse("127.0.0.1:0"), TOKEN), IDLE))
        url = await serving_address()
        limits = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(headers={**AUTH_HEADERS, **ACCEPT}, timeout=SECONDS, limits=limits) as client:

            async def session() -> dict[str, str]:
                answer = await client.post(url, json=INITIALIZE)
                assert answer.status_code == 200
                name = {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"]}
                greeted = {"jsonrpc": "2.0", "method": "notifications/initialized"}
                assert (await client.post(url, json=greeted, headers=name)).status_code == 202
                return name

            await session()  # with the first one begins what lasts as long as the server
            while open_counts()[0]:
                await asyncio.sleep(0.05)  # a look at what is left, bounded by the test
            before = open_counts()
            names = [
                name for _ in range(SESSIONS // 10) for name in await asyncio.gather(*(session() for _ in range(10)))
            ]
            assert len({name["Mcp-Session-Id"] for name in names}) == SESSIONS
            while open_counts() > before:
                await asyncio.sleep(0.05)  # a look at what is left, bounded by the test
            listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
            assert {(await client.post(url, json=listing, headers=name)).status_code for name in names} == {404}
            assert open_counts() <= before
            await session()
        os.kill(os.getpid(), signal.SIGTERM)
        await serving

    wait_for(work(), SECONDS)
