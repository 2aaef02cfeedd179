"""A worker: claim orders from a dispatcher, drive their Jobs, and run the scheduler, until asked to leave.

Each claim gets a task in `claimed_jobs.ClaimHandler`, which drives the Job, decides what happens to the order and
releases it. `driving_orders.OrderedWork` knows what an order refers to. Rules that prevent lost or doubled work:

- A claim is never dropped: `seat.claim()` is not cancelled, and a claim that arrives too late is released in a task
  that `run` waits for. Otherwise its order would stay with this worker until the dispatcher misses its heartbeats.
- The dispatcher only decides who may drive a Job. The lease in the storage decides who does, so two workers never write
  to the same Job, even if one has not noticed that it lost its claim.
- A Job that ended several workers in a row is stopped as poison (`ClaimHandler._outcome`, `driving_orders.is_poison`).

To leave: stop claiming, stop each Job after its current step, cancel what is left after `drain` seconds, release all
orders, and leave the seat.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import field, replace
from typing import Protocol, TypeVar

from pydantic import JsonValue

from perstack.core.jobs.due import SCHEDULE_LABEL
from perstack.dataclass import dataclass
from perstack.engine.context.job_limit import job_slots
from perstack.engine.jobs.jobs import Jobs
from perstack.errors import DispatcherError
from perstack.iterations.iterations import Iterations
from perstack.ports.dispatcher import BEATS_EACH, Claim, Dispatcher, Order, Seat
from perstack.ports.storage import Storage
from perstack.state_guard.guarded_state import require_own_state
from perstack.system.clock import Clock
from perstack.system.concurrency import shield_until_done
from perstack.tasks.due_tasks import LABEL as TASK_LABEL
from perstack.workers.claimed_jobs import ClaimHandler, DispatcherConnection
from perstack.workers.driving_orders import Drive, OrderedWork
from perstack.workers.reports import Level, Report, WorkerCounters, WorkerReport, error_text

MAX_SILENCE_S = 10.0  # seconds without an answer after which the dispatcher or storage counts as unavailable

_HEALTH_CHECK_INTERVAL_S = 2.0
_ANSWER_TIMEOUT_S = 5.0
_PROBE_JOB_ID = "health"  # id of a Job that need not exist


class Health:
    """The times of the last answers of dispatcher and storage."""

    def __init__(self, storage: Storage) -> None:
        """Start as healthy; `watch` asks the storage."""
        self._storage = storage
        self._last_answers = dict.fromkeys(("dispatcher", "storage"), time.monotonic())
        self.is_leaving = False

    def record_heartbeat(self) -> None:
        self._last_answers["dispatcher"] = time.monotonic()

    @property
    def problem(self) -> str | None:
        """Reason why the worker cannot work now; None if it can."""
        if self.is_leaving:
            return "the worker is leaving"
        now = time.monotonic()
        silence_by_name = {
            name: now - answered_at
            for name, answered_at in self._last_answers.items()
            if now - answered_at > MAX_SILENCE_S
        }
        return (
            "; ".join(f"the {name} has not answered for {seconds:.0f} s" for name, seconds in silence_by_name.items())
            or None
        )

    async def watch(self) -> None:
        """Ask the storage periodically, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                    await self._storage.has_job(_PROBE_JOB_ID)
            except Exception:  # noqa: BLE001, S110 - a storage may raise anything; only its silence counts
                pass
            else:
                self._last_answers["storage"] = time.monotonic()
            await asyncio.sleep(_HEALTH_CHECK_INTERVAL_S)


CLAIM_POLL_INTERVAL_S = 1.0  # seconds after which a worker claims again if no notification has arrived
DUE_SCAN_INTERVAL_MS = 10_000  # milliseconds between two passes of the scheduler
SWEEP_INTERVAL_S = 60.0  # seconds between two sweeps for Jobs without an order; each lists all submitted Jobs
_RELEASE_DELAY_MS = 1_000  # milliseconds in which only other workers may claim a Job that this one has no room for
_RELEASE_PAUSE_S = 0.25  # seconds until this worker claims again, so that it does not claim and release in a loop
_HEARTBEAT_TIMEOUT_S = 5.0

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The settings of a worker."""

    name: str  # name for display; the dispatcher knows the worker by this name with a random suffix
    concurrency: int = 8  # Jobs driven at a time; Jobs that wait for a person do not count
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """Claim only Jobs with one of these labels; any Job if empty."""
    drain: float = 30.0  # seconds for current steps to end when the worker leaves


class DueResult(Protocol):
    """Outcome of due work, for the report of a worker: what was done, and to which task, series or schedule."""

    @property
    def did(self) -> str:
        """The action, such as `started`."""
        ...

    @property
    def job_id(self) -> str | None:
        """The Job that was started, resumed or left."""
        ...

    @property
    def task_id(self) -> str | None:
        """The task; None for a schedule or a series."""
        ...

    @property
    def series_id(self) -> str | None:
        """The series of iterations."""
        ...

    @property
    def schedule(self) -> str | None:
        """The schedule."""
        ...

    @property
    def error(self) -> str | None:
        """The error if the action failed."""
        ...


class DueWork(Protocol):
    """Scheduler of tasks and schedules; `perstack.schedules.scheduler` implements it."""

    async def watch(self, interval: int, on_woken: Callable[[DueResult], None], *, with_jobs: bool = True) -> None:
        """Do what is due every `interval` milliseconds until cancelled, and call `on_woken` with each result."""
        ...

    def wake(self) -> None:
        """Make the next pass of `watch` start early."""
        ...


class Worker:
    """Worker process: claims orders of a dispatcher, and drives their Jobs. Any number may share a storage."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        jobs: Jobs,
        iterations: Iterations,
        scheduler: DueWork,
        clock: Clock,
        settings: WorkerSettings,
        *,
        drive: Callable[[str], Drive],
        report: Report = lambda report: None,
    ) -> None:
        """Create a worker. `scheduler` must queue what is due; `drive` returns a driver of Jobs for a worker's name."""
        self.name = f"{settings.name}-{secrets.token_hex(2)}"
        self.counters = WorkerCounters()
        self.health = Health(jobs.storage)
        self._dispatcher = dispatcher
        self._jobs = jobs
        self._scheduler = scheduler
        self._clock = clock
        self._settings = settings
        self._report = report
        self._connection = DispatcherConnection(dispatcher.location, report)
        work = OrderedWork(jobs, iterations, drive(self.name), clock)
        self._claims = ClaimHandler(self.name, work, clock, self.counters, self._connection, report, self._on_released)
        self._leaving = asyncio.Event()
        self._releases = set[asyncio.Task[None]]()
        """Releases under way. A cancelled `run` waits for them, because nobody else knows of these claims."""
        self._max_jobs = min(2 * settings.concurrency, job_slots().limit)
        """Maximum number of Jobs held, including Jobs that wait for delegates."""

    def leave(self) -> None:
        """Stop claiming, let the current steps end, and then make `run` return."""
        if not self._leaving.is_set():
            self._leaving.set()
            self.health.is_leaving = True
            text = f"leaving: {len(self._claims)} jobs have {self._settings.drain:g} s to end their current steps"
            self._report(WorkerReport(event="draining", text=text, facts={"jobs": len(self._claims)}))

    async def run(self) -> None:
        """Work until `leave` was called and no claim is held. A cancellation leaves at once, and is recorded.

        Raises NotAgreed before anything is claimed.
        """
        await require_own_state(self._jobs.storage)
        async with AsyncExitStack() as stack:
            seat = await self._unless_leaving(self._connect(stack))
            if seat is None:
                return
            stack.push_async_callback(self._wait_for_releases)
            facts: dict[str, JsonValue] = {
                "dispatcher": self._dispatcher.location,
                "concurrency": self._settings.concurrency,
                "labels": dict(self._settings.labels),
            }
            self._report(WorkerReport(event="ready", text=f"takes jobs from {self._dispatcher.location}", facts=facts))
            async with asyncio.TaskGroup() as group:
                background = [group.create_task(self._send_heartbeats(seat)), group.create_task(self.health.watch())]
                scans = [group.create_task(self._schedule()), group.create_task(self._sweep())]
                async with asyncio.TaskGroup() as driving:
                    running = set[asyncio.Task[None]]()
                    await self._claim_orders(seat, driving, running)
                    for task in scans:
                        task.cancel()
                    await self._drain(running)
                for task in background:
                    task.cancel()
        self._report(WorkerReport(event="stopped", text="has left"))

    async def _connect(self, stack: AsyncExitStack) -> Seat:
        settings = self._settings

        async def take_seat() -> Seat:
            seat = self._dispatcher.seat(self.name, labels=settings.labels, concurrency=settings.concurrency)
            # Not entered by the stack: an error on leaving is only reported, since all orders are released by then.
            entered_seat = await seat.__aenter__()
            stack.push_async_callback(self._disconnect, seat)
            return entered_seat

        return await self._connection.call(take_seat)

    async def _disconnect(self, seat: AbstractAsyncContextManager[Seat]) -> None:
        try:
            await seat.__aexit__(None, None, None)
        except DispatcherError as error:
            self._connection.record_failure(error)

    # --- taking Jobs ----------------------------------------------------------------------------------------------

    async def _claim_orders(self, seat: Seat, driving: asyncio.TaskGroup, running: set[asyncio.Task[None]]) -> None:
        while not self._leaving.is_set():
            self._claims.freed.clear()
            if self._claims.active_count >= self._settings.concurrency:
                await self._unless_leaving(self._claims.freed.wait())
                continue
            try:
                claim = await self._next_claim(seat)
            except DispatcherError as error:
                await self._unless_leaving(asyncio.sleep(self._connection.record_failure(error)))
                continue
            self._connection.record_answer()
            if claim is None:
                await self._unless_leaving(self._wait_for_order(seat))
                continue
            if claim.order.run_id is None and self._claims.job_count >= self._max_jobs:
                await self._release_later(seat, claim)
                continue
            held = self._claims.hold(claim)
            task = driving.create_task(self._claims.process(seat, held, self._worker_names))
            running.add(task)
            task.add_done_callback(running.discard)

    async def _release_later(self, seat: Seat, claim: Claim) -> None:
        """Release the claim with a delay: this worker holds its maximum of Jobs, including Jobs that only wait."""
        delayed_order = replace(claim.order, due=max(claim.order.due, self._clock.now() + _RELEASE_DELAY_MS))
        release = asyncio.create_task(self._connection.call(lambda: seat.release(claim, delayed_order)))
        self._releases.add(release)
        release.add_done_callback(self._releases.discard)
        await asyncio.shield(release)
        await self._unless_leaving(asyncio.sleep(_RELEASE_PAUSE_S))

    async def _next_claim(self, seat: Seat) -> Claim | None:
        """Claim an order; None without one. If the worker leaves, a claim that arrives later is released."""
        claiming = asyncio.ensure_future(seat.claim())
        leaving = asyncio.ensure_future(self._leaving.wait())
        is_taken = False
        try:
            await asyncio.wait({claiming, leaving}, return_when=asyncio.FIRST_COMPLETED)
            is_taken = not self._leaving.is_set()
        finally:
            leaving.cancel()
            if not is_taken:
                self._releases.add(asyncio.create_task(self._release_late_claim(seat, claiming)))
        return claiming.result() if is_taken else None

    async def _wait_for_releases(self) -> None:
        if not self._releases:
            return
        done, late = await shield_until_done(asyncio.wait(self._releases, timeout=_ANSWER_TIMEOUT_S))
        for task in late:
            task.cancel()
        for task in done:
            task.result()

    async def _release_late_claim(self, seat: Seat, claiming: asyncio.Future[Claim | None]) -> None:
        with suppress(DispatcherError):
            claim = await claiming
            if claim is not None:
                await seat.release(claim, claim.order)

    async def _wait_for_order(self, seat: Seat) -> None:
        """Wait for a notification, the poll interval, or the time at which the next released order is due."""
        seconds, next_due = CLAIM_POLL_INTERVAL_S, self._claims.earliest_due
        if next_due is not None:
            self._claims.earliest_due = None
            seconds = min(seconds, max(0.01, (next_due - self._clock.now()) / 1000))
        try:
            await seat.wait(seconds)
        except DispatcherError as error:
            await asyncio.sleep(self._connection.record_failure(error))

    async def _worker_names(self) -> frozenset[str]:
        return frozenset(worker.name for worker in await self._dispatcher.workers())

    async def _drain(self, running: set[asyncio.Task[None]]) -> None:
        """Let the current steps end; stop what is left after `drain` seconds, and cancel what does not stop."""
        self._claims.leave_after_step()
        await self._wait_until_empty(self._settings.drain)
        self._claims.leave_now()
        if running:
            _, late = await asyncio.wait(running, timeout=_ANSWER_TIMEOUT_S)
            for task in late:
                task.cancel()

    async def _wait_until_empty(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while len(self._claims):
                    self._claims.freed.clear()
                    await self._claims.freed.wait()

    # --- background tasks -----------------------------------------------------------------------------------------

    async def _send_heartbeats(self, seat: Seat) -> None:
        while True:
            began = time.monotonic()
            try:
                async with asyncio.timeout(_HEARTBEAT_TIMEOUT_S):
                    lost = await seat.beat()
            except DispatcherError as error:
                self._connection.record_failure(error)
            except TimeoutError:
                self._connection.record_failure(DispatcherError(f"{self._dispatcher.location} does not answer"))
            else:
                self._connection.record_answer()
                self.health.record_heartbeat()
                for claim_id in lost:
                    self._claims.lose(claim_id)
            await asyncio.sleep(max(0.0, BEATS_EACH - (time.monotonic() - began)))

    async def _schedule(self) -> None:
        while True:
            try:
                # without Jobs, because a Job that a rate limit has paused has an order, which is due when it ends
                await self._scheduler.watch(DUE_SCAN_INTERVAL_MS, self._report_due_work, with_jobs=False)
            except Exception as error:  # noqa: BLE001 - no error of the scheduler may stop the driving of Jobs
                text = f"the scheduler failed, and is started again: {error_text(error)}"
                self._report(WorkerReport(event="failed", level="error", text=text, facts={"error": error_text(error)}))
            await asyncio.sleep(DUE_SCAN_INTERVAL_MS / 1000)

    async def _sweep(self) -> None:
        """Queue recorded Jobs that have no order: the process that recorded them may have died before queueing them."""
        while True:
            began = time.monotonic()
            try:
                for job_id in await self._jobs.queue.requeue_lost():
                    self._report(WorkerReport(event="again", job=job_id, text="had no order, and is queued again"))
            except Exception as error:  # noqa: BLE001 - the next sweep tries again
                facts = {"error": error_text(error)}
                text = f"Jobs without an order could not be searched for: {error_text(error)}"
                self._report(WorkerReport(event="failed", level="warning", text=text, facts=facts))
            duration_s = time.monotonic() - began
            # workers must not sweep simultaneously, nor spend more than 5 % of their time on it
            await asyncio.sleep(max(SWEEP_INTERVAL_S, duration_s * 20) * random.uniform(0.7, 1.3))  # noqa: S311

    def _on_released(self, order: Order) -> None:
        if TASK_LABEL in order.labels or SCHEDULE_LABEL in order.labels:
            self._scheduler.wake()

    def _report_due_work(self, result: DueResult) -> None:
        ids = {"task": result.task_id, "series": result.series_id, "schedule": result.schedule}
        facts: dict[str, JsonValue] = {key: value for key, value in ids.items() if value is not None}
        subject = " ".join(f"{kind} {subject_id}" for kind, subject_id in facts.items())
        level: Level = "info" if result.error is None else "error"
        suffix = ""
        if result.error is not None:
            facts["error"] = error_text(result.error)
            suffix = f": {facts['error']}"
        text = f"{subject} {result.did}{suffix}".strip()
        self._report(
            WorkerReport(
                event="looked-after", level=level, job=result.job_id, text=text, facts={**facts, "did": result.did}
            )
        )

    async def _unless_leaving(self, work: Awaitable[_T]) -> _T | None:
        """Return the result of the work; None if the worker leaves first, and the work is cancelled."""
        leaving = asyncio.ensure_future(self._leaving.wait())
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({leaving, task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        return None if task.cancelled() else task.result()
