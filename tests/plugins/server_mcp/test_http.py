"""`perstack mcp --http`: a server in its own process, several clients, and authorization."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from editor import ERAS, structure
from hosts import wait_for
from http_server import AUTH_HEADERS, TOKEN, authorized_client, serving
from terminal import SECONDS, Terminal, reply

from perstack.doors.shared.http_connections import ListenAddress
from perstack.errors import UsageError
from perstack_server.http.access import AccessRules

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


@pytest.mark.parametrize("era", ERAS)
def test_several_clients_call_experts_without_cross_talk(terminal: Terminal, era: str) -> None:
    terminal.script(solo=[reply("Done.")])

    async def progress_of_call(url: str, number: int) -> dict:
        said: list[str] = []

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            said.append(message or "")

        async with authorized_client(url, ERAS[era]) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert "solo" in names
            done = await client.call_tool("solo", {"query": f"query {number}"}, progress_callback=hear)
            assert said
            return structure(done)

    async def all_of(url: str) -> list[dict]:
        return await asyncio.gather(*(progress_of_call(url, number) for number in range(4)))

    with serving(terminal) as (url, _):
        jobs = wait_for(all_of(url), SECONDS)
    assert {job["query"] for job in jobs} == {f"query {number}" for number in range(4)}
    assert len({job["id"] for job in jobs}) == 4


def test_a_client_that_vanishes_loses_nothing_and_a_signal_leaves_an_interrupted_job(terminal: Terminal) -> None:
    slow = {**reply("never"), "delayMs": 60_000}
    terminal.script(solo=[reply("", ("think", {"thought": "x"})), slow])

    async def vanish(url: str) -> str:
        async with authorized_client(url, "legacy") as client:
            begun = structure(await client.call_tool("solo", {"query": "Do it", "wait": False}))
        async with authorized_client(url, "legacy") as client:
            found = structure(await client.call_tool("get_job", {"job": begun["id"]}))
            assert found["status"] == "running"
        return begun["id"]

    with serving(terminal) as (url, _):
        job_id = wait_for(vanish(url), SECONDS)
    job = terminal.call("jobs", "--json").events[0]
    assert (job["id"], job["status"]) == (job_id, "stoppedByInterrupt")


def test_only_who_knows_the_token_is_let_in(terminal: Terminal) -> None:
    async def with_token(url: str) -> set[str]:
        async with authorized_client(url, "legacy") as client:
            return {tool.name for tool in (await client.list_tools()).tools}

    with serving(terminal) as (url, _):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
            refused = httpx.post(url, json=INITIALIZE, headers={**ACCEPT, **headers})
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert "solo" in wait_for(with_token(url), SECONDS)


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        ("Host", "evil.example", 421),
        ("Origin", "http://evil.example", 403),
        ("Origin", "null", 403),
        ("Origin", "http://localhost:3000", 200),
        ("Host", "localhost:1", 200),
    ],
)
def test_host_and_origin_are_checked(terminal: Terminal, header: str, value: str, status: int) -> None:
    with serving(terminal) as (url, _):
        answer = httpx.post(url, json=INITIALIZE, headers={**ACCEPT, **AUTH_HEADERS, header: value})
        assert answer.status_code == status


def test_beyond_loopback_the_token_and_the_name_are_asked_for(terminal: Terminal) -> None:
    beyond = ("--http", "0.0.0.0:0", "--allow-host", "build.example")
    with serving(terminal, *beyond) as (everywhere, _):
        url = everywhere.replace("0.0.0.0", "127.0.0.1")
        by_name = {**ACCEPT, **AUTH_HEADERS, "Host": "build.example"}
        assert httpx.post(url, json=INITIALIZE, headers=by_name).status_code == 200
        assert httpx.post(url, json=INITIALIZE, headers={**by_name, "Authorization": ""}).status_code == 401
        for header in ({"Host": "other.example"}, {"Host": "0.0.0.0"}):
            assert httpx.post(url, json=INITIALIZE, headers={**by_name, **header}).status_code == 421
        foreign = {**by_name, "Origin": "https://other.example"}
        assert httpx.post(url, json=INITIALIZE, headers=foreign).status_code == 403


def test_a_name_that_is_allowed_is_answered(terminal: Terminal) -> None:
    with serving(terminal, "--allow-host", "build.example") as (url, _):
        headers = {**ACCEPT, **AUTH_HEADERS, "Host": "build.example:80", "Origin": "https://build.example"}
        assert httpx.post(url, json=INITIALIZE, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("0.0.0.0:0", "set PERSTACK_MCP_TOKEN"),
        ("example.com:80", "set PERSTACK_MCP_TOKEN"),
        ("localhost", "write HOST:PORT"),
        ("127.0.0.1:99999", "write HOST:PORT"),
    ],
)
def test_a_wrong_address_is_told_in_a_line(terminal: Terminal, address: str, words: str) -> None:
    result = terminal.call("mcp", "--http", address)
    assert result.code == 2
    assert words in result.err
    assert len(result.err.strip().splitlines()) == 1


def test_everywhere_is_no_name_for_clients() -> None:
    with pytest.raises(UsageError, match="--allow-host"):
        AccessRules(ListenAddress.parse("0.0.0.0:1"), TOKEN).check()
    assert ListenAddress.parse("8765") == ListenAddress("127.0.0.1", 8765)
    assert ListenAddress.parse("[::1]:1").is_loopback
