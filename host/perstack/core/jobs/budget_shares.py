"""What of a Job's limits each of its delegates may use that other workers drive.

Nobody but the process that awaits them sees them all, so each is given a share beforehand, which is recorded with it.
It is a cap: what the delegate, and all below it, may have used when it ends. It holds what it has not used of it, until
it has ended or stopped. So what was used and what is held are together never more than the limit, whoever dies when.

One that stops because its share is used up says what it needed. It is given a larger one as soon as there is room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Literal

from perstack.dataclass import dataclass

What = Literal["tokens", "nano", "calls", "steps"]
"""Tokens, billionths of a dollar, calls of tools, steps."""
Amounts = Mapping[What, int]
"""What is not in it has no limit."""

WHOLE = ""
"""The account of everything; the others are those of Experts with a budget of their own."""


@dataclass(frozen=True, slots=True)
class Sharer:
    """One delegate as it stands."""

    run_id: str
    account: str = WHOLE
    """Whose budget it uses besides."""
    used: Amounts = field(default_factory=dict[What, int])
    """With what is under way: by it and all below it."""
    cap: Amounts | None = None
    """Of one that is at work; None: it has not begun, or has stopped, and is to continue."""
    needs: Amounts = field(default_factory=dict[What, int])
    """What it could not do its next work without, where it has stopped for that."""


def granted(left: Mapping[str, Amounts], sharers: Sequence[Sharer]) -> dict[str, Amounts]:
    """The caps of those that may begin or continue now, by their Runs.

    `left` is by account what nobody has used. What is free of it is divided equally among as many as can do something
    with their part. Nothing is granted to the others: they wait until one at work has given something back, or, where
    nobody is at work, have really come to the end of the limit.
    """
    free = {account: _free(account, amounts, sharers) for account, amounts in left.items()}
    waiting = [one for one in sharers if one.cap is None]
    for count in range(len(waiting), 0, -1):
        fitting = [one for one in waiting if _fits(one, _part(one, free, [one] * count))][:count]
        if len(fitting) == count:
            return {one.run_id: _cap(one, _part(one, free, fitting)) for one in fitting}
    return {}


def short_account(left: Mapping[str, Amounts], sharer: Sharer) -> str:
    """Which account has too little for what one needs, where nobody else is at work: the whole one goes first."""
    of_all = left.get(WHOLE, {})
    is_whole = any(of_all[what] < need for what, need in sharer.needs.items() if what in of_all)
    return WHOLE if is_whole else sharer.account


def _free(account: str, left: Amounts, sharers: Sequence[Sharer]) -> Amounts:
    """Less what those at work hold."""
    holders = [one for one in sharers if account in (WHOLE, one.account)]
    return {what: max(0, amount - sum(_held(one, what) for one in holders)) for what, amount in left.items()}


def _held(one: Sharer, what: What) -> int:
    return 0 if one.cap is None or what not in one.cap else max(0, one.cap[what] - one.used.get(what, 0))


def _part(one: Sharer, free: Mapping[str, Amounts], among: Sequence[Sharer]) -> Amounts:
    """Its part, if these share what is free."""
    found: dict[What, int] = {}
    for account in {WHOLE, one.account}:
        number = len(among) if account == WHOLE else sum(other.account == account for other in among)
        for what, amount in free.get(account, {}).items():
            part = amount // number
            found[what] = min(part, found.get(what, part))
    return found


def _fits(one: Sharer, part: Amounts) -> bool:
    return all(part[what] >= need for what, need in one.needs.items() if what in part)


def _cap(one: Sharer, part: Amounts) -> Amounts:
    return {what: one.used.get(what, 0) + amount for what, amount in part.items()}
