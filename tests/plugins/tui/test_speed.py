"""Work that the terminal program avoids to be fast. It is counted, since a duration depends on the machine."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hosts import Bench, expert, wait_for
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from terminal_app import Screen, run_app
from textual.strip import Strip

from perstack.core.runs.display_events import StreamText
from perstack.ports.storage import RunRef, Storage
from perstack.testing.scripted import Turn, text, tool, turn
from perstack_tui.view.items import Stream
from perstack_tui.view.styled_text import text_of
from perstack_tui.view.tree import RenderContext
from perstack_tui.widgets.pane import JobPane
from perstack_tui.widgets.tree import TranscriptView

WRITER = expert("writer", description="Writes haiku")


def words(number: int) -> list[str]:
    return [f"frog{at} " for at in range(number)]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the lines rendered for the screen and the updates of tabs."""
    counts = Counter[str]()
    render_line, update = TranscriptView.render_line, JobPane.update

    def rendered(view: TranscriptView, y: int) -> Strip:
        counts["lines"] += 1
        return render_line(view, y)

    def updated(pane: JobPane) -> None:
        counts["updates"] += 1
        update(pane)

    monkeypatch.setattr(TranscriptView, "render_line", rendered)
    monkeypatch.setattr(JobPane, "update", updated)
    return counts


def heard(screen: Screen, delta: str) -> None:
    """Receive a piece of a text and update the screen."""
    session = screen.app.pane.session
    assert session.job is not None
    run_id = session.job.coordinator_run_id
    session.transcript.apply(
        StreamText(
            id="1", timestamp=1, job_id=session.job.id, run_id=run_id, expert_key="writer", step_number=2, delta=delta
        )
    )
    screen.app.pane.update()


def test_a_word_that_comes_draws_the_lines_that_it_changes_and_lays_nothing_out(
    bench: Bench, counted: Counter[str]
) -> None:
    async def person() -> None:
        first = "\n".join(f"line {number}" for number in range(60))  # so there is a scrollbar, and it is at the end
        async with run_app(bench.host([text(first)], WRITER), expert="writer", query="A haiku") as screen:
            await screen.sees("line 59", "✓ completed")
            heard(screen, "once ")
            await screen.sees("once")
            app = screen.app
            app.screen.screen_layout_refresh_signal.subscribe(app, lambda _: counted.update(["layouts"]))
            counted.clear()
            for number in range(40):
                heard(screen, f"w{number:02} ")  # 4 cells: 18 of them are a line
                await screen.sees(f"w{number:02}")
            scrolled = counted["lines"] // app.pane.view.size.height
            assert counted["layouts"] == 0
            assert scrolled <= 4
            assert counted["lines"] <= 4 * app.pane.view.size.height + 2 * 40

    wait_for(person())


def test_words_that_come_together_are_one_drawing(bench: Bench, counted: Counter[str]) -> None:
    async def person() -> None:
        said = "".join(words(2_000))
        async with run_app(bench.host([text(said)], WRITER), expert="writer", query="A haiku") as screen:
            await screen.sees("frog1999", "✓ completed")
            assert counted["updates"] < 40

    wait_for(person())


def test_what_more_of_a_long_text_does_not_change_is_broken_once() -> None:
    looks, stream = RenderContext(60), Stream(is_thought=False)
    before: list[object] = []
    for word in words(3_000):
        stream.append(word)
        lines = stream.lines(looks)
        assert all(one is other for one, other in zip(lines[:-2], before, strict=False))
        before = [*lines[:-2]]
    assert len(before) > 400


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(alphabet=" \nab日é", max_size=200), st.integers(4, 40), st.integers(1, 7))
def test_a_text_that_comes_in_pieces_is_broken_as_the_whole_is(said: str, width: int, size: int) -> None:
    looks, whole, pieces = RenderContext(width), Stream(is_thought=False), Stream(is_thought=False)
    whole.append(said)
    for at in range(0, len(said), size):
        pieces.append(said[at : at + size])
        pieces.lines(looks)
    assert [text_of(line).rstrip() for line in pieces.lines(looks)] == [
        text_of(line).rstrip() for line in whole.lines(looks)
    ]


def long_script() -> list[Turn]:
    """Return a script with more events than the part of a log that is read first."""
    return [turn(*(tool("nosuch", {"at": f"look {number}"}) for number in range(320))), text("Last words.")]


def test_the_end_of_a_long_job_is_seen_before_it_is_checked_and_that_is_said(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def person() -> None:
        host = bench.host(long_script(), WRITER)
        await host.run("writer", "A haiku", job_id="long")
        is_read = asyncio.Event()
        read = type(host.storage).read

        async def read_when_allowed(
            storage: Storage, run: RunRef, after: int = 0, limit: int | None = None
        ) -> list[bytes]:
            await is_read.wait()
            return await read(storage, run, after, limit)

        monkeypatch.setattr(type(host.storage), "read", read_when_allowed)
        async with run_app(host, job_id="long") as screen:
            seen = await screen.sees("Last words.", "being read and checked")
            assert "completed" not in seen
            assert "step" not in seen
            widgets = len(screen.app.screen.query("*"))
            is_read.set()
            await screen.sees("Last words.", "✓ completed", "2 steps")
            assert len(screen.app.screen.query("*")) == widgets
            await screen.press("pageup")
            await screen.sees("look 312")

    wait_for(person())


def test_what_is_damaged_is_said_after_the_end_was_seen_and_what_follows_it_is_not_shown(bench: Bench) -> None:
    async def person() -> None:
        await bench.host(long_script(), WRITER).run("writer", "A haiku", job_id="long")
        (log,) = bench.workspace.glob("**/events.jsonl")
        lines = log.read_bytes().split(b"\n")
        lines[20] = lines[20].replace(b"no tool", b"no fool")
        log.write_bytes(b"\n".join(lines))
        async with run_app(bench.host([], WRITER), job_id="long") as screen:
            problem = "its content does not match its digest"
            await screen.wait_until(lambda text: problem in " ".join(text.split()), problem)  # where lines end varies
            assert "line 21" in " ".join(screen.text().split())
            assert "Last words." not in screen.text()

    wait_for(person())
