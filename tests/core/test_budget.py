"""The ledger: whatever happens, what was spent and what is promised are never more than the budget."""

from __future__ import annotations

import os
import random

import pytest
from budget_spenders import Spenders
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from perstack.core.base.chain import Head
from perstack.core.base.usage import Amount, BudgetRefusal, Charge, Usage
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.settings import Budget, Limits, lower_budget
from perstack.core.jobs.budget_ledger import Bound, Grant, Ledger, WaitForRoom, excess_over, is_reported
from perstack.core.runs.facts import DelegatedBy
from perstack.core.runs.start import StartRun
from perstack.core.runs.state import Run, begin

SEEDS = 1_000 if os.environ.get("PERSTACK_FAULTS") == "all" else 200
CAPS = (Budget(max_cost=3.0), Budget(max_tokens=500_000), Budget(max_cost=2.5, max_tokens=600_000))


def played(seed: int, *, says_all: bool) -> Spenders:
    chance = random.Random(seed)
    spenders = Spenders(chance.randrange, CAPS[seed % len(CAPS)], 50, says_all)
    spenders.play()
    return spenders


def fits_budget(spenders: Spenders) -> bool:
    budget, truth, used = spenders.budget, spenders.truth, spenders.ledger.used()
    tokens = budget.max_tokens is None or max(truth.tokens, used.tokens) <= budget.max_tokens
    dollars = budget.max_cost is None or max(round(truth.dollars, 9), used.nano / 1e9) <= budget.max_cost
    return tokens and dollars


def share_used(spenders: Spenders, tokens: float, dollars: float) -> float:
    budget = spenders.budget
    return max(tokens / (budget.max_tokens or 10**12), dollars / (budget.max_cost or 10**12))


@pytest.mark.parametrize("part", range(10))
def test_fifty_delegates_never_cross_the_budget_and_use_nine_tenths_of_it(part: int) -> None:
    for seed in range(part, SEEDS, 20):
        spenders = played(seed, says_all=True)
        assert fits_budget(spenders), seed
        assert share_used(spenders, spenders.truth.tokens, spenders.truth.dollars) >= 0.9, seed
        assert spenders.waits, seed


@pytest.mark.parametrize("part", range(10))
def test_neither_do_they_where_endpoints_keep_silent_and_processes_are_killed(part: int) -> None:
    for seed in range(10 + part, SEEDS, 20):
        spenders = played(seed, says_all=False)
        assert fits_budget(spenders), seed
        used = spenders.ledger.used()
        assert share_used(spenders, used.tokens, used.nano / 1e9) >= 0.9, seed


def run_of(number: int, *, above: int | None = None, expert: str = "e", budget: Budget | None = None) -> Run:
    by = None
    if above is not None:
        by = DelegatedBy(expert_key="x", run_id=f"job-{above}", tool_call_id="c", tool_name="t")
    start = StartRun(
        id=f"job-{number}-1",
        timestamp=1,
        job_id="job",
        run_id=f"job-{number}",
        expert_key=expert,
        step_number=1,
        query="q",
        model="m",
        provider="p",
        instruction="i",
        expert=Expert(key=expert, instruction="i", budget=budget),
        limits=Limits(),
        delegated_by=by,
    )
    return begin(start, Head(1, ""))


class Ledgers(RuleBasedStateMachine):
    """A ledger beside a model of it: lists of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.job = Budget(max_tokens=10_000)
        self.own = Budget(max_tokens=4_000)
        self.ledger = Ledger(self.job)
        self.runs: dict[str, Run] = {}
        self.spent: dict[str, int] = {}
        self.open: dict[str, int] = {}
        self.surprise = 0
        self.take(run_of(1))

    def take(self, run: Run) -> bool:
        self.runs[run.id] = run
        spending = run.spending
        self.spent[run.id] = spending.usage.total_tokens + (spending.assumed.tokens if spending.assumed else 0)
        self.open[run.id] = spending.reserved.tokens if spending.reserved else 0
        return self.ledger.update(run)

    def runs_of_expert(self, expert: str) -> list[str]:
        return [run.id for run in self.runs.values() if run.start.expert_key == expert]

    def used(self, ids: list[str]) -> int:
        return sum(self.spent[one] + self.open[one] for one in ids)

    @precondition(lambda self: len(self.runs) < 8)
    @rule(own=st.booleans())
    def delegate(self, own: bool) -> None:
        number = len(self.runs) + 1
        run = run_of(number, above=1, expert="w" if own else "e", budget=self.own if own else None)
        assert not self.take(run)

    @rule(place=st.integers(0, 7), sent=st.integers(1, 3_000), wanted=st.integers(1, 3_000))
    def reserve(self, place: int, sent: int, wanted: int) -> None:
        run = list(self.runs.values())[place % len(self.runs)]
        if run.spending.reserved is not None:
            return
        decision = self.ledger.reserve(run.id, Bound(sent, wanted, 256))
        caps = [(list(self.runs), 10_000)] + (
            [(self.runs_of_expert("w"), 4_000)] if run.start.expert_key == "w" else []
        )
        room = min(cap - self.used(ids) for ids, cap in caps) - sent
        least = min(256, wanted)
        if room >= least:
            assert decision == Grant(min(room, wanted), Amount(sent + min(room, wanted)))
            self.take(replaced(run, reserved=decision.amount.as_charge()))
        elif isinstance(decision, WaitForRoom):
            assert any(self.open.values())
        else:
            assert isinstance(decision, BudgetRefusal)
            assert decision.spent + decision.needed > decision.limit

    @rule(place=st.integers(0, 7), share=st.floats(0, 1), tells=st.booleans())
    def settle(self, place: int, share: float, tells: bool) -> None:
        run = list(self.runs.values())[place % len(self.runs)]
        if run.spending.reserved is None:
            return
        used = int(run.spending.reserved.tokens * share)
        spent = run.spending
        change = {"usage": spent.usage + Usage.of(used, 0)} if tells else {"assumed": spent.reserved + spent.assumed}
        self.take(replaced(run, reserved=None, **change))

    @rule(place=st.integers(0, 7), extra=st.integers(1, 500))
    def surprise_with(self, place: int, extra: int) -> None:
        """More than was reserved: it counts, and the rest is less."""
        run = list(self.runs.values())[place % len(self.runs)]
        if run.spending.reserved is not None:
            self.surprise += extra
            used = Usage.of(run.spending.reserved.tokens + extra, 0)
            self.take(replaced(run, reserved=None, usage=run.spending.usage + used))

    @rule()
    def die(self) -> None:
        self.ledger = Ledger(self.job)
        for run in self.runs.values():
            self.ledger.update(run, at_rest=True)
        for run in list(self.runs.values()):
            if run.spending.reserved is not None:
                self.take(replaced(run, reserved=None, assumed=run.spending.reserved + run.spending.assumed))

    @invariant()
    def it_counts_as_the_model_does(self) -> None:
        assert self.ledger.used().tokens == self.used(list(self.runs)) <= 10_000 + self.surprise
        if self.runs_of_expert("w"):
            assert self.ledger.used("w").tokens == self.used(self.runs_of_expert("w")) <= 4_000 + self.surprise


def replaced(run: Run, **changes: object) -> Run:
    from dataclasses import replace

    return replace(run, spending=replace(run.spending, **changes))


TestLedgers = Ledgers.TestCase
TestLedgers.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_what_cannot_fit_even_when_all_comes_back_is_not_waited_for() -> None:
    ledger = Ledger(Budget(max_tokens=1_000))
    for number in (1, 2):
        ledger.update(run_of(number, above=None if number == 1 else 1))
    ledger.update(replaced(run_of(1), reserved=Charge(tokens=600)))
    assert isinstance(ledger.reserve("job-2", Bound(500, 100, 50)), WaitForRoom)
    assert isinstance(ledger.reserve("job-2", Bound(2_000, 100, 50)), BudgetRefusal)


def test_an_amount_that_is_held_does_not_come_back_to_whoever_holds_it() -> None:
    ledger = Ledger(Budget(max_tokens=1_000))
    ledger.update(run_of(1))
    ledger.hold("call", "job-1", Amount(800))
    bound = Bound(300, 100, 50)
    assert isinstance(ledger.reserve("job-1", bound), WaitForRoom)
    assert isinstance(ledger.reserve("job-1", bound, own=Amount(800)), BudgetRefusal)
    ledger.release("call")
    assert isinstance(ledger.reserve("job-1", bound), Grant)


def test_of_two_budgets_each_limit_is_the_lower_one() -> None:
    one, other = Budget(max_cost=1, max_tokens=5), Budget(max_cost=2, max_time=3)
    assert lower_budget(one, other) == Budget(max_cost=1, max_tokens=5, max_time=3)
    assert (lower_budget(None, one), lower_budget(one, None), lower_budget(None, None)) == (one, one, None)


@pytest.mark.parametrize(
    ("usage", "has_reply", "reported"),
    [
        (Usage.of(5, 5), True, True),
        (Usage.of(5, 0), False, True),
        (Usage.of(5, 0), True, False),
        (Usage.of(0, 5), True, False),
        (Usage(), True, False),
    ],
)
def test_a_reply_whose_tokens_are_not_told_is_not_taken_for_free(usage: Usage, has_reply: bool, reported: bool) -> None:
    assert is_reported(usage, Charge(tokens=20), has_reply=has_reply) is reported


def test_a_reply_whose_price_is_not_known_is_not_taken_for_free_where_dollars_were_reserved() -> None:
    priced = Usage.of(5, 5).model_copy(update={"cost_usd": 0.01})
    assert not is_reported(Usage.of(5, 5), Charge(tokens=20, cost_usd=0.5), has_reply=True)
    assert is_reported(priced, Charge(tokens=20, cost_usd=0.5), has_reply=True)


def test_what_is_above_a_reservation_is_told() -> None:
    assert excess_over(Usage.of(90, 20), Charge(tokens=100)) == Charge(tokens=10)
    assert excess_over(Usage.of(90, 10), Charge(tokens=100)) is None
    assert excess_over(Usage.of(90, 10), None) is None
    priced = Usage.of(90, 10).model_copy(update={"cost_usd": 0.5})
    assert excess_over(priced, Charge(tokens=100)) is None
    assert excess_over(priced, Charge(tokens=100, cost_usd=0.4)) == Charge(tokens=0, cost_usd=0.1)
