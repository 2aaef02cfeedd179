"""Servers on the web, here on the loopback."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import httpx2
import pytest
from hosts import wait_for
from mcp.shared.exceptions import MCPError
from mcp_bed import Bed, words

from perstack.core.definitions.public_addresses import is_public
from perstack.core.definitions.skills import McpSseSkill
from perstack.core.runs.facts import Answer, Question
from perstack.errors import SkillError
from perstack_mcp.remote_server import RemoteServer
from perstack_mcp.server_interface import LEGACY, ConnectionAttempt
from perstack_mcp.session import McpSession

SERVER = Path(__file__).parent / "servers" / "web.py"


@contextmanager
def _serving(kind: str, path: str, errors: TextIO | None = None) -> Iterator[str]:
    command = [sys.executable, str(SERVER), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        try:
            yield f"http://127.0.0.1:{port}{path}"
        finally:
            server.kill()


def _skill(endpoint: str, **fields) -> McpSseSkill:
    fields.setdefault("allow_local_network", True)
    return McpSseSkill(name="web", endpoint=endpoint, timeout=30_000, **fields)


@pytest.mark.parametrize(("kind", "path"), [("http", "/mcp"), ("sse", "/sse")])
def test_a_server_is_called_over_either_transport_with_the_headers_from_the_environment(
    bed: Bed, kind: str, path: str
) -> None:
    bed.env["TOKEN"] = "s3cret"

    async def run(endpoint: str) -> tuple[str, str]:
        async with bed.session(_skill(endpoint, headers={"Authorization": "Bearer ${TOKEN}"})) as session:
            assert [spec.name for spec in (await session.tools()).specs] == ["echo", "header", "book"]
            said = await bed.call(session, "echo", text="hello")
            return words(said), words(await bed.call(session, "header", name="authorization"))

    with _serving(kind, path) as endpoint:
        assert wait_for(run(endpoint)) == ("hello", "Bearer s3cret")


def test_a_server_of_the_handshakes_era_is_probed_for_the_other_only_once(bed: Bed, tmp_path: Path) -> None:
    async def run(endpoint: str) -> str:
        async with bed.session(_skill(endpoint)) as session:
            return words(await bed.call(session, "echo", text="hello"))

    probes = tmp_path / "probes"
    with probes.open("w") as errors, _serving("older", "/mcp", errors) as endpoint:
        assert [wait_for(run(endpoint)) for _ in range(3)] == ["hello"] * 3
    assert probes.read_text().count("probed") == 1, "a probe may take ten seconds"


async def _refusal(bed: Bed, skill: McpSseSkill) -> str:
    with pytest.raises(SkillError) as caught:
        async with bed.session(skill) as session:
            await session.tools()
    return str(caught.value)


@pytest.mark.parametrize(
    "endpoint",
    ["https://127.0.0.1/mcp", "https://[::1]/mcp", "https://10.1.2.3/mcp", "https://[::ffff:192.168.0.1]/mcp"],
)
def test_a_private_address_is_refused_before_anything_is_sent(bed: Bed, endpoint: str) -> None:
    message = wait_for(_refusal(bed, _skill(endpoint, allow_local_network=False)))
    assert "is a private or local address: set `allowLocalNetwork = true`" in message


def test_a_name_that_stands_for_a_local_address_is_refused(bed: Bed) -> None:
    message = wait_for(_refusal(bed, _skill("https://localhost/mcp", allow_local_network=False)))
    assert "localhost (" in message
    assert "is a private or local address" in message


def test_plain_http_is_refused_unless_local_addresses_are_allowed(bed: Bed) -> None:
    message = wait_for(_refusal(bed, _skill("http://example.com/mcp", allow_local_network=False)))
    assert "`endpoint` must be an https:// address" in message


def test_a_variable_of_a_header_that_is_not_set_is_named(bed: Bed) -> None:
    message = wait_for(_refusal(bed, _skill("https://example.com/mcp", headers={"X": "${NOT_SET}"})))
    assert message.startswith("skill 'web' needs NOT_SET for its headers")


def test_where_nobody_listens_the_error_is_one_line_without_a_traceback(bed: Bed) -> None:
    message = wait_for(_refusal(bed, _skill("http://127.0.0.1:9/mcp")))
    assert message == (
        "skill 'web' could not be connected to: there is no answer from 127.0.0.1:9 (All connection attempts failed)"
    )


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:127.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b:1::808:808", False),
        ("64:ff9b:1:ffff::1", False),
        ("fec0::1", False),
        ("feff:ffff::1", False),
        ("2002:7f00:1::", False),
    ],
)
def test_an_address_is_public_only_if_what_it_wraps_is(address: str, public: bool) -> None:
    assert is_public(address) is public


def test_a_server_that_goes_away_is_an_error_of_the_call_and_of_no_more(bed: Bed) -> None:
    async def run() -> str:
        with _serving("http", "/mcp") as endpoint:
            session = await bed.open(_skill(endpoint))
            await session.tools()
        with pytest.raises(SkillError) as caught:
            await bed.call(session, "echo", text="x")
        with pytest.raises(SkillError):
            await bed.call(session, "echo", text="x")
        await session.close()
        return str(caught.value)

    message = wait_for(run())
    assert message.startswith("echo: ")
    assert "\n" not in message


class _HandshakeOnly(RemoteServer):
    """A server whose tools send their questions, which there is no way for in the stateless era."""

    def attempts(self) -> Sequence[ConnectionAttempt]:
        return [replace(one, mode=LEGACY) for one in super().attempts()]


def test_over_http_a_question_is_of_the_call_it_came_with_however_many_there_are(bed: Bed) -> None:
    async def run(endpoint: str) -> list[str]:
        session = McpSession(_HandshakeOnly(_skill(endpoint), bed.context()), 30_000)
        try:
            await session.tools()
            requests = [replace(bed.request("book", {"who": who}), may_ask=True) for who in ("ann", "bob", "cy")]
            asked = await asyncio.gather(*map(session.call, requests))
            return [one.message for one in asked if isinstance(one, Question)]
        finally:
            await session.close()

    with _serving("http", "/mcp") as endpoint:
        assert wait_for(run(endpoint)) == ["ann: where to?", "bob: where to?", "cy: where to?"]


def test_over_http_calls_that_wait_for_their_answers_get_them_and_are_not_made_again(bed: Bed) -> None:
    async def run(endpoint: str) -> list[str]:
        session = McpSession(_HandshakeOnly(_skill(endpoint), bed.context()), 30_000)
        try:
            await session.tools()
            requests = [replace(bed.request("book", {"who": who}), key=who, may_ask=True) for who in ("ann", "bob")]
            asked = await asyncio.gather(*map(session.call, requests))
            answered = [
                replace(request, answers=(Answer(question=one, action="accept", content={"city": "Rome"}),))
                for request, one in zip(requests, asked, strict=True)
                if isinstance(one, Question)
            ]
            done = await asyncio.gather(*map(session.call, reversed(answered)))
            return [words(one) for one in done if not isinstance(one, Question)]
        finally:
            await session.close()

    with _serving("http", "/mcp") as endpoint:
        assert wait_for(run(endpoint)) == ["bob accept 1", "ann accept 1"]


class _Broken(RemoteServer):
    """A server, and a client of ours with a fault in its first way."""

    error: Exception
    tried: int

    def attempts(self) -> Sequence[ConnectionAttempt]:
        def transport():
            self.tried += 1
            raise self.error

        return [replace(one, transport=transport) for one in super().attempts()]


@pytest.mark.parametrize(
    ("error", "tried"),
    [
        (TypeError("'NoneType' object is not iterable"), 1),
        (AttributeError("no such attribute"), 1),
        (KeyError("tools"), 1),
        (AssertionError("never"), 1),
        (RecursionError("too deep"), 1),
        (NotImplementedError("not yet"), 1),
        (ZeroDivisionError("by zero"), 1),
        (httpx2.ConnectError("refused", request=httpx2.Request("GET", "http://127.0.0.1")), 2),
        (MCPError(-32601, "no such method"), 2),
        (RuntimeError("Unsupported protocol version from the server: 1"), 2),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_fault_of_our_own_is_not_taken_for_a_servers_refusal(bed: Bed, error: Exception, tried: int) -> None:
    async def run() -> tuple[str, int]:
        server = _Broken(_skill("http://127.0.0.1:9/mcp"), bed.context())
        server.error, server.tried = error, 0
        session = McpSession(server, 30_000)
        with pytest.raises(SkillError) as caught:
            await session.tools()
        await session.close()
        return str(caught.value), server.tried

    message, count = wait_for(run())
    assert count == tried
    assert (f"an error in perstack or the MCP SDK, {type(error).__name__}: " in message) is (tried == 1)
