"""What is to be done about a schedule: start, skip, queue, take up again, or nothing.

next_step(state, schedule, times, known, now) -> what has to be looked at first, what is to be done, or None

Of occurrences that nobody was there for the latest is made up, once. The clock may jump: what lies behind what was
decided last is never decided again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal, Protocol

from perstack.core.job import JobSummary
from perstack.core.schedules.definition import Schedule
from perstack.core.schedules.events import (
    BeginOccurrence,
    FinishOccurrence,
    Outcome,
    QueueOccurrence,
    SetSchedule,
    SkipOccurrence,
    StartOccurrence,
    StoredScheduleEvent,
)
from perstack.core.schedules.state import Occurrence, ScheduleState, occurrence_job_id
from perstack.dataclass import dataclass

MINUTE = 60_000
STILLBORN = 30_000
"""Milliseconds after which the process that was to begin a Job has died."""

_ENDED = ("completed", "stoppedByError", "stoppedByMaxSteps", "stoppedByBudget")
"""Nothing continues it by itself."""

Did = Literal["started", "resumed", "skipped", "queued"]


class Times(Protocol):
    """The occurrences of a line, in milliseconds since 1970: whole minutes, each once."""

    def after(self, moment: int) -> int | None:
        """The first one later than that; None if there is none any more."""
        ...

    def stamp(self, moment: int) -> str:
        """A minute in UTC, `20261201T0200Z`."""
        ...


@dataclass(frozen=True, slots=True)
class Known:
    """What was looked at for the decision."""

    jobs: Mapping[str, JobSummary | None] = field(default_factory=dict[str, JobSummary | None])
    """None: it has no Run."""
    resumes: bool = True
    """Whether an interrupted Job is resumed by whoever decides here; if not, a person has stopped it."""


@dataclass(frozen=True, slots=True)
class LookAtJob:
    """See how a Job of the schedule stands."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Record:
    """Append these, at the version that was decided on; after that start the Job `starts`, if there is one."""

    events: tuple[StoredScheduleEvent, ...]
    did: Did | None = None
    at: int | None = None
    """The occurrence that it was done to."""
    starts: str | None = None


@dataclass(frozen=True, slots=True)
class TakeUp:
    """The Job was to begin, and its process has died: begin it."""

    occurrence: Occurrence


@dataclass(frozen=True, slots=True)
class Continue:
    """The Job was interrupted: it continues."""

    occurrence: Occurrence


Step = LookAtJob | Record | TakeUp | Continue


def next_step(state: ScheduleState | None, schedule: Schedule, times: Times, known: Known, now: int) -> Step | None:
    """What is to be done, or has to be known first; None if nothing is."""
    if state is None or schedule.line not in state.lines:
        return Record((SetSchedule(schedule=schedule.name, timestamp=now, line=schedule.line),))
    due = latest(times, state.lines[schedule.line], now)
    if state.current is None:
        return _started(state, times, due, now)
    if state.current.job_id not in known.jobs:
        return LookAtJob(state.current.job_id)
    job = known.jobs[state.current.job_id]
    if (ended := settled(state, schedule, times, job, now)) is not None:
        return ended
    if job is not None and _waits(job, known):  # whoever it waits for may take days
        return _started(state, times, due, now) or _begun(state, state.current, now)
    if due is not None:
        return _held_up(state, schedule, state.current, due, now)
    if job is None:
        return TakeUp(state.current) if abs(now - state.current.decided_at) > STILLBORN else None
    if _is_interrupted(job):
        return Continue(state.current)
    return _begun(state, state.current, now)


def settled(state: ScheduleState, schedule: Schedule, times: Times, job: JobSummary | None, now: int) -> Record | None:
    """That the Job at work has ended, if it has. What occurred meanwhile and is to be skipped is so."""
    current = state.current
    if current is None or (outcome := _outcome(current, job)) is None:
        return None
    name, line = state.name, state.lines.get(schedule.line)
    events: tuple[StoredScheduleEvent, ...] = ()
    if line is not None and schedule.overlap == "skip" and job is not None:
        meanwhile = latest(times, line, min(job.updated_at, now))
        if meanwhile is not None:
            skip = SkipOccurrence(schedule=name, timestamp=now, at=meanwhile, job_id=current.job_id)
            events = (skip,)
    finish = FinishOccurrence(schedule=name, timestamp=now, job_id=current.job_id, outcome=outcome)
    return Record((*events, finish))


def latest(times: Times, after: int, until: int) -> int | None:
    """The last occurrence of those later than `after` and not later than `until`, whatever there is in between."""
    found = times.after(after)
    if found is None or found > until:
        return None
    beyond = until
    while beyond - found >= MINUTE:  # there is none after `beyond`, up to `until`
        middle = (found + beyond) // 2
        later = times.after(middle)
        if later is not None and later <= until:
            found = later
        else:
            beyond = middle
    return found


def _started(state: ScheduleState, times: Times, due: int | None, now: int) -> Record | None:
    """The one that waits, or else the one that is due."""
    at = due if state.waiting is None else state.waiting
    if at is None:
        return None
    job_id = occurrence_job_id(state.name, times.stamp(at))
    start = StartOccurrence(schedule=state.name, timestamp=now, at=at, job_id=job_id)
    return Record((start,), "started", at, starts=job_id)


def _held_up(state: ScheduleState, schedule: Schedule, current: Occurrence, due: int, now: int) -> Record:
    """One that is due while another is at work; at most one waits."""
    name, job_id = state.name, current.job_id
    if schedule.overlap == "queue" and state.waiting is None:
        return Record((QueueOccurrence(schedule=name, timestamp=now, at=due, job_id=job_id),), "queued", due)
    return Record((SkipOccurrence(schedule=name, timestamp=now, at=due, job_id=job_id),), "skipped", due)


def _begun(state: ScheduleState, current: Occurrence, now: int) -> Record | None:
    """That the Job is there, once: if it is gone one day, somebody has deleted it."""
    if current.begun:
        return None
    return Record((BeginOccurrence(schedule=state.name, timestamp=now, job_id=current.job_id),))


def _waits(job: JobSummary, known: Known) -> bool:
    """Whether it waits for a person."""
    return job.status == "stoppedByInteractiveTool" or (_is_interrupted(job) and not known.resumes)


def _is_interrupted(job: JobSummary) -> bool:
    return job.status == "stoppedByInterrupt" and job.pause_reason != "rate_limit"


def _outcome(current: Occurrence, job: JobSummary | None) -> Outcome | None:
    if job is None:
        return "deleted" if current.begun else None
    return job.status if job.closed is not None or job.status in _ENDED else None
