"""A worker: takes the Jobs that a dispatcher gives it, and looks after what is due, until it is asked to leave."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import field, replace
from typing import TypeVar

from pydantic import JsonValue

from perstack.core.schedules.state import LABEL as SCHEDULE_LABEL
from perstack.core.tasks.waking import LABEL as TASK_LABEL
from perstack.dataclass import dataclass
from perstack.engine.iterate import Iterations
from perstack.engine.jobs import Jobs
from perstack.engine.scheduled_work import ScheduledWork
from perstack.engine.scheduler import Scheduler
from perstack.engine.slots import job_slots
from perstack.engine.workers.claims import Claims
from perstack.engine.workers.health import Health
from perstack.engine.workers.news import Level, News, Tell, error_text
from perstack.engine.workers.ordered import Drive, Ordered
from perstack.engine.workers.reaching import Reaching
from perstack.engine.workers.tally import Tally
from perstack.errors import DispatcherError
from perstack.ports.clock import Clock
from perstack.ports.dispatcher import BEATS_EACH, Claim, Dispatcher, Order, Seat

_T = TypeVar("_T")

_LOOKS_EACH = 1.0
"""Seconds after which a worker asks for a Job, whether it was notified of one or not."""
_LOOKS_AFTER_EACH = 10_000
"""Milliseconds between two looks for tasks, iterations and schedules that are due."""
_SWEEPS_EACH = 60.0
"""Seconds between two looks for Jobs that have no order: all that were submitted are listed for it."""
_LATER = 1_000
"""Milliseconds that a Job waits for another worker if this one has enough that wait for their delegates."""
_BEAT_PATIENCE = 5.0
_PATIENCE = 5.0
"""Seconds for an order to be given back when the worker leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What a worker is asked to be."""

    name: str
    """For people; what a dispatcher knows it by is this and something of its own."""
    concurrency: int = 8
    """Jobs at a time; those that wait for a person do not count."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """It takes only Jobs that have one of these; any Job if there are none."""
    drain: float = 30.0
    """Seconds for steps in hand to end when it leaves."""


class Worker:
    """One of any number on one dispatcher and one storage."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        jobs: Jobs,
        iterations: Iterations,
        scheduler: Scheduler,
        clock: Clock,
        settings: WorkerSettings,
        *,
        drive: Callable[[str], Drive],
        tell: Tell = lambda news: None,
    ) -> None:
        """`scheduler` queues what is due; `drive` makes what drives a Job for a worker of that name; `tell` is told
        what happens."""
        self.name = f"{settings.name}-{secrets.token_hex(2)}"
        self.tally = Tally()
        self.health = Health(jobs.storage)
        self._dispatcher = dispatcher
        self._jobs = jobs
        self._scheduler = scheduler
        self._clock = clock
        self._settings = settings
        self._tell = tell
        self._reaching = Reaching(dispatcher.location, tell)
        ordered = Ordered(jobs, iterations, drive(self.name), clock)
        self._claims = Claims(self.name, ordered, clock, self.tally, self._reaching, tell, self._seen_to)
        self._leaving = asyncio.Event()
        self._most_jobs = min(2 * settings.concurrency, job_slots().most)
        """Jobs that it has at most, those included that wait for delegates."""

    def leave(self) -> None:
        """Claim nothing any more, let the steps in hand end, and then end."""
        if not self._leaving.is_set():
            self._leaving.set()
            self.health.drains = True
            text = f"leaving: {len(self._claims)} jobs have {self._settings.drain:g} s to end the step in hand"
            self._tell(News(event="draining", text=text, facts={"jobs": len(self._claims)}))

    async def run(self) -> None:
        """Work until `leave` was called and nothing is in hand. A cancellation leaves at once, and records that."""
        async with AsyncExitStack() as stack:
            seat = await self._until_leaving(self._sat_down(stack))
            if seat is None:
                return
            facts: dict[str, JsonValue] = {
                "dispatcher": self._dispatcher.location,
                "concurrency": self._settings.concurrency,
                "labels": dict(self._settings.labels),
            }
            self._tell(News(event="ready", text=f"takes jobs from {self._dispatcher.location}", facts=facts))
            async with asyncio.TaskGroup() as group:
                beside = [group.create_task(self._beat(seat)), group.create_task(self.health.watch())]
                looking = [group.create_task(self._look_after()), group.create_task(self._sweep())]
                async with asyncio.TaskGroup() as driving:
                    seeing = set[asyncio.Task[None]]()
                    await self._take(seat, driving, seeing)
                    for one in looking:
                        one.cancel()
                    await self._drain(seeing)
                for one in beside:
                    one.cancel()
        self._tell(News(event="stopped", text="has left"))

    async def _sat_down(self, stack: AsyncExitStack) -> Seat:
        settings = self._settings

        async def sit() -> Seat:
            seat = self._dispatcher.seat(self.name, labels=settings.labels, concurrency=settings.concurrency)
            entered = await seat.__aenter__()
            stack.push_async_callback(self._stood_up, seat)
            return entered

        return await self._reaching.until_done(sit)

    async def _stood_up(self, seat: AbstractAsyncContextManager[Seat]) -> None:
        """Without it the dispatcher sees before long that this worker is silent."""
        try:
            await seat.__aexit__(None, None, None)
        except DispatcherError as error:
            self._reaching.failed(error)

    # --- taking Jobs ----------------------------------------------------------------------------------------------

    async def _take(self, seat: Seat, driving: asyncio.TaskGroup, seeing: set[asyncio.Task[None]]) -> None:
        """Claim whenever a place is free, until the worker leaves."""
        while not self._leaving.is_set():
            self._claims.freed.clear()
            if self._claims.places >= self._settings.concurrency:
                await self._until_leaving(self._claims.freed.wait())
                continue
            try:
                claim = await self._claimed(seat, driving, seeing)
            except DispatcherError as error:
                await self._until_leaving(asyncio.sleep(self._reaching.failed(error)))
                continue
            self._reaching.answered()
            if claim is None:
                await self._until_leaving(self._waited(seat))
                continue
            if claim.order.run_id is None and self._claims.jobs >= self._most_jobs:
                await self._put_back(seat, claim)
                continue
            held = self._claims.hold(claim)
            one = driving.create_task(self._claims.see_to(seat, held, self._names))
            seeing.add(one)
            one.add_done_callback(seeing.discard)

    async def _put_back(self, seat: Seat, claim: Claim) -> None:
        """What comes after the delegates of the Jobs that are here already: so many wait for theirs."""
        again = replace(claim.order, due=max(claim.order.due, self._clock.now() + _LATER))
        await self._reaching.until_done(lambda: seat.release(claim, again))
        await self._until_leaving(asyncio.sleep(_LATER / 4_000))

    async def _claimed(self, seat: Seat, driving: asyncio.TaskGroup, seeing: set[asyncio.Task[None]]) -> Claim | None:
        """The next claim. One that comes when the worker leaves already is given back: a claim is never cancelled."""
        asked = asyncio.ensure_future(seat.claim())
        leaving = asyncio.ensure_future(self._leaving.wait())
        try:
            await asyncio.wait({asked, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not asked.done() or self._leaving.is_set():
                late = driving.create_task(self._give_back(seat, asked))
                seeing.add(late)
        return None if self._leaving.is_set() else asked.result()

    async def _give_back(self, seat: Seat, asked: asyncio.Future[Claim | None]) -> None:
        with suppress(DispatcherError):
            claim = await asked
            if claim is not None:
                await seat.release(claim, claim.order)

    async def _waited(self, seat: Seat) -> None:
        """Until there may be something to claim."""
        seconds, soonest = _LOOKS_EACH, self._claims.soonest
        if soonest is not None:
            self._claims.soonest = None
            seconds = min(seconds, max(0.01, (soonest - self._clock.now()) / 1000))
        try:
            await seat.wait(seconds)
        except DispatcherError as error:
            await asyncio.sleep(self._reaching.failed(error))

    async def _names(self) -> frozenset[str]:
        return frozenset(one.name for one in await self._dispatcher.workers())

    async def _drain(self, seeing: set[asyncio.Task[None]]) -> None:
        """Give what is in hand the time to end, and then end it."""
        self._claims.leave_after_step()
        await self._emptied(self._settings.drain)
        self._claims.leave_now()
        if seeing:
            _, late = await asyncio.wait(seeing, timeout=_PATIENCE)
            for one in late:
                one.cancel()

    async def _emptied(self, seconds: float) -> None:
        """Until nothing is in hand, and at the longest so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while len(self._claims):
                    self._claims.freed.clear()
                    await self._claims.freed.wait()

    # --- beside that ----------------------------------------------------------------------------------------------

    async def _beat(self, seat: Seat) -> None:
        while True:
            began = time.monotonic()
            try:
                async with asyncio.timeout(_BEAT_PATIENCE):
                    lost = await seat.beat()
            except DispatcherError as error:
                self._reaching.failed(error)
            except TimeoutError:
                self._reaching.failed(DispatcherError(f"{self._dispatcher.location} does not answer"))
            else:
                self._reaching.answered()
                self.health.beaten()
                for claim_id in lost:
                    self._claims.lose(claim_id)
            await asyncio.sleep(max(0.0, BEATS_EACH - (time.monotonic() - began)))

    async def _look_after(self) -> None:
        """Tasks, iterations and schedules that are due. What goes wrong is told, and tried again."""
        while True:
            try:
                # Jobs that pause have orders
                await self._scheduler.watch(_LOOKS_AFTER_EACH, self._tell_of_work, with_jobs=False)
            except Exception as error:  # noqa: BLE001 - whatever it is, Jobs are driven all the same
                text = f"what is due could not be looked after: {error_text(error)}"
                self._tell(News(event="failed", level="error", text=text, facts={"error": error_text(error)}))
            await asyncio.sleep(_LOOKS_AFTER_EACH / 1000)

    async def _sweep(self) -> None:
        """Order again what was recorded and has no order: whoever recorded it may have ended before it was ordered."""
        while True:
            began = time.monotonic()
            try:
                for job_id in await self._jobs.order_again():
                    self._tell(News(event="again", job=job_id, text="had no order, and is queued again"))
            except Exception as error:  # noqa: BLE001 - it is tried again
                text = f"Jobs without an order could not be looked for: {error_text(error)}"
                self._tell(News(event="failed", level="warning", text=text, facts={"error": error_text(error)}))
            took = time.monotonic() - began
            # not all at the same moment, and never more than a small part of the time
            await asyncio.sleep(max(_SWEEPS_EACH, took * 20) * random.uniform(0.7, 1.3))  # noqa: S311

    def _seen_to(self, order: Order) -> None:
        """What a task or a schedule waits for may have ended."""
        if TASK_LABEL in order.labels or SCHEDULE_LABEL in order.labels:
            self._scheduler.look_soon()

    def _tell_of_work(self, done: ScheduledWork) -> None:
        about = {"task": done.task_id, "series": done.series_id, "schedule": done.schedule}
        facts: dict[str, JsonValue] = {key: value for key, value in about.items() if value is not None}
        what = " ".join(str(value) for pair in facts.items() for value in pair)
        wrong = "" if done.error is None else f": {error_text(done.error)}"
        if done.error is not None:
            facts["error"] = error_text(done.error)
        level: Level = "info" if done.error is None else "error"
        text = f"{what} {done.did}{wrong}".strip()
        self._tell(
            News(event="looked-after", level=level, job=done.job_id, text=text, facts={**facts, "did": done.did})
        )

    async def _until_leaving(self, work: Awaitable[_T]) -> _T | None:
        """What the work returns; None if the worker leaves before, and the work is ended."""
        leaving = asyncio.ensure_future(self._leaving.wait())
        doing = asyncio.ensure_future(work)
        try:
            await asyncio.wait({leaving, doing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not doing.done():
                doing.cancel()
                await asyncio.wait({doing})
        return None if doing.cancelled() else doing.result()
