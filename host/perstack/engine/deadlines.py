"""The time of work that a budget allows: for the Run that it holds for, and for all below it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from perstack.core.job import Job
from perstack.core.policy.budget import Exceeded
from perstack.core.runs.state import Run
from perstack.engine.session import Session
from perstack.engine.spending import Spending


class Deadlines:
    """Those of one Job while it is driven."""

    def __init__(self, job: Job, spending: Spending) -> None:
        self._job = job
        self._ledger = spending.ledger
        self._set: dict[str, tuple[asyncio.Timeout, str | None]] = {}
        """By the Run: its deadline, and the Expert whose budget it is of; None for the Job's."""

    async def keep(self, session: Session, expert: str | None, drive: Callable[[Session], Awaitable[None]]) -> None:
        """Drive a Run for as long as the Job's time, or that of an Expert, allows; then it is cancelled."""
        left = self._ledger.time_left(expert)
        if left is None:
            await drive(session)
            return
        deadline = asyncio.timeout(left / 1000)
        self._set[session.run.id] = deadline, expert
        try:
            async with deadline:
                await drive(session)
        except TimeoutError:
            if not deadline.expired():
                raise
        finally:
            del self._set[session.run.id]

    def over(self, run: Run) -> Exceeded | None:
        """Whose time is over, if a Run is cancelled because of that."""
        run_id: str | None = run.id
        while run_id is not None:
            deadline, expert = self._set.get(run_id, (None, None))
            if deadline is not None and deadline.expired():
                return self._ledger.out_of_time(expert)
            by = self._job.runs[run_id].start.delegated_by
            run_id = None if by is None else by.run_id
        return None
