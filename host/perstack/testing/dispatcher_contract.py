"""The dispatcher contract as a test suite, which every dispatcher must pass.

    from perstack.testing.dispatcher_contract import DispatcherBed, DispatcherContract

    class TestMyDispatcher(DispatcherContract):
        @pytest.fixture
        def bed(self):
            place = start_my_engine()           # nothing is queued there yet
            yield DispatcherBed(open=lambda: MyDispatcher(place))

Each test's name says what it protects: a failing test names what your dispatcher would do to a Job. The tests need
pytest, and no pytest plugin.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import field, replace

import pytest

from perstack.dataclass import dataclass
from perstack.errors import DispatcherError
from perstack.ports.dispatcher import SILENT_AFTER, TAKEN_OVER_WITHIN, Claim, Dispatcher, Load, Order, Seat
from perstack.system.clock import SYSTEM
from perstack.testing.storage_fixture import SECONDS, in_loop, wait_for

# The test fixture: an engine, empty at first, and its clock.

SOON = 15.0  # maximum seconds to wait for an effect that an engine may delay


async def wait_really(seconds: float) -> None:
    """Let time pass by sleeping."""
    await asyncio.sleep(seconds)


@dataclass
class ManualClock:
    """A clock for engines that accept one. Its time passes only when the test advances it."""

    milliseconds: int = 1_800_000_000_000

    def now(self) -> int:
        """Return milliseconds since 1970."""
        return self.milliseconds

    async def pass_time(self, seconds: float) -> None:
        """Advance the clock."""
        self.milliseconds += round(seconds * 1000)


@dataclass
class DispatcherBed:
    """An engine, empty at first, and its clock."""

    open: Callable[[], Dispatcher]  # function that opens a dispatcher on this engine as a new process would
    pass_time: Callable[[float], Awaitable[None]] = wait_really
    """Function that lets seconds pass: it advances the engine's clock, or sleeps if the engine has none."""
    now: Callable[[], int] = SYSTEM.now
    """Function that returns milliseconds since 1970, by the clock that due times are compared with."""
    arrive: Callable[[str], Awaitable[None]] | None = None
    """Function that waits until the work item with a key can be claimed; None if it can be at once."""
    # function that makes the engine unreachable; None for an engine in this process
    cut: Callable[[], Awaitable[None]] | None = None
    mend: Callable[[], Awaitable[None]] | None = None  # function that makes the engine reachable again
    opened: list[Dispatcher] = field(default_factory=list[Dispatcher])

    async def submitted(self, dispatcher: Dispatcher, order: Order) -> None:
        """Submit a work item and wait until it can be claimed."""
        await dispatcher.submit(order)
        if self.arrive is not None:
            await self.arrive(order.key)

    @asynccontextmanager
    async def dispatchers(self, count: int = 1) -> AsyncGenerator[list[Dispatcher]]:
        """Open `count` dispatchers, as that many processes would, and close them at the end."""
        async with AsyncExitStack() as stack:
            opened = [self.open() for _ in range(count)]
            for dispatcher in opened:
                stack.push_async_callback(dispatcher.close)
            yield opened


async def next_claim(seat: Seat, seconds: float = SOON) -> Claim:
    """Return the next claim of a session, waiting for it as a worker does. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while (claim := await seat.claim()) is None:
            await seat.wait(0.2)
        return claim


# ruff: noqa: S101 - these are tests


async def assert_load(dispatcher: Dispatcher, *, queued: int = 0, later: int = 0, running: int = 0) -> Load:
    """Assert the queue statistics, which an engine may show late, and return them."""
    deadline = time.monotonic() + SOON
    while True:
        load = await dispatcher.load()
        counts, expected = (load.queued, load.later, load.running), (queued, later, running)
        if counts == expected or time.monotonic() > deadline:
            assert counts == expected
            return load
        await asyncio.sleep(0.05)


def ids(claims: list[Claim]) -> list[str]:
    """Return the Job ids of claims."""
    return [claim.order.job_id for claim in claims]


class _Base:
    @pytest.fixture
    def bed(self) -> DispatcherBed:
        """Return a fresh, empty engine. Must be overridden."""
        raise pytest.UsageError("override the fixture `bed` of DispatcherContract")


class _WaitingContract(_Base):
    """Promise 1: at most one work item waits for a Job, and none is lost."""

    @in_loop
    async def test_a_job_that_is_queued_often_is_driven_once(self, bed: DispatcherBed) -> None:
        async with bed.dispatchers(2) as (dispatcher, other), dispatcher.seat("w") as seat:
            for target in (dispatcher, other, dispatcher):
                await target.submit(Order("job", submitted_at=5))
            await assert_load(dispatcher, queued=1)
            claim = await next_claim(seat)
            assert claim.order == Order("job", submitted_at=5)
            assert await seat.claim() is None
            await seat.release(claim)
            assert await seat.claim() is None
            assert await dispatcher.order("job") is None

    @in_loop
    async def test_a_job_that_many_queue_at_once_is_driven_once(self, bed: DispatcherBed) -> None:
        async with bed.dispatchers(2) as (dispatcher, other), dispatcher.seat("w") as seat:
            orders = [Order("job", priority=n) for n in range(8)]
            await asyncio.gather(*(target.submit(order) for order in orders for target in (dispatcher, other)))
            claim = await next_claim(seat)
            assert claim.order.priority == 7
            await seat.release(claim)
            assert await seat.claim() is None

    @in_loop
    async def test_a_job_that_is_queued_twice_takes_the_earlier_time_and_the_higher_priority(
        self, bed: DispatcherBed
    ) -> None:
        async with bed.dispatchers() as (dispatcher,):
            later = bed.now() + 3_600_000
            await dispatcher.submit(Order("job", due=later, priority=1))
            await dispatcher.submit(Order("job", due=later + 5, priority=3))
            assert await dispatcher.order("job") == Order("job", due=later, priority=3)
            await dispatcher.submit(Order("job", due=later - 5, priority=2))
            assert await dispatcher.order("job") == Order("job", due=later - 5, priority=3)
            await assert_load(dispatcher, later=1)
            await dispatcher.submit(Order("job"))
            async with dispatcher.seat("w") as seat:
                claim = await next_claim(seat)
                assert (claim.order.due, claim.order.priority) == (0, 3)

    @in_loop
    async def test_a_job_that_is_queued_while_it_stops_is_driven_again(self, bed: DispatcherBed) -> None:
        async with bed.dispatchers(2) as (dispatcher, other), dispatcher.seat("w") as seat, other.seat("v") as second:
            await dispatcher.submit(Order("job", submitted_at=1))
            claim = await next_claim(seat)
            await other.submit(Order("job", submitted_at=2))
            assert await second.claim() is None  # two workers would drive it
            assert await other.order("job") == Order("job", submitted_at=2)
            await seat.release(claim)
            assert (await next_claim(second)).order.submitted_at == 2

    @in_loop
    async def test_an_order_that_is_given_back_waits_with_what_is_known_of_it(self, bed: DispatcherBed) -> None:
        async with (
            bed.dispatchers() as (dispatcher,),
            dispatcher.seat("first") as seat,
            dispatcher.seat("second") as second,
        ):
            await dispatcher.submit(Order("job", priority=4, labels={"a": "b"}, submitted_at=9, storage="f0"))
            claim = await next_claim(seat)
            released = replace(claim.order, refused={"first": "no key"}, takeovers=2, events=7)
            await seat.release(claim, released)
            assert await dispatcher.order("job") == released
            assert await seat.claim() is None
            assert (await next_claim(second)).order == released

    @in_loop
    async def test_an_order_that_is_given_back_and_one_submitted_meanwhile_become_one(self, bed: DispatcherBed) -> None:
        async with bed.dispatchers() as (dispatcher,), dispatcher.seat("w") as seat:
            later = bed.now() + 3_600_000
            await dispatcher.submit(Order("job"))
            claim = await next_claim(seat)
            await dispatcher.submit(Order("job", due=later))
            await seat.release(claim, replace(claim.order, due=later - 7, priority=2))
            await assert_load(dispatcher, later=1)
            waiting = await dispatcher.order("job")
            assert waiting is not None
            assert (waiting.due, waiting.priority) == (later - 7, 2)

    @in_loop
    async def test_an_order_that_is_withdrawn_is_given_to_nobody(self, bed: DispatcherBed) -> None:
        async with bed.dispatchers() as (dispatcher,), dispatcher.seat("w") as seat:
            assert not await dispatcher.withdraw("job")
            await dispatcher.submit(Order("job"))
            assert await dispatcher.withdraw("job")
            assert not await dispatcher.withdraw("job")
            assert await seat.claim() is None
            await dispatcher.submit(Order("job"))
            claim = await next_claim(seat)
            assert not await dispatcher.withdraw("job")
            assert await dispatcher.order("job") == claim.order

    @in_loop
    async def test_a_delegate_that_others_drive_is_ordered_beside_its_job(self, bed: DispatcherBed) -> None:
        async with bed.dispatchers(2) as (dispatcher, other), dispatcher.seat("w", concurrency=3) as seat:
            run_order, job_order = Order("job", run_id="job-2", priority=1, storage="f0"), Order("job-2", priority=-1)
            await bed.submitted(dispatcher, run_order)
            await bed.submitted(dispatcher, Order("job"))
            await bed.submitted(dispatcher, job_order)
            await other.submit(run_order)
            claims = [await next_claim(seat) for _ in range(3)]
            assert [claim.order for claim in claims] == [run_order, Order("job"), job_order]
            assert await other.order("job", "job-2") == run_order
            assert await other.order("job") == Order("job")
            assert await other.order("job-2") == job_order
            (worker,) = await other.workers()
            assert sorted(worker.jobs) == ["job", "job-2", "job-2"]
            claims[0] = await seat.change(claims[0], replace(run_order, takeovers=2))
            assert (await other.order("job", "job-2")) == replace(run_order, takeovers=2)
            await seat.release(claims[0], replace(run_order, due=bed.now() + 3_600_000))
            assert not await other.withdraw("job")
            assert await other.withdraw("job", "job-2")
            assert await other.order("job", "job-2") is None
            assert await other.order("job") is not None


class _ChoosingContract(_Base):
    """Promise 2: each work item goes to one session: the right one, at the right time, in the right order."""

    @in_loop
    async def test_no_two_seats_drive_the_same_job(self, bed: DispatcherBed) -> None:
        async with (
            bed.dispatchers(2) as (dispatcher, other),
            dispatcher.seat("w", concurrency=20) as seat,
            other.seat("v") as second,
        ):
            names = [f"job-{n}" for n in range(20)]
            await asyncio.gather(*(dispatcher.submit(Order(name)) for name in names))
            claims: list[Claim] = []

            async def take(seat: Seat) -> None:
                while len(claims) < len(names):
                    if (claim := await seat.claim()) is not None:
                        claims.append(claim)
                    else:
                        await seat.wait(0.2)

            await asyncio.gather(take(seat), take(second), take(seat), take(second))
            assert (await seat.claim(), await second.claim()) == (None, None)
            assert sorted(ids(claims)) == sorted(names)
            assert len({claim.id for claim in claims}) == 20
            assert not any(claim.is_taken_over for claim in claims)

    @in_loop
    async def test_the_urgent_comes_first_and_of_those_who_waited_longest(self, bed: DispatcherBed) -> None:
        async with bed.dispatchers() as (dispatcher,), dispatcher.seat("w") as seat:
            for name, priority in (("a", 0), ("b", 2), ("c", 0), ("d", 2), ("e", -1)):
                await bed.submitted(dispatcher, Order(name, priority=priority))
            assert ids([await next_claim(seat) for _ in range(5)]) == ["b", "d", "a", "c", "e"]

    @in_loop
    async def test_nothing_is_driven_before_its_time_and_a_seat_that_waits_gets_it_then(
        self, bed: DispatcherBed
    ) -> None:
        async with bed.dispatchers() as (dispatcher,), dispatcher.seat("w") as seat:
            due = bed.now() + 1_500
            await dispatcher.submit(Order("job", due=due))
            assert await seat.claim() is None
            await assert_load(dispatcher, later=1)
            await bed.pass_time(1.5)
            assert (await next_claim(seat)).order.due == due
            assert bed.now() >= due - 50  # two clocks may be a moment apart

    @in_loop
    async def test_a_seat_with_labels_takes_jobs_that_have_one_of_them_and_one_without_takes_all(
        self, bed: DispatcherBed
    ) -> None:
        async with (
            bed.dispatchers() as (dispatcher,),
            dispatcher.seat("labelled", labels={"gpu": "yes", "region": "eu"}) as labelled,
            dispatcher.seat("any") as any_,
        ):
            for name, labels in (
                ("plain", {}),
                ("other", {"gpu": "no", "region": "us"}),
                ("like", {"gpu": "yes,region=eu", "gpu=yes": ""}),
                ("gpu", {"gpu": "yes", "team": "a"}),
                ("eu", {"region": "eu"}),
            ):
                await bed.submitted(dispatcher, Order(name, labels=labels))
            assert ids([await next_claim(labelled), await next_claim(labelled)]) == ["gpu", "eu"]
            assert await labelled.claim() is None
            assert ids([await next_claim(any_) for _ in range(3)]) == ["plain", "other", "like"]

    @in_loop
    async def test_a_worker_that_cannot_serve_a_job_does_not_get_it_again(self, bed: DispatcherBed) -> None:
        async with (
            bed.dispatchers() as (dispatcher,),
            dispatcher.seat("first", labels={"a": "b"}) as first,
            dispatcher.seat("second") as second,
            dispatcher.seat("third") as third,
        ):
            order = Order("job", labels={"a": "b"}, refused={"first": "no key\0\ud800", "second": "no file"})
            await dispatcher.submit(order)
            await dispatcher.submit(Order("more", labels={"a": "b"}))
            assert (await next_claim(second)).order.job_id == "more"
            assert await first.claim() is None
            assert await second.claim() is None
            refused = (await next_claim(third)).order.refused
            assert list(refused) == ["first", "second"]
            assert refused["second"] == "no file"

    @in_loop
    async def test_an_order_outlives_the_process_that_submitted_it(self, bed: DispatcherBed) -> None:
        order = Order("job", due=5, priority=-3, labels={"ä": "ö ="}, submitted_at=3, takeovers=1, events=2)
        async with bed.dispatchers() as (dispatcher,):
            await dispatcher.submit(order)
        async with bed.dispatchers() as (dispatcher,), dispatcher.seat("w") as seat:
            assert (await next_claim(seat)).order == order

    @in_loop
    async def test_who_waits_gets_what_is_submitted_at_once(self, bed: DispatcherBed) -> None:
        async with bed.dispatchers(2) as (dispatcher, other), dispatcher.seat("w") as seat:
            await other.submit(Order("first"))
            await next_claim(seat)
            assert await seat.claim() is None

            async def next_order() -> Claim:
                while (claim := await seat.claim()) is None:
                    await seat.wait(SECONDS)
                return claim

            async with asyncio.timeout(SOON), asyncio.TaskGroup() as group:
                task = group.create_task(next_order())
                await asyncio.sleep(0.05)
                await other.submit(Order("second"))
            assert task.result().order.job_id == "second"
            start = time.monotonic()
            assert await seat.claim() is None
            await seat.wait(0.05)
            assert time.monotonic() - start < 2.0


class _HoldingContract(_Base):
    """Promise 3: a claim belongs to its session until it is released, or the session misses its heartbeats."""

    @in_loop
    async def test_a_job_of_a_worker_that_died_is_taken_over_and_it_sees_that_if_it_was_not_dead(
        self, bed: DispatcherBed
    ) -> None:
        async with (
            bed.dispatchers(2) as (dispatcher, other),
            dispatcher.seat("silent") as silent,
            other.seat("next") as next_,
        ):
            await bed.submitted(dispatcher, Order("job", submitted_at=1))
            await bed.submitted(dispatcher, Order("another"))
            mine = await next_claim(silent)
            mine = await silent.change(mine, replace(mine.order, takeovers=1, events=12))
            assert await other.order("job") == mine.order
            theirs = await next_claim(next_)
            assert theirs.order.job_id == "another"
            await bed.pass_time(SILENT_AFTER / 2)
            assert (await silent.beat(), await next_.beat()) == ([], [])
            assert await next_.claim() is None
            await bed.pass_time(SILENT_AFTER - 1)
            assert await next_.beat() == []
            assert await next_.claim() is None
            await bed.pass_time(1.5)
            takeover = await next_claim(next_, TAKEN_OVER_WITHIN - SILENT_AFTER)
            assert takeover.is_taken_over
            assert takeover.order == mine.order
            assert takeover.id != mine.id
            # the former holder can no longer change it
            await silent.release(mine)
            await silent.change(mine, replace(mine.order, events=99))
            assert await other.order("job") == mine.order
            assert await silent.claim() is None
            await assert_load(other, running=2)
            await next_.release(takeover)
            assert await other.order("job") is None

    @in_loop
    async def test_who_was_silent_sees_at_its_next_beat_what_it_lost(self, bed: DispatcherBed) -> None:
        async with (
            bed.dispatchers(2) as (dispatcher, other),
            dispatcher.seat("silent") as silent,
            other.seat("next") as next_,
        ):
            await dispatcher.submit(Order("lost"))
            lost = await next_claim(silent)
            await bed.pass_time(SILENT_AFTER + 0.5)
            assert [info.name for info in await dispatcher.workers()] == []
            await next_.beat()
            takeover = await next_claim(next_, TAKEN_OVER_WITHIN)
            assert await silent.beat() == [lost.id]
            assert await silent.beat() == []
            assert await next_.beat() == []
            await other.submit(Order("new"))
            kept = await next_claim(silent)
            assert kept.order.job_id == "new"
            assert not kept.is_taken_over
            await next_.release(takeover, takeover.order)
            back = await next_claim(silent)
            assert (back.order.job_id, back.is_taken_over) == ("lost", False)
            assert await silent.beat() == []

    @in_loop
    async def test_a_worker_that_leaves_leaves_its_jobs_to_others_at_once(self, bed: DispatcherBed) -> None:
        async with bed.dispatchers(2) as (dispatcher, other), other.seat("next", labels={"a": "b"}) as next_:
            async with dispatcher.seat("leaver") as seat:
                await bed.submitted(dispatcher, Order("fits", labels={"a": "b"}))
                await bed.submitted(dispatcher, Order("fits not"))
                assert ids([await next_claim(seat), await next_claim(seat)]) == ["fits", "fits not"]
            claim = await next_claim(next_)
            assert (claim.order.job_id, claim.is_taken_over) == ("fits", True)
            assert await next_.claim() is None

    @in_loop
    async def test_a_claim_that_is_released_twice_takes_nothing_from_the_next(self, bed: DispatcherBed) -> None:
        async with bed.dispatchers() as (dispatcher,), dispatcher.seat("w") as seat, dispatcher.seat("v") as second:
            await dispatcher.submit(Order("job"))
            first = await next_claim(seat)
            await seat.release(first, first.order)
            held = await next_claim(second)
            await seat.release(first)
            await seat.release(first, replace(first.order, priority=9))
            await seat.change(first, replace(first.order, priority=9))
            await assert_load(dispatcher, running=1)
            assert await dispatcher.order("job") == held.order
            assert await seat.beat() == []

    @in_loop
    async def test_people_see_who_works_on_what_and_how_much_there_is_to_do(self, bed: DispatcherBed) -> None:
        async with bed.dispatchers(2) as (dispatcher, other):
            before = bed.now()
            async with dispatcher.seat("b", labels={"gpu": "yes"}, concurrency=3) as seat, other.seat("a"):
                for n in range(3):
                    order = Order(f"job-{n}", labels={"gpu": "yes"}, submitted_at=before - 1000 + n)
                    await bed.submitted(dispatcher, order)
                await dispatcher.submit(Order("due", due=before - 500, submitted_at=before - 5000))
                await dispatcher.submit(Order("later", due=before + 3_600_000))
                await next_claim(seat)
                first, second = await other.workers()
                assert (first.name, first.labels, first.concurrency, first.jobs) == ("a", {}, 1, ())
                assert (second.name, second.labels, second.concurrency) == ("b", {"gpu": "yes"}, 3)
                assert second.jobs == ("job-0",)
                assert before - 1000 <= second.since <= second.seen <= bed.now() + 1000
                load = await assert_load(other, queued=3, later=1, running=1)
                assert load.oldest == before - 999
            assert await other.workers() == []


class _ReachingContract(_Base):
    """Promise 4: an unreachable engine ends no session."""

    def test_an_engine_that_cannot_be_reached_is_an_error_and_the_same_call_works_later(
        self, bed: DispatcherBed
    ) -> None:
        cut, mend = bed.cut, bed.mend
        if cut is None or mend is None:
            pytest.skip("this engine is in the process")

        async def work() -> None:
            async with bed.dispatchers() as (dispatcher,), dispatcher.seat("w") as seat:
                await dispatcher.submit(Order("job"))
                claim = await next_claim(seat)
                await cut()
                calls: list[Callable[[], Awaitable[object]]] = [
                    lambda: dispatcher.submit(Order("more")),
                    lambda: dispatcher.order("job"),
                    seat.beat,
                    seat.claim,
                    lambda: seat.release(claim),
                ]
                for call in calls:
                    with pytest.raises(DispatcherError) as error:
                        await call()
                    assert "\n" not in str(error.value)
                await seat.wait(0.05)
                await mend()
                assert await seat.beat() == []
                await seat.release(claim)
                assert await dispatcher.order("job") is None
                await dispatcher.submit(Order("more"))
                assert (await next_claim(seat)).order.job_id == "more"

        wait_for(work())


class DispatcherContract(_WaitingContract, _ChoosingContract, _HoldingContract, _ReachingContract):
    """All promises of `perstack.ports.dispatcher`. Override the fixture `bed`."""
