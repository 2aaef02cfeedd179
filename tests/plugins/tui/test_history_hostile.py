"""The History of logs that somebody wrote to do harm, or that are very long: text stays text, and what is not seen is
not made."""

from __future__ import annotations

import asyncio
import json

import pytest
from hosts import Bench, expert, wait_for
from hypothesis import given, settings
from hypothesis import strategies as st
from long_jobs import LONG, long_job
from terminal_app import run_app

from perstack.core.base.chain import EMPTY_LOG, seal
from perstack.doors.shared.log_view import entries_of, steps_of
from perstack.engine.log.run_log import RunLog
from perstack.testing.scripted import text, tool, turn
from perstack_tui.screens import job as job_screen
from perstack_tui.view.history import event_line, event_texts, step_line
from perstack_tui.view.styled_text import Line, cells_of, text_of
from perstack_tui.view.tree import RenderContext, texts_page

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\u2066 [red]not markup[/red] \r\x08"


def is_plain(line: Line, width: int) -> bool:
    drawn = text_of(line)
    return cells_of(line) <= width and not any(ord(char) < 32 or char in "\x7f\x9b\u202e\u2066" for char in drawn)


def log_of(*payloads: dict[str, object]) -> RunLog:
    lines, _ = seal(
        EMPTY_LOG, [json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode() for payload in payloads]
    )
    return RunLog("j-1", list(lines))


def step(seq: int, key: str = "e", **more: object) -> dict[str, object]:
    place = {
        "type": "finishStep",
        "id": f"j-1-{seq}",
        "timestamp": 1_800_000_000_000 + seq,
        "jobId": "j",
        "runId": "j-1",
    }
    return {**place, "expertKey": key, "stepNumber": seq, "checkpointId": f"j-1-{seq}", "usage": {}, **more}


@settings(deadline=None)
@given(st.text(max_size=60), st.integers(30, 120))
def test_no_row_of_a_log_that_somebody_wrote_moves_the_cursor_or_is_too_wide(said: str, width: int) -> None:
    log = log_of(
        step(1, EVIL + said),
        step(2, checkpointId=EVIL + said),
        {**step(3), "type": "errorRun", "error": {"name": EVIL, "message": said + EVIL}},
        {**step(4), "type": "neverHeardOf" + said, "text": EVIL},
    )
    log.lines.append(b'{"type":"finishStep","id":"\x1b[2J","expertKey":"\x1b]0;x\x07"}')
    log.lines.append(EVIL.encode() + said.encode("utf-8", "replace"))
    for row in steps_of([log]):
        assert is_plain(step_line(row, True, width, is_marked=True), width)
        assert row.latest.id.startswith("j-1-")
    for entry in entries_of(log):
        assert is_plain(event_line(entry, False, width), width)
        page = texts_page(event_texts(entry))
        looks = RenderContext(width)
        assert all(is_plain(one.line, width) for one in page.slice(0, page.height(looks), looks))


def test_of_ten_thousand_checkpoints_only_those_that_are_seen_are_made(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    line_ids: list[str] = []
    line_of = job_screen.step_line

    def counted_line(row, *rest, **named):  # type: ignore[no-untyped-def]
        line_ids.append(row.latest.id)
        return line_of(row, *rest, **named)

    monkeypatch.setattr(job_screen, "step_line", counted_line)
    many = log_of(*(step(seq) for seq in range(1, 10_001)))

    async def logs(job_id: str | None = None, *, run_id: str | None = None) -> list[RunLog]:
        return [many]

    async def person() -> None:
        host = bench.host([text("Hm.")], expert("e"))
        await host.run("e", "Go", job_id="j")
        async with run_app(host) as screen:
            monkeypatch.setattr(host.jobs, "logs", logs)
            await screen.looks_into("j")
            await screen.sees("❯ Step 10000 (j-1-10000)")
            await screen.press("home")
            await screen.sees("❯ Step 1 (j-1-1)")
            await screen.press("pagedown", "9", "9", "9", "9")
            await screen.sees("❯ Step 9999 (")

    wait_for(person())
    assert len(set(line_ids)) < 200


def test_what_a_model_and_a_tool_say_is_text_in_every_screen(bench: Bench) -> None:
    async def person() -> None:
        script = [turn(tool("nosuch", {"a": EVIL}), text=EVIL + "x" * 300_000, thinking=EVIL), text(EVIL)]
        host = bench.host(script, expert("solo", description=EVIL))
        await host.run("solo", EVIL, job_id="evil")
        async with run_app(host, size=(100, 60)) as screen:
            await screen.press("f2")
            await screen.sees("(evil)")
            seen: list[str] = []
            await screen.press("tab")
            seen.append(await screen.sees("Step 1 ("))
            await screen.press("tab")
            seen.append(await screen.sees("says", "[red]not markup[/red]"))
            await screen.press("home", "down", "down", "enter")
            seen.append(await screen.sees("of evil-1"))
            await screen.press("escape", "shift+tab", "home", "enter")
            seen.append(await screen.sees("─ query", "[red]not markup[/red]"))
            await screen.press("ctrl+o", "end")
            seen.append(await screen.sees("error of nosuch"))
            await screen.press("tab")
            seen.append(await screen.sees("since"))
        assert not any(bad in "".join(seen) for bad in ("\x1b", "\x07", "\x9b", "\u202e", "\u2066", "\r", "\x08"))

    wait_for(person())


def test_while_a_long_log_is_folded_others_have_their_turn(bench: Bench) -> None:
    async def person() -> None:
        await long_job(bench, 400)
        host = bench.host([text("Hm.")], LONG)
        looking = asyncio.create_task(host.jobs.checkpoint("long-1-1999", job_id="long"))
        turns = 0
        while not looking.done():
            await asyncio.sleep(0)
            turns += looking.get_stack() != [] and not looking.done()
        assert (await looking).step_number == 400
        assert turns >= 3

    wait_for(person())


def test_the_checkpoints_of_a_long_job_are_seen_before_its_runs_are_folded(bench: Bench) -> None:
    folded: list[str] = []

    async def person() -> None:
        await long_job(bench, 300)
        host = bench.host([text("Hm.")], LONG)
        tree = host.jobs.tree

        async def slow(job_id: str | None = None):  # type: ignore[no-untyped-def]
            await screen.sees("❯ Step 300 (")
            folded.append("after it was seen")
            return await tree(job_id)

        async with run_app(host) as screen:
            host.jobs.tree = slow  # type: ignore[method-assign]
            await screen.looks_into("long")
            await screen.sees("❯ Step 300 (")
            await screen.press("shift+tab")
            await screen.sees("long-1  writer")

    wait_for(person())
    assert folded == ["after it was seen"]
