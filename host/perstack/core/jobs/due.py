"""Decide what perstack does by itself about a Job: one table, by the state of the Job and by its owner.

A Job belongs to a task, a schedule, a series of iterations or to nobody, and a worker may hold an order for it. Each
derives the state of the Job with `job_state` and reads in DUE what follows. The modules of the owners turn that into
events and steps: tasks/due_tasks.py, schedules/decide.py, iterations/next_step.py, workers/orders.py.

They also decide what is due at a time, in any state of a Job: a task's pause or timeout is over, an occurrence of a
schedule has come, an order may be claimed again. A worker that looks for Runs to continue reads their logs
(`reason_to_resume`), because a summary does not say whether a person has stopped a submitted Job.

A new state needs a row in DUE, a new owner a column. docs/architecture.md, «What happens by itself», shows the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, get_args

from perstack.core.definitions.job_status import ACTIVE, JobStatus
from perstack.core.jobs.summary import JobSummary
from perstack.dataclass import dataclass

if TYPE_CHECKING:
    from perstack.core.runs.events.lifecycle import ResumeReason
    from perstack.core.runs.state import Run

START_TIMEOUT_MS = 30_000  # a Job that has not begun by then is lost: the process that was to begin it has died

JobState = Literal[
    JobStatus,
    "notBegun",  # no Run yet, and the process that is to begin it may still do so
    "lost",  # no Run, and that process has died
    "deleted",  # it had Runs, and has none now
    "leftToWorkers",  # stoppedByInterrupt, and workers continue it unless a person has stopped it
    "limited",  # stoppedByInterrupt by a rate limit that is not over; `queued` if workers continue it
    "limitOver",  # stoppedByInterrupt by a rate limit that is over
    "closed",  # closed for good
]

DueAction = Literal[
    "wait",
    "start",  # start the Job, under its id
    "replace",  # start another Job
    "continue",  # continue the Job
    "pass",  # start the next occurrence while the Job exists
    "pause",  # the owner pauses
    "fail",  # the owner fails
    "finish",  # the owner has its result, or will never have one
    "-",  # the owner never sees a Job in that state
]

JobOwner = Literal[
    "task",  # a running task of an Expert
    "limitedTask",  # a task whose pause for a rate limit is over
    "schedule",  # the current occurrence; while its Job waits or continues, later occurrences are skipped or queued
    "series",  # a series of iterations that has just driven the Job
    "resumed",  # a series or a launcher, before it drives the Job
    "order",  # an order that a worker has claimed
    "other",  # a scheduler, of a Job that belongs to no task or series
]


def _row(*cells: DueAction) -> Mapping[JobOwner, DueAction]:
    return dict(zip(get_args(JobOwner), cells, strict=True))


# fmt: off
DUE: Mapping[JobState, Mapping[JobOwner, DueAction]] = {
    #                               task        limitedTask  schedule    series    resumed     order       other
    "notBegun":                 _row("wait",     "replace",   "wait",     "-",      "-",        "-",        "-"),
    "lost":                     _row("replace",  "-",         "start",    "-",      "-",        "-",        "-"),
    "deleted":                  _row("-",        "-",         "finish",   "-",      "-",        "-",        "-"),
    "queued":                   _row("wait",     "replace",   "wait",     "pause",  "continue", "continue", "wait"),
    "running":                  _row("wait",     "replace",   "wait",     "pause",  "continue", "continue", "wait"),
    "stoppedByInterrupt":       _row("continue", "replace",   "continue", "pause",  "continue", "continue", "wait"),
    "leftToWorkers":            _row("wait",     "-",         "pass",     "pause",  "continue", "continue", "wait"),
    "stoppedByInteractiveTool": _row("wait",     "replace",   "pass",     "pause",  "wait",     "finish",   "wait"),
    "limited":                  _row("pause",    "continue",  "wait",     "pause",  "continue", "continue", "wait"),
    "limitOver":                _row("pause",    "continue",  "wait",     "pause",  "continue", "continue", "continue"),
    "stoppedByMaxSteps":        _row("pause",    "replace",   "finish",   "pause",  "continue", "finish",   "wait"),
    "stoppedByBudget":          _row("pause",    "replace",   "finish",   "pause",  "continue", "finish",   "wait"),
    "stoppedByError":           _row("fail",     "replace",   "finish",   "fail",   "continue", "finish",   "wait"),
    "closed":                   _row("fail",     "fail",      "finish",   "fail",   "wait",     "finish",   "wait"),
    "completed":                _row("finish",   "replace",   "finish",   "finish", "wait",     "finish",   "wait"),
}
# fmt: on


@dataclass(frozen=True, slots=True)
class NeedJob:
    """Request for a Job's summary, which the decision about a task or schedule depends on."""

    job_id: str


def job_state(
    summary: JobSummary | None, now: int, *, by_workers: bool | None = None, missing_ms: int = 0, was_seen: bool = False
) -> JobState:
    """Return the state of a Job. `summary`: None if it has no Run.

    `by_workers`: True if workers continue the Job; None: they do if it was submitted. `missing_ms`: milliseconds
    since the Job was to begin. `was_seen`: True if it is known to have begun.
    """
    if summary is None:
        return "deleted" if was_seen else "lost" if missing_ms > START_TIMEOUT_MS else "notBegun"
    if summary.closed is not None:
        return "closed"
    if summary.status != "stoppedByInterrupt":
        return summary.status
    by_workers = summary.queued is not None if by_workers is None else by_workers
    if summary.pause_reason == "rate_limit":
        return "queued" if by_workers else limit_state(summary.resume_at, now)
    return "leftToWorkers" if by_workers else "stoppedByInterrupt"


def limit_state(resume_at: int | None, now: int) -> Literal["limited", "limitOver"]:
    """Return the state of a pause for a rate limit; a pause without a known end is over."""
    return "limitOver" if (resume_at or 0) <= now else "limited"


def is_resumable(summary: JobSummary) -> bool:
    """Return True if `resume` continues a Job: it is not completed or closed, and does not ask a person."""
    return DUE[job_state(summary, 0)]["resumed"] == "continue"


def stop_reason(summary: JobSummary) -> str:
    """Return why a Job has stopped, as text that follows its id."""
    if summary.closed is not None:
        return f"was closed for good by {summary.closed.by}"
    match summary.status:
        case "stoppedByError":
            return f"failed: {summary.error}"
        case "stoppedByInteractiveTool":
            return f"asks: {summary.asks}"
        case "stoppedByMaxSteps":
            return "has reached its step limit"
        case "stoppedByBudget":
            return f"is stopped by its budget: {summary.exceeded}"
        case _:
            return "waits for the provider's rate limit" if summary.pause_reason == "rate_limit" else "was interrupted"


# Which Runs a worker resumes by itself.


def reason_to_resume(run: Run, now: int) -> ResumeReason | None:
    """Return why a worker should resume a Run without a driver; None if it should not, or only a person may."""
    if run.closed is not None:
        return None
    if run.status == "queued":
        return "queued"
    if run.status in ACTIVE:
        return "crash"
    is_pause = run.status == "stoppedByInterrupt" and run.waits_for_limit
    return "interrupt" if is_pause and limit_state(run.resume_at, now) == "limitOver" else None


SCHEDULE_LABEL = "schedule"  # label of a schedule's Jobs; its value is the schedule's name
