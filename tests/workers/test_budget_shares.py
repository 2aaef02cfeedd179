"""Shares of delegates that others drive: never more than there is, each larger than the last, and it ends."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fuzzing import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from perstack.core.base.ids import OWN_NUMBERS, block_of, may_be_remote, number_of_run
from perstack.core.definitions.settings import Budget, Limits
from perstack.core.jobs.budget_ledger import JOB, Amounts
from perstack.workers.budget_shares import Sharer, budget_of, find_short_account, grant_caps, recorded_cap


@dataclass
class Delegate:
    """Does pieces of work one after the other, each of so much, as far as its share allows."""

    run_id: str
    account: str
    pieces: list[tuple[int, int]]
    """What each piece needs, and what it uses of that in the end."""
    used: int = 0
    cap: int | None = None
    need: int = 0
    grants: list[int] = field(default_factory=list)

    @property
    def sharer(self) -> Sharer:
        cap: Amounts | None = None if self.cap is None else {"tokens": self.cap}
        needs: Amounts = {"tokens": self.need} if self.need else {}
        return Sharer(self.run_id, self.account, {"tokens": self.used}, cap, needs)

    def work(self) -> bool:
        """One piece; False when it has ended or stopped."""
        assert self.cap is not None
        if self.pieces and self.cap - self.used >= self.pieces[0][0]:
            self.used += self.pieces.pop(0)[1]
            self.need = 0
            return True
        self.need = self.pieces[0][0] if self.pieces else 0
        self.cap = None
        return False


PIECES = st.lists(st.integers(1, 60).flatmap(lambda need: st.tuples(st.just(need), st.integers(0, need))), max_size=6)


@settings(max_examples=scaled(300), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([JOB, "x"]), PIECES), min_size=1, max_size=6),
    st.integers(0, 400),
    st.integers(0, 200),
    st.randoms(use_true_random=False),
)
def test_what_is_used_and_held_is_never_more_than_there_is_and_all_that_fits_is_done(
    team: list[tuple[str, list[tuple[int, int]]]], limit: int, of_x: int, random: object
) -> None:
    every = [Delegate(f"job-{n}", account, list(pieces)) for n, (account, pieces) in enumerate(team, 2)]
    open_ = list(every)

    def remaining_amounts() -> dict[str, Amounts]:
        of_account = sum(one.used for one in every if one.account == "x")
        return {JOB: {"tokens": limit - sum(one.used for one in every)}, "x": {"tokens": of_x - of_account}}

    for _ in range(10_000):
        caps = grant_caps(remaining_amounts(), [one.sharer for one in open_])
        for one in open_:
            if one.run_id in caps:
                assert one.cap is None
                one.cap = caps[one.run_id]["tokens"]
                assert one.cap - one.used >= one.need
                assert not one.grants or one.cap > one.grants[-1] or one.cap - one.used >= one.need > 0
                one.grants.append(one.cap)
        for account, amounts in remaining_amounts().items():
            held = sum(max(0, one.cap - one.used) for one in open_ if one.cap and account in (JOB, one.account))
            assert held <= amounts["tokens"]
        at_work = [one for one in open_ if one.cap is not None]
        if not at_work:
            break
        one = random.choice(at_work)  # type: ignore[attr-defined]
        if not one.work() and not one.pieces:
            open_.remove(one)
    else:
        raise AssertionError("it does not end")
    for one in open_:  # nobody is at work: what is left is not enough for any of them
        account = find_short_account(remaining_amounts(), one.sharer)
        assert remaining_amounts()[account]["tokens"] < one.need
    assert sum(one.used for one in every) <= limit
    assert sum(one.used for one in every if one.account == "x") <= of_x


@given(st.integers(0, 10**15), st.integers(0, 10**12), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_share_reads_as_it_was_recorded(nano: int, tokens: int, calls: int, steps: int) -> None:
    cap: Amounts = {"nano": nano, "tokens": tokens, "calls": calls, "steps": steps}
    budget = budget_of(cap, None)
    assert budget is not None
    assert recorded_cap(Limits(max_steps=steps, budget=Budget.model_validate_json(budget.to_json()))) == cap
    assert budget_of({"steps": 3}, None) is None


def test_a_share_that_is_too_small_for_what_is_needed_goes_to_fewer() -> None:
    short = [Sharer(f"job-{n}", needs={"tokens": 40}) for n in range(2, 6)]
    assert grant_caps({JOB: {"tokens": 100}}, short) == {"job-2": {"tokens": 50}, "job-3": {"tokens": 50}}
    assert grant_caps({JOB: {"tokens": 39}}, short) == {}
    held = replace(short[0], cap={"tokens": 70}, used={"tokens": 5})
    assert grant_caps({JOB: {"tokens": 100}}, [held, *short[1:]]) == {}
    assert grant_caps({JOB: {"tokens": 105}}, [held, *short[1:]]) == {"job-3": {"tokens": 40}}
    assert grant_caps({JOB: {}}, [Sharer("job-2")]) == {"job-2": {}}


def test_no_two_drivers_give_one_number() -> None:
    blocks = [OWN_NUMBERS, *(block_of(number) for number in (2, 3, 19_999, 20_001, 29_999, 200_010_001))]
    for one in blocks:
        for other in blocks:
            assert one is other or one.stop <= other.start or other.stop <= one.start
    assert not may_be_remote("job-1")
    assert may_be_remote("job-2")
    number, levels = 2, 0
    while may_be_remote(f"job-{number}"):
        number, levels = block_of(number).start, levels + 1
        assert number_of_run(f"job-{number}") < 1 << 63
    assert levels == 4
    assert not may_be_remote("j" * 121 + "-1000000")
