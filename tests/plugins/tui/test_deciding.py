"""Keys that decide and keys that do not; and a branch that is left before it begins."""

from __future__ import annotations

import asyncio

import pytest
from hosts import Bench, expert, wait_for
from terminal_app import Screen, at_once, run_app

from perstack.core.definitions.permissions import Permissions
from perstack.testing.scripted import text, tool

RELEASER = expert("releaser", description="Releases", permissions=Permissions(ask=("writeTextFile",)))
WRITE = tool("writeTextFile", {"path": "out.txt", "text": "version 2\n"})


async def wait_for_approval(screen: Screen) -> None:
    await screen.sees("wants to call writeTextFile", "version 2")
    if "Tab, then" in screen.text():
        await screen.press("tab")


def test_what_is_typed_on_after_a_no_is_its_text_and_never_a_yes(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([WRITE, text("Well.")], RELEASER)
        async with run_app(host, expert="releaser", query="Go") as screen:
            await wait_for_approval(screen)
            at_once(screen, *"nya")
            await screen.sees("│ ya ")
            await screen.press("enter")
            await screen.sees("Well.", "✓ completed", "ya")
        assert not (bench.workspace / "out.txt").exists()

    wait_for(person())


@pytest.mark.parametrize("turns", range(4))
def test_what_is_typed_on_fast_keeps_its_order(bench: Bench, turns: int) -> None:
    words = "because-it-is-so-and-not-otherwise-0123456789"

    async def person() -> None:
        async with run_app(bench.host([WRITE], RELEASER), expert="releaser", query="Go") as screen:
            await wait_for_approval(screen)
            for key in f"n{words}":
                at_once(screen, key)
                for _ in range(turns):
                    await asyncio.sleep(0)  # so that the keys meet the program at another point of its work
            await screen.sees(f"│ {words} ")

    wait_for(person())


def test_a_key_right_after_tab_is_for_what_asks(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([WRITE, text("Well.")], RELEASER)
        async with run_app(host, expert="releaser", query="Go") as screen:
            await screen.sees("wants to call writeTextFile")
            screen.app.pane.focus_composer()
            await screen.sees("Tab, then")
            at_once(screen, "tab", "y")
            await screen.sees("Well.", "✓ completed")
        assert (bench.workspace / "out.txt").exists()

    wait_for(person())


def test_escape_takes_back_a_no_that_has_not_been_sent(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([WRITE, text("Well.")], RELEASER)
        async with run_app(host, expert="releaser", query="Go") as screen:
            await wait_for_approval(screen)
            await screen.press("n")
            await screen.sees("why not?")
            await screen.press("escape")
            await screen.sees("y yes")
            await screen.sees_no("why not?")
            await screen.press("y")
            await screen.sees("Well.", "✓ completed")

    wait_for(person())


def test_a_call_is_decided_differently_in_a_branch_where_it_is_shown_whole(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([WRITE, text("Well.")], RELEASER)
        job = await host.run("releaser", "Go", job_id="out")
        assert job.asking is not None
        await host.answer("no", question_id=job.asking.id)
        async with run_app(host, size=(100, 30)) as screen:
            await screen.looks_into("out")
            await screen.sees("asks")
            await screen.press("home", "a")
            await screen.sees("wants to call writeTextFile", "version 2", "another answer, in a branch from out-1-")
            if "Tab, then" in screen.text():
                await screen.press("tab")
            await screen.press("y")
            await screen.sees("with another answer", "✓ completed")
        assert (bench.workspace / "out.txt").exists()

    wait_for(person())


def test_a_branch_is_left_by_escape_and_enter_alone_begins_none(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([tool("askUser", {"question": "Tea?"}), text("Served.")], expert("guest", ask=True))
        await host.run("guest", "Serve", job_id="inn")
        async with run_app(host) as screen:
            await screen.looks_into("inn")
            await screen.sees("Step 1 (")
            await screen.press("b")
            await screen.sees("a new query, in a branch from inn-1-")
            await screen.sees_no("guest asks")
            await screen.press("enter")
            await screen.sees("a new query, in a branch")
            await screen.press("escape")
            await screen.sees("guest asks: Tea?", "your answer")
        assert len((await host.jobs.runs("inn")).runs) == 1

    wait_for(person())
