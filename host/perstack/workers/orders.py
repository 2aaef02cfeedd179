"""Decide what happens to an order of the queue after a worker has driven its target, or could not.

An order asks workers to drive a Job, a series of iterations or a delegate's Run. A worker claims it, drives the target
until that ends or stops, and asks this module about the outcome (`DriveOutcome`):

- `Done`: the order is complete, because the target has ended, waits for a person, or was taken by another worker.
- `Requeue`: the order is queued again, with a delay, or refused for this worker so that another gets it.

The order of a target that may be in another storage (`missing`), that cannot be reached, or that a newer version wrote
is never completed: another worker may be able to drive it. A Job that ends its workers is given up after
`MAX_TAKEOVERS` consecutive takeovers without progress (`count_progress`); workers that are still alive do not count.

A new outcome is added to `DriveOutcome`, `_action_after` and the worker that reports it. An event that a worker
records before any work says so (`RunEvent.is_progress`), or each takeover would count as progress.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Literal, assert_never, get_args

from perstack.core.definitions.job_status import ACTIVE, RunStatus
from perstack.core.jobs.due import DUE, JobState, job_state, limit_state
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.events import StoredEvent
from perstack.core.runs.events.lifecycle import ResumeRun, StopRunByInterrupt
from perstack.dataclass import dataclass
from perstack.iterations.evolve import SeriesSummary
from perstack.iterations.state import SeriesState

# Jobs and series without a driver.

_MAX_PAUSE_AGE_MS = 7 * 24 * 3_600_000  # age of a pause above which it is ignored: no rate limit lasts longer


OrderTarget = JobSummary | SeriesState  # target of an order: a Job, or iterations with their Jobs
PausedTarget = OrderTarget | SeriesSummary


def is_over(paused: PausedTarget, now: int) -> bool:
    """Return whether a Job or series paused for a rate limit that is over."""
    return paused.pause_reason == "rate_limit" and limit_state(paused.resume_at, now) == "limitOver"


def are_old(page: Sequence[PausedTarget], now: int) -> bool:
    """Return True if everything on a page, and so on all later ones, is too old; ignores unreadable entries."""
    times = [target.updated_at for target in page if target.updated_at]
    return bool(times) and max(times) < now - _MAX_PAUSE_AGE_MS


def state_of(target: OrderTarget, now: int) -> JobState:
    """Return the state of a Job or, in terms of a Job, of a series."""
    if isinstance(target, JobSummary):
        return job_state(target, now)
    if target.status in ("running", "completed"):
        return target.status
    if target.pause_reason == "rate_limit":
        return limit_state(target.resume_at, now)
    is_left = target.pause_reason == "checkpoint" and target.job_status in (None, "stoppedByInterrupt")
    return "stoppedByInterrupt" if is_left else "stoppedByInteractiveTool"  # every other pause needs a person


MAX_TAKEOVERS = 3  # consecutive workers that may end while driving a Job without progress before it is given up

_MAX_TOTAL_TAKEOVERS = 10  # consecutive takeovers without progress before a Job is given up, for any reason

_MIN_PAUSE_MS = 250
_MAX_PAUSE_MS = 4_000

# Types of events that each takeover records again before the work that may end the worker, or that are no work.
_NO_PROGRESS = frozenset(event.model_fields["type"].default for event in get_args(StoredEvent) if not event.is_progress)

DriveOutcome = Literal[
    "stopped", "left", "cancelled", "lost", "busy", "unreachable", "unable", "missing", "deleted", "newer", "damaged"
]
"""Outcome of driving a Job: it ended or stopped · this worker is shutting down · somebody cancelled it · another worker
has its order · another process drives it · its storage is unreachable · this worker cannot drive it · this worker's
storage does not have it, and it may be another's · it was deleted from this storage · a newer version wrote what this
one cannot read · its log is damaged."""


@dataclass(frozen=True, slots=True)
class Done:
    """The order is complete."""


@dataclass(frozen=True, slots=True)
class Requeue:
    """The order is queued again."""

    due: int
    refused: str | None = None  # reason why this worker must not get the order again; None if it may


def needs_no_worker(target: OrderTarget) -> bool:
    """Return whether there is nothing for a worker to do: the target has ended, or waits for a person."""
    return DUE[state_of(target, 0)]["order"] == "finish"  # whether a rate limit is over makes no difference


def after_drive(
    outcome: DriveOutcome, target: OrderTarget | None, now: int, *, failed_tries: int = 0, reason: str = ""
) -> Done | Requeue:
    """Return what happens to the order after a drive.

    `target`: the Job or series, None if unknown. `failed_tries`: consecutive times that this worker had the order and
    could not start. `reason`: why this worker cannot drive it.
    """
    if outcome == "missing":
        return Requeue(0, reason)  # a worker must not complete the order of another storage
    if not _is_state_unknown(outcome):
        if target is None or needs_no_worker(target):
            return Done()
        if outcome in ("stopped", "left") and state_of(target, now) in ("queued", "limited", "limitOver"):
            return Requeue(target.resume_at or 0)
    return _action_after(outcome, now, failed_tries, reason)


def after_delegate(
    outcome: DriveOutcome, status: RunStatus | None, now: int, *, failed_tries: int = 0, reason: str = ""
) -> Done | Requeue:
    """Return what happens to a delegate's order; `status` None: its Run is gone. Its parent orders it again."""
    if outcome == "missing":
        return Requeue(0, reason)
    if not _is_state_unknown(outcome) and status != "queued" and status not in ACTIVE:
        return Done()
    return _action_after(outcome, now, failed_tries, reason)


def _is_state_unknown(outcome: DriveOutcome) -> bool:
    """Return True if this worker cannot determine the state of the target."""
    return outcome in ("unreachable", "newer")


def _action_after(outcome: DriveOutcome, now: int, failed_tries: int, reason: str) -> Done | Requeue:
    match outcome:
        case "left":
            return Requeue(0)
        case "busy" | "unreachable":
            return Requeue(now + retry_delay_ms(failed_tries))
        case "unable" | "newer":
            return Requeue(0, reason)
        case "stopped" | "cancelled" | "lost" | "damaged" | "missing" | "deleted":
            return Done()
        case _:
            assert_never(outcome)


def retry_delay_ms(failed_tries: int) -> int:
    """Return the milliseconds until a worker retries an order after so many failed tries."""
    return min(_MIN_PAUSE_MS << min(failed_tries, 10), _MAX_PAUSE_MS)


def count_progress(event_types: Iterable[str]) -> int:
    """Return the progress of a Job: the number of events of all its Runs that are work (`RunEvent.is_progress`)."""
    return sum(event_type not in _NO_PROGRESS for event_type in event_types)


def consecutive_takeovers(previous_takeovers: int, previous_work: int, work: int) -> int:
    """Return the number of consecutive takeovers without progress, including this one.

    `previous_takeovers`: the number at the previous takeover, when the progress was `previous_work`; `work`: the
    progress now.
    """
    return previous_takeovers + 1 if previous_takeovers and work == previous_work else 1


def is_suspect(takeovers: int) -> bool:
    """Return True if one more takeover might give the Job up."""
    return takeovers >= MAX_TAKEOVERS - 1


def drivers_in(coordinator_events: Iterable[StoredEvent]) -> tuple[str, ...]:
    """Return the workers that claimed a Coordinator's Run, in order, except workers that recorded their departure."""
    drivers: list[str] = []
    for event in coordinator_events:
        if isinstance(event, ResumeRun) and event.worker:
            drivers.append(event.worker)
        elif isinstance(event, StopRunByInterrupt) and drivers:
            drivers.pop()
    return tuple(drivers)


def ends_its_workers(takeovers: int, drivers: Sequence[str], live: Collection[str]) -> bool:
    """Return True if a Job should be given up after so many consecutive takeovers.

    `drivers`: workers that claimed it, latest last. A `live` worker was only frozen or cut off and does not count, nor
    does one that had not started to drive the Job.
    """
    if takeovers < MAX_TAKEOVERS:
        return False
    ended_workers = set(drivers[-takeovers:]) - set(live)
    return len(ended_workers) >= MAX_TAKEOVERS or takeovers >= _MAX_TOTAL_TAKEOVERS
