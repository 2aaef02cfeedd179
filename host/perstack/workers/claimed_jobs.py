"""Claims of a worker: drive each claimed Job in a separate task, and then release its order."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from perstack.core.definitions.job_status import RunStatus
from perstack.dataclass import dataclass
from perstack.engine.log.event_log import UnknownEvent
from perstack.errors import Conflict, Damaged, DispatcherError, NotFound, StorageError
from perstack.ports.dispatcher import Claim, Order, Seat
from perstack.system.clock import Clock
from perstack.workers.driving_orders import OrderedWork
from perstack.workers.orders import (
    Done,
    DriveOutcome,
    OrderTarget,
    Requeue,
    after_delegate,
    after_drive,
    consecutive_takeovers,
    is_suspect,
    needs_no_worker,
)
from perstack.workers.reports import (
    Outcome,
    Report,
    WorkerCounters,
    WorkerReport,
    error_text,
    report_of_claim,
    report_of_outcome,
)

# Retries for a dispatcher that cannot be reached.

_MIN_RETRY_S = 0.2
_MAX_RETRY_S = 5.0

_T = TypeVar("_T")


class DispatcherConnection:
    """The connection to the dispatcher. Retries without end; each change of state is reported once."""

    def __init__(self, location: str, report: Report) -> None:
        self._location = location
        self._report = report
        self._pause = 0.0  # seconds of the last pause; 0 while it answers

    async def call(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Repeat a call until the dispatcher answers, and return its result."""
        while True:
            try:
                result = await work()
            except DispatcherError as error:
                await asyncio.sleep(self.record_failure(error))
            else:
                self.record_answer()
                return result

    def record_failure(self, error: DispatcherError) -> float:
        """Record an error; return the seconds to wait before the next call."""
        if not self._pause:
            text = f"the dispatcher does not answer, and is asked again: {error_text(error)}"
            facts = {"dispatcher": self._location, "error": error_text(error)}
            self._report(WorkerReport(event="unreachable", level="warning", text=text, facts=facts))
        self._pause = min(max(self._pause * 2, _MIN_RETRY_S), _MAX_RETRY_S)
        return self._pause * random.uniform(0.7, 1.0)  # noqa: S311 - so that workers do not all retry at once

    def record_answer(self) -> None:
        if self._pause:
            self._pause = 0.0
            self._report(
                WorkerReport(
                    event="reachable", text="the dispatcher answers again", facts={"dispatcher": self._location}
                )
            )


_MAX_COUNTED_JOBS = 1_000  # maximum number of Jobs for which failed attempts to begin are counted


ListWorkers = Callable[[], Awaitable[frozenset[str]]]  # a function that returns the names of the existing workers


@dataclass(slots=True)
class HeldClaim:
    """A claim, and the task that drives its Job."""

    claim: Claim
    task: asyncio.Future[OrderTarget] | None = None  # the task; None before the Job is driven
    is_lost: bool = False  # True if another worker has the order
    is_leaving: bool = False  # True if it must stop because this worker leaves
    is_waiting: bool = False  # True if it only waits for remote delegates, and so does not count toward the concurrency


class ClaimHandler:
    """The claims of one worker. An error of one does not affect the others."""

    def __init__(
        self,
        name: str,
        work: OrderedWork,
        clock: Clock,
        counters: WorkerCounters,
        connection: DispatcherConnection,
        report: Report,
        on_released: Callable[[Order], None] = lambda order: None,
    ) -> None:
        """Create without claims; `on_released` is called with each order that is released."""
        self._name = name
        self._work = work
        self._on_released = on_released
        self._clock = clock
        self._counters = counters
        self._connection = connection
        self._report = report
        self._attempts: dict[str, int] = {}
        self._held_claims: dict[str, HeldClaim] = {}
        self._suspect_check = asyncio.Lock()
        """Serializes checks for suspects: of two checks at once, neither would see the other's Job begin."""
        self.freed = asyncio.Event()  # set when a claim was released, or started or stopped waiting for delegates
        self.earliest_due: int | None = None
        """Due time of the first order that was put back, in milliseconds since 1970; None without one."""

    def __len__(self) -> int:
        return len(self._held_claims)

    @property
    def active_count(self) -> int:
        """Number of claims that count toward the concurrency: those that do more than wait for delegates."""
        return sum(not held.is_waiting for held in self._held_claims.values())

    @property
    def job_count(self) -> int:
        """Number of claims for whole Jobs, including Jobs that wait for delegates."""
        return sum(held.claim.order.run_id is None for held in self._held_claims.values())

    # --- stopping Jobs --------------------------------------------------------------------------------------------

    def lose(self, claim_id: str) -> None:
        """Cancel a Job whose order another worker has."""
        held = self._held_claims.get(claim_id)
        if held is not None:
            held.is_lost = True
            if held.task is not None:
                held.task.cancel()

    def leave_after_step(self) -> None:
        """Stop each Job after its current step."""
        for held in self._held_claims.values():
            held.is_leaving = True
            if held.task is not None and not self._work.stop_after_step(held.claim.order):
                held.task.cancel()

    def leave_now(self) -> None:
        """Cancel each Job, which is recorded as an interrupt."""
        for held in self._held_claims.values():
            held.is_leaving = True
            if held.task is not None:
                held.task.cancel()

    # --- one claim ------------------------------------------------------------------------------------------------

    def hold(self, claim: Claim) -> HeldClaim:
        """Add a claim, which `process` then drives."""
        held = self._held_claims[claim.id] = HeldClaim(claim)
        return held

    async def process(self, seat: Seat, claim: HeldClaim, list_workers: ListWorkers) -> None:
        """Drive what the order refers to, and release the order. `list_workers` names the existing workers."""
        try:
            outcome = await self._drive_or_skip(seat, claim, list_workers)
            decision = await self._decide_order(claim, outcome)
            order = claim.claim.order
            requeued = (
                None if isinstance(decision, Done) else await self._order_to_requeue(order, decision, list_workers)
            )
            if not claim.is_lost:
                await self._connection.call(lambda: seat.release(claim.claim, requeued))
            self._report(report_of_outcome(claim.claim.order, outcome, decision))
            self._on_released(claim.claim.order)
        except Exception as error:  # noqa: BLE001 - an error of one Job must not end the others
            text = f"this worker keeps its order until the worker ends: {error_text(error)}"
            self._report(WorkerReport(event="failed", level="error", job=claim.claim.order.job_id, text=text))
        finally:
            del self._held_claims[claim.claim.id]
            self.freed.set()

    async def _drive_or_skip(self, seat: Seat, claim: HeldClaim, list_workers: ListWorkers) -> Outcome:
        """Drive the Job, if there is something to drive. Raises CancelledError only if this task is cancelled."""
        order = claim.claim.order
        try:
            target = await self._work.load(order)
            if order.run_id is None and needs_no_worker(target):
                return Outcome("stopped", target)
            if claim.claim.is_taken_over:
                await self._count_takeover(seat, claim)
            if await self._work.is_poison(target, claim.claim.order, lambda: self._connection.call(list_workers)):
                return Outcome("stopped", await self._work.stop_for_good(target, order), is_poison=True)
            if await self._is_with_suspect(claim):
                return Outcome("busy", target)
        except Exception as error:  # noqa: BLE001 - a storage may raise anything
            return await self._outcome_of_error(order, error)
        if claim.is_leaving or claim.is_lost:
            return Outcome("lost" if claim.is_lost else "left", target)
        return await self._drive(claim, target)

    async def _drive(self, claim: HeldClaim, target: OrderTarget) -> Outcome:
        def set_waiting(is_waiting: bool) -> None:
            claim.is_waiting = is_waiting
            self.freed.set()

        drive = self._work.drive(target, claim.claim.order, self._counters.of(target), set_waiting)
        claim.task = asyncio.ensure_future(drive)
        self._report(report_of_claim(claim.claim, target))
        began_at = time.monotonic()
        self._counters.running += 1
        try:
            await asyncio.wait({claim.task})
        except asyncio.CancelledError:
            claim.task.cancel()
            await asyncio.wait({claim.task})
            if not claim.task.cancelled():
                claim.task.exception()  # retrieve the error; the next driver finds what was not recorded
            raise
        finally:
            self._counters.running -= 1
        return replace(await self._outcome_of_task(claim, claim.task), seconds=time.monotonic() - began_at)

    async def _outcome_of_task(self, claim: HeldClaim, task: asyncio.Future[OrderTarget]) -> Outcome:
        order = claim.claim.order
        if claim.is_lost:
            if not task.cancelled():
                task.exception()  # retrieve the error; the other worker reports it
            return Outcome("lost")
        if task.cancelled():
            return await self._outcome_with_state("left" if claim.is_leaving else "cancelled", order, None)
        error = task.exception()
        if error is not None:
            return await self._outcome_of_error(order, error)
        return Outcome("left" if claim.is_leaving else "stopped", task.result())

    async def _outcome_of_error(self, order: Order, error: BaseException) -> Outcome:
        match error:
            case NotFound():
                return await self._outcome_of_missing(order)
            case UnknownEvent():
                return Outcome("newer", error=error)
            case Damaged():
                return Outcome("damaged", error=error)
            case Conflict():
                return await self._outcome_with_state("busy", order, error)
            case StorageError():
                return Outcome("unreachable", error=error)
            case _:
                return await self._outcome_with_state("unable", order, error)

    async def _outcome_of_missing(self, order: Order) -> Outcome:
        """Return the outcome for a missing Job: its deletion withdraws a waiting order, but not a claimed one."""
        message = f"{self._work.location} has no such Job"
        try:
            is_ours = await self._work.is_for_this_storage(order)
        except Exception as error:  # noqa: BLE001 - a storage may raise anything
            return Outcome("unreachable", error=error)
        if is_ours:
            return Outcome("deleted", error=NotFound(f"{message} any more"))
        hint = "was it deleted, or is that another storage?" if is_ours is None else "that is another storage's"
        return Outcome("missing", error=NotFound(f"{message}; {hint}"))

    async def _outcome_with_state(self, outcome: DriveOutcome, order: Order, error: BaseException | None) -> Outcome:
        try:
            return Outcome(outcome, await self._work.load(order), error)
        except (NotFound, Damaged) as load_error:
            return await self._outcome_of_error(order, load_error)
        except Exception as load_error:  # noqa: BLE001 - a storage may raise anything
            return Outcome("unreachable", None, error or load_error)

    async def _count_takeover(self, seat: Seat, claim: HeldClaim) -> None:
        self._counters.takeovers += 1
        order = claim.claim.order
        work = await self._work.count_work(order)
        changed_order = replace(
            order, takeovers=consecutive_takeovers(order.takeovers, order.events, work), events=work
        )
        claim.claim = await self._connection.call(lambda: seat.change(claim.claim, changed_order))

    async def _is_with_suspect(self, claim: HeldClaim) -> bool:
        """Return whether another suspect is driven here: one at a time, to see which one ends the worker.

        A Job that has made progress, or only waits for delegates, is no suspect.
        """
        if not is_suspect(claim.claim.order.takeovers):
            return False
        async with self._suspect_check:
            for other in tuple(self._held_claims.values()):
                order = other.claim.order
                if other is claim or other.task is None or other.is_waiting or not is_suspect(order.takeovers):
                    continue
                if await self._work.count_work(order) == order.events:
                    return True
            return False

    # --- the next state of the order ------------------------------------------------------------------------------

    async def _decide_order(self, claim: HeldClaim, outcome: Outcome) -> Done | Requeue:
        order, has_begun = claim.claim.order, outcome.kind not in ("busy", "unreachable")
        attempts = self._attempts.pop(order.key, 0)
        if not has_begun and len(self._attempts) < _MAX_COUNTED_JOBS:
            self._attempts[order.key] = attempts + 1
        reason, now = "" if outcome.error is None else error_text(outcome.error), self._clock.now()
        if order.run_id is None:
            decision = after_drive(outcome.kind, outcome.target, now, failed_tries=attempts, reason=reason)
        else:
            outcome_kind, status = await self._run_status(order, outcome.kind)
            decision = after_delegate(outcome_kind, status, now, failed_tries=attempts, reason=reason)
        if isinstance(decision, Requeue) and not has_begun:
            self.earliest_due = decision.due if self.earliest_due is None else min(self.earliest_due, decision.due)
        return decision

    async def _run_status(self, order: Order, outcome: DriveOutcome) -> tuple[DriveOutcome, RunStatus | None]:
        """Return the status of a delegate's Run from its log; "unreachable" if the log cannot be read now."""
        try:
            return outcome, await self._work.run_status(order)
        except (NotFound, Damaged):
            return outcome, None
        except Exception:  # noqa: BLE001 - a storage may raise anything
            return "unreachable", None

    async def _order_to_requeue(self, order: Order, requeue: Requeue, list_workers: ListWorkers) -> Order:
        """Return the order to put back in the queue, without refusals of workers that have ended."""
        if requeue.refused is None:
            return replace(order, due=requeue.due)
        live_names = await self._connection.call(list_workers)
        refusals = {name: reason for name, reason in order.refused.items() if name in live_names}
        return replace(order, due=requeue.due, refused={**refusals, self._name: requeue.refused})
