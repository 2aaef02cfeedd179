"""What waits for a person and is longer than the screen: all of it can be seen, and always how it is answered."""

from __future__ import annotations

import pytest
from hosting import Bench, expert, wait_for
from starting import started

from perstack.core.policy.permissions import Permissions
from perstack.testing.scripted import text, tool

LONG = "".join(f"line {number}.\n" for number in range(1, 101))
RELEASER = expert("releaser", description="Releases", permissions=Permissions(ask=("writeTextFile",)))


@pytest.mark.parametrize("size", [(80, 24), (80, 16), (200, 50)])
def test_of_a_long_call_the_answers_are_seen_and_all_of_it_by_keys(bench: Bench, size: tuple[int, int]) -> None:
    async def person() -> None:
        host = bench.host([tool("writeTextFile", {"path": "a.txt", "text": LONG}), text("Well.")], RELEASER)
        async with started(host, expert="releaser", query="Go", size=size) as screen:
            await screen.sees("wants to call writeTextFile", "y yes", "n no", "show all")
            if "Tab, then" in screen.text():
                await screen.press("tab")
            await screen.press("down")
            await screen.sees_no("wants to call writeTextFile")
            for _ in range(100):
                await screen.press("pagedown")
            await screen.sees("line 100.", "y yes", "n no")
            await screen.press("y")
            await screen.sees("Well.", "✓ completed")
        assert (bench.workspace / "a.txt").read_text() == LONG

    wait_for(person())


def test_after_a_resize_the_answers_are_still_seen(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([tool("writeTextFile", {"path": "a.txt", "text": LONG})], RELEASER)
        async with started(host, expert="releaser", query="Go", size=(80, 40)) as screen:
            await screen.sees("wants to call writeTextFile", "n no", "line 10.")
            await screen.resized(80, 20)
            await screen.sees_no("line 10.")
            await screen.sees("wants to call writeTextFile", "y yes", "n no")

    wait_for(person())


def test_all_options_of_a_long_question_are_seen_and_what_is_typed_there_is_the_answer(bench: Bench) -> None:
    async def person() -> None:
        options = [f"Option {number}." for number in range(1, 101)]
        ask = tool("askUser", {"question": "Which?", "options": options})
        host = bench.host([ask, text("Well.")], expert("guest", ask=True))
        async with started(host, expert="guest", query="Go") as screen:
            await screen.sees("guest asks: Which?", "Option 1.", "type a number", "Tab, then")
            await screen.press("tab")
            for _ in range(20):
                await screen.press("pagedown")
            await screen.sees("100. Option 100.", "type a number")
            await screen.type("99")
            await screen.sees("│ 99 ")
            await screen.press("enter")
            await screen.sees("Option 99.", "Well.", "✓ completed")

    wait_for(person())
