"""The History of what does not read: logs that are damaged or of a newer version, Jobs that are deleted meanwhile, and
Jobs that are further back than what was read at first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hosts import Bench, expert, recording, wait_for
from stored_damage import reseal
from terminal_app import run_app

from perstack.host import Host
from perstack.testing.scripted import text, tool, turn
from perstack_tui.screens import history

WRITER = expert("writer", description="Writes haiku")
SIZE = (100, 30)


def log_of(bench: Bench, job_id: str) -> Path:
    return bench.workspace / "perstack" / "jobs" / job_id / "runs" / f"{job_id}-1" / "events.jsonl"


async def ponds(bench: Bench, *job_ids: str) -> Host:
    host = recording(bench.host([turn(tool("writeTextFile", {"path": "a", "text": "a\n"})), text("Done.")], WRITER))
    for job_id in job_ids:
        await host.run("writer", "A haiku", job_id=job_id)
    return host


def damage(bench: Bench, job_id: str) -> None:
    log = log_of(bench, job_id)
    log.write_bytes(log.read_bytes().replace(b'"finishToolCall"', b'"finishToolCalm"'))
    (log.parents[2] / "job.json").unlink()


def write_as_a_newer_version(bench: Bench, job_id: str) -> None:
    def change(payload: bytes) -> bytes:
        fields = json.loads(payload)
        if fields["type"] != "finishToolCall":
            return payload
        return json.dumps({**fields, "type": "dreamRun"}, separators=(",", ":")).encode()

    reseal(log_of(bench, job_id), change)
    (log_of(bench, job_id).parents[2] / "job.json").unlink()


def test_a_damaged_job_is_marked_and_what_can_be_read_of_it_is_listed_with_why_there_is_no_more(bench: Bench) -> None:
    async def person() -> None:
        host = await ponds(bench, "bad", "good")
        damage(bench, "bad")
        async with run_app(host, size=SIZE) as screen:
            await screen.press("f2")
            await screen.sees("writer - 2 steps (good)", "(bad)", "damaged")
            await screen.type("bad")
            await screen.sees_no("(good)")
            await screen.press("tab")
            await screen.sees("There is no checkpoint yet.", "its content does not match its digest")
            await screen.press("tab")
            await screen.sees("query     A haiku", "its content does not match its digest")

    wait_for(person())


@pytest.mark.parametrize("log", [b"no JSON\n", b"[" * 50_000 + b"\n", b"\xff\xfe\n"], ids=["words", "deep", "bytes"])
def test_a_job_of_which_nothing_reads_is_one_row_beside_the_others(bench: Bench, log: bytes) -> None:
    async def person() -> None:
        host = await ponds(bench, "good", "bad")
        log_of(bench, "bad").write_bytes(log)
        (log_of(bench, "bad").parents[2] / "job.json").unlink()
        async with run_app(host, size=SIZE) as screen:
            await screen.press("f2")
            seen = await screen.sees("writer - 2 steps (good)", "(bad)", "damaged")
            assert seen.count("(bad)") == 1
            await screen.type("bad")
            await screen.sees_no("(good)")
            await screen.press("tab")
            await screen.sees("There is no checkpoint yet.")
            await screen.press("escape")
            await screen.sees("(bad)", "Tab shows details")

    wait_for(person())


def test_a_checkpoint_that_does_not_read_says_why_and_stays_so(bench: Bench) -> None:
    async def person() -> None:
        host = await ponds(bench, "newer")
        write_as_a_newer_version(bench, "newer")
        async with run_app(host, size=SIZE) as screen:
            await screen.press("f2")
            await screen.sees("(newer)", "damaged")
            await screen.press("tab")
            await screen.sees("❯ Step 2 (newer-1-")
            await screen.press("enter")
            seen = await screen.sees("Messages", "a newer version has written it")
            assert "…" not in seen

    wait_for(person())


def test_a_job_that_was_deleted_while_it_was_shown_is_said_not_to_be_there_and_can_be_tried_again(
    bench: Bench,
) -> None:
    async def person() -> None:
        host = await ponds(bench, "gone")
        async with run_app(host, size=SIZE) as screen:
            await screen.looks_into("gone")
            await screen.sees("❯ Step 2 (gone-1-")
            await host.jobs.delete("gone")
            await screen.press("enter")
            await screen.sees("there is no Job gone")
            await screen.press("escape", "o")
            await screen.sees("1 gone !", "there is no Job gone", "the Job could not be read; Enter tries again")
            await screen.type("And now?")
            await ponds(bench, "gone")
            await screen.press("enter")
            await screen.sees("❯ A haiku", "Done.", "✓ completed", "│ And now?")

    wait_for(person())


def test_jobs_that_are_further_back_are_read_while_the_newest_are_looked_at(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_FIRST_JOBS", 2)
    monkeypatch.setattr(history, "_MAX_JOBS", 6)

    async def person() -> None:
        host = await ponds(bench, *(f"j{number}" for number in range(7)))
        async with run_app(host) as screen:
            await screen.press("f2")
            await screen.sees("(j6)", "(j5)", "(j2)", "(j1)")
            await screen.type("j1")
            await screen.sees_no("(j6)")
            await screen.sees("❯ writer - 2 steps (j1)")
            await screen.press("backspace")
            await screen.type("0")
            await screen.sees("None of the newest 6 Jobs contains these words.")

    wait_for(person())


def test_several_comparisons_say_which_key_goes_to_the_next(bench: Bench) -> None:
    async def person() -> None:
        async with run_app(await ponds(bench, "pond"), size=SIZE) as screen:
            await screen.looks_into("pond")
            await screen.press("1", "d")
            await screen.sees("of step 1", "from there until now", "Tab other comparison")

    wait_for(person())


def test_no_notice_covers_what_a_rewind_would_change(bench: Bench) -> None:
    async def person() -> None:
        async with run_app(await ponds(bench, "pond"), size=SIZE, notices=True) as screen:
            (bench.workspace / "a").write_text("b\n")
            await screen.looks_into("pond")
            await screen.sees("❯ Step 2 (pond-1-")
            await screen.press("y")
            await screen.sees("copied")
            await screen.press("r")
            assert "copied" not in await screen.sees("Change these files")

    wait_for(person())
