"""A share as it is recorded: in the limits of the Run that it is for."""

from __future__ import annotations

from perstack.core.definitions import Budget, Limits
from perstack.core.policy.budget import NANO, nano
from perstack.core.policy.shares import Amounts, What


def budget_of(cap: Amounts, milliseconds: int | None) -> Budget | None:
    """The budget of a Run with this share, and so much time; None where there is no limit."""
    budget = Budget(
        max_cost=cap["nano"] / NANO if "nano" in cap else None,
        max_tokens=cap.get("tokens"),
        max_time=milliseconds,
        max_tool_calls=cap.get("calls"),
    )
    return None if budget == Budget() else budget


def capped(limits: Limits) -> Amounts:
    """The share that was recorded so."""
    budget, found = limits.budget or Budget(), dict[What, int]()
    if budget.max_tokens is not None:
        found["tokens"] = budget.max_tokens
    if budget.max_cost is not None:
        found["nano"] = nano(budget.max_cost)
    if budget.max_tool_calls is not None:
        found["calls"] = budget.max_tool_calls
    if limits.max_steps is not None:
        found["steps"] = limits.max_steps
    return found
