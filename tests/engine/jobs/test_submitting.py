"""Submitted Jobs are recorded once and driven once by a worker, whichever process dies in between."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hosts import Bench, Seen, crashing, expert, open_storage, sampled, until_it_crashes, wait_for

from perstack.audit.verify import verify_job
from perstack.core.base.ids import By
from perstack.core.definitions.permissions import Permissions
from perstack.core.definitions.skills import McpStdioSkill, PluginSkill
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.events import Event
from perstack.errors import CannotServe, Conflict, DispatcherError, StorageError, UsageError
from perstack.host import Host
from perstack.ports.dispatcher import Order
from perstack.ports.storage import RunRef
from perstack.testing.crashing_storage import CrashingStorage, crash_points
from perstack.testing.in_memory_dispatcher import InMemoryDispatcher
from perstack.testing.scripted import text, tool, turn

ALICE = By(user="alice", door="cli")
TEAM = {
    "[[lead]]": [
        tool("helper", {"query": "h"}),
        turn(tool("appendTextFile", {"path": "log.txt", "text": "once\n"})),
        text("led"),
    ],
    "[[helper]]": [turn(tool("appendTextFile", {"path": "helper.txt", "text": "once\n"})), text("helped")],
}
EXPERTS = (expert("lead", delegates=("helper",)), expert("helper"))


def written(bench: Bench) -> list[str]:
    """Return the content of each file that effects are appended to."""
    return [(bench.workspace / name).read_text() for name in ("log.txt", "helper.txt")]


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    empty(tmp_path)


def empty(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name in ("log.txt", "helper.txt"):
        (folder / name).touch()


async def kinds(host: Host, run_id: str) -> list[str]:
    return [line.event.type for line in await host.events(run_id)]


async def is_whole(host: Host, job_id: str) -> None:
    assert ((await host.audit.verify(job_id)).findings, (await host.audit.replay(job_id)).findings) == ((), ())


def test_a_submitted_job_waits_and_a_worker_drives_it(bench: Bench) -> None:
    async def work() -> None:
        dispatcher = InMemoryDispatcher()
        async with bench.host([], *EXPERTS, dispatcher=dispatcher) as host:
            job = await host.submit("lead", "go", labels={"team": "a"}, priority=3, by=ALICE)
            assert (job.status, job.lifecycle, job.pause_reason) == ("queued", "paused", "scheduled_wait")
            assert job.queued is not None
            assert (job.queued.priority, job.queued.by) == (3, ALICE)
            assert (await host.job(job.id)) == job == (await host.jobs.list()).jobs[0]
            assert await kinds(host, job.coordinator_run_id) == ["startRun", "queueRun"]
            order = await dispatcher.order(job.id)
            assert order is not None
            assert (order.priority, order.labels, order.due) == (3, {"team": "a"}, 0)
            await is_whole(host, job.id)
        seen = Seen()
        async with bench.host(TEAM, *EXPERTS) as host:
            done = await host.job_server.serve(job.id, worker="w-1", on_event=seen)
            assert (done.status, done.text) == ("completed", "led")
            (resumed,) = seen.of("resumeRun")
            assert (resumed.reason, resumed.worker) == ("queued", "w-1")
            assert written(bench) == ["once\n", "once\n"]
            assert (await host.job_server.serve(job.id, worker="w-2")).status == "completed"
            await is_whole(host, job.id)

    wait_for(work())


def test_a_job_that_a_worker_drives_to_its_end_while_it_is_verified_verifies(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with bench.host([], *EXPERTS, dispatcher=InMemoryDispatcher()) as host:
            job = await host.submit("lead", "go")
        storage = open_storage(bench.storage, bench.workspace)
        read, drives = storage.summary, iter(["once"])

        async def overtaken(job_id: str) -> bytes | None:
            found = await read(job_id)
            if next(drives, None):
                async with bench.host(TEAM, *EXPERTS) as host:
                    assert (await host.job_server.serve(job_id, worker="w-1")).status == "completed"
            return found

        monkeypatch.setattr(storage, "summary", overtaken)
        report = await verify_job(storage, job.id)
        assert (report.findings, report.checked.summaries) == ((), 1)  # at the ends that job.json names
        assert "written while the Job ran" in str(report.unchecked)
        report = await verify_job(storage, job.id)
        assert (report.findings, report.checked.summaries) == ((), 1)
        await storage.close()

    wait_for(work())


def test_a_job_that_is_due_later_says_when(bench: Bench) -> None:
    async def work() -> None:
        dispatcher = InMemoryDispatcher()
        async with bench.host([], *EXPERTS, dispatcher=dispatcher) as host:
            job = await host.submit("lead", "go", at=4_000_000_000_000)
            order = await dispatcher.order(job.id)
            assert (job.resume_at, order and order.due) == (4_000_000_000_000, 4_000_000_000_000)
            for wrong in ({"at": -1}, {"at": 10**15}, {"priority": 10**7}):
                with pytest.raises(UsageError):
                    await host.submit("lead", "go", **wrong)

    wait_for(work())


def test_without_a_dispatcher_nothing_is_recorded(bench: Bench) -> None:
    bench.has_no_dispatcher()

    async def work() -> None:
        async with bench.host([], *EXPERTS) as host:
            assert host.dispatcher is None
            with pytest.raises(UsageError, match=r"\[workers\]"):
                await host.submit("lead", "go")
            assert (await host.jobs.list()).jobs == ()

    wait_for(work())


def test_the_recorded_definition_is_used_whatever_the_workers_says(bench: Bench) -> None:
    today = (
        expert("lead", delegates=("helper",), instruction="[[lead]] was edited."),
        expert("helper", instruction="[[other]] was edited."),
    )

    async def work() -> None:
        async with bench.host([], *EXPERTS, dispatcher=InMemoryDispatcher(), max_retries=7) as host:
            job = await host.submit("lead", "go")
        seen = Seen()
        async with bench.host({**TEAM, "[[other]]": [text("not this one")]}, *today) as host:
            done = await host.job_server.serve(job.id, worker="w", on_event=seen)
            assert done.text == "led"
            (helper,) = [event for event in seen.of("startRun") if event.expert_key == "helper"]
            assert helper.expert.instruction == "[[helper]] does its work."
            assert helper.limits.max_retries == 7
            await is_whole(host, job.id)

    wait_for(work())


def test_a_worker_needs_no_definition_of_its_own(bench: Bench) -> None:
    async def work() -> None:
        async with bench.host([], *EXPERTS, dispatcher=InMemoryDispatcher()) as host:
            job = await host.submit("lead", "go")
        async with bench.host(TEAM) as host:
            assert (await host.job_server.serve(job.id, worker="w")).text == "led"

    wait_for(work())


def test_a_definition_that_somebody_changed_is_refused(tmp_path) -> None:
    bench = Bench(tmp_path, "file:perstack")

    async def work() -> None:
        async with bench.host([], *EXPERTS, dispatcher=InMemoryDispatcher()) as host:
            job = await host.submit("lead", "go")
            (line,) = [event for event in await host.events(job.coordinator_run_id) if event.event.type == "queueRun"]
            digest = line.event.definition
        (blob,) = [path for path in (tmp_path / "perstack").rglob("*") if digest in path.name]
        blob.write_bytes(blob.read_bytes().replace(b"does its work", b"does no good!"))
        async with bench.host(TEAM, *EXPERTS) as host:
            with pytest.raises(StorageError):
                await host.job_server.serve(job.id, worker="w")
            assert (await host.job(job.id)).status == "queued"
            assert (await host.audit.verify(job.id)).findings
        blob.unlink()
        async with bench.host(TEAM, *EXPERTS) as host:
            with pytest.raises((StorageError, UsageError)) as missing:
                await host.job_server.serve(job.id, worker="w")
            assert not isinstance(missing.value, CannotServe)

    wait_for(work())


def test_two_servers_at_once_drive_it_once(bench: Bench) -> None:
    async def work() -> None:
        async with bench.host([], *EXPERTS, dispatcher=InMemoryDispatcher()) as host:
            job = await host.submit("lead", "go")
        async with bench.host(TEAM, *EXPERTS) as one, bench.host(TEAM, *EXPERTS) as other:
            done = await asyncio.gather(
                one.job_server.serve(job.id, worker="one"),
                other.job_server.serve(job.id, worker="other"),
                return_exceptions=True,
            )
            results = [one for one in done if isinstance(one, JobSummary)]
            assert [isinstance(one, JobSummary | Conflict) for one in done] == [True, True]
            assert {result.status for result in results} == {"completed"}
            assert written(bench) == ["once\n", "once\n"]
            await is_whole(one, job.id)

    wait_for(work())


def test_what_a_worker_does_not_have_is_said_before_anything_is_written(bench: Bench) -> None:
    async def work() -> None:
        needs = (
            (McpStdioSkill(name="tools", command="no-such-program"), "no-such-program"),
            (McpStdioSkill(name="tools", command="sh", required_env=("A_KEY",)), "A_KEY"),
            (PluginSkill(name="tools", plugin="no-such-plugin"), "plugin"),
        )
        for skill, named in needs:
            helper = expert("helper").model_copy(update={"skills": (skill,)})
            async with bench.host([], EXPERTS[0], helper, dispatcher=InMemoryDispatcher()) as host:
                job = await host.submit("lead", "go")
            async with bench.host(TEAM) as host:
                with pytest.raises(CannotServe, match=named):
                    await host.job_server.serve(job.id, worker="w")
                assert (await host.job(job.id)).status == "queued"
                assert await kinds(host, job.coordinator_run_id) == ["startRun", "queueRun"]

    wait_for(work())


def test_a_server_that_is_cancelled_hands_the_job_on(bench: Bench) -> None:
    script = {**TEAM, "[[lead]]": [turn(tool("helper", {"query": "h"})), text("led")]}

    async def work() -> None:
        dispatcher = InMemoryDispatcher()
        async with bench.host([], *EXPERTS, dispatcher=dispatcher) as host:
            job = await host.submit("lead", "go", priority=5)
        async with bench.host(script, *EXPERTS) as host:
            started = asyncio.Event()

            def on_event(event: Event, line: bytes) -> None:
                if event.type == "startRun":
                    started.set()

            serving = asyncio.create_task(host.job_server.serve(job.id, worker="w", on_event=on_event))
            await started.wait()
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving
            left = await host.job(job.id)
            assert (left.status, left.queued and left.queued.priority) == ("queued", 5)
            assert (await kinds(host, job.coordinator_run_id))[-2:] == ["stopRunByInterrupt", "queueRun"]
            assert (await host.job_server.serve(job.id, worker="w2")).text == "led"
            await is_whole(host, job.id)

    wait_for(work())


def test_a_job_that_a_person_cancels_is_not_taken_up_again(bench: Bench) -> None:
    async def work() -> None:
        dispatcher = InMemoryDispatcher()
        slow = {**TEAM, "[[helper]]": [turn(text="late", delay_ms=60_000)]}
        async with bench.host([], *EXPERTS, dispatcher=dispatcher) as host:
            job = await host.submit("lead", "go")
        async with bench.host(slow, *EXPERTS) as worker, bench.host(TEAM, *EXPERTS, dispatcher=dispatcher) as host:
            started = asyncio.Event()

            def on_event(event: Event, line: bytes) -> None:
                if event.type == "startRun":
                    started.set()

            serving = asyncio.create_task(worker.job_server.serve(job.id, worker="w", on_event=on_event))
            await started.wait()
            await host.cancel(job.id)
            assert (await serving).status == "stoppedByInterrupt"
            assert (await worker.job_server.serve(job.id, worker="w")).status == "stoppedByInterrupt"
            assert (await host.resume(job.id)).text == "led"

    wait_for(work())


def test_a_deleted_job_leaves_no_order_that_every_worker_would_refuse(bench: Bench) -> None:
    async def work() -> None:
        dispatcher = InMemoryDispatcher()
        async with bench.host(TEAM, *EXPERTS, dispatcher=dispatcher) as host:
            job = await host.submit("lead", "go")
            assert await dispatcher.order(job.id) is not None
            await host.jobs.delete(job.id)
            assert await dispatcher.order(job.id) is None

    wait_for(work())


def test_a_queued_job_is_cancelled_and_closed_where_nobody_drives_it(bench: Bench) -> None:
    async def work() -> None:
        dispatcher = InMemoryDispatcher()
        async with bench.host(TEAM, *EXPERTS, dispatcher=dispatcher) as host:
            job, other = await host.submit("lead", "go"), await host.submit("lead", "go")
            await host.cancel(job.id, by=ALICE)
            assert (await host.job(job.id)).status == "stoppedByInterrupt"
            assert await dispatcher.order(job.id) is None
            await host.cancel(other.id, final=True, by=ALICE)
            assert (await host.job(other.id)).lifecycle == "failed"
            assert await dispatcher.order(other.id) is None
            assert (await host.job_server.serve(job.id, worker="w")).status == "stoppedByInterrupt"
            assert await host.jobs.queue.requeue_lost() == ()
            assert (await host.resume(job.id)).text == "led"

    wait_for(work())


class Unreachable(InMemoryDispatcher):
    """An unreachable engine."""

    async def submit(self, order: Order) -> None:
        raise DispatcherError("the engine is down")


def test_what_was_recorded_and_not_ordered_is_ordered_by_the_next_look(bench: Bench) -> None:
    async def work() -> None:
        async with bench.host([], *EXPERTS, dispatcher=Unreachable()) as host:
            with pytest.raises(DispatcherError, match="is recorded"):
                await host.submit("lead", "go", job_id="job", priority=4)
        dispatcher = InMemoryDispatcher()
        async with bench.host(TEAM, *EXPERTS, dispatcher=dispatcher) as host:
            assert await host.jobs.queue.requeue_lost() == ("job",)
            order = await dispatcher.order("job")
            assert order is not None
            assert order.priority == 4
            assert await host.jobs.queue.requeue_lost() == ()
            await host.run("helper", "by hand", job_id="other")
            await host.job_server.serve("job", worker="w")
            await dispatcher.withdraw("job")
            assert await host.jobs.queue.requeue_lost() == ()

    wait_for(work())


def test_a_job_whose_worker_died_is_ordered_again_and_served(bench: Bench) -> None:
    async def work() -> None:
        async with bench.host([], *EXPERTS, dispatcher=InMemoryDispatcher()) as host:
            await host.submit("lead", "go", job_id="job")
        dispatcher = InMemoryDispatcher()
        with until_it_crashes():
            async with bench.host(TEAM, *EXPERTS, wrap=crashing(crash_points(9)[9])) as host:
                await host.job_server.serve("job", worker="w")
        async with bench.host(TEAM, *EXPERTS, dispatcher=dispatcher) as host:
            assert await host.jobs.queue.requeue_lost() == ("job",)
            seen = Seen()
            assert (await host.job_server.serve("job", worker="w2", on_event=seen)).text == "led"
            assert seen.of("resumeRun")[0].reason == "crash"

    wait_for(work())


@pytest.mark.parametrize("point", crash_points(2), ids=str)
def test_killed_at_each_write_of_a_submission_it_is_whole_or_not_there(tmp_path, point) -> None:
    bench = Bench(tmp_path, "file:perstack")

    async def work() -> None:
        dispatcher = InMemoryDispatcher()
        with until_it_crashes():
            async with bench.host([], *EXPERTS, wrap=crashing(point), dispatcher=dispatcher) as host:
                await host.submit("lead", "go", job_id="job")
        async with bench.host(TEAM, *EXPERTS, dispatcher=dispatcher) as host:
            if (await host.jobs.list()).jobs:
                await host.jobs.queue.requeue_lost()
                assert await dispatcher.order("job") is not None
            else:
                await host.submit("lead", "go", job_id="job")
            assert (await host.job_server.serve("job", worker="w")).text == "led"
            await is_whole(host, "job")

    wait_for(work())


@pytest.mark.sweep
def test_killed_at_each_write_of_a_server_another_one_ends_it_and_nothing_is_doubled(tmp_path) -> None:
    async def count() -> int:
        bench = Bench(tmp_path / "count", "file:perstack")
        empty(bench.workspace)
        async with bench.host([], *EXPERTS, dispatcher=InMemoryDispatcher()) as host:
            await host.submit("lead", "go", job_id="job")
        storages = list[CrashingStorage]()

        def wrap(inner):
            storages.append(CrashingStorage(inner, None))
            return storages[0]

        async with bench.host(TEAM, *EXPERTS, wrap=wrap) as host:
            await host.job_server.serve("job", worker="w")
        return storages[0].appends

    async def killed(bench: Bench, point) -> None:
        async with bench.host([], *EXPERTS, dispatcher=InMemoryDispatcher()) as host:
            await host.submit("lead", "go", job_id="job")
        with until_it_crashes():
            async with bench.host(TEAM, *EXPERTS, wrap=crashing(point)) as host:
                await host.job_server.serve("job", worker="w")
        async with bench.host(TEAM, *EXPERTS) as host:
            job = await host.job_server.serve("job", worker="w2")
            assert job.text == "led", point
            await is_whole(host, "job")
        assert set(written(bench)) <= {"", "once\n"}, point

    for number, point in enumerate(sampled(crash_points(wait_for(count())))):
        bench = Bench(tmp_path / str(number), "file:perstack")
        empty(bench.workspace)
        wait_for(killed(bench, point))


@pytest.mark.parametrize("what", ["rules", "budget"])
def test_rules_and_budget_of_the_submission_hold_for_delegates(bench: Bench, what: str) -> None:
    deny = Permissions(deny=("appendTextFile",))
    lead = EXPERTS[0].model_copy(update={"permissions": deny if what == "rules" else None})
    most = {"max_tool_calls": 1} if what == "budget" else {}

    async def work() -> None:
        async with bench.host([], lead, EXPERTS[1], dispatcher=InMemoryDispatcher(), **most) as host:
            job = await host.submit("lead", "go")
        async with bench.host(TEAM) as host:
            done = await host.job_server.serve(job.id, worker="w")
            assert written(bench) == ["", ""]
            assert done.status == ("completed" if what == "rules" else "stoppedByBudget")
            assert (await host.job_server.serve(job.id, worker="w")).status == done.status
            await is_whole(host, job.id)

    wait_for(work())


def test_a_run_that_is_driven_here_records_nothing_of_workers(bench: Bench) -> None:
    async def work() -> None:
        async with bench.host(TEAM, *EXPERTS, dispatcher=InMemoryDispatcher()) as host:
            job = await host.run("lead", "go")
            assert (job.status, job.queued) == ("completed", None)
            lines = await host.storage.read(RunRef(job.id, job.coordinator_run_id))
            assert not any(b"queue" in line or b"worker" in line for line in lines)

    wait_for(work())
