"""The ledger of a Job's budget over all its Runs, which decides about each generation before it is made.

The sum of reported usage, of charges for unreported usage, and of the maximum costs of all running generations never
exceeds the budget. A generation starts only if its maximum cost fits too. Amounts are integers, dollars in
billionths, so that rounding loses nothing.

What a Run has spent is folded from its log: `startGeneration` records the maximum cost as `reserved`, and later events
settle it. So a generation that was running when its process was killed stays charged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Literal

from perstack.core.base.usage import (
    NANO_PER_DOLLAR,
    NO_AMOUNT,
    Amount,
    BudgetName,
    BudgetRefusal,
    Charge,
    Spending,
    Usage,
    nano,
)
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.settings import Budget
from perstack.core.runs.facts import ErrorInfo
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass

MIN_REPLY_TOKENS = 256  # fewest tokens of a reply that are worth a generation
# fewest tokens for a model that thinks first: endpoints require 1,024 for thinking alone
MIN_THINKING_REPLY_TOKENS = 2_048
FIRST_REPLY_TOKENS = 8_192
"""Maximum tokens of a first reply without a limit of the user. A reply that needs more is repeated with twice as
many."""
ENDPOINT_OVERHEAD_TOKENS = 1_000  # tokens that endpoints add, for example to describe how tools are called

Unit = Literal["tokens", "nano", "calls", "steps"]
Amounts = Mapping[Unit, int]  # amounts by unit (`nano`: billionths of a dollar); a missing unit has no limit

JOB = ""  # account of the whole Job; the other accounts are named by Expert keys
_UNLIMITED = 10**30


@dataclass(frozen=True, slots=True)
class Bound:
    """The maximum cost of one generation."""

    input_tokens: int
    wanted: int  # maximum tokens of reply to request
    least: int  # fewest tokens of reply that are worth a generation
    input_nano: int = 0
    output_nano: int = 0  # price of a token of the reply

    def with_reply(self, tokens: int) -> Amount:
        """Return the cost with a reply of so many tokens."""
        return Amount(self.input_tokens + tokens, self.input_nano + tokens * self.output_nano)

    def reply_tokens_within(self, remaining: Amount) -> int:
        """Return the tokens of reply that fit; negative if not even the request fits."""
        dollars = remaining.nano - self.input_nano
        if dollars < 0:
            return -1
        tokens = remaining.tokens - self.input_tokens
        return min(tokens, dollars // self.output_nano) if self.output_nano else tokens


@dataclass(frozen=True, slots=True)
class Grant:
    """The permission for a generation, with the maximum tokens of its reply."""

    max_tokens: int
    amount: Amount


@dataclass(frozen=True, slots=True)
class WaitForRoom:
    """The decision to wait until a generation of a parallel Run ends, and may have cost less than its maximum."""


@dataclass(slots=True)
class _Account:
    limit: Budget
    spent: Amount = field(default_factory=Amount)
    open: Amount = field(default_factory=Amount)
    tool_calls: int = 0
    worked_ms: int = 0

    @property
    def used(self) -> Amount:
        return self.spent + self.open

    @property
    def remaining(self) -> Amount:
        used, limit = self.used, self.limit
        tokens = _UNLIMITED if limit.max_tokens is None else limit.max_tokens - used.tokens
        return Amount(tokens, _UNLIMITED if limit.max_cost is None else nano(limit.max_cost) - used.nano)

    @property
    def amounts(self) -> Amounts:
        """Remaining amounts of everything that has a limit, never negative."""
        amounts: dict[Unit, int] = {}
        if self.limit.max_tokens is not None:
            amounts["tokens"] = max(0, self.remaining.tokens)
        if self.limit.max_cost is not None:
            amounts["nano"] = max(0, self.remaining.nano)
        if self.limit.max_tool_calls is not None:
            amounts["calls"] = max(0, self.limit.max_tool_calls - self.tool_calls)
        return amounts


@dataclass(frozen=True, slots=True)
class _RunSpending:
    spent: Amount = NO_AMOUNT
    open: Amount = NO_AMOUNT
    tool_calls: int = 0

    @classmethod
    def of(cls, spending: Spending, *, at_rest: bool) -> _RunSpending:
        spent = Amount.of_usage(spending.usage) + Amount.of_charge(spending.assumed)
        reserved = Amount.of_charge(spending.reservations)
        if at_rest:
            spent, reserved = spent + reserved, NO_AMOUNT
        return cls(spent, reserved, spending.tool_calls)


class Ledger:
    """The budgets of a Job and its Experts. `update` it with each Run's states, a parent's before its delegates'."""

    def __init__(self, limit: Budget | None, root: str = "") -> None:
        """`root`: id of the Run whose work time is the Job's, if it is not the Coordinator."""
        self._root = root
        self._accounts: dict[str, _Account] = {JOB: _Account(limit or Budget())}
        self._keys: dict[str, tuple[str, ...]] = {}
        self._counted: dict[str, _RunSpending] = {}
        self._latest: dict[str, Run] = {}
        self._held: dict[str, tuple[str, Amount]] = {}

    def update(self, run: Run, *, at_rest: bool = False) -> bool:
        """Record a Run's state; return True if reservations changed. `at_rest`: not driven, so count them as spent."""
        run_id, latest = run.start.run_id, self._latest.get(run.start.run_id)
        if latest is None:
            self._open_accounts(run)
        self._latest[run_id] = run
        self._add_time(run, 0 if latest is None else latest.worked_ms)
        if latest is not None and run.spending is latest.spending and not at_rest:
            return False
        before, after = self._counted.get(run_id, _RunSpending()), _RunSpending.of(run.spending, at_rest=at_rest)
        self._counted[run_id] = after
        for key in self._keys[run_id]:
            account = self._accounts[key]
            account.spent += after.spent - before.spent
            account.open += after.open - before.open
            account.tool_calls += after.tool_calls - before.tool_calls
        return after.open != before.open

    def _add_time(self, run: Run, before_ms: int) -> None:
        """Add a Run's new work time, which includes the Runs below it, to its account."""
        if run.worked_ms == before_ms:
            return
        key = JOB if run.is_coordinator or run.id == self._root else run.start.expert_key
        if key in self._keys[run.start.run_id]:
            self._accounts[key].worked_ms += run.worked_ms - before_ms

    def hold(self, key: str, run_id: str, amount: Amount) -> None:
        """Reserve an amount that is in no Run's state yet, replacing an earlier one with this key."""
        self.release(key)
        self._held[key] = (run_id, amount)
        for account in self._keys[run_id]:
            self._accounts[account].open += amount

    def release(self, key: str) -> bool:
        """Release a held amount that is settled or not needed. Return False if there is none."""
        held = self._held.pop(key, None)
        if held is None:
            return False
        run_id, amount = held
        for account in self._keys[run_id]:
            self._accounts[account].open -= amount
        return True

    def reserve(self, run_id: str, bound: Bound, *, own: Amount = NO_AMOUNT) -> Grant | WaitForRoom | BudgetRefusal:
        """Decide about a generation with a known maximum cost. `own`: amount that the caller holds already."""
        tightest, reply_tokens = JOB, bound.wanted
        for key in self._keys[run_id]:
            tokens = bound.reply_tokens_within(self._accounts[key].remaining)
            if tokens < reply_tokens:
                tightest, reply_tokens = key, tokens
        if reply_tokens >= min(bound.least, bound.wanted):
            return Grant(reply_tokens, bound.with_reply(reply_tokens))
        account = self._accounts[tightest]
        releasable = account.open - own
        is_anything_open = releasable.tokens > 0 or releasable.nano > 0
        later_tokens = bound.reply_tokens_within(account.remaining + releasable)
        if is_anything_open and later_tokens >= min(bound.least, bound.wanted):
            return WaitForRoom()
        return _excess(tightest, account, bound)

    def excess_of_calls(self, run_id: str, calls: int) -> BudgetRefusal | None:
        """Return the refusal of `calls` more tool calls that would exceed a budget; None if they fit."""
        for key in self._keys[run_id]:
            account = self._accounts[key]
            limit = account.limit.max_tool_calls
            if calls and limit is not None and account.tool_calls + calls > limit:
                return BudgetRefusal("maxToolCalls", key or None, limit, account.tool_calls, calls)
        return None

    def amounts_for_delegate(self, run_id: str, expert: Expert) -> dict[str, Amounts]:
        """Return what a delegate may spend: under `JOB` the least of the Run's accounts; under its key its Expert's."""
        job_amounts: dict[Unit, int] = {}
        for key in self._keys[run_id]:
            for unit, amount in self._accounts[key].amounts.items():
                job_amounts[unit] = min(amount, job_amounts.get(unit, amount))
        if expert.budget is None or expert.key in self._keys[run_id]:
            return {JOB: job_amounts}
        return {JOB: job_amounts, expert.key: self._accounts.get(expert.key, _Account(expert.budget)).amounts}

    def usage_of_runs(self, run_ids: Iterable[str]) -> Amounts:
        """Return the usage of these Runs, including reservations."""
        runs = [self._counted[run_id] for run_id in run_ids if run_id in self._counted]
        total = sum((run_spending.spent + run_spending.open for run_spending in runs), NO_AMOUNT)
        return {
            "tokens": total.tokens,
            "nano": total.nano,
            "calls": sum(run_spending.tool_calls for run_spending in runs),
        }

    def exceeded_by(self, budget: BudgetName, expert: str | None, needed: float) -> BudgetRefusal:
        """Return the refusal of a call that needs `needed` of a budget."""
        account = self._accounts[expert or JOB]
        max_budget, used = account.limit, account.used
        rows: dict[BudgetName, tuple[float | None, float]] = {
            "maxCost": (max_budget.max_cost, used.nano / NANO_PER_DOLLAR),
            "maxTokens": (max_budget.max_tokens, used.tokens),
            "maxToolCalls": (max_budget.max_tool_calls, account.tool_calls),
            "maxTime": (max_budget.max_time, account.worked_ms),
        }
        limit, spent = rows[budget]
        return BudgetRefusal(budget, expert, limit or 0, spent, needed)

    def time_left(self, expert: str | None = None) -> int | None:
        """Return the milliseconds of work left for the Job, or for an Expert; None without a limit."""
        account = self._accounts.get(expert or JOB)
        if account is None or account.limit.max_time is None:
            return None
        return max(0, account.limit.max_time - account.worked_ms)

    def out_of_time(self, expert: str | None = None) -> BudgetRefusal:
        """Return the refusal of further work because no time is left."""
        limit = self._accounts[expert or JOB].limit.max_time or 0
        return BudgetRefusal("maxTime", expert, limit, limit, 1)

    def covers(self, run_id: str, expert: str | None) -> bool:
        """Return True if the Run spends from the Job's budget, or from this Expert's."""
        return (expert or JOB) in self._keys.get(run_id, ())

    def needs_prices(self, run_id: str) -> bool:
        """Return True if the Run's generations need a price, because a budget is in dollars."""
        return any(self._accounts[key].limit.max_cost is not None for key in self._keys[run_id])

    def used(self, expert: str | None = None) -> Amount:
        """Return the usage of an account, including reservations."""
        return self._accounts[expert or JOB].used

    def _open_accounts(self, run: Run) -> None:
        above, own = run.start.delegated_by, run.start.expert.budget
        keys = (JOB,) if above is None else self._keys.get(above.run_id, (JOB,))
        # The Coordinator gets no account of its own: the budget of its Expert is in the Job's already.
        if above is not None and own is not None and run.start.expert_key not in keys:
            keys = (*keys, run.start.expert_key)
            self._accounts.setdefault(run.start.expert_key, _Account(own))
        self._keys[run.id] = keys


def _excess(key: str, account: _Account, bound: Bound) -> BudgetRefusal:
    limit, used = account.limit, account.used
    needs = bound.with_reply(min(bound.least, bound.wanted))
    if limit.max_cost is not None and used.nano + needs.nano > nano(limit.max_cost):
        return BudgetRefusal(
            "maxCost", key or None, limit.max_cost, used.nano / NANO_PER_DOLLAR, needs.nano / NANO_PER_DOLLAR
        )
    return BudgetRefusal("maxTokens", key or None, limit.max_tokens or 0, used.tokens, needs.tokens)


def is_reported(usage: Usage, reserved: Charge, *, has_reply: bool) -> bool:
    """Return True if the endpoint reported usage, and its price is known if dollars were reserved."""
    is_priced = reserved.cost_usd is None or usage.cost_usd is not None
    return (
        is_priced and not usage.assumed_tokens and usage.input_tokens > 0 and (usage.output_tokens > 0 or not has_reply)
    )


def is_uncharged(error: ErrorInfo) -> bool:
    """Return True if a failed attempt cannot have been charged: it was refused, or never reached the endpoint."""
    return error.status_code is not None or error.name in _NEVER_SENT


_NEVER_SENT = frozenset(("ConnectError", "CircuitOpen", "Certificate", "BadRequest", "ProxyError"))


def excess_over(usage: Usage, reserved: Charge | None) -> Charge | None:
    """Return the usage that exceeds its reservation; None if none does."""
    if reserved is None:
        return None
    used, maximum = Amount.of_usage(usage), Amount.of_charge(reserved)
    # Dollars are reserved only with a budget in dollars.
    dollars = 0 if reserved.cost_usd is None else max(0, used.nano - maximum.nano)
    extra = Amount(max(0, used.tokens - maximum.tokens), dollars)
    return None if extra == NO_AMOUNT else extra.as_charge()
