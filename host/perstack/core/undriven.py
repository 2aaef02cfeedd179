"""What becomes of a Job, or of a series, that nobody drives: what is due of it, and how it is taken up."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.core.iterations.state import SeriesState
from perstack.core.iterations.summary import SeriesSummary
from perstack.core.job import JobSummary

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


def was_left(series: SeriesState) -> bool:
    """Whether iterations go on without a person: they are at work, pause for a rate, or were interrupted."""
    if series.status == "running" or series.pause_reason == "rate_limit":
        return True
    return series.pause_reason == "checkpoint" and series.job_status in (None, "stoppedByInterrupt")


def stands(job: JobSummary) -> bool:
    """Whether a Job that is to be done is left as it is: it has come to its end, was closed, or asks a person."""
    return job.closed is not None or job.status in ("completed", "stoppedByInteractiveTool")
