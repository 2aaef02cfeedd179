"""What a Job may spend: a ledger over all its Runs, and the decision on each generation before it is made.

The rule: what was used, what is taken for used because nobody said, and the worst case of every generation that is
under way are together never more than the budget. A generation begins only if its own worst case fits as well. Amounts
are whole numbers, dollars in billionths, so that nothing is lost by rounding.

What a Run comes to is a fold of its log: `startGeneration` has the worst case, as `reserved`, and what follows settles
it. So a generation that was under way when its process was killed stays counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from math import ceil

from perstack.core.definitions import Budget, Expert
from perstack.core.policy.shares import WHOLE, Amounts, What
from perstack.core.run_facts import BudgetName, ErrorInfo
from perstack.core.runs.state import Run, promised
from perstack.core.usage import Charge, Usage
from perstack.dataclass import dataclass

NANO = 1_000_000_000
LEAST = 256
"""Tokens of a reply below which it is not worth asking for one."""
LEAST_THINKING = 2_048
"""The same for a model that thinks first: endpoints want 1,024 for that alone."""
WANTED = 8_192
"""Tokens that a reply may have at first, if its user sets no limit. One that needs more is made again with twice."""
OF_ENDPOINT = 1_000
"""Tokens that endpoints add of their own, such as how tools are called."""

JOB = ""
"""The account of the whole Job; the others have the key of an Expert."""
_ENDLESS = 10**30


def nano(dollars: float) -> int:
    """Rounded up: a budget is not crossed by a fraction."""
    return ceil(round(dollars * NANO, 3))


@dataclass(frozen=True, slots=True)
class Amount:
    """Tokens, and billionths of a dollar."""

    tokens: int = 0
    nano: int = 0

    @classmethod
    def of_usage(cls, usage: Usage) -> Amount:
        tokens = max(usage.total_tokens, usage.input_tokens + usage.output_tokens)
        return cls(tokens, nano(usage.cost_usd or 0))

    @classmethod
    def of_charge(cls, charge: Charge | None) -> Amount:
        return NOTHING if charge is None else cls(charge.tokens, nano(charge.cost_usd or 0))

    def as_charge(self) -> Charge:
        """As it is recorded."""
        return Charge(tokens=self.tokens, cost_usd=self.nano / NANO if self.nano else None)

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.tokens + other.tokens, self.nano + other.nano)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.tokens - other.tokens, self.nano - other.nano)


NOTHING = Amount()


@dataclass(frozen=True, slots=True)
class Bound:
    """The worst that one generation can come to."""

    input_tokens: int
    wanted: int
    """The most tokens of reply that are asked for, if there is room."""
    least: int
    """The fewest that are worth asking for."""
    input_nano: int = 0
    output_nano: int = 0
    """For each token of the reply."""

    def with_reply(self, tokens: int) -> Amount:
        """Its cost with a reply of so many tokens."""
        return Amount(self.input_tokens + tokens, self.input_nano + tokens * self.output_nano)

    def fitting(self, left: Amount) -> int:
        """How many tokens of reply there is room for; below zero if not even for what is sent."""
        dollars = left.nano - self.input_nano
        if dollars < 0:
            return -1
        tokens = left.tokens - self.input_tokens
        return min(tokens, dollars // self.output_nano) if self.output_nano else tokens


@dataclass(frozen=True, slots=True)
class Grant:
    """The generation may be made, with so many tokens of reply at most."""

    max_tokens: int
    amount: Amount


@dataclass(frozen=True, slots=True)
class Wait:
    """There is room if a generation of a parallel Run costs less than it may."""


@dataclass(frozen=True, slots=True)
class Exceeded:
    """There is no room, and nothing that would come back."""

    budget: BudgetName
    expert: str | None
    """Whose budget it is; None for the Job's."""
    limit: float
    spent: float
    needed: float
    """What the next call would have needed."""


@dataclass(slots=True)
class _Account:
    limit: Budget
    spent: Amount = field(default_factory=Amount)
    open: Amount = field(default_factory=Amount)
    """The worst cases of what is under way."""
    tool_calls: int = 0
    worked_ms: int = 0

    @property
    def used(self) -> Amount:
        return self.spent + self.open

    @property
    def left(self) -> Amount:
        used, limit = self.used, self.limit
        tokens = _ENDLESS if limit.max_tokens is None else limit.max_tokens - used.tokens
        return Amount(tokens, _ENDLESS if limit.max_cost is None else nano(limit.max_cost) - used.nano)

    @property
    def amounts(self) -> Amounts:
        """The same of what has a limit, never below zero."""
        found: dict[What, int] = {}
        if self.limit.max_tokens is not None:
            found["tokens"] = max(0, self.left.tokens)
        if self.limit.max_cost is not None:
            found["nano"] = max(0, self.left.nano)
        if self.limit.max_tool_calls is not None:
            found["calls"] = max(0, self.limit.max_tool_calls - self.tool_calls)
        return found


@dataclass(frozen=True, slots=True)
class _OfRun:
    spent: Amount = NOTHING
    open: Amount = NOTHING
    tool_calls: int = 0

    @classmethod
    def of(cls, run: Run, *, at_rest: bool) -> _OfRun:
        spent = Amount.of_usage(run.usage) + Amount.of_charge(run.assumed)
        reserved = Amount.of_charge(promised(run))
        if at_rest:
            spent, reserved = spent + reserved, NOTHING
        return cls(spent, reserved, run.tool_calls)


_NOTHING_OF_RUN = _OfRun()


def _is_same(run: Run, before: Run) -> bool:
    """Whether nothing was used or promised since: most events change neither, and leave the objects as they are."""
    return (
        run.usage is before.usage
        and run.sampled is before.sampled
        and run.reserved is before.reserved
        and run.assumed is before.assumed
        and run.tool_calls == before.tool_calls
    )


class Ledger:
    """The budget of a Job, and those of Experts within it: each holds for their Runs and for all below these.

    Take each Run in as it stands, one that is above another first.
    """

    def __init__(self, limit: Budget | None, root: str = "") -> None:
        """`root` is the Run whose time counts as that of all, if that is no Coordinator's."""
        self._root = root
        self._accounts: dict[str, _Account] = {JOB: _Account(limit or Budget())}
        self._keys: dict[str, tuple[str, ...]] = {}
        """The accounts that a Run spends of."""
        self._taken: dict[str, _OfRun] = {}
        self._latest: dict[str, Run] = {}
        self._held: dict[str, tuple[str, Amount]] = {}

    def take(self, run: Run, *, at_rest: bool = False) -> bool:
        """Take in the state of a Run. Whether less is promised than before, so that others may have room.

        Of a Run `at_rest`, which nobody drives yet, what was under way when its process ended counts as spent.
        """
        run_id, latest = run.start.run_id, self._latest.get(run.start.run_id)
        if latest is None:
            self._enter(run)
        self._latest[run_id] = run
        self._add_time(run, 0 if latest is None else latest.worked_ms)
        if latest is not None and _is_same(run, latest) and not at_rest:
            return False
        before, now = self._taken.get(run_id, _NOTHING_OF_RUN), _OfRun.of(run, at_rest=at_rest)
        self._taken[run_id] = now
        for key in self._keys[run_id]:
            account = self._accounts[key]
            account.spent += now.spent - before.spent
            account.open += now.open - before.open
            account.tool_calls += now.tool_calls - before.tool_calls
        return now.open != before.open

    def _add_time(self, run: Run, before: int) -> None:
        """A Run's time is that of those below it too."""
        if run.worked_ms == before:
            return
        key = JOB if run.is_coordinator or run.id == self._root else run.start.expert_key
        if key in self._keys[run.start.run_id]:
            self._accounts[key].worked_ms += run.worked_ms - before

    def hold(self, key: str, run_id: str, amount: Amount) -> None:
        """Count something that no Run's state has yet. Under a key that is there already, in its place."""
        self.drop(key)
        self._held[key] = (run_id, amount)
        for account in self._keys[run_id]:
            self._accounts[account].open += amount

    def drop(self, key: str) -> bool:
        """Count it no more: it is in its Run's state now, or did not come about. False if there is none."""
        held = self._held.pop(key, None)
        if held is None:
            return False
        run_id, amount = held
        for account in self._keys[run_id]:
            self._accounts[account].open -= amount
        return True

    def reserve(self, run_id: str, bound: Bound, *, mine: Amount = NOTHING) -> Grant | Wait | Exceeded:
        """What becomes of a generation whose worst case is known. Nothing is counted by this.

        `mine` is what is held for whoever asks, and does not come back while it waits.
        """
        tightest, most = JOB, bound.wanted
        for key in self._keys[run_id]:
            fits = bound.fitting(self._accounts[key].left)
            if fits < most:
                tightest, most = key, fits
        if most >= min(bound.least, bound.wanted):
            return Grant(most, bound.with_reply(most))
        account = self._accounts[tightest]
        back = account.open - mine
        is_anything_open = back.tokens > 0 or back.nano > 0
        if is_anything_open and bound.fitting(account.left + back) >= min(bound.least, bound.wanted):
            return Wait()
        return _exceeded(tightest, account, bound)

    def room_for_calls(self, run_id: str, calls: int) -> Exceeded | None:
        """Why that many calls of tools may not be made; None if they may."""
        for key in self._keys[run_id]:
            account = self._accounts[key]
            most = account.limit.max_tool_calls
            if calls and most is not None and account.tool_calls + calls > most:
                return Exceeded("maxToolCalls", key or None, most, account.tool_calls, calls)
        return None

    def left_for(self, run_id: str, expert: Expert) -> dict[str, Amounts]:
        """What nobody has used of the accounts that a delegate of a Run would use: of those of the Run itself together,
        as `WHOLE`, and of the delegate's Expert, if it has a budget of its own."""
        whole: dict[What, int] = {}
        for key in self._keys[run_id]:
            for what, amount in self._accounts[key].amounts.items():
                whole[what] = min(amount, whole.get(what, amount))
        if expert.budget is None or expert.key in self._keys[run_id]:
            return {WHOLE: whole}
        return {WHOLE: whole, expert.key: self._accounts.get(expert.key, _Account(expert.budget)).amounts}

    def used_by(self, run_ids: Iterable[str]) -> Amounts:
        """What these Runs have used, with what is under way."""
        found = [self._taken[run_id] for run_id in run_ids if run_id in self._taken]
        used = sum((one.spent + one.open for one in found), NOTHING)
        return {"tokens": used.tokens, "nano": used.nano, "calls": sum(one.tool_calls for one in found)}

    def standing(self, budget: BudgetName, expert: str | None, needed: float) -> Exceeded:
        """That what is needed of a budget does not fit any more."""
        account = self._accounts[expert or JOB]
        limit: dict[BudgetName, float | None] = {
            "maxCost": account.limit.max_cost,
            "maxTokens": account.limit.max_tokens,
            "maxToolCalls": account.limit.max_tool_calls,
            "maxTime": account.limit.max_time,
        }
        used: dict[BudgetName, float] = {
            "maxCost": account.used.nano / NANO,
            "maxTokens": account.used.tokens,
            "maxToolCalls": account.tool_calls,
            "maxTime": account.worked_ms,
        }
        return Exceeded(budget, expert, limit[budget] or 0, used[budget], needed)

    def time_left(self, expert: str | None = None) -> int | None:
        """Milliseconds of work that are left of the Job's budget, or of an Expert's; None for no limit."""
        account = self._accounts.get(expert or JOB)
        if account is None or account.limit.max_time is None:
            return None
        return max(0, account.limit.max_time - account.worked_ms)

    def out_of_time(self, expert: str | None = None) -> Exceeded:
        """That there is no time left."""
        limit = self._accounts[expert or JOB].limit.max_time or 0
        return Exceeded("maxTime", expert, limit, limit, 1)

    def covers(self, run_id: str, expert: str | None) -> bool:
        """Whether a Run spends of the Job's budget, or of that of this Expert."""
        return (expert or JOB) in self._keys.get(run_id, ())

    def wants_prices(self, run_id: str) -> bool:
        """Whether a Run's generations need a price."""
        return any(self._accounts[key].limit.max_cost is not None for key in self._keys[run_id])

    def used(self, expert: str | None = None) -> Amount:
        """What was spent, or is promised."""
        return self._accounts[expert or JOB].used

    def _enter(self, run: Run) -> None:
        above, own = run.start.delegated_by, run.start.expert.budget
        keys = (JOB,) if above is None else self._keys.get(above.run_id, (JOB,))
        # a Coordinator's own budget is part of the Job's
        if above is not None and own is not None and run.start.expert_key not in keys:
            keys = (*keys, run.start.expert_key)
            self._accounts.setdefault(run.start.expert_key, _Account(own))
        self._keys[run.id] = keys


def _exceeded(key: str, account: _Account, bound: Bound) -> Exceeded:
    limit, used = account.limit, account.used
    needs = bound.with_reply(min(bound.least, bound.wanted))
    if limit.max_cost is not None and used.nano + needs.nano > nano(limit.max_cost):
        return Exceeded("maxCost", key or None, limit.max_cost, used.nano / NANO, needs.nano / NANO)
    return Exceeded("maxTokens", key or None, limit.max_tokens or 0, used.tokens, needs.tokens)


def is_reported(usage: Usage, reserved: Charge, *, has_reply: bool) -> bool:
    """Whether an endpoint said what a generation has used, and the price of it is known if dollars were reserved."""
    is_priced = reserved.cost_usd is None or usage.cost_usd is not None
    return is_priced and usage.input_tokens > 0 and (usage.output_tokens > 0 or not has_reply)


def is_uncharged(error: ErrorInfo) -> bool:
    """Whether a try that failed so cannot have been charged for: it was refused, or never got to the endpoint."""
    return error.status_code is not None or error.name in _NEVER_SENT


_NEVER_SENT = frozenset(("ConnectError", "CircuitOpen", "Certificate", "BadRequest", "ProxyError"))


def over(usage: Usage, reserved: Charge | None) -> Charge | None:
    """By how much a generation has used more than could be expected."""
    if reserved is None:
        return None
    used, most = Amount.of_usage(usage), Amount.of_charge(reserved)
    # without a budget in dollars none are reserved
    dollars = 0 if reserved.cost_usd is None else max(0, used.nano - most.nano)
    extra = Amount(max(0, used.tokens - most.tokens), dollars)
    return None if extra == NOTHING else extra.as_charge()


def lower(one: Budget | None, other: Budget | None) -> Budget | None:
    """The lower of each limit."""
    if one is None or other is None:
        return one or other
    fields = {name: _lower(getattr(one, name), getattr(other, name)) for name in Budget.model_fields}
    return Budget.model_validate(fields)


def _lower(one: float | None, other: float | None) -> float | None:
    return min((value for value in (one, other) if value is not None), default=None)
