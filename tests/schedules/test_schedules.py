"""Schedules on real storages: each occurrence starts one Job, whichever processes look, die or edit."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hosts import Bench, expert, wait_for
from stored_damage import edit

from perstack.core.base.chain import Head, open_line, seal
from perstack.core.definitions.project import Schedule
from perstack.core.jobs.summary import JobSummary
from perstack.errors import Conflict, UsageError
from perstack.host import Host
from perstack.ports.storage import RunRef
from perstack.schedules.schedule import StartOccurrence
from perstack.schedules.schedules import JobLauncher, Schedules
from perstack.testing.in_memory_dispatcher import InMemoryDispatcher
from perstack.testing.scripted import text, tool, turn

MINUTE = 60_000
LOG = RunRef("s", "s-1")


def every_minute(name: str = "s", **fields) -> Schedule:
    return Schedule(name=name, **{"cron": "* * * * *", "expert": "a", "query": "Go.", **fields})


def host_of(bench: Bench, *schedules: Schedule, script=None, **wanted) -> Host:
    host = bench.host(script or (lambda _: text("done")), expert("a", ask=True), **wanted)
    host.use(host.project.model_copy(update={"schedules": schedules or (every_minute(),)}))
    return host


async def jobs_of(host: Host) -> list[JobSummary]:
    return sorted((await host.jobs.list(limit=500)).jobs, key=lambda job: job.id)


async def see_schedule(bench: Bench, host: Host) -> Host:
    """Record the schedule as first seen a minute ago, and return the Host."""
    await host.schedules.once()
    bench.clock.move(MINUTE)
    return host


def test_an_occurrence_is_a_job_with_its_name_as_a_label(bench: Bench) -> None:
    async def work() -> None:
        host = await see_schedule(bench, host_of(bench))
        (done,) = await host.schedules.once()
        assert done.did == "started"
        (job,) = await jobs_of(host)
        assert (job.labels, job.query, job.text) == ({"schedule": "s"}, "Go.", "done")
        assert done.job_id == job.id
        assert job.id.startswith("schedule-s-20")
        (standing,) = await host.schedules.list()
        assert standing.last is not None
        assert standing.last.outcome == "completed"
        assert standing.next == standing.last.at + MINUTE
        assert await host.schedules.once() == ()

    wait_for(work())


def test_the_scheduler_looks_after_them_and_a_look_at_jobs_does_not(bench: Bench) -> None:
    async def work() -> None:
        host = await see_schedule(bench, host_of(bench))
        (done,) = await host.scheduler.once()
        assert (done.did, done.schedule) == ("started", "s")

    wait_for(work())


def test_whoever_looks_at_once_starts_each_once(bench: Bench) -> None:
    async def work() -> None:
        hosts = [await see_schedule(bench, host_of(bench)) for _ in range(3)]
        for _ in range(6):
            await asyncio.gather(*(host.schedules.once() for host in hosts for _ in range(2)))
            bench.clock.move(MINUTE)
        jobs = await jobs_of(hosts[0])
        assert 5 <= len(jobs) <= 8
        assert {job.status for job in jobs} == {"completed"}
        log = [open_line(line).payload for line in await hosts[0].storage.space("schedules").read(LOG)]
        assert sum(b"startOccurrence" in line for line in log) == len(jobs)
        assert [one.findings async for one in hosts[0].audit.verify_all() if one.findings] == []

    wait_for(work())


class Dying(JobLauncher):
    """A launcher whose process dies before or after it has started a Job."""

    def __init__(self, host: Host, at: str, *, queue: bool = False) -> None:
        super().__init__(host.jobs, lambda: host.iterations, host._source, queue=queue)
        self.at = at

    async def start(self, expert_key: str, query: str, *, job_id: str, labels: Mapping[str, str]) -> JobSummary:
        if self.at == "before":
            raise asyncio.CancelledError
        job = await super().start(expert_key, query, job_id=job_id, labels=labels)
        if self.at == "after":
            raise asyncio.CancelledError
        return job


def dying(host: Host, at: str) -> Schedules:
    return Schedules(host._source, host.jobs, Dying(host, at))


@pytest.mark.parametrize("at", ["before", "after"])
def test_a_process_that_dies_between_the_decision_and_the_job_loses_and_doubles_nothing(bench: Bench, at: str) -> None:
    async def work() -> None:
        host = await see_schedule(bench, host_of(bench, every_minute(cron="0 * * * *")))
        bench.clock.move(60 * MINUTE)
        with pytest.raises(asyncio.CancelledError):
            await dying(host, at).process_due("s")
        assert len(await jobs_of(host)) == (at == "after")
        other = host_of(bench, every_minute(cron="0 * * * *"))
        assert await other.schedules.process_due("s") is None  # whoever was to begin it may be about to
        bench.clock.move(31_000)
        done = await other.schedules.process_due("s")
        assert (done is not None) is (at == "before")
        (job,) = await jobs_of(other)
        assert job.status == "completed"
        (standing,) = await other.schedules.list()
        assert standing.last is not None
        assert standing.last.outcome == "completed"

    wait_for(work())


def test_a_job_that_was_interrupted_is_resumed(bench: Bench) -> None:
    async def work() -> None:
        script = [tool("todo", {"newTodos": ["t"]}), turn(text="done", delay_ms=500)]
        host = await see_schedule(bench, host_of(bench, script=script))
        begun = asyncio.Event()

        class Stopping(JobLauncher):
            async def start(self, expert_key, query, *, job_id, labels):
                on_event = lambda event, _: begun.set() if event.type == "finishGeneration" else None  # noqa: E731
                return await host.run(expert_key, query, job_id=job_id, labels=labels, on_event=on_event)

        stopping = Stopping(host.jobs, lambda: host.iterations, host._source, queue=False)
        work = asyncio.create_task(Schedules(host._source, host.jobs, stopping).process_due("s"))
        await begun.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        done = await host.schedules.process_due("s")
        assert done is not None
        assert done.did == "resumed"
        assert [job.status for job in await jobs_of(host)] == ["completed"]

    wait_for(work())


def test_one_that_waits_for_a_person_lets_the_next_begin(bench: Bench) -> None:
    async def work() -> None:
        host = await see_schedule(bench, host_of(bench, script=lambda _: tool("askUser", {"question": "sure?"})))
        (done,) = await host.schedules.once()
        assert done.question is not None
        bench.clock.move(MINUTE)
        await host.schedules.once()
        assert [job.status for job in await jobs_of(host)] == ["stoppedByInteractiveTool"] * 2

    wait_for(work())


def test_what_keeps_a_job_from_starting_is_said_and_the_occurrence_stays_due(bench: Bench) -> None:
    async def work() -> None:
        host = await see_schedule(bench, host_of(bench, every_minute(), every_minute("t", expert="nobody")))
        await host.schedules.once()
        bench.clock.move(MINUTE)
        done = {one.schedule: one for one in await host.schedules.once()}
        assert "there is no Expert 'nobody'" in (done["t"].error or "")
        assert done["s"].did == "started"
        host.use(host.project.model_copy(update={"schedules": (every_minute("t"),)}))
        (made_up,) = await host.schedules.once()
        assert made_up.did == "started"

    wait_for(work())


def test_what_is_wrong_in_a_schedule_made_in_python_is_said(bench: Bench) -> None:
    async def work() -> None:
        wrong = (every_minute("c", cron="0 0 30 2 *"), every_minute("z", timezone="Mars/Base"))
        host = host_of(bench, *wrong)
        c, z = await host.schedules.once()
        assert "schedules.c.cron `0 0 30 2 *` has a wrong day of the month" in (c.error or "")
        assert "schedules.z.timezone `Mars/Base` is not a time zone" in (z.error or "")
        assert [one.error for one in await host.schedules.list()] == [c.error, z.error]

    wait_for(work())


def test_a_log_that_somebody_has_edited_ends_its_schedule_alone(bench: Bench) -> None:
    async def work() -> None:
        host = await see_schedule(bench, host_of(bench, every_minute(), every_minute("t")))
        await host.schedules.once()
        edit(bench.workspace, bench.storage, b'"schedule":"s"', b'"schedule":"x"')
        bench.clock.move(MINUTE)
        other = host_of(bench, every_minute(), every_minute("t"))
        done = {one.schedule: one for one in await other.schedules.once()}
        assert done["t"].did == "started"
        assert "record 1" in (done["s"].error or "").replace("line 1", "record 1")
        assert (await other.schedules.list())[0].error == done["s"].error

    wait_for(work())


def test_a_forged_event_does_not_have_another_job_driven(bench: Bench) -> None:
    async def work() -> None:
        host = await see_schedule(bench, host_of(bench))
        space = host.storage.space("schedules")
        lines = await space.read(LOG)
        head = Head(len(lines), open_line(lines[-1]).hash)
        forged = StartOccurrence(schedule="s", timestamp=0, at=bench.clock.now(), job_id="payroll")
        await space.append(LOG, head.seq, seal(head, [forged.to_json()])[0])
        (done,) = await host.schedules.once()
        assert done.did == "failed"
        assert "cannot be one of this schedule" in (done.error or "")
        assert not await host.storage.has_job("payroll")

    wait_for(work())


def test_an_entry_that_is_not_of_the_log_is_not_believed(bench: Bench) -> None:
    async def work() -> None:
        host = await see_schedule(bench, host_of(bench))
        await host.schedules.once()
        space = host.storage.space("schedules")
        found = await space.entry("s")
        assert found is not None
        await space.put_entry("s", found[0], found[1].replace(b'"headHash":"', b'"headHash":"0'))
        bench.clock.move(MINUTE)
        (done,) = await host.schedules.once()
        assert done.did == "failed"
        await space.put_entry("s", found[0], b"")
        (done,) = await host.schedules.once()
        assert done.did == "started"

    wait_for(work())


@dataclass
class Queueing:
    """A launcher like a dispatcher's: it queues Jobs, and accepts an order of one id once."""

    host: Host
    resumes: bool = False
    queued: list[str] = field(default_factory=list)

    async def check(self, expert_key: str) -> None: ...

    async def start(self, expert_key: str, query: str, *, job_id: str, labels: Mapping[str, str]) -> JobSummary:
        if job_id in self.queued:
            raise UsageError(f"Job {job_id} exists")
        self.queued.append(job_id)
        return await self.host.run(expert_key, query, job_id=job_id, labels=labels)

    async def resume(self, job_id: str) -> JobSummary:
        raise AssertionError("others do that")


def test_whoever_queues_jobs_for_others_may_be_handed_in(bench: Bench) -> None:
    async def work() -> None:
        host = await see_schedule(bench, host_of(bench))
        queue = Queueing(host)
        several = [Schedules(host._source, host.jobs, queue) for _ in range(3)]
        for _ in range(3):
            done = await asyncio.gather(*(one.once() for one in several), return_exceptions=True)
            assert not [one for one in done if isinstance(one, BaseException) and not isinstance(one, Conflict)]
            bench.clock.move(MINUTE)
        assert len(queue.queued) == len(set(queue.queued)) == len(await jobs_of(host))

    wait_for(work())


def test_where_a_dispatcher_was_named_their_jobs_are_queued_for_workers(bench: Bench) -> None:
    async def work() -> None:
        dispatcher = InMemoryDispatcher()
        host = await see_schedule(bench, host_of(bench, dispatcher=dispatcher))
        (done,) = await host.schedules.once()
        (job,) = await jobs_of(host)
        assert (done.did, job.status, job.labels) == ("started", "queued", {"schedule": "s"})
        order = await dispatcher.order(job.id)
        assert order is not None
        assert order.labels == {"schedule": "s"}
        bench.clock.move(MINUTE)
        (held,) = await host.schedules.once()
        assert held.did == "skipped"
        assert (await host.job_server.serve(job.id, worker="w")).status == "completed"
        bench.clock.move(MINUTE)
        (after,) = await host.schedules.once()
        assert after.did == "started"
        assert len(await jobs_of(host)) == 2

    wait_for(work())


@pytest.mark.parametrize("at", ["before", "after"])
def test_a_submitter_that_dies_leaves_one_order(bench: Bench, at: str) -> None:
    async def work() -> None:
        dispatcher = InMemoryDispatcher()
        hourly = every_minute(cron="0 * * * *")
        host = await see_schedule(bench, host_of(bench, hourly, dispatcher=dispatcher))
        bench.clock.move(60 * MINUTE)
        with pytest.raises(asyncio.CancelledError):
            await Schedules(host._source, host.jobs, Dying(host, at, queue=True)).process_due("s")
        bench.clock.move(31_000)
        other = host_of(bench, hourly, dispatcher=dispatcher)
        await other.schedules.once()
        (job,) = await jobs_of(other)
        assert job.status == "queued"

    wait_for(work())


def test_a_project_without_schedules_asks_for_none(bench: Bench) -> None:
    async def work() -> None:
        host = bench.host([], expert("a"))
        assert await host.scheduler.once() == ()
        assert "schedules" not in vars(host)

    wait_for(work())
