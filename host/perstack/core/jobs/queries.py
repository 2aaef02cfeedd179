"""Choose Jobs by labels, status, Expert and age, and decide which may be removed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from perstack.core.base.text import is_blank, milliseconds
from perstack.core.definitions.job_status import TYPED_STATUS, JobStatus
from perstack.core.definitions.project import Retention
from perstack.core.jobs.summary import JobSummary
from perstack.dataclass import dataclass
from perstack.errors import UsageError

# Queries to Experts.


def check_query(query: str, otherwise: str = "") -> str:
    """Return the query. Raises UsageError if it has no visible text; `otherwise` names an alternative."""
    if is_blank(query):
        raise UsageError(f"QUERY is empty: say what is to be done{otherwise}")
    return query


# Labels, by which owners find their Jobs, such as `team=search`.

MAX_LABELS = 32
MAX_VALUE_CHARS = 256

_KEY = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}"


def parse_labels(texts: Iterable[str]) -> dict[str, str]:
    """Return the labels typed as `KEY=VALUE`. Raises UsageError."""
    labels: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            raise UsageError(f"label {_quote_short(text)}: write it as KEY=VALUE")
        if labels.get(key, value) != value:
            raise UsageError(f"label {_quote_short(key)} is given twice, with different values")
        labels[key] = value
    return check_labels(labels)


def check_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels. Raises UsageError if one is too long or not plain text."""
    if len(labels) > MAX_LABELS:
        raise UsageError(f"a Job may have {MAX_LABELS} labels, not {len(labels)}")
    for key, value in labels.items():
        if not re.fullmatch(_KEY, key):
            raise UsageError(
                f"label {_quote_short(key)}: a key is 1 to 63 of A-Z a-z 0-9 . _ / - and begins with a letter or digit"
            )
        if not value.isprintable() or len(value) > MAX_VALUE_CHARS:
            raise UsageError(f"label {key}: a value is at most {MAX_VALUE_CHARS} printable characters")
    return dict(labels)


def has_labels(labels: Mapping[str, str], required: Mapping[str, str]) -> bool:
    """Return True if the labels include all of `required`."""
    return all(labels.get(key) == value for key, value in required.items())


def _quote_short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "…")


# Filters of Jobs, and which Jobs may be removed.


@dataclass(frozen=True, slots=True)
class JobChoice:
    """A filter of Jobs. All conditions must hold; an empty condition, or None, always holds."""

    statuses: frozenset[JobStatus] = frozenset()
    experts: frozenset[str] = frozenset()
    labels: tuple[tuple[str, str], ...] = ()
    since: int | None = None  # updated at this time or later, in milliseconds since 1970
    before: int | None = None  # last updated before this time, in milliseconds since 1970

    @classmethod
    def of(
        cls,
        statuses: Iterable[JobStatus] = (),
        experts: Iterable[str] = (),
        labels: Mapping[str, str] | None = None,
        since: int | None = None,
        before: int | None = None,
    ) -> JobChoice:
        return cls(frozenset(statuses), frozenset(experts), tuple((labels or {}).items()), since, before)

    def matches(self, summary: JobSummary) -> bool:
        """Return True if the Job meets all conditions."""
        return (
            (not self.statuses or summary.status in self.statuses)
            and (not self.experts or summary.expert_key in self.experts)
            and has_labels(summary.labels, dict(self.labels))
            and (self.since is None or summary.updated_at >= self.since)
            and (self.before is None or summary.updated_at < self.before)
        )


def removable(
    jobs: Iterable[JobSummary], choice: JobChoice, *, keep_last: int = 0, include_waiting: bool = False
) -> list[JobSummary]:
    """Return the chosen ones of all `jobs` that may be removed: none at work, queued, damaged or kept."""
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
    before = None if retention.older_than is None else now - milliseconds(retention.older_than)
    choice = JobChoice.of((TYPED_STATUS[name] for name in retention.status), before=before)
    return removable(jobs, choice, keep_last=retention.keep_last or 0)
