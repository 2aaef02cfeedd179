"""Orders for due tasks and series in workers: concurrency, labels, drain, takeover."""

from __future__ import annotations

import asyncio

from engine_workers import AtWork, Engine
from hosts import Bench, expert, wait_for

from perstack.core.definitions.experts import Iterate
from perstack.core.definitions.project import Schedule
from perstack.host import Host
from perstack.testing.scripted import fail, text, tool, turn

DONE = [turn(tool("todo", {"newTodos": ["a"]})), text("Done.")]
LONG = [turn(tool("todo", {"newTodos": ["a"]}), delay_ms=100, repeat=1000)]
MEASURED_EXPERT = expert("a", iterate=Iterate(evaluator="echo '{\"score\": 1}'", max_iterations=2))


def host_of(bench: Bench, engine: Engine, script: object, *experts: object) -> Host:
    """Return a Host whose dispatcher was not chosen but is the storage's own."""
    host = bench.host(script, *(experts or (expert("a"),)), dispatcher=engine.dispatcher)  # type: ignore[arg-type]
    host._source.setup.dispatching.is_chosen = False
    return host


async def due_task(host: Host, task_id: str = "fix") -> None:
    await host.tasks.create(task_id, agent_id="a", start=True)
    await host.tasks.pause(task_id, "scheduled_wait", resume_at=1)


async def completed(at_work: AtWork, task_id: str = "fix") -> None:
    """Wait until a task is completed, which is a moment after the end of its Job."""
    async with asyncio.timeout(5):
        while (await at_work.host.tasks.get(task_id)).status != "completed":
            await asyncio.sleep(0.02)  # a poll, bounded above


async def limited_series(bench: Bench) -> None:
    """Create a series that was paused by a rate limit, whose pause is over."""
    limited = bench.host([fail(429, "come back", retry_after=3600)], MEASURED_EXPERT)
    assert (await limited.iterations.begin("a", "q", series_id="it")).pause_reason == "rate_limit"
    bench.clock.move(3_700_000)


def test_a_due_task_is_worked_on_once_whoever_looks_and_waits_for_no_look_when_its_job_has_ended(bench: Bench) -> None:
    async def work() -> None:
        engine = Engine()
        hosts = [host_of(bench, engine, DONE) for _ in range(2)]
        await due_task(hosts[0])
        async with engine.at_work(hosts[0], "one") as one, engine.at_work(hosts[1], "two") as two:
            await completed(one)
            taken = one.of("taken") + two.of("taken")
            task = await one.host.tasks.get("fix")
            assert [news.job for news in taken] == [task.job_id]
            job = await one.host.job(task.job_id or "")
            assert (job.labels, task.result) == ({"task": "fix", "expert": "a"}, "Done.")
            assert await engine.is_empty()
        kinds = [event.type for event in await hosts[0].tasks.history("fix")]
        assert kinds.count("wakeTask") == kinds.count("completeTask") == 1

    wait_for(work())


def test_what_is_due_takes_a_place_and_a_worker_with_labels_takes_its_own(bench: Bench) -> None:
    async def work() -> None:
        engine = Engine()
        host = host_of(bench, engine, LONG, expert("a"), expert("b"))
        for number in range(3):
            await due_task(host, f"t{number}")
        async with engine.at_work(host, concurrency=1, labels={"expert": "b"}) as other:
            await other.wait_for_report("looked-after", 3)
            assert (await engine.dispatcher.load()).queued == 3
            async with engine.at_work(host_of(bench, engine, LONG), concurrency=2, labels={"expert": "a"}) as at_work:
                await at_work.wait_for_report("taken", 2)
                await at_work.steps(2)
                assert at_work.worker.counters.running == 2
                there = {worker.name: worker for worker in await engine.dispatcher.workers()}
                assert (len(there[at_work.worker.name].jobs), there[other.worker.name].jobs) == (2, ())
                assert (await engine.dispatcher.load()).queued == 1

    wait_for(work())


def test_the_job_of_a_task_is_left_to_another_worker_by_one_that_leaves(bench: Bench) -> None:
    async def work() -> None:
        engine = Engine()
        first, second = (host_of(bench, engine, script) for script in (LONG, lambda _: text("Done.")))
        await due_task(first)
        async with engine.at_work(first, "first", drain=10) as leaving:
            await leaving.steps(1)
        async with engine.at_work(second, "second") as at_work:
            await completed(at_work)
            task = await second.tasks.get("fix")
            types = [line.event.type for line in await second.events(f"{task.job_id}-1")]
        assert types.count("queueRun") == 2
        assert types.count("startRun") == types.count("finishRun") == 1

    wait_for(work())


def test_a_tasks_job_that_somebody_drove_before_is_queued_and_one_that_a_person_stopped_is_not(bench: Bench) -> None:
    async def work() -> None:
        engine = Engine()
        alone, host = bench.host(LONG, expert("a")), host_of(bench, engine, DONE)
        await due_task(alone)
        looking = asyncio.ensure_future(alone.scheduler.once())
        async with asyncio.timeout(5):
            while not [job for job in (await alone.jobs.list()).jobs if job.total_steps]:
                await asyncio.sleep(0.01)  # a poll, bounded above
        looking.cancel()
        await asyncio.wait({looking})
        async with engine.at_work(host) as at_work:
            await completed(at_work)
        slow = host_of(bench, engine, LONG)
        await due_task(slow, "stopped")
        async with engine.at_work(slow) as at_work:
            await at_work.steps(1)
            task = await slow.tasks.get("stopped")
            await slow.cancel(task.job_id or "")
            await at_work.wait_for_report("ended")
        assert await host_of(bench, engine, DONE).scheduler_of_worker.once() == ()
        assert (await slow.job(task.job_id or "")).status == "stoppedByInterrupt"

    wait_for(work())


def test_a_tasks_job_that_pauses_for_a_rate_is_the_dispatchers_to_bring_again(bench: Bench) -> None:
    async def work() -> None:
        engine = Engine()
        limited = host_of(bench, engine, [fail(429, "come back", retry_after=3600)])
        await due_task(limited)
        async with engine.at_work(limited) as at_work:
            await at_work.wait_for_report("again")
            assert (await engine.dispatcher.load()).later == 1
            assert (await limited.tasks.get("fix")).status == "running"

    wait_for(work())


def test_iterations_that_are_due_have_an_order_and_their_jobs_are_driven_in_its_place(bench: Bench) -> None:
    async def work() -> None:
        engine = Engine()
        await limited_series(bench)
        hosts = [host_of(bench, engine, DONE, MEASURED_EXPERT) for _ in range(2)]
        async with engine.at_work(hosts[0], "one") as one, engine.at_work(hosts[1], "two") as two:
            while not (ended := one.of("ended") + two.of("ended")):
                await asyncio.sleep(0.01)  # a poll, bounded by the test
            taken = one.of("taken") + two.of("taken")
            assert [(news.job, news.text) for news in taken] == [("it", "taken (iterations of a)")]
            assert [(news.job, news.facts["status"]) for news in ended] == [("it", "completed")]
            assert await engine.is_empty()
            assert one.worker.counters.steps + two.worker.counters.steps == 4
        series = await hosts[0].iterations.get("it")
        assert [iteration.job_id for iteration in series.iterations] == ["it-i1", "it-i2"]

    wait_for(work())


def test_iterations_are_left_after_the_step_of_their_job_and_go_on_in_another_worker(bench: Bench) -> None:
    async def work() -> None:
        engine = Engine()
        await limited_series(bench)
        first, second = (
            host_of(bench, engine, LONG, MEASURED_EXPERT),
            host_of(bench, engine, lambda _: text("Done."), MEASURED_EXPERT),
        )
        async with engine.at_work(first, "first", drain=10) as leaving:
            await leaving.steps(1)
        assert leaving.of("again")[0].facts["came"] == "left"
        types = [line.event.type for line in await first.events("it-i1-1")]
        assert types[-2:] == ["finishStep", "stopRunByInterrupt"]
        async with engine.at_work(second, "second") as at_work:
            assert (await at_work.wait_for_report("ended")).facts["status"] == "completed"

    wait_for(work())


def test_iterations_of_a_worker_that_died_are_taken_over_and_those_that_end_each_worker_fail(bench: Bench) -> None:
    async def work() -> None:
        engine = Engine()
        await limited_series(bench)
        await engine.submit("it")

        async def killed() -> int:
            """Kill a worker that drives the series before any step. Return the number of takeovers."""
            hangs = host_of(bench, engine, [text("late", delay_ms=60_000)], MEASURED_EXPERT)
            async with engine.at_work(hangs, "dying") as dying:
                await dying.wait_for_report("taken")
                dying.task.cancel()
                await asyncio.wait({dying.task})
            order = await engine.dispatcher.order("it")
            assert order is not None
            return order.takeovers

        assert [await killed() for _ in range(10)] == list(range(10))
        async with engine.at_work(host_of(bench, engine, DONE, MEASURED_EXPERT)) as at_work:
            poison = await at_work.wait_for_report("poison")
            assert "fell silent" in str(poison.facts["error"])
            assert (await at_work.host.iterations.get("it")).status == "failed"
            assert await engine.is_empty()
        assert (await bench.host(DONE, MEASURED_EXPERT).iterations.resume("it")).status == "completed"

    wait_for(work())


def test_iterations_that_a_person_is_asked_about_hold_no_order(bench: Bench) -> None:
    async def work() -> None:
        engine, asking = Engine(), expert("a", ask=True, iterate=MEASURED_EXPERT.iterate)
        limited = bench.host([fail(429, "come back", retry_after=3600)], asking)
        await limited.iterations.begin("a", "q", series_id="it")
        bench.clock.move(3_700_000)
        host = host_of(bench, engine, [tool("askUser", {"question": "Tea?"})], asking)
        async with engine.at_work(host) as at_work:
            assert (await at_work.wait_for_report("ended")).facts["status"] == "paused"
            assert await engine.is_empty()

    wait_for(work())


def test_the_job_of_a_schedule_is_queued_by_a_worker_whose_dispatcher_nobody_named(bench: Bench) -> None:
    async def work() -> None:
        engine = Engine()
        every_minute = Schedule(name="s", cron="* * * * *", expert="a", query="Go.")
        host = host_of(bench, engine, DONE)
        host.use(host.project.model_copy(update={"schedules": (every_minute,)}))
        await host.schedules.once()
        bench.clock.move(60_000)
        async with engine.at_work(host) as at_work:
            job_id = (await at_work.wait_for_report("ended")).job or ""
            job = await host.job(job_id)
            assert (job.labels, job.status) == ({"schedule": "s"}, "completed")
            assert job.queued is not None
            async with asyncio.timeout(5):
                while (await host.schedules.list())[0].last is None:
                    await asyncio.sleep(0.02)  # a poll, bounded above

    wait_for(work())
