"""Which Jobs are meant: by how they stand, whose they are and when they were written to; and which may be removed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from perstack.core.job import JobSummary
from perstack.core.labels import has_labels
from perstack.core.retention import Retention
from perstack.core.spans import milliseconds
from perstack.core.statuses import TYPED_STATUS, JobStatus
from perstack.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class JobChoice:
    """All conditions must hold; one that is empty, or None, always does."""

    statuses: frozenset[JobStatus] = frozenset()
    experts: frozenset[str] = frozenset()
    labels: tuple[tuple[str, str], ...] = ()
    since: int | None = None
    """Written to at this moment or later, in milliseconds since 1970."""
    before: int | None = None
    """Not written to since this moment."""

    @classmethod
    def of(
        cls,
        statuses: Iterable[JobStatus] = (),
        experts: Iterable[str] = (),
        labels: Mapping[str, str] | None = None,
        since: int | None = None,
        before: int | None = None,
    ) -> JobChoice:
        """From what was given."""
        return cls(frozenset(statuses), frozenset(experts), tuple((labels or {}).items()), since, before)

    def has(self, job: JobSummary) -> bool:
        """Whether a Job is meant."""
        return (
            (not self.statuses or job.status in self.statuses)
            and (not self.experts or job.expert_key in self.experts)
            and has_labels(job.labels, dict(self.labels))
            and (self.since is None or job.updated_at >= self.since)
            and (self.before is None or job.updated_at < self.before)
        )


def removable(
    jobs: Iterable[JobSummary], choice: JobChoice, *, keep_last: int = 0, include_waiting: bool = False
) -> list[JobSummary]:
    """Those that may be removed, of all Jobs there are.

    Never one that runs, waits for a worker or is damaged, and one that waits for a person only with `include_waiting`.
    Of each Expert the `keep_last` that were written to last are kept, counted among all its Jobs.
    """
    newest: Counter[str] = Counter()
    found: list[JobSummary] = []
    for job in sorted(jobs, key=lambda job: job.updated_at, reverse=True):
        newest[job.expert_key] += 1
        waits = job.question is not None and not include_waiting
        if newest[job.expert_key] > keep_last and not (job.damaged or job.status in ("running", "queued") or waits):
            found.append(job)
    return [job for job in found if choice.has(job)]


def not_retained(jobs: Iterable[JobSummary], retention: Retention, now: int) -> list[JobSummary]:
    """Those that are to go by what perstack.toml says."""
    if retention == Retention():
        return []
    before = None if retention.older_than is None else now - milliseconds(retention.older_than)
    choice = JobChoice.of((TYPED_STATUS[name] for name in retention.status), before=before)
    return removable(jobs, choice, keep_last=retention.keep_last or 0)
