"""What orders ask a worker for: Jobs; and iterations, whose Jobs are driven one after the other in one place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from perstack.core.ids import check_job_id
from perstack.core.iterations.state import SeriesState
from perstack.core.job import JobSummary
from perstack.core.runs.state import RunStatus
from perstack.core.serving import Served, ends_its_workers
from perstack.core.undriven import is_over
from perstack.engine.emit import OnEvent
from perstack.engine.iterate import Iterations
from perstack.engine.jobs import Jobs
from perstack.engine.storage_name import name_of
from perstack.engine.workers.poison import is_poison, stop_for_good, stop_run_for_good, work_of
from perstack.errors import NotFound
from perstack.ports.clock import Clock
from perstack.ports.dispatcher import Order

_FACT = 1_000_000
"""How much work a fact of iterations counts for: more than any of their Jobs does."""
_WHY = "all workers that took them over, one after the other, ended or fell silent at this place: see why, then resume"


class Drive(Protocol):
    """Drives a Job to its end or stop, or a delegate's Run of it."""

    def __call__(
        self, job_id: str, *, run_id: str | None, on_event: OnEvent, on_waiting: Callable[[bool], None]
    ) -> Awaitable[JobSummary]: ...


class Ordered:
    """What one worker drives."""

    def __init__(self, jobs: Jobs, iterations: Iterations, drive: Drive, clock: Clock) -> None:
        """`drive` drives Jobs; iterations are resumed."""
        self._jobs = jobs
        self._iterations = iterations
        self._drive = drive
        self._clock = clock

    @property
    def location(self) -> str:
        """Where it is kept, for people."""
        return self._jobs.storage.location

    async def look(self, order: Order) -> Served:
        """How it stands; of a delegate that is driven apart how its Job does. Raises NotFound and Damaged."""
        try:
            job = await self._jobs.job(check_job_id(order.job_id))
        except NotFound:
            if order.run_id is not None:
                raise
            return await self._iterations.get(order.job_id)
        if job.damaged:
            await self._jobs.load(order.job_id)  # raises what is wrong with it
        return job

    async def is_of_here(self, order: Order) -> bool | None:
        """Whether what is asked for is, or was, in this storage; None: nobody knows, as of an older version's order.

        Then a delegate counts as of here: who awaits it orders it again. Raises StorageError.
        """
        if order.storage is None:
            return None if order.run_id is None else True
        return order.storage == await name_of(self._jobs.storage)

    async def run_status(self, order: Order) -> RunStatus | None:
        """How the Run of a delegate stands, by its log; None if nothing continues it. Raises NotFound and Damaged."""
        run = await self._jobs.run_state(order.job_id, order.run_id or "")
        return None if run is None or run.closed is not None else run.status

    async def drive(
        self, served: Served, order: Order, on_event: OnEvent, on_waiting: Callable[[bool], None]
    ) -> Served:
        """Drive it as far as it goes: a cancellation is recorded.

        `on_waiting` is told when nothing is done but waiting for delegates that others drive, and when that is over.
        """
        if isinstance(served, JobSummary):
            return await self._drive(served.id, run_id=order.run_id, on_event=on_event, on_waiting=on_waiting)
        if served.pause_reason == "rate_limit" and not is_over(served, self._clock.now()):
            return served
        return await self._iterations.resume(served.id, on_event=on_event)

    def stop_after_step(self, order: Order) -> bool:
        """Have it stop as interrupted when the step in hand has ended; False if no step is in hand: cancel it."""
        return self._jobs.stop_after_step(order.key) or self._iterations.stop_after_step(order.key)

    async def work_of(self, order: Order) -> int:
        """How much of it is done: more than before, if anything was."""
        served = await self.look(order)
        if isinstance(served, JobSummary):
            return await work_of(self._jobs, served.id, order.run_id)
        facts = sum(1 + (one.artefact is not None) + (one.score is not None) for one in served.iterations)
        facts += served.invalid_answers
        try:
            in_hand = 0 if served.in_hand is None else await work_of(self._jobs, served.in_hand.job_id)
        except NotFound:
            in_hand = 0
        return facts * _FACT + in_hand

    async def is_poison(self, served: Served, order: Order, live: Callable[[], Awaitable[frozenset[str]]]) -> bool:
        """Whether it ends whoever drives it. `live` are the workers that there are, asked for if it may be."""
        if isinstance(served, SeriesState):  # nothing says who drove it
            return ends_its_workers(order.takeovers, (), ())
        return await is_poison(self._jobs, order, live)

    async def stop_for_good(self, served: Served, order: Order) -> Served:
        """Record that it failed, because it ends every worker. Raises Conflict while it is driven."""
        if isinstance(served, SeriesState):
            return await self._iterations.fail(served.id, _WHY)
        if order.run_id is not None:
            return await stop_run_for_good(self._jobs, served.id, order.run_id, self._clock)
        return await stop_for_good(self._jobs, served.id, self._clock)
