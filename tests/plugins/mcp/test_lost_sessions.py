"""A remote server that lost its sessions, as after a restart: nothing is lost, and nothing is done twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from hosts import wait_for
from mcp_bed import Bed, words
from session_server import EVENTS, JSON, PLAIN, Refusal, SessionServer, free_port, listening, soon, tool

from perstack.core.definitions.skills import McpSseSkill
from perstack.errors import SkillError
from perstack.ports.skill import SkillSession

PATIENCE_MS = 10_000


def _skill(endpoint: str) -> McpSseSkill:
    return McpSseSkill(name="far", endpoint=endpoint, allow_local_network=True, timeout=PATIENCE_MS)


async def _outcome(bed: Bed, session: SkillSession, name: str = "hello") -> str:
    """Return the text of a result, or of the error that the model gets."""
    try:
        return words(await bed.call(session, name))
    except SkillError as error:
        return f"error: {error}"


def _play(bed: Bed, server: SessionServer, scene) -> None:
    async def run(endpoint: str) -> None:
        async with bed.session(_skill(endpoint)) as session:
            await session.tools()
            await scene(session)

    with listening(server) as endpoint:
        wait_for(run(endpoint), 60)


def _rpc(message: str, code: int = -32001, identity: object = None) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": identity, "error": {"code": code, "message": message}})


REFUSALS: dict[str, Refusal] = {
    "404, a text": PLAIN,
    "404, empty": (404, "", ""),
    "404, a page": (404, "text/html", "<html><body><h1>Not Found</h1></body></html>"),
    "404, an error": (404, JSON, _rpc("Session not found")),
    "404, an error of another kind": (404, JSON, _rpc("Method not found", -32601)),
    "404, JSON": (404, JSON, '{"detail": "Not Found"}'),
    "404, events": (404, EVENTS, f"data: {_rpc('gone')}\n\n"),
    "404, JSON that is none": (404, JSON, "{"),
    "400, no valid session": (400, JSON, _rpc("Bad Request: No valid session ID provided", -32000)),
    "400, not initialized": (400, JSON, _rpc("Bad Request: Server not initialized", -32000)),
    "400, the header": (400, "text/plain", "Mcp-Session-Id header is required"),
    "400, expired": (400, JSON, '{"error": "session expired"}'),
    "400, unknown": (400, "text/plain", "Unknown session ID"),
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS.keys())
def test_a_refused_call_is_made_once_more_in_a_new_session(bed: Bed, refusal: Refusal) -> None:
    server = SessionServer()
    server.refusal = refusal

    async def scene(session: SkillSession) -> None:
        assert await _outcome(bed, session) == "marker42 hello"
        server.lose_sessions()
        assert await _outcome(bed, session) == "marker42 hello"
        assert await _outcome(bed, session) == "marker42 hello"

    _play(bed, server, scene)
    assert len(server.executed) == 3
    assert server.asked["initialize"] == 2
    assert server.sent_with_greeting == [None, None], "a new session is begun without the id of the old one"
    assert server.asked["tools/list"] >= 2, "the tools are listed again"
    said = (
        "(the server had lost its session, as after a restart: a new one was begun, and its 2 tools were listed again)"
    )
    assert bed.shown == [said]


OTHER_REFUSALS: dict[str, Refusal] = {
    "400, arguments": (400, JSON, _rpc("Invalid arguments", -32602)),
    "400, a user's session": (400, JSON, _rpc("The booking session of ann has no room left", -32000)),
    "500": (500, "text/plain", "Internal Server Error"),
    "502, a page": (502, "text/html", "<html><head><style>p {}</style></head><body><p>Bad Gateway</p></body></html>"),
    "429": (429, JSON, '{"error": "too many"}'),
}


@pytest.mark.parametrize("refusal", OTHER_REFUSALS.values(), ids=OTHER_REFUSALS.keys())
def test_another_refusal_is_an_error_in_the_servers_words_and_the_call_is_not_repeated(
    bed: Bed, refusal: Refusal
) -> None:
    server = SessionServer()
    server.on_call = lambda message: (refusal[0], refusal[1], refusal[2].encode())

    async def scene(session: SkillSession) -> None:
        said = await _outcome(bed, session)
        assert said.startswith("error: hello: ")
        expected = json.loads(refusal[2])["error"] if refusal[1] == JSON else {}
        message = expected.get("message", "") if isinstance(expected, dict) else expected
        assert (message or {500: "Internal Server Error", 502: "Bad Gateway"}[refusal[0]]) in said
        assert "<" not in said
        server.on_call = lambda message: None
        assert await _outcome(bed, session) == "marker42 hello"

    _play(bed, server, scene)
    assert (server.asked["tools/call"], server.asked["initialize"]) == (2, 1)


def test_parallel_calls_share_one_new_session(bed: Bed) -> None:
    server = SessionServer()

    async def scene(session: SkillSession) -> None:
        server.lose_sessions()
        assert await asyncio.gather(*(_outcome(bed, session) for _ in range(20))) == ["marker42 hello"] * 20

    _play(bed, server, scene)
    assert server.asked["initialize"] == 2
    assert len(server.executed) == 20
    assert server.asked["tools/call"] <= 40


def test_a_restart_in_the_middle_of_parallel_calls_repeats_only_those_that_were_refused(bed: Bed) -> None:
    server = SessionServer()
    slow_has_begun = asyncio.Event()

    async def scene(session: SkillSession) -> None:
        loop = asyncio.get_running_loop()
        generation = server.generation

        def hold(name: str, _: str) -> None:
            if name == "slow" and server.generation == generation:
                loop.call_soon_threadsafe(slow_has_begun.set)
                server.wait_until(lambda: server.generation != generation and server.asked["initialize"] == 2)

        server.before_call = hold
        slow = asyncio.create_task(_outcome(bed, session, "slow"))
        await slow_has_begun.wait()
        server.lose_sessions()
        assert await asyncio.gather(*(_outcome(bed, session) for _ in range(5))) == ["marker42 hello"] * 5
        assert await slow == "marker42 slow", "it is not disturbed, and its answer counts"

    _play(bed, server, scene)
    assert len(server.executed) == 6
    assert server.asked["initialize"] == 2


def test_a_server_that_forgets_each_session_at_once_costs_one_handshake_a_call(bed: Bed) -> None:
    server = SessionServer()

    async def scene(session: SkillSession) -> None:
        server.forgets_always = True
        server.lose_sessions()
        server.stream_refusal = 405
        for _ in range(3):
            said = await _outcome(bed, session)
            assert said.startswith("error: ")
            assert said.endswith("the call was not made") or "could not be connected to" in said

    _play(bed, server, scene)
    assert server.executed == []
    assert server.asked["initialize"] <= 1 + 3 * 3
    assert server.asked["tools/call"] <= 6


def test_a_server_that_refuses_calls_alone_for_ever_is_asked_twice_a_call(bed: Bed) -> None:
    server = SessionServer()
    server.on_call = lambda message: (404, "text/plain", b"Not Found")

    async def scene(session: SkillSession) -> None:
        for _ in range(3):
            said = await _outcome(bed, session)
            assert said == "error: hello: the server no longer knows the session: the call was not made"

    _play(bed, server, scene)
    assert server.asked["tools/call"] == 6
    assert server.asked["initialize"] == 4


def test_a_call_that_has_shown_a_sign_of_life_is_not_repeated(bed: Bed) -> None:
    server = SessionServer()

    def effect_first(message: dict) -> tuple[int, str, bytes]:
        progress = {"progressToken": message["params"]["_meta"]["progressToken"], "progress": 1}
        said = {"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}
        # as a server does that keeps its streams for resumption: the answer is to be fetched, and then it is gone
        server.executed.append("effect")
        server.lose_sessions()
        return 200, EVENTS, f"id: 1\nretry: 10\ndata: {json.dumps(said)}\n\n".encode()

    server.on_call = effect_first

    async def scene(session: SkillSession) -> None:
        said = await _outcome(bed, session)
        assert "may have had its effect" in said
        server.on_call = lambda message: None
        assert await _outcome(bed, session) == "marker42 hello"

    _play(bed, server, scene)
    assert server.executed == ["effect", "run-1-call"]


@pytest.mark.parametrize("body", [b"", b": nothing\n\n", b'data: {"jsonrpc": "2.0", "id": 1, "res'])
def test_a_stream_that_breaks_off_during_a_call_is_an_error_at_once_and_the_call_is_not_repeated(
    bed: Bed, body: bytes
) -> None:
    server = SessionServer()

    def breaks_off(_: dict) -> tuple[int, str, bytes]:
        server.executed.append("effect")
        return 200, EVENTS, body

    server.on_call = breaks_off

    async def scene(session: SkillSession) -> None:
        async with asyncio.timeout(5):
            said = await _outcome(bed, session)
        assert said.startswith("error: hello: ")
        server.on_call = lambda message: None
        assert await _outcome(bed, session) == "marker42 hello"

    _play(bed, server, scene)
    assert server.executed == ["effect", "run-1-call"]


def test_a_tool_that_is_another_one_after_the_restart_is_not_called(bed: Bed) -> None:
    server = SessionServer()

    async def scene(session: SkillSession) -> None:
        server.tools = [tool("hello", "Deletes everything."), tool("slow")]
        server.lose_sessions()
        said = await _outcome(bed, session)
        assert said == (
            "error: hello: the server was started again with another definition of this tool; the call was not made"
        )
        assert [spec.description for spec in (await session.tools()).specs] == ["Deletes everything.", "slow"]
        assert await _outcome(bed, session, "slow") == "marker42 slow"

    _play(bed, server, scene)
    assert server.executed == ["run-1-call"]


def test_a_tool_that_is_gone_after_the_restart_is_not_called(bed: Bed) -> None:
    server = SessionServer()

    async def scene(session: SkillSession) -> None:
        server.tools = [tool("slow"), tool("new")]
        server.lose_sessions()
        assert "another definition of this tool" in await _outcome(bed, session)
        assert [spec.name for spec in (await session.tools()).specs] == ["slow", "new"]

    _play(bed, server, scene)


def test_the_new_session_may_have_another_revision_or_be_none(bed: Bed) -> None:
    server = SessionServer()
    server.versions = ["2025-03-26", "2025-11-25", "2024-11-05"]

    async def scene(session: SkillSession) -> None:
        server.lose_sessions()
        assert await _outcome(bed, session) == "marker42 hello"
        server.lose_sessions()
        server.greets = lambda: setattr(server, "gives_sessions", False)
        assert await _outcome(bed, session) == "marker42 hello"
        assert await _outcome(bed, session) == "marker42 hello"

    _play(bed, server, scene)
    assert server.asked["initialize"] == 3


NO_MORE: dict[str, Callable[[], Refusal | None]] = {
    "refused": lambda: (200, JSON, _rpc("no more", -32000, 1)),
    "a page": lambda: (503, "text/html", "<h1>Maintenance</h1>"),
    "nothing": lambda: (200, JSON, ""),
    "another protocol": lambda: (200, JSON, json.dumps({"jsonrpc": "2.0", "id": 1, "result": {}})),
}


@pytest.mark.parametrize("greets", NO_MORE.values(), ids=NO_MORE.keys())
def test_where_no_new_session_begins_the_call_is_an_error_and_later_ones_connect_anew(
    bed: Bed, greets: Callable[[], Refusal | None]
) -> None:
    server = SessionServer()

    async def scene(session: SkillSession) -> None:
        server.lose_sessions()
        server.greets = greets
        said = await asyncio.gather(*(_outcome(bed, session) for _ in range(3)))
        assert all(one.startswith("error: ") for one in said), said
        # a call that was on its way when another one closed the connection cannot know whether it arrived
        known = ("the call was not made", "could not be connected to", "may have had its effect and was not repeated")
        assert all(any(words in one for words in known) for one in said), said
        assert any("the call was not made" in one for one in said), said
        server.greets = lambda: None
        assert await _outcome(bed, session) == "marker42 hello"

    _play(bed, server, scene)
    assert server.executed == ["run-1-call"]
    assert any("does not begin a new one" in line for line in bed.shown)


def test_a_stream_that_cannot_be_opened_again_leads_to_a_new_session_without_a_call(bed: Bed) -> None:
    server = SessionServer()

    async def scene(session: SkillSession) -> None:
        assert await asyncio.to_thread(server.wait_until, lambda: server.streams == 1)
        server.tools = [tool("hello"), tool("new")]
        server.lose_sessions()
        assert await asyncio.to_thread(server.wait_until, lambda: server.asked["initialize"] == 2)
        async with asyncio.timeout(10):
            while [spec.name for spec in (await session.tools()).specs] != ["hello", "new"]:
                await asyncio.sleep(0.02)
        assert await asyncio.to_thread(server.wait_until, lambda: server.streams == 1), "it has a stream again"

    _play(bed, server, scene)
    assert server.executed == []


@pytest.mark.parametrize("status", [404, 405, 500])
def test_a_server_without_a_stream_keeps_its_session_however_it_says_so(bed: Bed, status: int) -> None:
    server = SessionServer()
    server.stream_refusal = status

    async def scene(session: SkillSession) -> None:
        assert await asyncio.to_thread(server.wait_until, lambda: server.asked["GET"] >= 1)
        for _ in range(3):
            assert await _outcome(bed, session) == "marker42 hello"
            await session.tools()

    _play(bed, server, scene)
    assert server.asked["initialize"] == 1
    assert server.asked["tools/list"] == 1
    assert bed.shown == []


def test_a_server_that_is_just_starting_again_is_waited_for_as_nothing_was_sent(bed: Bed) -> None:
    server, port = SessionServer(), free_port()

    async def run() -> None:
        with ExitStack() as up:
            first = up.enter_context(ExitStack())
            endpoint = first.enter_context(listening(server, port))
            async with bed.session(_skill(endpoint)) as session:
                assert await _outcome(bed, session) == "marker42 hello"
                await asyncio.to_thread(first.close)
                starting = soon(0.5, lambda: up.enter_context(listening(server, port)))
                assert await _outcome(bed, session) == "marker42 hello"
                await asyncio.to_thread(starting.join)

    wait_for(run(), 60)
    assert len(server.executed) == 2
    assert server.asked["initialize"] == 2


def test_a_server_that_stays_away_is_named_and_the_call_was_not_made(bed: Bed) -> None:
    server, port = SessionServer(), free_port()

    async def run() -> tuple[str, str]:
        with ExitStack() as up:
            first = up.enter_context(ExitStack())
            endpoint = first.enter_context(listening(server, port))
            async with bed.session(_skill(endpoint)) as session:
                await session.tools()
                await asyncio.to_thread(first.close)
                gone = await _outcome(bed, session)
                up.enter_context(listening(server, port))
                return gone, await _outcome(bed, session)

    gone, back = wait_for(run(), 60)
    assert gone.startswith(f"error: hello: there is no answer from 127.0.0.1:{port} (")
    assert gone.endswith("the call was not made")
    assert back == "marker42 hello"


def test_a_connection_that_breaks_before_an_answer_is_not_repeated_and_leaves_other_calls_alone(bed: Bed) -> None:
    server = SessionServer()

    class Cut(Exception):
        pass

    def cut(name: str, _: str) -> None:
        if name == "slow":
            server.executed.append("effect")
            raise ConnectionResetError

    server.before_call = cut

    async def scene(session: SkillSession) -> None:
        said, other = await asyncio.gather(_outcome(bed, session, "slow"), _outcome(bed, session))
        assert "may have had its effect, and was not repeated" in said
        assert other == "marker42 hello"
        assert await _outcome(bed, session) == "marker42 hello"

    _play(bed, server, scene)
    assert server.executed.count("effect") == 1
    assert server.asked["initialize"] == 1
