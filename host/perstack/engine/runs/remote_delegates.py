"""The delegates that a Run awaits, driven by whichever workers have a place: begun, ordered, followed, given shares.

The process that awaits them writes how each begins, and that it waits for a worker; then its log is the other's, until
it has ended or stopped. Nothing else of the Job is at work in this process meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import field, replace
from types import TracebackType
from typing import assert_never

from perstack.core.definitions import Limits
from perstack.core.policy.budget import Exceeded, nano
from perstack.core.policy.shares import WHOLE, Amounts, Sharer, What, granted, short_account
from perstack.core.queueing import QueueRun
from perstack.core.run_facts import Delegation
from perstack.core.runs.decide import has_ended
from perstack.core.runs.resuming import limits_of_delegate
from perstack.core.runs.state import Run
from perstack.core.runs.transitions import ACTIVE
from perstack.dataclass import dataclass
from perstack.engine.delegation import DelegateOutcome, begin_delegate
from perstack.engine.drives import Drives
from perstack.engine.elsewhere.distribution import Distribution
from perstack.engine.elsewhere.following import Following
from perstack.engine.elsewhere.holding import Holders
from perstack.engine.elsewhere.limits import budget_of, capped
from perstack.engine.elsewhere.stopping import Stopping
from perstack.engine.session import Session, uninterrupted
from perstack.engine.watch import watching
from perstack.engine.who import this_user
from perstack.errors import Conflict, DispatcherError, PerstackError, StorageError
from perstack.ports.dispatcher import Order

_LOOK_AGAIN = 0.1
_LOOK_AFTER_SILENCE = 0.5
"""Seconds between two looks at the logs; where the storage says when there is something, the latter."""
_MOST_CONFLICTS = 10
_LOOKS_FOR_ORDERS_EACH = 10.0
"""Seconds after which it is seen whether somebody drives a delegate, or is about to."""


@dataclass(slots=True)
class _Member:
    """One delegate."""

    delegation: Delegation
    run: Run | None = None
    """As it was seen last; None before it has begun."""
    is_ours: bool = False
    """Whether it was begun or continued by this process, so that what it has stopped for is new."""
    needs: dict[What, int] = field(default_factory=dict[What, int])
    """What it has stopped for, since it has used anything."""
    used: Amounts = field(default_factory=dict[What, int])
    """By it and all below it, when it stopped last."""
    outcome: DelegateOutcome | None = None
    looks_at: float = 0.0
    """When it is seen next whether somebody drives it, by `time.monotonic`."""

    conflicts: int = 0
    """How often in a row its log had become another's in the moment that it was to be continued."""

    @property
    def id(self) -> str:
        return self.delegation.run_id

    @property
    def is_at_work(self) -> bool:
        """Whether somebody drives it, or is to."""
        run = self.run
        return run is not None and run.queued is not None and (run.status in ACTIVE or run.status == "queued")


class Batch:
    """Those of one Run, until each has ended or stopped. Enter it to have them stopped when the Job is."""

    def __init__(self, driver: Drives, how: Distribution, parent: Session, delegations: Sequence[Delegation]) -> None:
        wiring = driver.wiring
        self._driver = driver
        self._how = how
        self._wiring = wiring
        self._parent = parent
        self._holders = Holders(wiring.storage)
        self._following = Following(wiring.storage, driver.job, driver.runs, driver.kept.changed)
        self._open = [_Member(delegation) for delegation in delegations]

    async def __aenter__(self) -> Batch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What others drive is stopped if the Job is to stop, and goes on if only this process does."""
        driver = self._driver
        is_over = driver.deadlines is not None and driver.deadlines.over(self._parent.run) is not None
        if isinstance(error, asyncio.CancelledError) and (is_over or driver.is_stopped()):
            await uninterrupted(self._stop())

    @property
    def is_left(self) -> bool:
        """Whether some are still at work."""
        return bool(self._open)

    async def outcomes(self) -> AsyncGenerator[tuple[Delegation, DelegateOutcome]]:
        """What becomes of each, as it comes. Ends before all have ended if this process leaves."""
        pause = _LOOK_AGAIN
        async with watching(self._wiring.storage, self._driver.job.id) as watch:
            while self._open:
                for member in tuple(self._open):
                    member.run = await self._following.look(member.id)
                if not self._driver.is_leaving():
                    await self._grant()
                for member in tuple(self._open):
                    outcome = member.outcome or self._outcome(member)
                    if outcome is not None:
                        self._open.remove(member)
                        if member.run is not None and has_ended(member.run):
                            await self._holders.forget(member.id)
                        yield member.delegation, outcome
                if not self._open or self._driver.is_leaving():
                    return
                await self._see_that_they_are_driven()
                await (asyncio.sleep(pause) if watch is None else watch.wait(_LOOK_AFTER_SILENCE))

    # --- what becomes of one --------------------------------------------------------------------------------------

    def _outcome(self, member: _Member) -> DelegateOutcome | None:
        """None: it is at work, or continues as soon as there is room."""
        run = member.run
        if run is None or (member.is_at_work and run.closed is None):
            return None
        if has_ended(run) or self._waits_for_a_person(run) or run.closed is not None:
            return DelegateOutcome.of(run)
        if member.is_ours and run.status == "stoppedByInterrupt" and run.waits_for_limit:
            return DelegateOutcome.of(run)
        if member.is_ours and run.exceeded is not None and run.exceeded.budget == "maxTime":
            expert = run.start.expert_key  # the Job's time is this process's to keep
            return DelegateOutcome.failed(run.exceeded.model_copy(update={"expert": expert}).words, run)
        return None

    def _waits_for_a_person(self, run: Run) -> bool:
        """Not if what it waits for was answered further below: then it has to be driven for that to continue."""
        below = (self._following.run(one) for one in self._following.whole(run.id)[1:])
        is_answered = any(one is not None and one.status in ACTIVE for one in below)
        return run.status == "stoppedByInteractiveTool" and not is_answered

    def _at_the_end(self, member: _Member, left: dict[str, Amounts]) -> DelegateOutcome:
        """The outcome of one that needs more than there is, and nobody gives anything back."""
        run = member.run
        if run is None or run.exceeded is None or self._driver.spending is None:
            return DelegateOutcome(None, False, run)
        account = short_account(left, self._sharer(member))
        ledger, event = self._driver.spending.ledger, run.exceeded
        real: Exceeded = ledger.standing(event.budget, account or None, event.needed)
        told = event.model_copy(update={"expert": real.expert, "limit": real.limit, "spent": real.spent})
        if account == WHOLE:
            return DelegateOutcome(None, False, replace(run, exceeded=told))
        return DelegateOutcome.failed(told.words, run)

    # --- shares ---------------------------------------------------------------------------------------------------

    async def _grant(self) -> None:
        """Begin or continue those that there is room for."""
        open_now = [one for one in self._open if one.outcome is None and self._outcome(one) is None]
        waiting = [one for one in open_now if not one.is_at_work]
        if not waiting:
            return
        for member in waiting:
            self._learn_needs(member)
        left = self._left(open_now)
        caps = granted(left, [self._sharer(member) for member in open_now])
        for member in waiting:
            if member.id in caps:
                await self._begin(member, caps[member.id])
        if not caps and len(waiting) == len(open_now):
            for member in waiting:
                member.outcome = self._at_the_end(member, left)

    def _left(self, members: Sequence[_Member]) -> dict[str, Amounts]:
        driver, left = self._driver, dict[str, Amounts]({WHOLE: {}})
        if driver.spending is not None:
            for member in members:
                expert = self._how.expert(member.delegation, member.run)
                left |= {} if expert is None else driver.spending.ledger.left_for(self._parent.run.id, expert)
        steps = driver.steps_left
        if steps is not None:
            left[WHOLE] = {**left[WHOLE], "steps": steps}
        return left

    def _sharer(self, member: _Member) -> Sharer:
        run, account = member.run, self._how.account_of(member.delegation, member.run)
        cap = capped(run.limits) if run is not None and member.is_at_work else None
        return Sharer(member.id, account, self._used(member), cap, member.needs)

    def _used(self, member: _Member) -> Amounts:
        whole, runs = self._following.whole(member.id), self._driver.job.runs
        steps: dict[What, int] = {"steps": sum(runs[one].steps for one in whole if one in runs)}
        spending = self._driver.spending
        return steps if spending is None else {**spending.ledger.used_by(whole), **steps}

    def _learn_needs(self, member: _Member) -> None:
        """Of one that has stopped at its share; what it needed before counts until it has done something again."""
        run, used = member.run, self._used(member)
        if used != member.used:
            member.used, member.needs = used, {}
        if run is None or not member.is_ours:
            return
        if run.status == "stoppedByMaxSteps":
            member.needs["steps"] = 1
        elif run.exceeded is not None:
            needed = run.exceeded.needed
            match run.exceeded.budget:
                case "maxTokens":
                    member.needs["tokens"] = max(int(needed), member.needs.get("tokens", 0))
                case "maxCost":
                    member.needs["nano"] = max(nano(needed) + 1, member.needs.get("nano", 0))
                case "maxToolCalls":
                    member.needs["calls"] = max(int(needed), member.needs.get("calls", 0))
                case "maxTime":
                    return
                case _:
                    assert_never(run.exceeded.budget)

    # --- beginning and continuing one -----------------------------------------------------------------------------

    async def _begin(self, member: _Member, cap: Amounts) -> None:
        """Record that it begins, or continues, with this share, and order it."""
        try:
            session = self._session(member, cap)
        except PerstackError as error:
            member.outcome = DelegateOutcome.failed(str(error))
            return
        by = this_user("worker", self._driver.worker)
        how = self._how
        session.note(QueueRun(**session.stamp(), by=by, definition=how.definition, due=0, priority=how.priority))
        try:
            await session.flush()
        except Conflict:
            member.conflicts += 1
            if member.run is None or member.conflicts > _MOST_CONFLICTS:
                raise
            return  # somebody has driven it in this moment: that is seen at the next look
        member.conflicts = 0
        self._following.put(session.run)
        member.run, member.is_ours = session.run, True
        await self._order(member)

    def _session(self, member: _Member, cap: Amounts) -> Session:
        driver, parent, run = self._driver, self._parent, member.run
        of_job = self._limits(member, cap)
        if run is None:
            return begin_delegate(driver, parent, member.delegation, of_job)
        limits = limits_of_delegate(run, self._wiring.overrides) or run.limits
        limits = limits.model_copy(update={"max_steps": of_job.max_steps, "budget": of_job.budget})
        changed = None if limits == run.limits else limits
        return driver.take_up(run, "parent", limits=changed, above=parent.run.permissions)

    def _limits(self, member: _Member, cap: Amounts) -> Limits:
        """The Job's, with the share in their place."""
        expert, spending, run = self._how.expert(member.delegation, member.run), self._driver.spending, member.run
        seconds: int | None = None
        if expert is not None and expert.budget is not None and expert.budget.max_time is not None:
            left = None if spending is None else spending.ledger.time_left(expert.key)
            seconds = (expert.budget.max_time if left is None else left) + (0 if run is None else run.worked_ms)
        budget = budget_of(cap, seconds)
        return self._driver.limits.model_copy(update={"max_steps": cap.get("steps"), "budget": budget})

    async def _order(self, member: _Member) -> None:
        """An order that cannot be given now is given later."""
        how, job = self._how, self._driver.job
        order = Order(job.id, 0, how.priority, job.labels, how.submitted_at, run_id=member.id)
        member.looks_at = time.monotonic() + _LOOKS_FOR_ORDERS_EACH
        with suppress(DispatcherError):
            await self._wiring.dispatching.submit(order, self._wiring.storage)

    async def _see_that_they_are_driven(self) -> None:
        """Order again what has no driver and no order: either may have been lost."""
        for member in self._open:
            if not member.is_at_work or time.monotonic() < member.looks_at:
                continue
            member.looks_at = time.monotonic() + _LOOKS_FOR_ORDERS_EACH
            with suppress(DispatcherError, StorageError):
                if await self._holders.holder(member.id) is not None:
                    continue
                if await self._wiring.dispatching.required().order(self._driver.job.id, member.id) is None:
                    await self._order(member)

    async def _stop(self) -> None:
        wiring, job = self._wiring, self._driver.job
        stopping = Stopping(wiring.storage, job, wiring.emit, wiring.clock, wiring.dispatching)
        with suppress(StorageError):  # what cannot be written now is seen by whoever drives it: nobody awaits it
            await stopping.stop(self._following, [member.id for member in self._open])
