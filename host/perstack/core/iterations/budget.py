"""What a series may spend over all its Jobs: decided from its log, before each next Job begins.

A Job gets what is left as its own budget, which it never crosses; so the series never crosses its total.
"""

from __future__ import annotations

from perstack.core.definitions import Budget
from perstack.core.iterations.state import SeriesState
from perstack.core.policy.budget import NANO, NOTHING, Amount, nano
from perstack.core.run_facts import BudgetName
from perstack.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class UsedUp:
    """Nothing is left for another Job."""

    budget: BudgetName
    words: str


def spent(series: SeriesState) -> Amount:
    """What the Jobs that have ended came to, with what counts because nobody said what was used."""
    amounts = (Amount.of_usage(one.usage) + Amount.of_charge(one.assumed) for one in series.iterations)
    return sum(amounts, NOTHING)


def share(series: SeriesState) -> Budget | UsedUp | None:
    """What the next Job may spend; None where the series has no total."""
    total, used = series.settings, spent(series)
    if total.max_cost is None and total.max_tokens is None:
        return None
    dollars = None if total.max_cost is None else nano(total.max_cost) - used.nano
    tokens = None if total.max_tokens is None else total.max_tokens - used.tokens
    if dollars is not None and dollars <= 0:
        return UsedUp("maxCost", f"${total.max_cost:g} for all iterations are used: ${used.nano / NANO:g}")
    if tokens is not None and tokens <= 0:
        return UsedUp("maxTokens", f"{total.max_tokens:,} tokens for all iterations are used: {used.tokens:,}")
    return Budget(max_cost=None if dollars is None else dollars / NANO, max_tokens=tokens)
