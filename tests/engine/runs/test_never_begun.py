"""A Job whose process ended before its first event: its id is not lost."""

from __future__ import annotations

import asyncio
import json

import pytest
from hosts import Bench, crashing, expert, wait_for

from perstack.errors import Conflict, NotFound, UsageError
from perstack.next_steps import Start
from perstack.testing.crashing_storage import Crash, CrashPoint
from perstack.testing.scripted import text


async def crash_before_first_event(bench: Bench, point: CrashPoint) -> None:
    async with bench.host([text("never")], expert("a"), wrap=crashing(point)) as host:
        with pytest.raises(Crash):
            await host.run("a", "q", job_id="dead")


def test_run_takes_over_a_job_whose_process_ended_before_its_first_event(bench: Bench) -> None:
    wait_for(crash_before_first_event(bench, CrashPoint("before", 1)))
    job = wait_for(bench.host([text("alive")], expert("a")).run("a", "q", job_id="dead"))
    assert (job.id, job.status, job.text, job.total_steps) == ("dead", "completed", "alive", 1)


def test_what_cannot_go_on_without_an_event_says_how_to_begin_again(bench: Bench) -> None:
    wait_for(crash_before_first_event(bench, CrashPoint("before", 1)))
    host = bench.host([text("never")], expert("a"))
    for work in (host.resume("dead"), host.continue_job("a", "q", job_id="dead"), host.answer("yes", job_id="dead")):
        with pytest.raises(NotFound, match="ended before its first event") as refused:
            wait_for(work)
        assert refused.value.next_steps == (Start("dead"),)


def test_a_job_that_has_begun_is_not_taken_over(bench: Bench) -> None:
    wait_for(crash_before_first_event(bench, CrashPoint("after", 1)))
    with pytest.raises(
        UsageError, match="Job dead exists already; continue Job dead with a new query, or choose another id"
    ):
        wait_for(bench.host([text("again")], expert("a")).run("a", "q", job_id="dead"))


def test_two_that_take_over_at_once_make_one_job(bench: Bench) -> None:
    wait_for(crash_before_first_event(bench, CrashPoint("before", 1)))

    async def both() -> list[object]:
        async with bench.host([text("one")], expert("a")) as one, bench.host([text("two")], expert("a")) as two:
            runs = [host.run("a", "q", job_id="dead") for host in (one, two)]
            return await asyncio.gather(*runs, return_exceptions=True)

    outcomes = wait_for(both())
    failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert len(failed) == 1
    assert isinstance(failed[0], UsageError | Conflict)
    job = wait_for(bench.host([], expert("a")).job("dead"))
    assert (job.status, len(job.runs), job.total_steps) == ("completed", 1, 1)


def test_an_id_whose_logs_were_removed_is_not_used_again(bench: Bench) -> None:
    if not bench.storage.startswith("file:"):
        pytest.skip("a record of a database is removed by its own means")
    wait_for(bench.host([text("done")], expert("a")).run("a", "q", job_id="dead"))
    (log,) = (bench.workspace / "perstack" / "jobs" / "dead" / "runs").rglob("events.jsonl")
    log.unlink()
    with pytest.raises(UsageError, match="had events, and its logs are gone: put them back from a copy"):
        wait_for(bench.host([text("again")], expert("a")).run("a", "q", job_id="dead"))


@pytest.mark.parametrize("left", ["folder", "runs", "empty log", "torn log", "summary"])
def test_whatever_a_killed_process_left_of_a_job_is_taken_over(bench: Bench, left: str) -> None:
    if not bench.storage.startswith("file:"):
        pytest.skip("a database makes a Job at once or not at all")
    wait_for(bench.host([text("done")], expert("a")).run("a", "q", job_id="other"))
    path = bench.workspace / "perstack" / "jobs" / "other" / "runs" / "other-1" / "events.jsonl"
    job = bench.workspace / "perstack" / "jobs" / "dead"
    job.mkdir()
    if left != "folder":
        (job / "runs").mkdir()
    if left in ("empty log", "torn log"):
        (job / "runs" / "dead-1").mkdir()
        (job / "runs" / "dead-1" / "events.jsonl").write_bytes(b"" if left == "empty log" else path.read_bytes()[:100])
    if left == "summary":
        (job / "job.json").write_text(json.dumps({"id": "dead"}))
    assert wait_for(bench.host([text("alive")], expert("a")).run("a", "q", job_id="dead")).text == "alive"
