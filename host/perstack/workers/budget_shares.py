"""Divide a Job's remaining budget among delegates that other workers drive.

Only the process that awaits the delegates sees all of them, so each gets a share before it starts, which is recorded
with it. A share is a cap on what the delegate and all Runs below it may have used when it ends; the unused part is held
until it has ended or stopped. So usage and held amounts together never exceed the limit, whichever process dies.

A delegate that stops because its share is used up reports what it needs, and gets a larger share once there is room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from perstack.core.base.usage import NANO_PER_DOLLAR, nano
from perstack.core.definitions.settings import Budget, Limits
from perstack.core.jobs.budget_ledger import JOB, Amounts, Unit
from perstack.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Sharer:
    """The state of one delegate that needs a share."""

    run_id: str
    account: str = JOB  # account of its Expert that it spends from in addition to the Job's
    used: Amounts = field(default_factory=dict[Unit, int])
    """Amounts that the delegate and the Runs below it have used or reserved."""
    cap: Amounts | None = None  # None if it has not started, or has stopped and shall continue
    needs: Amounts = field(
        default_factory=dict[Unit, int]
    )  # amounts that its next step needs, if it stopped for want of them


def grant_caps(remaining: Mapping[str, Amounts], sharers: Sequence[Sharer]) -> dict[str, Amounts]:
    """Return the caps, by Run id, of the delegates that may start or continue now.

    `remaining`: unused amounts by account. What is free is divided equally among as many delegates as can work with
    their part. The others get nothing: they wait until a running one returns something, or, if none is running, have
    reached the limit.
    """
    free = {account: _unheld_amounts(account, amounts, sharers) for account, amounts in remaining.items()}
    waiting = [sharer for sharer in sharers if sharer.cap is None]
    for count in range(len(waiting), 0, -1):
        fitting = [sharer for sharer in waiting if _can_work(sharer, _equal_part(sharer, free, [sharer] * count))][
            :count
        ]
        if len(fitting) == count:
            return {sharer.run_id: _cap_with_part(sharer, _equal_part(sharer, free, fitting)) for sharer in fitting}
    return {}


def find_short_account(remaining: Mapping[str, Amounts], sharer: Sharer) -> str:
    """Return the account that has too little for a delegate that runs alone: the Job's, if that has too little."""
    job_amounts = remaining.get(JOB, {})
    is_job_short = any(job_amounts[unit] < need for unit, need in sharer.needs.items() if unit in job_amounts)
    return JOB if is_job_short else sharer.account


def _unheld_amounts(account: str, remaining: Amounts, sharers: Sequence[Sharer]) -> Amounts:
    """Return the amounts less what running delegates hold."""
    holders = [sharer for sharer in sharers if account in (JOB, sharer.account)]
    return {
        unit: max(0, amount - sum(_held_amount(sharer, unit) for sharer in holders))
        for unit, amount in remaining.items()
    }


def _held_amount(sharer: Sharer, unit: Unit) -> int:
    return 0 if sharer.cap is None or unit not in sharer.cap else max(0, sharer.cap[unit] - sharer.used.get(unit, 0))


def _equal_part(sharer: Sharer, free: Mapping[str, Amounts], sharing_with: Sequence[Sharer]) -> Amounts:
    """Return a delegate's part if all of `sharing_with` share what is free."""
    amounts: dict[Unit, int] = {}
    for account in {JOB, sharer.account}:
        sharer_count = len(sharing_with) if account == JOB else sum(other.account == account for other in sharing_with)
        for unit, amount in free.get(account, {}).items():
            part = amount // sharer_count
            amounts[unit] = min(part, amounts.get(unit, part))
    return amounts


def _can_work(sharer: Sharer, part: Amounts) -> bool:
    return all(part[unit] >= need for unit, need in sharer.needs.items() if unit in part)


def _cap_with_part(sharer: Sharer, part: Amounts) -> Amounts:
    return {unit: sharer.used.get(unit, 0) + amount for unit, amount in part.items()}


def budget_of(cap: Amounts, milliseconds: int | None) -> Budget | None:
    """Return the budget of a share and a time limit; None without any limit."""
    budget = Budget(
        max_cost=cap["nano"] / NANO_PER_DOLLAR if "nano" in cap else None,
        max_tokens=cap.get("tokens"),
        max_time=milliseconds,
        max_tool_calls=cap.get("calls"),
    )
    return None if budget == Budget() else budget


def recorded_cap(limits: Limits) -> Amounts:
    """Return the cap that these limits record."""
    budget, share = limits.budget or Budget(), dict[Unit, int]()
    if budget.max_tokens is not None:
        share["tokens"] = budget.max_tokens
    if budget.max_cost is not None:
        share["nano"] = nano(budget.max_cost)
    if budget.max_tool_calls is not None:
        share["calls"] = budget.max_tool_calls
    if limits.max_steps is not None:
        share["steps"] = limits.max_steps
    return share
