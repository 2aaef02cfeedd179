"""Decide what perstack does by itself about a Job, or a Run, that nobody drives."""

from __future__ import annotations

from perstack.core.runs.events import ResumeReason
from perstack.core.runs.state import ACTIVE, Run
from perstack.dataclass import dataclass

START_TIMEOUT_MS = 30_000  # after it, a Job that has not begun counts as lost: the process that was to begin it died


@dataclass(frozen=True, slots=True)
class NeedJob:
    """Request for a Job's summary, which the decision about a task or schedule depends on."""

    job_id: str


# Runs that a worker resumes by itself.


def due_of(run: Run, now: int) -> ResumeReason | None:
    """Return why a worker should resume a Run without a driver; None if it should not, or a person must."""
    if run.closed is not None:
        return None
    if run.status == "queued":
        return "queued"
    if run.status in ACTIVE:
        return "crash"
    is_pause = run.status == "stoppedByInterrupt" and run.waits_for_limit
    return "interrupt" if is_pause and (run.resume_at or 0) <= now else None
