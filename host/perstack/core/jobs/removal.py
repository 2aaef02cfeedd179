"""Decide which Jobs may be removed, and which of them the retention settings remove."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from perstack.core.base.text import parse_span
from perstack.core.definitions.job_status import TYPED_STATUS
from perstack.core.definitions.project import Retention
from perstack.core.jobs.job_choice import JobChoice
from perstack.core.jobs.summary import JobSummary


def removable_jobs(
    jobs: Iterable[JobSummary], choice: JobChoice, *, keep_last: int = 0, include_waiting: bool = False
) -> list[JobSummary]:
    """Return the Jobs of a choice that may be removed: none at work, queued or damaged, nor the newest `keep_last`."""
    newest: Counter[str] = Counter()
    candidates: list[JobSummary] = []
    for summary in sorted(jobs, key=lambda job: job.updated_at, reverse=True):
        newest[summary.expert_key] += 1
        is_waiting = summary.question is not None and not include_waiting
        if newest[summary.expert_key] > keep_last and not (
            summary.damaged or summary.status in ("running", "queued") or is_waiting
        ):
            candidates.append(summary)
    return [summary for summary in candidates if choice.matches(summary)]


def expired_jobs(jobs: Iterable[JobSummary], retention: Retention, now: int) -> list[JobSummary]:
    """Return the Jobs that the retention settings in perstack.toml remove."""
    if retention == Retention():
        return []
    before = None if retention.older_than is None else now - parse_span(retention.older_than)
    choice = JobChoice.of((TYPED_STATUS[name] for name in retention.status), before=before)
    return removable_jobs(jobs, choice, keep_last=retention.keep_last or 0)
