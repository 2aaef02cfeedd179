"""Decide the next step of a schedule: start, skip or queue an occurrence, start a lost Job again, or continue one.

    next_step(state, schedule, times, known, now) -> a Job to look at first, a step to perform, or None

The caller (the engine) performs the step and asks again. Of occurrences that were missed, only the latest is started,
once. A jump of the clock is harmless, because nothing earlier than the last decision is decided again.

The definition of a schedule is in perstack.toml, its state in a log of its own: schedule.py has the events, the table
TRANSITIONS and `evolve_schedule`. A new event must be added to all three. The id of an occurrence's Job follows from
its time, so that several machines that start it agree on one Job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal, Protocol

from perstack.core.definitions.project import Schedule
from perstack.core.jobs.due import DUE, NeedJob, Todo, job_state
from perstack.core.jobs.summary import JobSummary
from perstack.dataclass import dataclass
from perstack.schedules.schedule import (
    BeginOccurrence,
    FinishOccurrence,
    Occurrence,
    Outcome,
    QueueOccurrence,
    ScheduleState,
    SetSchedule,
    SkipOccurrence,
    StartOccurrence,
    StoredScheduleEvent,
    occurrence_job_id,
)

MINUTE_MS = 60_000

ScheduleAction = Literal["started", "resumed", "skipped", "queued"]


class Times(Protocol):
    """Occurrences of a cron line: whole minutes in milliseconds since 1970, each once."""

    def next_after(self, moment: int) -> int | None:
        """Return the first occurrence later than `moment`, or None."""
        ...

    def stamp(self, moment: int) -> str:
        """Return a minute in UTC, as in `20261201T0200Z`."""
        ...


@dataclass(frozen=True, slots=True)
class ScheduleContext:
    """Observations that a decision needs."""

    jobs: Mapping[str, JobSummary | None] = field(default_factory=dict[str, JobSummary | None])  # None: it has no Run
    resumes: bool = True  # True if the caller resumes interrupted Jobs; else a person has stopped them


@dataclass(frozen=True, slots=True)
class AppendEvents:
    """Step to append events at the version that was decided on, and then to start the Job `starts`, if any."""

    events: tuple[StoredScheduleEvent, ...]
    did: ScheduleAction | None = None
    at: int | None = None  # time of the step's occurrence
    starts: str | None = None


@dataclass(frozen=True, slots=True)
class BeginJob:
    """Step to begin a Job whose process died before it began."""

    occurrence: Occurrence


@dataclass(frozen=True, slots=True)
class ContinueJob:
    """Step to continue an interrupted Job."""

    occurrence: Occurrence


Step = NeedJob | AppendEvents | BeginJob | ContinueJob


def next_step(
    state: ScheduleState | None, schedule: Schedule, times: Times, context: ScheduleContext, now: int
) -> Step | None:
    """Return the next step, or what must be looked at first; None if nothing is to do."""
    if state is None or schedule.line not in state.lines:
        return AppendEvents((SetSchedule(schedule=schedule.name, timestamp=now, line=schedule.line),))
    due = latest_time(times, state.lines[schedule.line], now)
    if state.current is None:
        return _start_occurrence(state, times, due, now)
    if state.current.job_id not in context.jobs:
        return NeedJob(state.current.job_id)
    job = context.jobs[state.current.job_id]
    todo = _todo(state.current, job, now, by_workers=not context.resumes)
    if todo == "finish":
        return settle_occurrence(state, schedule, times, job, now)
    if todo == "pass":  # the answer may take days
        return _start_occurrence(state, times, due, now) or _confirm_job(state, state.current, now)
    if due is not None:
        return _held_up(state, schedule, state.current, due, now)
    if todo == "start":
        return BeginJob(state.current)
    if todo == "continue":
        return ContinueJob(state.current)
    return None if job is None else _confirm_job(state, state.current, now)


def settle_occurrence(
    state: ScheduleState, schedule: Schedule, times: Times, job: JobSummary | None, now: int
) -> AppendEvents | None:
    """Return the end of the current Job, or None; with `overlap = "skip"` its occurrences meanwhile are skipped."""
    current = state.current
    if current is None or _todo(current, job, now) != "finish":
        return None
    outcome: Outcome = "deleted" if job is None else job.status
    name, line = state.name, state.lines.get(schedule.line)
    events: tuple[StoredScheduleEvent, ...] = ()
    if line is not None and schedule.overlap == "skip" and job is not None:
        meanwhile = latest_time(times, line, min(job.updated_at, now))
        if meanwhile is not None:
            skip = SkipOccurrence(schedule=name, timestamp=now, at=meanwhile, job_id=current.job_id)
            events = (skip,)
    finish = FinishOccurrence(schedule=name, timestamp=now, job_id=current.job_id, outcome=outcome)
    return AppendEvents((*events, finish))


def latest_time(times: Times, after: int, until: int) -> int | None:
    """Return the latest occurrence in the interval (`after`, `until`], or None. Uses binary search."""
    latest = times.next_after(after)
    if latest is None or latest > until:
        return None
    beyond = until
    while beyond - latest >= MINUTE_MS:  # invariant: none is in (`beyond`, `until`]
        middle = (latest + beyond) // 2
        later = times.next_after(middle)
        if later is not None and later <= until:
            latest = later
        else:
            beyond = middle
    return latest


def _start_occurrence(state: ScheduleState, times: Times, due: int | None, now: int) -> AppendEvents | None:
    """Start the waiting occurrence, or else the due one."""
    time = due if state.waiting is None else state.waiting
    if time is None:
        return None
    job_id = occurrence_job_id(state.name, times.stamp(time))
    start = StartOccurrence(schedule=state.name, timestamp=now, at=time, job_id=job_id)
    return AppendEvents((start,), "started", time, starts=job_id)


def _held_up(state: ScheduleState, schedule: Schedule, current: Occurrence, due: int, now: int) -> AppendEvents:
    """Skip or queue an occurrence that is due while another one's Job is running; at most one waits."""
    name, job_id = state.name, current.job_id
    if schedule.overlap == "queue" and state.waiting is None:
        return AppendEvents((QueueOccurrence(schedule=name, timestamp=now, at=due, job_id=job_id),), "queued", due)
    return AppendEvents((SkipOccurrence(schedule=name, timestamp=now, at=due, job_id=job_id),), "skipped", due)


def _confirm_job(state: ScheduleState, current: Occurrence, now: int) -> AppendEvents | None:
    """Record once that the Job exists: if it is missing later, it was deleted."""
    if current.begun:
        return None
    return AppendEvents((BeginOccurrence(schedule=state.name, timestamp=now, job_id=current.job_id),))


def _todo(current: Occurrence, job: JobSummary | None, now: int, *, by_workers: bool = False) -> Todo:
    # absolute, because a clock may have jumped back: only one Job can begin under the id
    missing_ms = abs(now - current.decided_at)
    state = job_state(job, now, by_workers=by_workers, missing_ms=missing_ms, was_seen=current.begun)
    return DUE[state]["schedule"]
