"""Choose Jobs by labels, status, Expert and age; decide which may be removed; and sum up their costs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Literal, assert_never

from perstack.core.base.records import JsonObject
from perstack.core.base.text import is_blank, milliseconds
from perstack.core.base.usage import Cost, ModelShare, Usage, cost_of
from perstack.core.definitions.job_status import TYPED_STATUS, JobStatus
from perstack.core.definitions.project import Retention
from perstack.core.jobs.summary import JobSummary, RunSummary
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


GroupBy = Literal["expert", "model", "day", "label"]
NO_KEY = "-"  # key for Jobs without a label, and for a model that an older job.json does not name


@dataclass(frozen=True, slots=True)
class GroupCost:
    """The costs of a group of Runs."""

    key: str
    runs: int = 0
    usage: Usage = field(default_factory=Usage)
    unpriced_tokens: int = 0

    @property
    def cost(self) -> Cost | None:
        """The cost, or `unknown`; None if nothing was used."""
        return cost_of(self.usage, self.unpriced_tokens)

    def plus(self, share: ModelShare) -> GroupCost:
        """Return the sum with one more Run, or a part of one."""
        unpriced = share.unpriced_tokens
        if share.usage.cost_usd is None:
            unpriced = share.usage.total_tokens  # an older job.json has no number
        return GroupCost(self.key, self.runs + 1, self.usage + share.usage, self.unpriced_tokens + unpriced)

    def to_json(self) -> JsonObject:
        """Return the JSON for programs; `costUsd` is a number or `unknown`."""
        return {
            "key": self.key,
            "runs": self.runs,
            "inputTokens": self.usage.input_tokens,
            "outputTokens": self.usage.output_tokens,
            "totalTokens": self.usage.total_tokens,
            "costUsd": 0 if self.cost is None else self.cost,
            "unpricedTokens": self.unpriced_tokens,
        }


def costs_by(
    jobs: Iterable[JobSummary], by: GroupBy, *, since: int, day_of: Callable[[int], str]
) -> tuple[list[GroupCost], GroupCost]:
    """Return the costs by group, highest first (days in order), and the total, of Runs started since then."""
    by_key: dict[str, GroupCost] = {}
    total = GroupCost("total")
    for summary in jobs:
        for run_summary in summary.runs:
            if run_summary.started_at < since:
                continue
            run_share = ModelShare(usage=run_summary.usage, unpriced_tokens=run_summary.unpriced_tokens)
            total = total.plus(run_share)
            for key in _group_keys(summary, run_summary, by, day_of):
                share = run_summary.by_model.get(key, run_share) if by == "model" else run_share
                by_key[key] = by_key.get(key, GroupCost(key)).plus(share)
    rows = list(by_key.values())
    if by == "day":
        return sorted(rows, key=lambda group: group.key), total
    return sorted(rows, key=lambda group: (-(group.usage.cost_usd or 0), -group.usage.total_tokens, group.key)), total


def _group_keys(summary: JobSummary, run_summary: RunSummary, by: GroupBy, day_of: Callable[[int], str]) -> list[str]:
    match by:
        case "expert":
            return [run_summary.expert_key or NO_KEY]
        case "model":
            return [*run_summary.by_model] or [run_summary.model or NO_KEY]
        case "day":
            return [day_of(run_summary.started_at)]
        case "label":
            return [f"{name}={value}" for name, value in summary.labels.items()] or [NO_KEY]
        case _:
            assert_never(by)
