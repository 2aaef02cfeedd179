"""Schedules: their occurrences are started, once over all processes and machines that look after them.

An occurrence is decided on by an event, appended at the version that it was decided on: of several who look at once one
starts it. The id of its Job follows from its time, so a Job whose process died in between is started again under it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import assert_never

from perstack.config.calendar import Calendar, calendar_of
from perstack.core.job import JobSummary
from perstack.core.schedules.decide import Continue, Did, Known, LookAtJob, Record, TakeUp, next_step, settled
from perstack.core.schedules.definition import Schedule
from perstack.core.schedules.state import LABEL, Occurrence, ScheduleState
from perstack.dataclass import dataclass
from perstack.engine.jobs import Jobs
from perstack.engine.logs.log import Loaded
from perstack.engine.logs.schedules import ScheduleLog
from perstack.engine.scheduled_work import ScheduledWork, job_if_any, words_of
from perstack.engine.schedules.starting import JobStarter
from perstack.engine.setup import Setup
from perstack.errors import Conflict, NotAllowed, NotFound, StorageError, UsageError


@dataclass(frozen=True, slots=True)
class ScheduleStanding:
    """A schedule as it is listed."""

    schedule: Schedule
    next: int | None = None
    """When it occurs next, in milliseconds since 1970; one that is behind now is due."""
    last: Occurrence | None = None
    """The occurrence that was started last."""
    job: JobSummary | None = None
    """Its Job; None if that is not there, yet or any more."""
    waiting: int | None = None
    """The occurrence that waits for the end of that Job."""
    skipped: int | None = None
    """The occurrence that was passed over last."""
    error: str | None = None
    """Why nothing can be said of it, or not all."""


class Schedules:
    """Those of a project. Any number of processes may look after them at once."""

    def __init__(self, setup: Callable[[], Setup], jobs: Jobs, starter: JobStarter) -> None:
        """`setup` is what is worked with now; `starter` starts their Jobs."""
        now = setup()
        self._setup = setup
        self._jobs = jobs
        self._starter = starter
        self._log = ScheduleLog(now.storage, now.audit)

    @property
    def names(self) -> tuple[str, ...]:
        """Those that the definition in force has."""
        return tuple(one.name for one in self._setup().project.schedules)

    async def once(self) -> tuple[ScheduledWork, ...]:
        """Whatever is due of them now, up to the end or stop of the Jobs that are driven here.

        What goes wrong with one is in its `error`, and ends nothing else.
        """
        async with asyncio.TaskGroup() as group:
            work = [group.create_task(self._looked_after(name)) for name in self.names]
        return tuple(done for one in work if (done := one.result()) is not None)

    async def _looked_after(self, name: str) -> ScheduledWork | None:
        try:
            return await self.attend(name)
        except (Conflict, NotAllowed, NotFound):
            return None  # another process was quicker
        except Exception as error:  # noqa: BLE001 - a storage or an Expert's code may raise anything
            return ScheduledWork(did="failed", schedule=name, error=words_of(error))

    async def attend(self, name: str) -> ScheduledWork | None:
        """What is due of one now; one Job is started at most. None if nothing was, or another process was quicker.

        Raises what keeps it from that, and Conflict if another process is at it in this moment.
        """
        schedule = self._schedule(name)
        if schedule is None:
            return None
        calendar = calendar_of(schedule)
        loaded, known = await self._log.latest(name), Known(resumes=self._starter.resumes)
        done: ScheduledWork | None = None
        while (step := next_step(_state(loaded), schedule, calendar, known, self._now())) is not None:
            match step:
                case LookAtJob():
                    known = replace(known, jobs={step.job_id: await job_if_any(self._jobs, step.job_id)})
                case Record(starts=None):
                    loaded = await self._log.add(name, loaded, step.events)
                    if step.did is not None:
                        done = ScheduledWork(did=step.did, schedule=name, occurrence=step.at)
                case Record():
                    await self._starter.check(schedule.expert)
                    started = (await self._log.add(name, loaded, step.events)).state.current
                    return None if started is None else await self._start(schedule, calendar, started)
                case TakeUp():
                    await self._starter.check(schedule.expert)
                    return await self._start(schedule, calendar, step.occurrence)
                case Continue():
                    job = await self._starter.resume(step.occurrence.job_id)
                    return await self._ended(schedule, calendar, step.occurrence, job, "resumed")
                case _:
                    assert_never(step)
        return done

    async def list(self) -> tuple[ScheduleStanding, ...]:
        """How each stands. One that does not read says so."""
        return tuple([await self._standing(one) for one in self._setup().project.schedules])

    async def _standing(self, schedule: Schedule) -> ScheduleStanding:
        try:
            calendar = calendar_of(schedule)
            loaded = await self._log.latest(schedule.name)
            now = self._now()
            if loaded is None:
                return ScheduleStanding(schedule, calendar.after(now))
            state = loaded.state
            last = state.current or state.last
            following = calendar.after(state.lines.get(schedule.line, now))
            job = None if last is None else await job_if_any(self._jobs, last.job_id)
        except (StorageError, UsageError) as error:
            return ScheduleStanding(schedule, error=words_of(error))
        return ScheduleStanding(schedule, following, last, job, state.waiting, state.skipped)

    def _schedule(self, name: str) -> Schedule | None:
        return next((one for one in self._setup().project.schedules if one.name == name), None)

    def _now(self) -> int:
        return self._setup().clock.now()

    async def _start(self, schedule: Schedule, calendar: Calendar, occurrence: Occurrence) -> ScheduledWork | None:
        labels = {LABEL: schedule.name}
        try:
            job = await self._starter.start(schedule.expert, schedule.query, job_id=occurrence.job_id, labels=labels)
        except UsageError:
            if await job_if_any(self._jobs, occurrence.job_id) is None:
                raise
            return None  # another process was quicker
        return await self._ended(schedule, calendar, occurrence, job, "started")

    async def _ended(
        self, schedule: Schedule, calendar: Calendar, occurrence: Occurrence, job: JobSummary, did: Did
    ) -> ScheduledWork:
        """Record that it has, if it has, unless another process is quicker."""
        loaded = await self._log.latest(schedule.name)
        if loaded is not None and _is_at_work(loaded, occurrence):
            step = settled(loaded.state, schedule, calendar, job, self._now())
            if step is not None:
                with suppress(Conflict):  # another does so at its next look
                    await self._log.add(schedule.name, loaded, step.events)
        return ScheduledWork(
            did=did, schedule=schedule.name, occurrence=occurrence.at, job_id=job.id, job=job, question=job.asks
        )


def _is_at_work(loaded: Loaded[ScheduleState], occurrence: Occurrence) -> bool:
    return loaded.state.current is not None and loaded.state.current.job_id == occurrence.job_id


def _state(loaded: Loaded[ScheduleState] | None) -> ScheduleState | None:
    return None if loaded is None else loaded.state
