"""Questions and approvals longer than the screen: all of the text can be read, and the keys are always visible."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from approval_jobs import ASK_WRITE, append, files
from asking_team import Gate, script, team
from hosts import Bench, expert, wait_for
from plain_person import begin_person
from terminal_app import Screen, run_app

from perstack.core.definitions.permissions import Permissions
from perstack.core.definitions.skills import McpStdioSkill
from perstack.host import Host
from perstack.testing.scripted import text, tool

LONG = "".join(f"line {number}.\n" for number in range(1, 101))
RELEASER = expert("releaser", description="Releases", permissions=Permissions(ask=("writeTextFile",)))


async def _to_the_panel(screen: Screen) -> None:
    """Move the focus to the panel, which does not take it right after typing.

    A question that becomes the Job's is shown in a new panel: the key is pressed again for that one.
    """
    async with asyncio.timeout(20):
        while "Tab, then" in screen.text():
            await screen.press("tab")


async def _says(screen: Screen, key: str) -> None:
    await _to_the_panel(screen)
    await screen.press(key)


@pytest.mark.parametrize("size", [(80, 24), (80, 16), (200, 50)])
def test_of_a_long_call_the_answers_are_seen_and_all_of_it_by_keys(bench: Bench, size: tuple[int, int]) -> None:
    async def person() -> None:
        host = bench.host([tool("writeTextFile", {"path": "a.txt", "text": LONG}), text("Well.")], RELEASER)
        async with run_app(host, expert="releaser", query="Go", size=size) as screen:
            await screen.sees("wants to call writeTextFile", "before a yes", "n no", "show all")
            await _to_the_panel(screen)
            await screen.press("y")  # not before the end has been seen
            await screen.press("down")
            await screen.sees_no("wants to call writeTextFile")
            for _ in range(100):
                await screen.press("pagedown")
            await screen.sees("a.txt is a new file", "y yes", "n no")
            assert not (bench.workspace / "a.txt").exists()
            await screen.press("y")
            await screen.sees("Well.", "✓ completed")
        assert (bench.workspace / "a.txt").read_text() == LONG

    wait_for(person())


def test_after_a_resize_the_answers_are_still_seen(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([tool("writeTextFile", {"path": "a.txt", "text": LONG})], RELEASER)
        async with run_app(host, expert="releaser", query="Go", size=(80, 40)) as screen:
            await screen.sees("wants to call writeTextFile", "n no", "line 10.")
            await screen.resized(80, 20)
            await screen.sees_no("line 10.")
            await screen.sees("wants to call writeTextFile", "before a yes", "n no")

    wait_for(person())


def test_all_options_of_a_long_question_are_seen_and_what_is_typed_there_is_the_answer(bench: Bench) -> None:
    async def person() -> None:
        options = [f"Option {number}." for number in range(1, 101)]
        ask = tool("askUser", {"question": "Which?", "options": options})
        host = bench.host([ask, text("Well.")], expert("guest", ask=True))
        async with run_app(host, expert="guest", query="Go") as screen:
            await screen.sees("guest asks: Which?", "Option 1.", "type a number", "Tab, then")
            await screen.press("tab")
            for _ in range(20):
                await screen.press("pagedown")
            await screen.sees("100. Option 100.", "type a number")
            await screen.press("home")
            await screen.sees("guest asks: Which?", " 1. Option 1.")
            await screen.press("end")
            await screen.sees("100. Option 100.")
            await screen.type("99")
            await screen.sees("│ 99 ")
            await screen.press("enter")
            await screen.sees("Option 99.", "Well.", "✓ completed")

    wait_for(person())


def _at_work(bench: Bench, gate: Gate) -> Host:
    """Return a Host with a team: two calls of one delegate need approval while the other delegate works."""
    files(bench, "a.txt", "b.txt")
    host = bench.host(script(append("a.txt"), append("b.txt")), *team(), plugins=(gate.kit,))
    host.use(host.project.model_copy(update={"permissions": ASK_WRITE}))
    return host


def test_a_delegate_is_answered_while_another_is_at_work(bench: Bench) -> None:
    async def person() -> None:
        gate = Gate()
        async with run_app(_at_work(bench, gate), expert="boss", query="Go") as screen:
            await screen.sees("asker wants to call appendTextFile", "a.txt", "y yes", "? waits for you")
            await _says(screen, "y")
            await screen.sees("asker wants to call appendTextFile", "path: b.txt", "y yes")
            assert (bench.workspace / "a.txt").read_text() == "x\n"
            await _says(screen, "n")
            await screen.sees("why not?")
            await screen.press("escape")
            await screen.sees("y yes", "? waits for you")
            await _says(screen, "n")
            await screen.type("not there")
            await screen.press("enter")
            await screen.sees("● at work")
            await screen.sees_no("y yes")
            gate.may_end.set()
            await screen.sees("✓ completed")
        assert (bench.workspace / "b.txt").read_text() == ""

    wait_for(person())


def test_what_asks_at_once_takes_the_keys_when_nothing_is_typed_for_a_moment(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([tool("writeTextFile", {"path": "a.txt", "text": "b"}), text("Well.")], RELEASER)
        async with run_app(host, expert="releaser", query="Go") as screen:
            await screen.sees("y yes")
            await screen.sees_no("Tab, then")
            await screen.press("y")
            await screen.sees("✓ completed")

    wait_for(person())


def test_once_the_others_rest_the_same_question_is_the_jobs(bench: Bench) -> None:
    async def person() -> None:
        gate = Gate()
        async with run_app(_at_work(bench, gate), expert="boss", query="Go") as screen:
            await screen.sees("asker wants to call appendTextFile", "y yes")
            gate.may_end.set()
            await screen.sees("✓ worker", "y yes")
            await _says(screen, "y")
            await screen.sees("path: b.txt", "y yes")
            await _says(screen, "y")
            await screen.sees("✓ completed")
        assert [(bench.workspace / name).read_text() for name in ("a.txt", "b.txt")] == ["x\n", "x\n"]

    wait_for(person())


def test_line_by_line_a_delegate_is_answered_while_another_is_at_work(bench: Bench) -> None:
    async def person() -> None:
        gate = Gate()
        async with begin_person(_at_work(bench, gate), expert="boss", query="Go") as one:
            await one.sees("asker wants to call appendTextFile", "a.txt", "y yes")
            await one.types("y", "b.txt", "y yes")
            await one.types("n")
            gate.may_end.set()
            seen = await one.sees("completed: ")
            assert "have stopped" not in seen
        assert [(bench.workspace / name).read_text() for name in ("a.txt", "b.txt")] == ["x\n", ""]

    wait_for(person())


def test_a_server_that_acts_before_it_asks_acts_once_and_its_call_is_not_called_interrupted(bench: Bench) -> None:
    server = Path(__file__).parents[2] / "plugins" / "mcp" / "servers" / "asking.py"
    skill = McpStdioSkill(name="asking", command=sys.executable, args=(str(server), "handshake"))

    async def person() -> None:
        guest = expert("guest").model_copy(update={"skills": (skill,)})
        host = bench.host([tool("charge"), text("Well.")], guest, attended=True)
        async with run_app(host, expert="guest", query="Go") as screen:
            await screen.sees("asks skill asking, charge: Where to?", "waits for you")
            assert "interrupted" not in screen.text()
            await screen.type('{"city": "Rome"}')
            await screen.press("enter")
            await screen.sees("charged for Rome", "Well.", "✓ completed")
        assert (bench.workspace / "charged").read_text() == "once\n"

    wait_for(person(), 60)
