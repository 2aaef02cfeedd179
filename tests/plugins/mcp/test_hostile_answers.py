"""Answers made to be large, deep or endless: each is an error or a bounded result, soon, and the next call works."""

from __future__ import annotations

import gzip
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hosts import wait_for
from mcp_bed import Bed, words
from session_server import EVENTS, JSON, SessionServer, listening

from perstack.core.definitions.skills import McpSseSkill, McpStdioSkill
from perstack.errors import SkillError
from perstack.ports.skill import SkillSession

SOON_S = 25  # seconds of this process, on a busy machine

MEGABYTE = 1 << 20
SERVER = Path(__file__).parent / "servers" / "hostile.py"


def _answer(result: str, identity: object) -> bytes:
    return f'{{"jsonrpc": "2.0", "id": {json.dumps(identity)}, "result": {result}}}'.encode()


DEEP = "[" * 100_000 + "]" * 100_000
RESULTS = {
    "deep": f'{{"content": [{{"type": "text", "text": "x"}}], "structuredContent": {{"a": {DEEP}}}}}',
    "deep-content": f'{{"content": {DEEP}}}',
    "odd-blocks": '{"content": [' + ",".join(["1"] * 300_000) + "]}",
    "odd-texts": '{"content": [' + ",".join(['{"type": "text", "text": null}'] * 100_000) + "]}",
    "many-keys": json.dumps({f"k{number}": number for number in range(200_000)}),
    "huge-number": '{"content": ' + "9" * 200_000 + "}",
    "huge-flag": json.dumps({"content": [], "isError": "x" * MEGABYTE}),
    "huge-type": json.dumps({"content": [{"type": "y" * MEGABYTE}]}),
    "huge-error": json.dumps({"content": "z" * (8 * MEGABYTE), "isError": True}),
}

BODIES: dict[str, Callable[[object], tuple[int, str, bytes]]] = {
    **{name: lambda one, result=result: (200, JSON, _answer(result, one)) for name, result in RESULTS.items()},
    "too large": lambda one: (200, JSON, _answer(json.dumps("x" * (65 * MEGABYTE)), one)),
    "no end of a word": lambda one: (200, JSON, b'{"jsonrpc": "' + b"x" * (8 * MEGABYTE)),
    "blanks": lambda one: (200, JSON, b" " * (8 * MEGABYTE)),
    "an event without end": lambda one: (200, EVENTS, b"data: " + b"x" * (65 * MEGABYTE)),
    "many empty events": lambda one: (200, EVENTS, b": x\n\n" * 200_000),
    "many events that are none": lambda one: (200, EVENTS, b"".join(b"data: %d\n\n" % n for n in range(100_000))),
    "a refusal of pages": lambda one: (500, "text/html", b"<script" * MEGABYTE),
    "a batch": lambda one: (200, JSON, b"[" + b",".join([_answer("{}", n) for n in range(100_000)]) + b"]"),
}


async def _outcome(bed: Bed, session: SkillSession, name: str) -> str:
    try:
        return words(await bed.call(session, name))
    except SkillError as error:
        return str(error)


@pytest.mark.parametrize("name", BODIES)
def test_over_http_a_hostile_body_is_bounded_and_the_next_call_works(bed: Bed, name: str) -> None:
    server = SessionServer()
    server.on_call = lambda message: BODIES[name](message["id"]) if message["params"]["name"] == "slow" else None

    async def run(endpoint: str) -> tuple[str, str]:
        skill = McpSseSkill(name="far", endpoint=endpoint, allow_local_network=True, timeout=30_000)
        async with bed.session(skill) as session:
            await session.tools()
            began = time.process_time()
            got = await _outcome(bed, session, "slow")
            assert time.process_time() - began < SOON_S
            return got, await _outcome(bed, session, "hello")

    with listening(server) as endpoint:
        got, after = wait_for(run(endpoint), 90)
    assert len(got) < 40_000
    assert after == "marker42 hello"
    assert all(len(line) <= 1_100 for line in bed.shown)
    assert len(bed.shown) < 1_200


@pytest.mark.parametrize("name", RESULTS)
def test_over_stdio_a_hostile_result_is_bounded_and_the_next_call_works(bed: Bed, name: str) -> None:
    source = bed.workspace / "result.json"
    source.write_text(RESULTS[name])

    async def run() -> tuple[str, str]:
        skill = McpStdioSkill(name="bad", command=sys.executable, args=(str(SERVER), str(source)), timeout=30_000)
        async with bed.session(skill) as session:
            await session.tools()
            began = time.monotonic()
            got = await _outcome(bed, session, "hostile")
            assert time.monotonic() - began < SOON_S, "nobody waits for the timeout"
            return got, await _outcome(bed, session, "hello")

    got, after = wait_for(run(), 90)
    assert len(got) < 40_000
    assert after == "marker42"
    assert all(len(line) <= 1_100 for line in bed.shown)


def test_a_small_body_that_becomes_a_large_one_is_given_up(bed: Bed) -> None:
    server = SessionServer()
    small = gzip.compress(_answer(json.dumps("x" * (70 * MEGABYTE)), 7))
    server.headers = {"content-encoding": "gzip"}
    server.on_call = lambda message: (200, JSON, small) if message["params"]["name"] == "slow" else None

    async def run(endpoint: str) -> str:
        skill = McpSseSkill(name="far", endpoint=endpoint, allow_local_network=True, timeout=30_000)
        async with bed.session(skill) as session:
            await session.tools()
            return await _outcome(bed, session, "slow")

    with listening(server) as endpoint:
        assert "its answer is larger than 64 MB" in wait_for(run(endpoint), 90)
