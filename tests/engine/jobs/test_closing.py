"""Closing a Job for good: its state stays, nothing continues it, and no crash leaves it half closed."""

from __future__ import annotations

import asyncio

import pytest
from approval_jobs import ASK_WRITE, TEAM, files, hosted
from hosts import Bench, crashing, expert, until_it_crashes, wait_for

from perstack.core.base.chain import Head, open_line, seal
from perstack.core.base.ids import By
from perstack.core.definitions.experts import Expert
from perstack.core.jobs.summary import JobSummary
from perstack.errors import UsageError
from perstack.host import Host
from perstack.oversight.cloud_events import CloudEvent
from perstack.oversight.inbox import waiting_jobs
from perstack.ports.storage import RunRef
from perstack.testing.crashing_storage import CrashPoint
from perstack.testing.scripted import text, tool

ALICE = By(user="alice", door="cli")
QUESTION = [tool("askUser", {"question": "Shall I?"}), text("Thanks.")]


def asking() -> tuple[Expert, ...]:
    return (expert("lead", ask=True),)


async def waits(host: Host) -> JobSummary:
    job = await host.run("lead", "go", job_id="job")
    assert (job.status, job.question) == ("stoppedByInteractiveTool", "Shall I?")
    assert [item.job_id for item in await waiting_jobs(host.jobs)] == ["job"]
    return job


async def is_closed(host: Host, by: str = "alice, cli") -> None:
    job = await host.job("job")
    assert (job.status, job.lifecycle, job.pause_reason) == ("stoppedByInteractiveTool", "failed", None)
    assert (job.question, job.asking, job.closed and str(job.closed.by)) == (None, None, by)
    assert await waiting_jobs(host.jobs) == ()
    report = await host.audit.verify("job")
    assert (report.findings, (await host.audit.replay("job")).findings) == ((), ())


def test_a_job_that_waits_is_closed_for_good_and_every_way_on_says_so(bench: Bench) -> None:
    async def work() -> None:
        async with bench.host(QUESTION, *asking()) as host:
            before = await waits(host)
            assert before.asking is not None
            event = CloudEvent(specversion="1.0", id="1", source="s", type="t", data={"x": 1})
            await host.cancel("job", final=True, by=ALICE, reason="not needed\n any more")
            await is_closed(host)
            (closed,) = [line.event for line in await host.events("job-1") if line.event.type == "closeRun"]
            assert (closed.by, closed.reason) == (ALICE, "not needed any more")
            for way_on in (
                host.answer("yes", job_id="job"),
                host.answer("yes", question_id=before.asking.id),
                host.answer("no", resume_from=before.asking.id),
                host.resume("job"),
                host.continue_job("lead", "more", job_id="job"),
                host.continue_job("lead", "more", job_id="job", resume_from=before.asking.id),
                host.jobs.signal("job", event),
            ):
                with pytest.raises(UsageError, match="Job job was closed for good by alice, cli"):
                    await way_on
            seen = len(await host.events("job-1"))
            await host.cancel("job", final=True)
            await is_closed(host)
            assert len(await host.events("job-1")) == seen, "the first decision holds"

    wait_for(work())


def test_a_job_that_a_delegate_keeps_waiting_is_closed_with_all_its_runs_and_no_crash_leaves_half_of_it(
    bench: Bench,
) -> None:
    files(bench, "a.txt")
    team = (expert("boss", delegates=("hand",), permissions=ASK_WRITE), expert("hand"))

    async def work() -> None:
        async with hosted(bench, TEAM, *team) as host:
            job = await host.run("boss", "go", job_id="job")
            assert (job.status, len(job.runs)) == ("stoppedByInteractiveTool", 2)
        for point in (CrashPoint("before", 1), CrashPoint("after", 1), CrashPoint("before", 2), CrashPoint("after", 2)):
            async with bench.host(TEAM, *team, wrap=crashing(point)) as host:
                with until_it_crashes():
                    await host.cancel("job", final=True, by=ALICE)
            async with hosted(bench, TEAM, *team) as host:
                is_done = (await host.job("job")).closed is not None
                assert is_done == (point != CrashPoint("before", 1))
                assert bool(await waiting_jobs(host.jobs)) != is_done
                assert (await host.audit.verify("job")).findings == ()
        async with hosted(bench, TEAM, *team) as host:
            await host.cancel("job", final=True)
            await is_closed(host)
            for run in ("job-1", "job-2"):
                assert [line.event.type for line in await host.events(run)].count("closeRun") == 1

    wait_for(work())


def test_the_first_to_close_a_job_is_recorded_as_its_closer(bench: Bench) -> None:
    files(bench, "a.txt")
    team = (expert("boss", delegates=("hand",), permissions=ASK_WRITE), expert("hand"))

    async def work() -> None:
        async with hosted(bench, TEAM, *team) as host:
            await host.run("boss", "go", job_id="job")
        async with bench.host(TEAM, *team, wrap=crashing(CrashPoint("after", 1))) as host:
            with until_it_crashes():
                await host.cancel("job", final=True, by=ALICE)
        bench.clock.move(60_000)
        async with hosted(bench, TEAM, *team) as host:
            await host.cancel("job", final=True, by=By(user="bob", door="cli"))
            closers = {
                line.event.by.user
                for run in ("job-1", "job-2")
                for line in await host.events(run)
                if line.event.type == "closeRun"
            }
            assert closers == {"alice", "bob"}
            await is_closed(host)

    wait_for(work())


def test_what_is_completed_has_nothing_to_close_and_what_nobody_finished_has(bench: Bench) -> None:
    async def work() -> None:
        async with bench.host([text("done")], expert("a")) as host:
            await host.run("a", "go", job_id="done")
            with pytest.raises(UsageError, match="Job done is completed: there is nothing to close"):
                await host.cancel("done", final=True)
            assert (await host.job("done")).status == "completed"
        async with bench.host([text("done")], expert("a"), wrap=crashing(CrashPoint("after", 1))) as host:
            with until_it_crashes():
                await host.run("a", "go", job_id="crashed")
        async with bench.host([text("done")], expert("a")) as host:
            before = await host.job("crashed")
            await host.cancel("crashed", final=True, by=ALICE)
            job = await host.job("crashed")
            assert (job.status, job.lifecycle) == (before.status, "failed") == ("stoppedByInterrupt", "failed")
            assert (await host.audit.verify("crashed")).findings == ()
            with pytest.raises(UsageError, match="closed for good"):
                await host.resume("crashed")

    wait_for(work())


def test_one_that_is_driven_is_stopped_first(bench: Bench) -> None:
    slow = [tool("exec", {"command": "sh", "args": ["-c", "touch began; sleep 60"]}), text("done")]

    async def work() -> None:
        async with bench.host(slow, expert("a")) as host:
            running = asyncio.create_task(host.run("a", "go", job_id="job"))
            while not (bench.workspace / "began").exists():
                await asyncio.sleep(0.02)
            await host.cancel("job", final=True, by=ALICE)
            with pytest.raises(asyncio.CancelledError):
                await running
            job = await host.job("job")
            assert (job.status, job.lifecycle) == ("stoppedByInterrupt", "failed")
            kinds = [line.event.type for line in await host.events("job-1")]
            assert kinds[-2:] == ["stopRunByInterrupt", "closeRun"]

    wait_for(work())


def test_nothing_is_appended_to_a_run_that_was_closed_and_a_log_that_says_otherwise_is_damage(bench: Bench) -> None:
    async def work() -> None:
        async with bench.host(QUESTION, *asking()) as host:
            await waits(host)
            await host.cancel("job", final=True, by=ALICE)
            lines = await host.storage.read(RunRef("job", "job-1"))
            assert b'"type":"closeRun"' in lines[-1]
            last = open_line(lines[-1])
            forged = last.payload.replace(b"alice", b"mallory").replace(
                b"job-1-%d" % len(lines), b"job-1-%d" % (len(lines) + 1)
            )
            new, _ = seal(Head(len(lines), last.hash), [forged])
            await host.storage.append(RunRef("job", "job-1"), len(lines), new)
            assert any("closed for good" in finding.message for finding in (await host.audit.verify("job")).findings)

    wait_for(work())
