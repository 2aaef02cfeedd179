"""What a server lists may change while a Run goes on, and what it says of its tools reaches the model."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hosts import Seen, expert, project_of, results, wait_for
from mcp_bed import Bed, words

from perstack.core.definitions.experts import Expert
from perstack.core.definitions.settings import Overrides
from perstack.core.definitions.skills import McpStdioSkill
from perstack.host import Host
from perstack.testing.scripted import ScriptedProvider, text, tool

ASKING = Path(__file__).parent / "servers" / "asking.py"
ERAS = pytest.mark.parametrize("era", ["handshake", "stateless"])


def _skill(era: str, **fields) -> McpStdioSkill:
    return McpStdioSkill(name="asking", command=sys.executable, args=(str(ASKING), era), timeout=60_000, **fields)


def _run(
    bed: Bed, provider: ScriptedProvider, skill: McpStdioSkill, notice=lambda event, line: None, **options
) -> Seen:
    one: Expert = expert("a").model_copy(update={"skills": (skill,)})
    host = Host(
        project_of(one),
        workspace=bed.workspace,
        storage="file:perstack",
        env=bed.env,
        overrides=Overrides(provider="scripted", **options),
        plugins=[provider],
    )
    seen = Seen()

    def on_event(event, line) -> None:
        seen(event, line)
        notice(event, line)

    assert wait_for(host.run("a", "q", on_event=on_event)).status == "completed"
    return seen


def _offers(provider: ScriptedProvider, name: str) -> list[bool]:
    return [name in {spec.name for spec in request.tools} for request in provider.requests]


@ERAS
def test_a_tool_that_a_server_has_got_meanwhile_is_there_at_the_next_step(bed: Bed, era: str) -> None:
    provider = ScriptedProvider([tool("grow"), tool("more"), text("ok")])
    seen = _run(bed, provider, _skill(era))
    assert _offers(provider, "more") == [False, True, True]
    assert results(seen) == ["grow is done", "more is done"]


@ERAS
def test_a_list_that_cannot_be_had_leaves_the_old_one_and_is_shown(bed: Bed, era: str) -> None:
    provider = ScriptedProvider([tool("spoil"), tool("grow"), text("ok")])
    seen = _run(bed, provider, _skill(era))
    assert _offers(provider, "grow") == [True, True, True]
    assert results(seen) == ["spoil is done", "grow is done"]
    shown = [event.message for event in seen.of("skillStderr")]
    assert "(its tools have changed, but the new list cannot be used: the list is lost)" in shown


async def _wait_until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", ["ended", "broken"])
def test_a_lost_subscription_is_opened_again_and_what_changed_meanwhile_is_noticed(bed: Bed, how: str) -> None:
    async def run() -> None:
        async with bed.session(_skill("stateless")) as session:

            async def has_more() -> bool:
                return "more" in {spec.name for spec in (await session.tools()).specs}

            assert not await has_more()
            await bed.call(session, "drop", how=how)
            await _wait_until(has_more)
            assert bed.shown.count("subscribed") == 2
            await bed.call(session, "grow")
            await session.tools()

    wait_for(run())
    assert not [line for line in bed.shown if "will not be noticed" in line]


def test_a_subscription_that_is_lost_again_and_again_is_given_up_with_a_line(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perstack_mcp.tool_list._SUBSCRIPTION_DELAYS_S", (0.01,) * 3)

    async def run() -> None:
        async with bed.session(_skill("stateless")) as session:

            async def is_told() -> bool:
                return any("changes of its tools will not be noticed" in line for line in bed.shown)

            await bed.call(session, "drop", how="always")
            await _wait_until(is_told)
            assert words(await bed.call(session, "more")) == "more is done"

    wait_for(run())
    assert bed.shown.count("subscribed") == 4


def test_nothing_changes_while_the_server_says_nothing(bed: Bed) -> None:
    async def run() -> bool:
        async with bed.session(_skill("handshake")) as session:
            return await session.tools() is await session.tools()

    assert wait_for(run())


@ERAS
def test_what_a_server_says_of_its_tools_is_part_of_the_prompt(bed: Bed, era: str) -> None:
    provider = ScriptedProvider([text("ok")])
    _run(bed, provider, _skill(era))
    assert "What skill asking says of its tools:\nSay the city in English." in provider.requests[0].instruction


def test_a_lazy_server_is_not_waited_for_and_joins_when_it_is_up(bed: Bed) -> None:
    up = bed.workspace / "up"
    wait = {"command": "sh", "args": ["-c", "until test -e up; do sleep 0.01; done"], "timeout": 20_000}
    provider = ScriptedProvider([tool("exec", wait), tool("book"), text("ok")])

    def notice(event, line) -> None:
        if event.type == "skillConnected":
            up.touch()

    _run(bed, provider, _skill("handshake", lazy_init=True), notice, unattended=True, open=True)
    assert _offers(provider, "book") == [False, True, True]
    first, second = provider.requests[0].instruction, provider.requests[1].instruction
    assert "Say the city in English." not in first
    assert "Say the city in English." in second


@ERAS
def test_a_result_that_breaks_the_schema_of_its_tool_counts_and_the_tool_and_the_place_are_shown(
    bed: Bed, era: str
) -> None:
    seen = _run(bed, ScriptedProvider([tool("broken"), text("ok")]), _skill(era))
    (event,) = seen.of("finishToolCall")
    assert not event.is_error
    assert '"n": "many"' in results(seen)[0]
    assert (
        "(broken: the structured output violates the tool's output schema at n: 'many' is not of type 'integer')"
        in [line.message for line in seen.of("skillStderr")]
    )
