"""Sum up the costs of Jobs by Expert, model, day or label."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Literal, assert_never

from perstack.core.base.records import JsonObject
from perstack.core.base.usage import Cost, ModelShare, Usage, cost_of
from perstack.core.jobs.summary import JobSummary, RunSummary
from perstack.dataclass import dataclass

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
