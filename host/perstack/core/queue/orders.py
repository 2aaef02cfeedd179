"""What becomes of an order when a worker has driven what it asks for, or could not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Literal, assert_never

from perstack.core.events import ResumeRun, StopRunByInterrupt, StoredEvent
from perstack.core.iterations.state import SeriesState
from perstack.core.job import JobStatus, JobSummary
from perstack.core.runs.state import RunStatus
from perstack.core.runs.transitions import ACTIVE
from perstack.core.undriven import stands, was_left
from perstack.dataclass import dataclass

MOST_TAKEOVERS = 3
"""Workers in a row that ended over a Job, without any work of it between them, after which it is driven no more."""

_MOST_IN_ALL = 10
"""Takeovers in a row without any work after which it is driven no more, whatever became of the workers."""

_FIRST_PAUSE = 250
_LONGEST_PAUSE = 4_000
"""Milliseconds."""

_BEGINNINGS = frozenset(
    ("resumeRun", "startGeneration", "retry", "switchModel", "startToolCall", "startSample", "startCompaction")
)
"""What a worker records before the work that it may die of: each that takes over records it again."""
_BESIDE = frozenset(
    (
        "queueRun",
        "stopRunByInterrupt",
        "recordSnapshot",
        "widenPermissions",
        "startRewind",
        "finishRewind",
        "redactEvent",
    )
)
"""What may be recorded and is no work of the Job."""

_ENDS: frozenset[JobStatus] = frozenset(("stoppedByError", "stoppedByMaxSteps", "stoppedByBudget"))
"""Stops that a person has to do something about."""

Served = JobSummary | SeriesState
"""What an order asks for: a Job, or iterations, whose Jobs are driven one after the other by who has the order."""

Came = Literal[
    "stopped", "left", "cancelled", "lost", "busy", "unreachable", "unable", "missing", "deleted", "newer", "damaged"
]
"""What came of driving a Job: it has come to its end or stopped · this worker leaves · somebody cancelled it · another
worker has its order · another process drives it · its storage cannot be reached · this worker cannot drive it · this
worker's storage does not have it, and it may be another's · it was this storage's, which does not have it any more · a
newer version has written what this one cannot read · its log does not read."""


@dataclass(frozen=True, slots=True)
class Done:
    """The order is seen to."""


@dataclass(frozen=True, slots=True)
class Again:
    """The order waits again."""

    due: int
    """Not before this time, in milliseconds since 1970; 0: at once."""
    refused: str | None = None
    """Why this worker is not to get it, if that is so."""


def needs_nobody(served: Served) -> bool:
    """Whether there is nothing for a worker to do: what is at its end, or waits for a person."""
    if isinstance(served, SeriesState):
        return not was_left(served)
    return stands(served) or served.status in _ENDS


def after_drive(came: Came, served: Served | None, now: int, *, tries: int = 0, reason: str = "") -> Done | Again:
    """What becomes of the order. `served` is where that stands, None if it is not known; `tries` is how often in a row
    this worker has had it and could not begin; `reason` is why this worker cannot drive it.
    """
    if came == "missing":
        return Again(0, reason)  # a worker must not take away what is another storage's
    if not _is_unseen(came):
        if served is None or needs_nobody(served):
            return Done()
        if came in ("stopped", "left") and (served.pause_reason == "rate_limit" or served.status == "queued"):
            return Again(served.resume_at or 0)
    return _after(came, now, tries, reason)


def after_delegate(came: Came, status: RunStatus | None, now: int, *, tries: int = 0, reason: str = "") -> Done | Again:
    """What becomes of the order for a delegate's Run, which stands so; None: there is no such Run any more.

    Whoever awaits it orders it again when it is to continue.
    """
    if came == "missing":
        return Again(0, reason)
    if not _is_unseen(came) and status != "queued" and status not in ACTIVE:
        return Done()
    return _after(came, now, tries, reason)


def _is_unseen(came: Came) -> bool:
    """Whether this worker cannot tell how what was ordered stands."""
    return came in ("unreachable", "newer")


def _after(came: Came, now: int, tries: int, reason: str) -> Done | Again:
    """Of what is not at its end, as far as this worker can tell."""
    match came:
        case "left":
            return Again(0)
        case "busy" | "unreachable":
            return Again(now + pause(tries))
        case "unable" | "newer":
            return Again(0, reason)
        case "stopped" | "cancelled" | "lost" | "damaged" | "missing" | "deleted":
            return Done()
        case _:
            assert_never(came)


def pause(tries: int) -> int:
    """Milliseconds until a worker looks again at what it could not begin, after so many tries."""
    return min(_FIRST_PAUSE << min(tries, 10), _LONGEST_PAUSE)


def work_in(event_types: Iterable[str]) -> int:
    """How much of a Job is done, by the events of all its Runs: those that are no mere beginnings."""
    return sum(one not in _BEGINNINGS and one not in _BESIDE for one in event_types)


def takeovers_now(before: int, work_before: int, work: int) -> int:
    """How many takeovers in a row there were with one more, and no work of the Job between them.

    `before` there were until the last one, when so much was done; `work` is done by now.
    """
    return before + 1 if before and work == work_before else 1


def is_suspect(takeovers: int) -> bool:
    """Whether one takeover more might stop the Job."""
    return takeovers >= MOST_TAKEOVERS - 1


def drivers_in(coordinator: Iterable[StoredEvent]) -> tuple[str, ...]:
    """The workers that took a Coordinator's Run up, in order, but for those that recorded themselves that they left."""
    found: list[str] = []
    for event in coordinator:
        if isinstance(event, ResumeRun) and event.worker:
            found.append(event.worker)
        elif isinstance(event, StopRunByInterrupt) and found:
            found.pop()
    return tuple(found)


def ends_its_workers(takeovers: int, drivers: Sequence[str], live: Collection[str]) -> bool:
    """Whether a Job is to be driven no more, after so many takeovers in a row.

    `drivers` are those that took it up, the last one last. One that is `live` again was frozen or cut off: the Job has
    not ended it, and does not answer for its silence. Neither does it for one that had not begun to drive it.
    """
    if takeovers < MOST_TAKEOVERS:
        return False
    ended = set(drivers[-takeovers:]) - set(live)
    return len(ended) >= MOST_TAKEOVERS or takeovers >= _MOST_IN_ALL
