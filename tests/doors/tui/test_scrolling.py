"""Position in a transcript: it follows new content, announces unseen content, and can be searched."""

from __future__ import annotations

import re
import time

import pytest
from hosts import Bench, expert, wait_for
from terminal_app import Screen, run_app

from perstack.testing.scripted import text, tool, turn
from perstack_tui.view.items import MessageItem, NoteItem
from perstack_tui.view.search import MAX_MATCHES, Matches, search
from perstack_tui.view.tree import RenderContext, TreeBranch

WRITER = expert("writer", description="Writes haiku")
POEM = "\n".join(f"verse {number}" for number in range(1, 61))
SHORT = "\n".join(f"again {number}" for number in range(1, 13))


async def _up(screen: Screen) -> None:
    await screen.press("pageup", "pageup")
    await screen.sees_no("verse 60")


def test_what_came_while_one_looked_further_up_is_counted_and_one_key_leads_there(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([text(POEM), text(SHORT, delay_ms=700), text("Well.")], WRITER)
        async with run_app(host, expert="writer", query="A poem") as screen:
            await screen.sees("verse 60", "✓ completed")
            assert "↓" not in screen.text()
            await screen.type("More")
            await screen.press("enter")
            await _up(screen)
            await screen.wait_until(lambda seen: re.search(r"↓ 1[2-8] new lines", seen) is not None, "the new lines")
            assert "again 12" not in screen.text()
            await screen.press("ctrl+end")
            await screen.sees("again 12", "completed 2 steps")
            await screen.sees_no("↓")

    wait_for(person())


def test_a_click_on_the_count_leads_to_the_end_and_what_one_unfolds_is_not_new(bench: Bench) -> None:
    async def person() -> None:
        think = turn(tool("think", {"thought": "\n".join(f"thought {n}" for n in range(40))}), text=POEM)
        host = bench.host([think, text(SHORT, delay_ms=700)], WRITER)
        async with run_app(host, expert="writer", query="A poem") as screen:
            await screen.sees("verse 60")
            await screen.press("pageup")
            await screen.sees("new lines")
            await screen.wait_until(lambda _: not screen.app.pane.session.is_busy, "the end")
            # the last line of a Job is drawn, and its lines counted, after its work has ended
            await screen.sees("✓ completed", "2 steps")
            view = screen.app.pane.view
            await screen.wait_until(lambda _: view.virtual_size.height == view.whole_height(), "all lines")
            before = screen.app.pane.view.new_lines
            await screen.press("ctrl+o")
            assert screen.app.pane.view.new_lines == before
            await screen.resized(60, 30)
            assert screen.app.pane.view.new_lines == before
            await screen.sees("new lines")
            await screen._pilot.click("#more")
            await screen.sees("again 12", "completed 2 steps")
            await screen.sees_no("new lines")

    wait_for(person())


def test_a_text_that_is_sent_leads_to_the_end(bench: Bench) -> None:
    async def person() -> None:
        host = bench.host([text(POEM), text("Well.")], WRITER)
        async with run_app(host, expert="writer", query="A poem") as screen:
            await screen.sees("verse 60", "✓ completed")
            await _up(screen)
            await screen.type("More")
            await screen.press("enter")
            await screen.sees("❯ More", "Well.", "completed 2 steps")

    wait_for(person())


def test_ctrl_f_finds_every_place_in_order_and_what_is_folded(bench: Bench) -> None:
    async def person() -> None:
        (bench.workspace / "log.txt").write_text("\n".join(f"entry {number}" for number in range(1, 31)))
        read = turn(tool("readTextFile", {"path": "log.txt"}), text=POEM)
        host = bench.host([read, text("The end of the\nmatter. " + "long " * 14 + "\nbroken\nline")], WRITER)
        async with run_app(host, expert="writer", query="A poem") as screen:
            await screen.sees("✓ completed")
            await screen.press("ctrl+f")
            await screen.sees("find:", "Enter next", "Esc closes")
            await screen.type("VERSE 1")
            await screen.sees("of 11", "verse 1")
            await screen.press("enter")
            first = (await screen.sees("of 11")).split(" of 11")[0].split()[-1]
            await screen.press("up")
            await screen.wait_until(lambda seen: f" {first} of 11" not in seen, "the one before")
            for _ in range(7):
                await screen.press("backspace")
            await screen.type("entry 29")
            await screen.sees("1 of 1", "entry 29")  # it was folded
            for _ in range(8):
                await screen.press("backspace")
            await screen.type("matter. long")
            await screen.sees("1 of 1", "matter.")
            await screen.type("x")
            await screen.sees("not found")
            await screen.press("escape")
            await screen.sees_no("find:")
            await screen.type("typed on")
            await screen.sees("│ typed on")

    wait_for(person())


@pytest.fixture(scope="module")
def long_transcript() -> TreeBranch:
    items = [MessageItem(f"{'x ' * 40}needle {number}" * 5) for number in range(60_000)]
    root = TreeBranch([*items, NoteItem("last", "needle")])
    root.height(RenderContext(80))
    return root


@pytest.mark.parametrize("typed", ["needle", "e", "no such text", "[a-", "  "])
def test_a_long_transcript_is_searched_in_bounded_time(long_transcript: TreeBranch, typed: str) -> None:
    began, turns, matches = time.monotonic(), 0, Matches()
    for result in search(long_transcript, typed, RenderContext(80)):
        turns += 1
        matches = result or matches
    assert time.monotonic() - began < 5
    assert len(matches.places) <= MAX_MATCHES
    assert matches.is_cut is (typed.strip() != "")
    assert turns > 3 or typed != "no such text"


def test_a_text_over_two_broken_lines_is_found_at_the_first() -> None:
    root = TreeBranch([MessageItem("one two three four five six seven eight")])
    looks = RenderContext(20)
    (match,) = [one for one in search(root, "three FOUR", looks) if one is not None][-1].places
    assert "three" in "".join(span.text for span in root.items[0].lines(looks)[match.line])
