"""Decide the next step of a schedule: start, skip or queue an occurrence, start a lost Job again, or continue one.

    next_step(schedule_state, schedule, times, context, now) -> a Job to load first, a step to perform, or None

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
    resumes: bool = True  # True if the caller resumes interrupted Jobs; else they hold up no later occurrence


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
    schedule_state: ScheduleState | None, schedule: Schedule, times: Times, context: ScheduleContext, now: int
) -> Step | None:
    """Return the next step, or what the decision needs first; None if there is nothing to do."""
    if schedule_state is None or schedule.line not in schedule_state.lines:
        return AppendEvents((SetSchedule(schedule=schedule.name, timestamp=now, line=schedule.line),))
    due = latest_time(times, schedule_state.lines[schedule.line], now)
    if schedule_state.current is None:
        return _start_occurrence(schedule_state, times, due, now)
    if schedule_state.current.job_id not in context.jobs:
        return NeedJob(schedule_state.current.job_id)
    summary = context.jobs[schedule_state.current.job_id]
    action = _decide_action(schedule_state.current, summary, now, by_workers=not context.resumes)
    if action == "finish":
        return settle_occurrence(schedule_state, schedule, times, summary, now)
    if action == "pass":  # its Job waits for a person or a worker, perhaps for days: that delays no next occurrence
        return _start_occurrence(schedule_state, times, due, now) or _confirm_job(
            schedule_state, schedule_state.current, now
        )
    if due is not None:
        return _skip_or_queue(schedule_state, schedule, schedule_state.current, due, now)
    if action == "start":
        return BeginJob(schedule_state.current)
    if action == "continue":
        return ContinueJob(schedule_state.current)
    return None if summary is None else _confirm_job(schedule_state, schedule_state.current, now)


def settle_occurrence(
    schedule_state: ScheduleState, schedule: Schedule, times: Times, summary: JobSummary | None, now: int
) -> AppendEvents | None:
    """Return the events of the end of the current Job, or None while it runs.

    With `overlap = "skip"`, an occurrence that became due while the Job was running is skipped.
    """
    current = schedule_state.current
    if current is None or _decide_action(current, summary, now) != "finish":
        return None
    outcome: Outcome = "deleted" if summary is None else summary.status
    name, line = schedule_state.name, schedule_state.lines.get(schedule.line)
    events: tuple[StoredScheduleEvent, ...] = ()
    if line is not None and schedule.overlap == "skip" and summary is not None:
        missed = latest_time(times, line, min(summary.updated_at, now))
        if missed is not None:
            skip = SkipOccurrence(schedule=name, timestamp=now, at=missed, job_id=current.job_id)
            events = (skip,)
    finish = FinishOccurrence(schedule=name, timestamp=now, job_id=current.job_id, outcome=outcome)
    return AppendEvents((*events, finish))


def latest_time(times: Times, after: int, until: int) -> int | None:
    """Return the latest occurrence in the interval (`after`, `until`], or None. Uses binary search."""
    latest = times.next_after(after)
    if latest is None or latest > until:
        return None
    upper = until
    while upper - latest >= MINUTE_MS:  # invariant: none is in (`upper`, `until`]
        middle = (latest + upper) // 2
        next_later = times.next_after(middle)
        if next_later is not None and next_later <= until:
            latest = next_later
        else:
            upper = middle
    return latest


def _start_occurrence(schedule_state: ScheduleState, times: Times, due: int | None, now: int) -> AppendEvents | None:
    """Start the waiting occurrence, or else the due one."""
    time = due if schedule_state.waiting is None else schedule_state.waiting
    if time is None:
        return None
    job_id = occurrence_job_id(schedule_state.name, times.stamp(time))
    start_occurrence = StartOccurrence(schedule=schedule_state.name, timestamp=now, at=time, job_id=job_id)
    return AppendEvents((start_occurrence,), "started", time, starts=job_id)


def _skip_or_queue(
    schedule_state: ScheduleState, schedule: Schedule, current: Occurrence, due: int, now: int
) -> AppendEvents:
    """Skip or queue an occurrence that is due while another one's Job is running; at most one waits."""
    name, job_id = schedule_state.name, current.job_id
    if schedule.overlap == "queue" and schedule_state.waiting is None:
        return AppendEvents((QueueOccurrence(schedule=name, timestamp=now, at=due, job_id=job_id),), "queued", due)
    return AppendEvents((SkipOccurrence(schedule=name, timestamp=now, at=due, job_id=job_id),), "skipped", due)


def _confirm_job(schedule_state: ScheduleState, current: Occurrence, now: int) -> AppendEvents | None:
    """Record once that the Job exists: if it is missing later, it was deleted."""
    if current.begun:
        return None
    return AppendEvents((BeginOccurrence(schedule=schedule_state.name, timestamp=now, job_id=current.job_id),))


def _decide_action(current: Occurrence, summary: JobSummary | None, now: int, *, by_workers: bool = False) -> Todo:
    # The absolute value, because a clock may have jumped back. A start too early is harmless: an id begins one Job.
    missing_ms = abs(now - current.decided_at)
    state = job_state(summary, now, by_workers=by_workers, missing_ms=missing_ms, was_seen=current.begun)
    return DUE[state]["schedule"]
