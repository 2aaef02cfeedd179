"""What was spent: sums of usage, and how much of it has no known price."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Literal, assert_never

from perstack.core.base import JsonObject
from perstack.core.job import Cost, JobSummary, RunSummary, cost_of
from perstack.core.usage import ModelShare, Usage
from perstack.dataclass import dataclass

By = Literal["expert", "model", "day", "label"]
NONE = "-"
"""Stands for a label where there is none, and for a model that an older job.json does not name."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What some Runs have spent together."""

    key: str
    runs: int = 0
    usage: Usage = field(default_factory=Usage)
    unpriced_tokens: int = 0

    @property
    def cost(self) -> Cost | None:
        return cost_of(self.usage, self.unpriced_tokens)

    def plus(self, share: ModelShare) -> Spent:
        """With one Run more, or a part of it."""
        unpriced = share.unpriced_tokens
        if share.usage.cost_usd is None:
            unpriced = share.usage.total_tokens  # an older job.json does not say
        return Spent(self.key, self.runs + 1, self.usage + share.usage, self.unpriced_tokens + unpriced)

    def to_json(self) -> JsonObject:
        """For programs; `costUsd` is a number, or `unknown`."""
        return {
            "key": self.key,
            "runs": self.runs,
            "inputTokens": self.usage.input_tokens,
            "outputTokens": self.usage.output_tokens,
            "totalTokens": self.usage.total_tokens,
            "costUsd": 0 if self.cost is None else self.cost,
            "unpricedTokens": self.unpriced_tokens,
        }


def spent_by(
    jobs: Iterable[JobSummary], by: By, *, since: int, day_of: Callable[[int], str]
) -> tuple[list[Spent], Spent]:
    """What was spent by each, the dearest first (days in order), and in all.

    Of Runs that began at `since` or later, in milliseconds since 1970. `day_of` names the day of a moment.
    """
    found: dict[str, Spent] = {}
    total = Spent("total")
    for job in jobs:
        for run in job.runs:
            if run.started_at < since:
                continue
            whole = ModelShare(usage=run.usage, unpriced_tokens=run.unpriced_tokens)
            total = total.plus(whole)
            for key in _keys(job, run, by, day_of):
                share = run.by_model.get(key, whole) if by == "model" else whole
                found[key] = found.get(key, Spent(key)).plus(share)
    rows = list(found.values())
    if by == "day":
        return sorted(rows, key=lambda one: one.key), total
    return sorted(rows, key=lambda one: (-(one.usage.cost_usd or 0), -one.usage.total_tokens, one.key)), total


def _keys(job: JobSummary, run: RunSummary, by: By, day_of: Callable[[int], str]) -> list[str]:
    match by:
        case "expert":
            return [run.expert_key or NONE]
        case "model":
            return [*run.by_model] or [run.model or NONE]
        case "day":
            return [day_of(run.started_at)]
        case "label":
            return [f"{name}={value}" for name, value in job.labels.items()] or [NONE]
        case _:
            assert_never(by)
