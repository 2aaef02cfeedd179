"""Answers and signals are only recorded where workers drive; the Job continues in a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from approval_jobs import ASK_WRITE, TEAM, files
from hosts import Bench, Seen, crashing, expert, until_it_crashes, wait_for

from perstack.core.base.ids import By
from perstack.errors import Conflict, UsageError
from perstack.host import Host
from perstack.oversight.cloud_events import CloudEvent
from perstack.oversight.inbox import waiting_jobs
from perstack.ports.dispatcher import DispatcherFactory
from perstack.ports.hooks import hookimpl
from perstack.testing.crashing_storage import crash_points
from perstack.testing.in_memory_dispatcher import InMemoryDispatcher, InMemoryDispatchers
from perstack.testing.scripted import text, tool

ALICE = By(user="alice", door="cli")
GUEST = expert("guest", ask=True)
ASKS = [tool("askUser", {"question": "Tea?"}), text("Thanks.")]


async def waits(bench: Bench) -> None:
    async with bench.host(ASKS, GUEST) as host:
        job = await host.run("guest", "go", job_id="job", labels={"k": "v"})
        assert job.question == "Tea?"


async def is_whole(host: Host, job_id: str) -> None:
    assert ((await host.audit.verify(job_id)).findings, (await host.audit.replay(job_id)).findings) == ((), ())


def test_where_a_dispatcher_is_named_an_answer_only_queues(bench: Bench) -> None:
    async def work() -> None:
        await waits(bench)
        dispatcher = InMemoryDispatcher()
        async with bench.host([], GUEST, dispatcher=dispatcher) as host:
            job = await host.answer("yes", job_id="job", by=ALICE)
            assert (job.status, job.question) == ("queued", None)
            assert await waiting_jobs(host.jobs) == ()
            order = await dispatcher.order("job")
            assert order is not None
            assert order.labels == {"k": "v"}
            with pytest.raises((UsageError, Conflict)):
                await host.answer("no", job_id="job")
            await is_whole(host, "job")
        seen = Seen()
        async with bench.host(ASKS) as host:
            assert (await host.job_server.serve("job", worker="w", on_event=seen)).text == "Thanks."
            await is_whole(host, "job")
        assert seen.of("resumeRun")[0].reason == "queued"

    wait_for(work())


def test_with_drive_it_is_driven_here_all_the_same(bench: Bench) -> None:
    async def work() -> None:
        await waits(bench)
        dispatcher = InMemoryDispatcher()
        async with bench.host(ASKS, GUEST, dispatcher=dispatcher) as host:
            assert (await host.answer("yes", job_id="job", drive=True)).text == "Thanks."
            assert await dispatcher.order("job") is None

    wait_for(work())


def test_without_a_dispatcher_it_cannot_be_left_to_a_worker(bench: Bench) -> None:
    bench.has_no_dispatcher()

    async def work() -> None:
        await waits(bench)
        async with bench.host(ASKS, GUEST) as host:
            with pytest.raises(UsageError, match="worker"):
                await host.answer("yes", job_id="job", drive=False)
            assert (await host.job("job")).question == "Tea?"
            assert (await host.answer("yes", job_id="job")).text == "Thanks."

    wait_for(work())


def test_an_event_from_outside_queues_once(bench: Bench) -> None:
    event = CloudEvent(specversion="1.0", id="1", source="s", type="t", data="yes")

    async def work() -> None:
        await waits(bench)
        async with bench.host([], GUEST, dispatcher=InMemoryDispatcher()) as host:
            assert (await host.jobs.signal("job", event)).status == "queued"
            assert (await host.jobs.signal("job", event)).status == "queued"
            (answer,) = [event.event for event in await host.events("job-1") if event.event.type == "finishToolCall"]
            assert answer.by is not None
        async with bench.host(ASKS, GUEST) as host:
            assert (await host.job_server.serve("job", worker="w")).text == "Thanks."
            assert (await host.jobs.signal("job", event)).status == "completed"

    wait_for(work())


@pytest.mark.parametrize("point", crash_points(1), ids=str)
def test_killed_at_the_write_of_an_answer_it_is_there_or_asked_again(tmp_path, point) -> None:
    bench = Bench(tmp_path, "file:perstack")

    async def work() -> None:
        await waits(bench)
        dispatcher = InMemoryDispatcher()
        with until_it_crashes():
            async with bench.host([], GUEST, wrap=crashing(point), dispatcher=dispatcher) as host:
                await host.answer("yes", job_id="job")
        async with bench.host(ASKS, GUEST, dispatcher=dispatcher) as host:
            job = await host.job("job")
            if point.moment == "before":
                assert job.question == "Tea?"
                job = await host.answer("yes", job_id="job")
            else:
                assert await host.jobs.queue.requeue_lost() == ("job",)
            assert job.status == "queued"
            assert (await host.job_server.serve("job", worker="w")).text == "Thanks."
            await is_whole(host, "job")

    wait_for(work())


def test_what_is_followed_ends_where_the_worker_does(bench: Bench) -> None:
    async def work() -> None:
        async with bench.host([], GUEST, dispatcher=InMemoryDispatcher()) as host, bench.host(ASKS, GUEST) as worker:
            job, seen = await host.submit("guest", "go"), Seen()
            following = asyncio.create_task(host.jobs.follow(job.id, on_event=seen))
            await worker.job_server.serve(job.id, worker="w")
            assert (await following).question == "Tea?"
            assert seen.types()[:3] == ["startRun", "queueRun", "resumeRun"]

    wait_for(work())


def test_what_a_delegate_waits_for_is_answered_in_its_own_log_and_its_call_runs_once(bench: Bench) -> None:
    files(bench, "a.txt")
    experts = (expert("boss", delegates=("hand",), permissions=ASK_WRITE), expert("hand"))

    async def work() -> None:
        async with bench.host(TEAM, *experts) as host:
            job = await host.run("boss", "q", job_id="job")
            assert job.asking is not None
        async with bench.host([], *experts, dispatcher=InMemoryDispatcher()) as host:
            left = await host.answer("yes", question_id=job.asking.id, by=ALICE)
            assert (left.status, left.asking) == ("queued", None)
            assert [line.event.type for line in await host.events("job-2")][-2:] == ["resumeRun", "decideApproval"]
            assert (bench.workspace / "a.txt").read_text() == ""
            await is_whole(host, "job")
        async with bench.host(TEAM) as host:
            assert (await host.job_server.serve("job", worker="w")).text == "done"
            assert (bench.workspace / "a.txt").read_text() == "x\n"
            await is_whole(host, "job")

    wait_for(work())


class OnTheStorage(InMemoryDispatchers):
    """An engine that the storage's address also names."""

    opened = 0

    def __init__(self, scheme: str) -> None:
        super().__init__()
        self.scheme = scheme

    def open(self, location: str) -> InMemoryDispatcher:
        self.opened += 1
        return super().open(location)

    @hookimpl
    def perstack_dispatchers(self) -> Sequence[DispatcherFactory]:
        return [self]


@pytest.mark.parametrize("storage", ["file:perstack", "sqlite:perstack/state.db"])
def test_a_dispatcher_that_nobody_named_changes_nothing_for_who_submits_nothing(tmp_path: Path, storage: str) -> None:
    bench, engine = Bench(tmp_path, storage), OnTheStorage(storage.partition(":")[0])

    async def work() -> None:
        async with bench.host(ASKS, GUEST, plugins=(engine,)) as host:
            assert (await host.run("guest", "go", job_id="job")).question == "Tea?"
            assert (await host.answer("yes", job_id="job")).text == "Thanks."
            assert (await host.run("guest", "go", job_id="other")).question == "Tea?"
            await host.cancel("other", final=True)
            assert (engine.opened, host.leaves_to_workers) == (0, False)
            job = await host.submit("guest", "go")
            assert engine.opened == 1
            assert (await host.job_server.serve(job.id, worker="w")).question == "Tea?"
            assert (await host.answer("yes", job_id=job.id)).status == "queued"

    wait_for(work())
