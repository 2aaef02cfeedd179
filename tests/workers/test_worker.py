"""A worker drives each claimed Job once, and leaves without losing anything."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from engine_workers import Engine, queued, record_job
from hosts import Bench, crashing, expert, until_it_crashes, wait_for

from perstack.core.base.chain import Head, open_line, seal
from perstack.core.jobs.summary import JobSummary
from perstack.errors import DispatcherError, MissingCredential, StorageError
from perstack.host import Host
from perstack.ports.dispatcher import Claim, Order, Seat
from perstack.ports.storage import RunRef
from perstack.testing.crashing_storage import CrashPoint
from perstack.testing.in_memory_dispatcher import InMemoryDispatcher, InMemoryOrders
from perstack.testing.scripted import text, tool, turn
from perstack.workers.driving_orders import Drive
from perstack.workers.orders import count_progress

DONE = [turn(tool("todo", {"newTodos": ["a"]}), usage=(100, 10)), text("Done.", usage=(200, 20))]
LONG = [turn(tool("todo", {"newTodos": ["a"]}), delay_ms=100, repeat=1000)]


def test_jobs_are_driven_and_their_orders_are_gone(bench: Bench) -> None:
    async def work() -> None:
        engine = Engine()
        for number in range(3):
            await record_job(bench, f"job-{number}")
        await engine.submit("job-0", "job-1", "job-2")
        async with engine.at_work(
            bench.host(DONE, expert("a"), dispatcher=engine.dispatcher), concurrency=2
        ) as at_work:
            await at_work.wait_for_report("ended", 3)
            assert [(await at_work.host.job(f"job-{n}")).status for n in range(3)] == ["completed"] * 3
            assert await engine.is_empty()
            tally = at_work.worker.counters
            assert (tally.steps, tally.running, tally.takeovers) == (6, 0, 0)
            assert tally.tokens == {("input", "scripted/scripted"): 900, ("output", "scripted/scripted"): 90}
        assert [report.event for report in at_work.news if report.job is None] == ["ready", "draining", "stopped"]

    wait_for(work())


def test_a_question_holds_no_place_and_what_is_not_there_ends_nothing(bench: Bench) -> None:
    async def work() -> None:
        engine, guest = Engine(), expert("a", ask=True)
        await record_job(bench, "asks", guest)
        await record_job(bench, "asks-too", guest)
        await engine.submit("asks", "no-such-job", "asks-too")
        host = bench.host([tool("askUser", {"question": "Tea?"})], guest, dispatcher=engine.dispatcher)
        async with engine.at_work(host, concurrency=1) as at_work:
            await at_work.wait_for_report("ended", 2)
            assert "was it deleted" in (await at_work.wait_for_report("refused")).text
            assert {(await host.job(one)).question for one in ("asks", "asks-too")} == {"Tea?"}
            assert (await engine.dispatcher.load()).queued == 1

    wait_for(work())


def test_a_worker_that_leaves_lets_the_step_in_hand_end_and_another_goes_on(bench: Bench) -> None:
    async def work() -> None:
        engine = await queued(bench, "job")
        first = bench.host(LONG, expert("a"), dispatcher=engine.dispatcher)
        async with engine.at_work(first, "first", drain=10) as leaving:
            await leaving.steps(1)
            leaving.worker.leave()
            assert leaving.worker.health.problem == "the worker is leaving"
            async with asyncio.timeout(5):
                await leaving.task
            assert (await leaving.wait_for_report("again")).text.startswith("left for another worker")
            types = [line.event.type for line in await first.events("job-1")]
        assert types[-3:] == ["finishStep", "stopRunByInterrupt", "queueRun"]
        second = bench.host(lambda request: text("Done."), expert("a"), dispatcher=engine.dispatcher)
        async with engine.at_work(second, "second") as at_work:
            ended = await at_work.wait_for_report("ended")
        assert ended.facts["status"] == "completed"
        assert not at_work.of("lost", "poison")
        assert at_work.worker.counters.takeovers == 0

    wait_for(work())


def test_a_step_that_takes_too_long_is_recorded_as_interrupted(bench: Bench) -> None:
    async def work() -> None:
        engine = await queued(bench, "job")
        async with engine.at_work(
            bench.host([text("late", delay_ms=60_000)], expert("a"), dispatcher=engine.dispatcher), drain=0.2
        ) as at_work:
            await at_work.generates("job-1")
            at_work.worker.leave()
            async with asyncio.timeout(5):
                await at_work.task
            assert (await at_work.host.job("job")).status == "queued"
            assert (await engine.dispatcher.load()).queued == 1

    wait_for(work())


def test_a_job_that_this_worker_cannot_drive_waits_for_another(bench: Bench) -> None:
    async def work() -> None:
        engine = await queued(bench, "job")
        without, other = (
            bench.host(DONE, expert("a"), dispatcher=engine.dispatcher),
            bench.host(DONE, expert("a"), dispatcher=engine.dispatcher),
        )

        async def resume(job_id: str, **_: object) -> None:
            raise MissingCredential(f"no key: set SOME_KEY=sk-{'verysecret' * 2}")

        async with engine.at_work(without, "without", drive=resume) as refusing:
            refused = await refusing.wait_for_report("refused")
            assert refused.level == "warning"
            assert "no key: set SOME_KEY=" in refused.text
            assert "verysecret" not in refused.text + str(refused.facts)
            order = await engine.dispatcher.order("job")
            assert order is not None
            assert list(order.refused) == [refusing.worker.name]
            async with engine.at_work(other, "with") as at_work:
                assert (await at_work.wait_for_report("ended")).facts["status"] == "completed"
        assert len(refusing.of("refused")) == 1

    wait_for(work())


async def _hang(job_id: str, **_: object) -> JobSummary:
    """Wait for ever instead of driving the Job."""
    await asyncio.Event().wait()
    raise AssertionError


async def _killed(engine: Engine, host: Host) -> int:
    """Kill a worker that has claimed the Job. Return the number of takeovers."""
    return await _dead(engine, host, _hang)


async def _killed_over_it(bench: Bench, engine: Engine, name: str) -> int:
    """Kill a worker of that name that has begun the Job. Return the number of takeovers."""

    async def drive(job_id: str, **_: object) -> JobSummary:
        dying = bench.host(DONE, expert("a"), wrap=crashing(CrashPoint("after", 1)))
        with until_it_crashes():
            await dying.job_server.serve(job_id, worker=name)
        begun.set()
        return await _hang(job_id)

    begun = asyncio.Event()
    return await _dead(engine, bench.host(DONE, expert("a"), dispatcher=engine.dispatcher), drive, begun)


async def _dead(engine: Engine, host: Host, drive: Drive, begun: asyncio.Event | None = None) -> int:
    async with engine.at_work(host, "dying", drive=drive) as dying:
        await dying.wait_for_report("taken")
        if begun is not None:
            await begun.wait()
        dying.task.cancel()
        await asyncio.wait({dying.task})
    order = await engine.dispatcher.order("job")
    assert order is not None
    return order.takeovers


def test_what_could_not_be_recorded_when_a_worker_was_ended_makes_no_traceback(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    async def unrecorded(job_id: str, **_: object) -> JobSummary:
        try:
            return await _hang(job_id)
        finally:
            raise StorageError("the storage does not answer")

    async def work() -> None:
        engine = Engine()
        await record_job(bench, "job")
        await engine.submit("job")
        await _dead(engine, bench.host(DONE, expert("a"), dispatcher=engine.dispatcher), unrecorded)
        gc.collect()

    wait_for(work())
    assert not caplog.records


def test_a_job_that_ends_three_workers_is_stopped(bench: Bench) -> None:
    async def work() -> None:
        engine = await queued(bench, "job")
        assert [await _killed_over_it(bench, engine, name) for name in ("w1", "w2", "w3")] == [0, 1, 2]
        async with engine.at_work(bench.host(DONE, expert("a"), dispatcher=engine.dispatcher), "last") as at_work:
            poison = await at_work.wait_for_report("poison")
            job = await at_work.host.job("job")
            assert at_work.worker.counters.takeovers == 1
        assert poison.level == "error"
        assert job.status == "stoppedByError"
        assert "workers in a row" in (job.error or "")
        assert await engine.is_empty()
        assert (await bench.host(DONE, expert("a"), dispatcher=engine.dispatcher).resume("job")).status == "completed"

    wait_for(work())


def test_a_job_does_not_answer_for_workers_that_were_silent_and_are_there_again(bench: Bench) -> None:
    async def work() -> None:
        engine = await queued(bench, "job")
        assert [await _killed_over_it(bench, engine, name) for name in ("w1", "w2", "w3")] == [0, 1, 2]
        async with engine.dispatcher.seat("w2"):  # it was frozen, and has learnt that another has the Job
            host = bench.host(DONE, expert("a"), dispatcher=engine.dispatcher)
            async with engine.at_work(host, "last") as at_work:
                assert (await at_work.wait_for_report("ended")).facts["status"] == "completed"
            assert not at_work.of("poison")

    wait_for(work())


def test_takeovers_count_no_more_once_something_was_done_though_the_order_was_given_back(bench: Bench) -> None:
    """As by a worker that leaves; and of a Job whose delegate ends in the moment in which it is taken over."""

    async def work() -> None:
        engine = await queued(bench, "job")
        assert [await _killed_over_it(bench, engine, name) for name in ("w1", "w2", "w3")] == [0, 1, 2]
        async with engine.dispatcher.seat("w2"):  # it was frozen, and will end
            host = bench.host(LONG, expert("a"), dispatcher=engine.dispatcher)
            async with engine.at_work(host, "leaves") as at_work:
                await at_work.steps(1)
        order = await engine.dispatcher.order("job")
        assert order is not None
        assert order.takeovers == 3
        host = bench.host(lambda request: text("Done."), expert("a"), dispatcher=engine.dispatcher)
        async with engine.at_work(host, "last") as at_work:
            assert (await at_work.wait_for_report("ended")).facts["status"] == "completed"
        assert not at_work.of("poison")

    wait_for(work())


def test_a_job_does_not_answer_for_workers_that_had_not_begun_to_drive_it_but_for_ten_at_the_most(bench: Bench) -> None:
    async def work() -> None:
        engine = await queued(bench, "job")
        host = bench.host(DONE, expert("a"), dispatcher=engine.dispatcher)
        assert [await _killed(engine, host) for _ in range(10)] == [*range(10)]
        async with engine.at_work(host, "last") as at_work:
            await at_work.wait_for_report("poison")
        assert (await host.job("job")).status == "stoppedByError"

    wait_for(work())


def test_jobs_that_may_have_ended_workers_are_driven_one_at_a_time(bench: Bench) -> None:
    async def work() -> None:
        engine = Engine()
        host = bench.host(DONE, expert("a"), dispatcher=engine.dispatcher)
        for job_id in ("first", "second"):
            await record_job(bench, job_id)
            types = [line.event.type for line in await host.jobs.events((await host.job(job_id)).coordinator_run_id)]
            await engine.submit(job_id, takeovers=2, events=count_progress(types))
        let = asyncio.Event()

        async def drive(job_id: str, **options: Any) -> JobSummary:
            await let.wait()
            return await host.job_server.serve(job_id, worker="w", **options)

        async with engine.at_work(host, drive=drive) as at_work:
            waits = (
                await at_work.wait_for_report("again")
            ).job  # whichever comes later to it: both are looked into at once
            (driven,) = {"first", "second"} - {waits}
            assert [report.job for report in at_work.of("taken")] == [driven]
            let.set()
            assert [(await at_work.wait_for_report("ended", number)).job for number in (1, 2)] == [driven, waits]
        assert {(await host.job(job_id)).status for job_id in ("first", "second")} == {"completed"}

    wait_for(work())


async def _written_by_a_newer_version(host: Host, job_id: str) -> list[bytes]:
    """Append an event of an unknown type to the Job's log, and return the log."""
    run = RunRef(job_id, (await host.job(job_id)).coordinator_run_id)
    lines = await host.storage.read(run)
    last = open_line(lines[-1])
    payload = b'{"type":"celebrateRun",' + last.payload.partition(b",")[2]
    sealed, _ = seal(Head(len(lines), last.hash), [payload])
    await host.storage.append(run, len(lines), sealed)
    return await host.storage.read(run)


def test_a_job_that_a_newer_version_has_written_to_waits_for_a_worker_of_that_version(bench: Bench) -> None:
    async def work() -> None:
        engine = await queued(bench, "job")
        host = bench.host(DONE, expert("a"), dispatcher=engine.dispatcher)
        written = await _written_by_a_newer_version(host, "job")
        async with engine.at_work(host) as at_work:
            refused = await at_work.wait_for_report("refused")
            assert "a newer version has written it" in str(refused.facts["error"])
            order = await engine.dispatcher.order("job")
            assert order is not None
            assert list(order.refused) == [at_work.worker.name]
        assert not at_work.of("taken")
        assert await host.storage.read(RunRef("job", "job-1")) == written

    wait_for(work())


def test_a_takeover_after_work_counts_from_one(bench: Bench) -> None:
    async def work() -> None:
        engine = await queued(bench, "job")
        assert [
            await _killed(engine, bench.host(DONE, expert("a"), dispatcher=engine.dispatcher)) for _ in range(3)
        ] == [0, 1, 2]
        dying = bench.host([DONE[0], text("never")], expert("a"), wrap=crashing(CrashPoint("after", 3)))
        with until_it_crashes():
            await dying.resume("job")
        assert await _killed(engine, bench.host(DONE, expert("a"), dispatcher=engine.dispatcher)) == 1

    wait_for(work())


def test_a_claim_that_is_lost_ends_the_drive_and_nothing_else(bench: Bench) -> None:
    async def work() -> None:
        engine = await queued(bench, "job")
        await record_job(bench, "other")
        async with engine.at_work(bench.host(DONE, expert("a"), dispatcher=engine.dispatcher), drive=_hang) as at_work:
            await at_work.wait_for_report("taken")
            engine.orders.held["job"].seat = None
            async with engine.dispatcher.seat("quicker") as seat:
                claim = await seat.claim()
                assert claim is not None
                assert claim.is_taken_over
                await at_work.wait_for_report("lost")
                await seat.release(claim)
            await engine.submit("other")
            await at_work.wait_for_report("taken", 2)
            at_work.task.cancel()
            await asyncio.wait({at_work.task})

    wait_for(work())


class Unreachable(InMemoryDispatcher):
    """An engine that is unreachable while `is_away` is set."""

    is_away = True

    def seat(self, name: str, **options: object):  # type: ignore[override]
        if self.is_away:
            raise DispatcherError("connection refused at postgresql://perstack:secret-word-123@db/x")
        return super().seat(name, **options)  # type: ignore[arg-type]


def test_a_dispatcher_that_is_away_is_asked_again_and_that_is_said_once(bench: Bench) -> None:
    async def work() -> None:
        engine = await queued(bench, "job")
        away = Unreachable(engine.orders)
        async with engine.at_work(
            bench.host(DONE, expert("a"), dispatcher=engine.dispatcher), dispatcher=away
        ) as at_work:
            told = await at_work.wait_for_report("unreachable")
            away.is_away = False
            await at_work.wait_for_report("ended")
        assert "secret-word-123" not in told.text
        assert [report.event for report in at_work.news][:3] == ["unreachable", "reachable", "ready"]

    wait_for(work())


def test_a_job_that_another_process_drives_is_looked_at_again_soon(bench: Bench) -> None:
    async def work() -> None:
        engine = await queued(bench, "job")
        other = bench.host(DONE, expert("a"), dispatcher=engine.dispatcher)
        async with AsyncExitStack() as leases:
            await leases.enter_async_context(other.storage.lease("job", "pid 1 on another machine"))
            async with engine.at_work(bench.host(DONE, expert("a"), dispatcher=engine.dispatcher)) as at_work:
                await at_work.wait_for_report("again", 2)
                await leases.aclose()
                assert (await at_work.wait_for_report("ended")).facts["status"] == "completed"

    wait_for(work())


def test_labels_and_priority_are_kept(bench: Bench) -> None:
    async def work() -> None:
        engine = Engine()
        for one in ("low", "high", "gpu"):
            await record_job(bench, one)
        await engine.submit("low", priority=1)
        await engine.submit("high", priority=2)
        await engine.submit("gpu", labels={"gpu": "yes"})
        host = bench.host(DONE, expert("a"), dispatcher=engine.dispatcher)
        async with engine.at_work(host, concurrency=1, labels={"gpu": "yes"}) as at_work:
            await at_work.wait_for_report("ended")
            assert (await engine.dispatcher.load()).queued == 2
        async with engine.at_work(bench.host(DONE, expert("a"), dispatcher=engine.dispatcher), concurrency=1) as other:
            await other.wait_for_report("ended", 2)
        assert [one.job for one in at_work.of("taken") + other.of("taken")] == ["gpu", "high", "low"]

    wait_for(work())


def test_two_workers_share_fifty_jobs_and_each_is_driven_once(tmp_path: Path) -> None:
    async def work() -> None:
        bench, engine = Bench(tmp_path, "sqlite:perstack/state.db"), Engine()
        names = [f"job-{number}" for number in range(50)]
        for name in names:
            await record_job(bench, name)
        await engine.submit(*names)
        hosts = [bench.host(DONE, expert("a"), dispatcher=engine.dispatcher) for _ in range(2)]
        async with engine.at_work(hosts[0], "one") as one, engine.at_work(hosts[1], "two") as two:
            while len(one.of("ended")) + len(two.of("ended")) < 50:
                await one.wait_until(lambda: bool(one.of("ended")))
                await asyncio.sleep(0.01)
            assert await engine.is_empty()
            for name in names:
                types = [line.event.type for line in await hosts[0].events(f"{name}-1")]
                assert types.count("resumeRun") == types.count("finishRun") == 1
        taken = [news.job for at_work in (one, two) for news in at_work.of("taken")]
        assert sorted(taken) == sorted(names)

    wait_for(work())


class Late(InMemoryDispatcher):
    """An engine whose answer to a claim is delayed until `answers` is set."""

    def __init__(self, orders: InMemoryOrders, *, slow: str) -> None:
        super().__init__(orders)
        self.slow = slow
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()
        self.released = asyncio.Event()

    @asynccontextmanager
    async def seat(self, name: str, **options: Any) -> AsyncGenerator[Seat]:  # type: ignore[override]
        async with super().seat(name, **options) as seat:
            claim, release = seat.claim, seat.release

            async def slow_claim() -> Claim | None:
                if self.slow == "claim":
                    self.asked.set()
                    await self.answers.wait()
                return await claim()

            async def slow_release(held: Claim, again: Order | None = None) -> None:
                if self.slow == "release":
                    self.asked.set()
                    await self.answers.wait()
                await release(held, again)
                self.released.set()

            seat.claim, seat.release = slow_claim, slow_release  # type: ignore[method-assign]
            yield seat


async def _waits_as_before(engine: Engine, job_id: str) -> None:
    """Check that another worker can claim the order, and not as a takeover."""
    async with engine.dispatcher.seat("next") as seat:
        claim = await seat.claim()
        assert claim is not None
        assert (claim.order.job_id, claim.is_taken_over) == (job_id, False)


@pytest.mark.parametrize("moment", ["before the claim comes", "as the claim comes"])
def test_a_claim_that_comes_while_a_worker_is_cancelled_is_given_back(bench: Bench, moment: str) -> None:
    async def work() -> None:
        engine = await queued(bench, "job")
        late = Late(engine.orders, slow="claim")
        async with engine.at_work(bench.host(DONE, expert("a")), dispatcher=late) as at_work:
            await asyncio.wait_for(late.asked.wait(), 10)
            if moment == "as the claim comes":
                claimed = next(task for task in asyncio.all_tasks() if "slow_claim" in str(task.get_coro()))
                claimed.add_done_callback(lambda _: at_work.task.cancel())
            else:
                at_work.task.cancel()
                at_work.task.cancel()
            late.answers.set()
            await asyncio.wait({at_work.task}, timeout=10)
            assert at_work.task.cancelled()
            assert late.released.is_set(), "before the seat is left"
        await _waits_as_before(engine, "job")

    wait_for(work())


def test_a_claim_that_is_put_back_while_a_worker_is_cancelled_gets_back(bench: Bench) -> None:
    async def work() -> None:
        engine = await queued(bench, "job")
        late = Late(engine.orders, slow="release")
        async with engine.at_work(bench.host(DONE, expert("a")), dispatcher=late) as at_work:
            at_work.worker._max_jobs = 0
            await asyncio.wait_for(late.asked.wait(), 10)
            at_work.task.cancel()
            late.answers.set()
            await asyncio.wait({at_work.task}, timeout=10)
            assert (at_work.task.cancelled(), late.released.is_set()) == (True, True)
        order = await engine.dispatcher.order("job")
        assert order is not None
        assert (await engine.dispatcher.load()).running == 0

    wait_for(work())
