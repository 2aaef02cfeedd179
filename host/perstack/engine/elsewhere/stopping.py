"""Stopping what others drive of a Job: its Runs are recorded as interrupted, as far as their workers answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from perstack.core.job import Job
from perstack.core.runs.decide import interrupted
from perstack.core.runs.state import Run
from perstack.core.taking_up import is_elsewhere
from perstack.engine.dispatching import Dispatching
from perstack.engine.elsewhere.following import Following
from perstack.engine.elsewhere.holding import Holders
from perstack.engine.session import Session
from perstack.errors import Conflict, DispatcherError, StorageError, UsageError
from perstack.ports.clock import Clock
from perstack.ports.storage import RunRef, Storage

if TYPE_CHECKING:
    from perstack.engine.emit import Emitter

_PATIENCE = 20.0
"""Seconds."""
_PAUSE = 0.1


class Stopping:
    """For whoever has the lease of the Job."""

    def __init__(self, storage: Storage, job: Job, emit: Emitter, clock: Clock, dispatching: Dispatching) -> None:
        self._storage = storage
        self._job = job
        self._emit = emit
        self._clock = clock
        self._dispatching = dispatching
        self._holders = Holders(storage)

    async def stop(self, following: Following, run_ids: Iterable[str]) -> None:
        """Stop these Runs and all below them, wherever they are driven. Raises StorageError."""
        every = {one: None for run_id in run_ids for one in following.whole(run_id)}
        await asyncio.gather(*(self._stop(following, run_id) for run_id in every))

    async def _stop(self, following: Following, run_id: str) -> None:
        until = time.monotonic() + _PATIENCE
        while (run := await following.look(run_id)) is not None and is_elsewhere(run):
            with suppress(DispatcherError, UsageError):  # whoever gets the order sees that there is nothing to do
                dispatcher = self._dispatching.dispatcher
                if dispatcher is not None:
                    await dispatcher.withdraw(self._job.id, run_id)
            with suppress(Conflict, StorageError):
                await self._holders.stop(run_id)
            run = await following.look(run_id) or run
            if not is_elsewhere(run):
                return
            with suppress(Conflict):  # somebody has just begun to drive it
                if await self._holders.holder(run_id) is None:
                    following.put(await self._recorded(run))
                    return
            if time.monotonic() > until:
                return  # its worker does not answer; whoever takes it over sees that it is not wanted any more
            await asyncio.sleep(_PAUSE)

    async def _recorded(self, run: Run) -> Run:
        ref = RunRef(self._job.id, run.id)
        session = Session(self._storage, self._job, self._emit, ref, run.start.expert_key, clock=self._clock)
        session.take_up(run)
        session.note_all(interrupted(run, session.stamp))
        await session.flush()
        await session.write_checkpoint()
        return session.run


async def stop_elsewhere(
    storage: Storage,
    job: Job,
    runs: dict[str, Run],
    emit: Emitter,
    clock: Clock,
    dispatching: Dispatching,
    only: str | None = None,
    below: str | None = None,
) -> None:
    """Stop what others drive of a Job whose lease the caller has, or of one Run of it and all below that, or only what
    is below one.

    `runs` are their states, which are brought up to date.
    """
    following = Following(storage, job, runs)
    among = [*runs] if only is None else following.whole(only)
    if below is not None:
        among = following.whole(below)[1:]
    away = [run_id for run_id in among if run_id in runs and is_elsewhere(runs[run_id])]
    if away:
        await Stopping(storage, job, emit, clock, dispatching).stop(following, away)
        runs.update({one: run for run_id in away for one in following.whole(run_id) if (run := following.run(one))})
