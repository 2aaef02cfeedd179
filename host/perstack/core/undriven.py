"""What becomes of a Job, or of a series, that nobody drives: what is due of it, and how it is taken up."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.core.events import ResumeReason
from perstack.core.iterations.state import SeriesState
from perstack.core.iterations.summary import SeriesSummary
from perstack.core.job import JobSummary
from perstack.core.runs.state import Run
from perstack.core.runs.transitions import ACTIVE

_LONGEST_PAUSE = 7 * 24 * 3_600_000
"""Milliseconds that one is looked for which pauses; nobody's rate is limited for longer."""


Paused = JobSummary | SeriesSummary | SeriesState


def is_over(paused: Paused, now: int) -> bool:
    """Whether it paused for a limit of its provider's rate, and may go on."""
    return paused.pause_reason == "rate_limit" and (paused.resume_at or 0) <= now


def are_old(page: Sequence[Paused], now: int) -> bool:
    """Whether none of a page, and so none after it, can pause any more; what does not read says nothing of its age."""
    written = [one.updated_at for one in page if one.updated_at]
    return bool(written) and max(written) < now - _LONGEST_PAUSE


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


def stands(job: JobSummary) -> bool:
    """Whether a Job that is to be done is left as it is: it has come to its end, was closed, or asks a person."""
    return job.closed is not None or job.status in ("completed", "stoppedByInteractiveTool")
