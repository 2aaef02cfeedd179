"""A text typed before a question is not part of the answer, and is restored after it."""

from __future__ import annotations

import pytest
from hosts import Bench, expert, wait_for
from terminal_app import Screen, run_app

from perstack.core.definitions.permissions import Permissions
from perstack.host import Host
from perstack.testing.scripted import text, tool, turn

RELEASER = expert("releaser", description="Releases", permissions=Permissions(ask=("writeTextFile",)))
WRITE = turn(tool("writeTextFile", {"path": "out.txt", "text": "version 2\n"}), delay_ms=1500)
GUEST = expert("guest", ask=True)
ASK = turn(tool("askUser", {"question": "Which colour?"}), delay_ms=1500)


async def results(host: Host) -> list[str]:
    """Return the results of the calls as sent to the model."""
    job = (await host.jobs.list()).jobs[0]
    events = [line.event async for line in host.jobs.watch(job.id)]
    return ["".join(part.text for part in event.contents) for event in events if event.type == "finishToolCall"]


def typed(screen: Screen) -> str:
    return screen.app.pane.composer.text


def test_a_draft_is_never_sent_with_an_answer_and_comes_back_after_it(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([ASK, text("Well.", delay_ms=1000)], GUEST)
        async with run_app(host, expert="guest", query="Paint") as screen:
            await screen.sees("at work")
            await screen.type("hello")
            await screen.sees("guest asks: Which colour?", "your draft comes back after it")
            assert typed(screen) == ""
            await screen.type("wrong")
            await screen.press("enter")
            await screen.sees("│ hello ")
            await screen.type(" again")
            await screen.sees("Well.", "✓ completed", "│ hello again ")
        assert await results(host) == ["wrong"]

    wait_for(person())


def test_what_is_typed_without_a_pause_while_a_question_appears_stays_in_the_draft(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([ASK, text("Well.")], GUEST)
        async with run_app(host, expert="guest", query="Paint") as screen:
            await screen.sees("at work")
            while "guest asks" not in screen.text():
                await screen.type("z")
            await screen.type("wrong")
            await screen.press("enter")
            await screen.sees("your draft comes back after it", "? waits for you")
            assert typed(screen) == ""
            await screen.type("red")
            await screen.press("enter")
            await screen.sees("Well.", "✓ completed", "zwrong")
        assert await results(host) == ["red"]

    wait_for(person())


@pytest.mark.parametrize(("key", "reason", "told"), [("y", "", "version 2"), ("n", "not now", "not now")])
def test_a_draft_waits_while_a_call_is_decided_and_is_no_reason_for_a_no(
    bench: Bench, key: str, reason: str, told: str
) -> None:
    async def person() -> None:
        host = bench.host([WRITE, text("Well.")], RELEASER)
        async with run_app(host, expert="releaser", query="Go") as screen:
            await screen.sees("at work")
            await screen.type("hello")
            await screen.sees("Tab, then y yes", "│ hello")
            await screen.type(" you")  # decides nothing
            await screen.press("tab")
            await screen.sees("your draft comes back after it")
            await screen.sees_no("hello")
            await screen.press(key)
            if reason:
                await screen.sees("why not?")
                await screen.type(reason)
                await screen.press("enter")
            await screen.sees("Well.", "✓ completed", "│ hello you ")
        (result,) = await results(host)
        assert told in result
        assert "hello" not in result

    wait_for(person())


def test_a_reason_that_was_taken_back_is_sent_with_nothing(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([WRITE, text("Well.")], RELEASER)
        async with run_app(host, expert="releaser", query="Go") as screen:
            await screen.sees("y yes")
            await screen.sees_no("Tab, then")
            await screen.press("n")
            await screen.sees("why not?")
            await screen.type("half a rea")
            await screen.press("escape", "y")
            await screen.sees("Well.", "✓ completed")
            assert typed(screen) == ""

    wait_for(person())


@pytest.mark.parametrize("is_opened", [False, True])
def test_of_the_keys_of_a_question_there_is_one_instruction(bench: Bench, is_opened: bool) -> None:
    async def person() -> None:
        host = bench.host([WRITE, text("Well.")], RELEASER)
        options = {"job_id": "out"} if is_opened else {"expert": "releaser", "query": "Go"}
        if is_opened:
            await host.run("releaser", "Go", job_id="out")
        async with run_app(host, **options) as screen:
            await screen.sees("y yes", "1 every call of", "so far: 1 step")
            seen = await screen.sees_no("Tab, then")
            for words in ("y yes", "n no"):
                assert seen.count(words) == 1
            for other in ("Enter send", "Esc interrupt", "y, a or n", "Enter resumes"):
                assert other not in seen
            await screen.press("n")
            seen = await screen.sees("why not?")
            assert seen.count("Esc goes back") == 1
            assert "y yes" not in seen

    wait_for(person())


def test_a_call_that_asks_takes_the_keys_again_when_its_tab_is_shown_again(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([WRITE, text("Well.")], RELEASER)
        async with run_app(host, expert="releaser", query="Go") as screen:
            await screen.sees("y yes")
            await screen.sees_no("Tab, then")
            await screen.press("ctrl+t")
            await screen.sees_no("y yes")
            await screen.press("alt+1")
            await screen.sees("y yes")
            await screen.sees_no("Tab, then")
            await screen.press("y")
            await screen.sees("Well.")

    wait_for(person())
