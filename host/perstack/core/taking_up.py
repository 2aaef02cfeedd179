"""Why a worker takes up a Run that nobody drives."""

from __future__ import annotations

from perstack.core.events import ResumeReason
from perstack.core.runs.state import Run
from perstack.core.runs.transitions import ACTIVE


def due_of(run: Run, now: int) -> ResumeReason | None:
    """Why a worker takes up a Coordinator's Run that nobody drives; None if there is nothing for one to do.

    What a person has stopped, or was stopped by a limit or an error, waits for a person.
    """
    if run.closed is not None:
        return None
    if run.status == "queued":
        return "queued"
    if run.status in ACTIVE:
        return "crash"
    is_pause = run.status == "stoppedByInterrupt" and run.waits_for_limit
    return "interrupt" if is_pause and (run.resume_at or 0) <= now else None
