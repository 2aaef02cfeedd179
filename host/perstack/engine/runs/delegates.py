"""Having delegates driven, here or elsewhere, and bringing each result to the call that asked for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from perstack.config.settings import DEFAULT_RESULT_LIMIT
from perstack.core.events import FinishToolCall
from perstack.core.messages import TextPart
from perstack.core.run_facts import Delegation
from perstack.core.runs.decide import has_ended, stopped_with
from perstack.core.runs.pending import pending
from perstack.core.runs.repeats import warned
from perstack.core.runs.reports import report_of
from perstack.core.runs.resuming import limits_of_delegate
from perstack.core.runs.state import Run
from perstack.core.shortening import head_and_tail
from perstack.engine.delegation import DelegateOutcome, begin_delegate
from perstack.engine.drives import Drives
from perstack.engine.live_answers import LiveAnswers, Waiting
from perstack.engine.session import Session
from perstack.engine.who import this_process
from perstack.errors import PerstackError
from perstack.ports.skill import BlobStore

if TYPE_CHECKING:
    from perstack.engine.elsewhere.distribution import Distribution


async def _shown(outcome: DelegateOutcome, blobs: BlobStore, most: int) -> str:
    """The result as the caller sees it; what is long is whole in a blob, which is there before it is named."""
    text = outcome.text or ""
    own = None if outcome.run is None else outcome.run.start.expert.result_limit
    most = most if own is None else own
    if len(text) <= most:
        return text
    return head_and_tail(text, most, await blobs.put(text.encode("utf-8", "replace")))


def _asks(run: Run | None) -> Run | None:
    """The Run, if it is stopped at a question of its own."""
    return run if run is not None and run.status == "stoppedByInteractiveTool" and run.questions else None


class Delegates:
    """The delegates of all Runs that one driver drives: in its process, or in those of other workers."""

    def __init__(self, driver: Drives, blobs: BlobStore) -> None:
        self._driver = driver
        self._blobs = blobs
        self.answers = LiveAnswers()

    async def awaited(
        self, parent: Session, delegations: Sequence[Delegation], distribution: Distribution | None
    ) -> None:
        """Have all of them driven, and record each result as it comes, and the stop if some have none.

        `distribution` says which others may drive, if any. Of a result the caller sees `resultLimit` characters.
        """
        driver = self._driver
        if distribution is not None and distribution.takes(parent, delegations):
            stopped, is_left = await self._elsewhere(distribution, parent, delegations)
        else:
            stopped, is_left = await self._here(parent, delegations), False
        if (stopped or is_left) and driver.is_leaving():
            driver.note_interrupt(parent)
        elif stopped and pending(parent.run) is not None:
            parent.note(stopped_with(stopped, driver.limits.max_steps or 0, parent.stamp))

    async def _here(self, parent: Session, delegations: Sequence[Delegation]) -> list[Run]:
        """Drive all of them concurrently. Returns those that stopped without a result."""
        stopped: list[Run] = []
        left = len(delegations)
        self.answers.begin(left)

        async def one(delegation: Delegation) -> None:
            nonlocal left
            outcome = await self._driven(parent, delegation)
            if outcome.stopped is not None:
                stopped.append(outcome.stopped)
            else:
                await self._record(parent, delegation, outcome)
            left -= 1
            self.answers.end(left)

        if len(delegations) == 1:
            await one(delegations[0])
            return stopped
        async with asyncio.TaskGroup() as group:
            for delegation in delegations:
                group.create_task(one(delegation))
        return stopped

    async def _elsewhere(
        self, distribution: Distribution, parent: Session, delegations: Sequence[Delegation]
    ) -> tuple[list[Run], bool]:
        """Those that stopped without a result, and whether some are at work still."""
        from perstack.engine.elsewhere.batch import Batch  # most Jobs are driven in one process

        stopped: list[Run] = []
        self._driver.on_waiting(True)
        try:
            async with Batch(self._driver, distribution, parent, delegations) as batch:
                async with aclosing(batch.outcomes()) as outcomes:
                    async for delegation, outcome in outcomes:
                        if outcome.text is None:
                            stopped += [] if outcome.run is None else [outcome.run]
                        else:
                            await self._record(parent, delegation, outcome)
                return stopped, batch.is_left
        finally:
            self._driver.on_waiting(False)

    async def _record(self, parent: Session, delegation: Delegation, outcome: DelegateOutcome) -> None:
        most = self._driver.wiring.project.result_limit or DEFAULT_RESULT_LIMIT
        text = await _shown(outcome, self._blobs, most)
        report = None if outcome.run is None else report_of(outcome.run, delegation.tool_name)
        finished = FinishToolCall(
            **parent.stamp(),
            tool_call_id=delegation.tool_call_id,
            tool_name=delegation.tool_name,
            contents=(TextPart(text=text),),
            is_error=outcome.is_error,
            delegate=outcome.head,
            report=report,
        )
        parent.note(warned(parent.run, finished))
        await parent.flush()

    # --- one that is driven here ----------------------------------------------------------------------------------

    async def _driven(self, parent: Session, delegation: Delegation) -> DelegateOutcome:
        """Drive one from wherever its log leaves off; an error to set it up is its failure."""
        known = self._driver.runs.pop(delegation.run_id, None)
        if known is not None and not has_ended(known) and known.queued is not None:
            return await self._taken_back(parent, delegation, known)
        return await self._driven_on(parent, delegation, known)

    async def _taken_back(self, parent: Session, delegation: Delegation, known: Run) -> DelegateOutcome:
        """One that another worker was to drive: nobody else has it meanwhile."""
        from perstack.engine.elsewhere.holding import Holders
        from perstack.engine.elsewhere.stopping import stop_elsewhere

        driver, wiring = self._driver, self._driver.wiring
        driver.runs[known.id] = known
        await stop_elsewhere(
            wiring.storage, driver.job, driver.runs, wiring.emit, wiring.clock, wiring.dispatching, only=known.id
        )
        holders = Holders(wiring.storage)
        async with holders.held(known.id, this_process()):
            outcome = await self._driven_on(parent, delegation, driver.runs.pop(known.id, known))
        if outcome.run is not None and has_ended(outcome.run):
            await holders.forget(known.id)
        return outcome

    async def _driven_on(self, parent: Session, delegation: Delegation, known: Run | None) -> DelegateOutcome:
        if known is not None and has_ended(known):
            return DelegateOutcome.of(known)
        driver = self._driver
        try:
            session = begin_delegate(driver, parent, delegation) if known is None else self._taken_up(parent, known)
        except PerstackError as error:
            return DelegateOutcome.failed(str(error))
        outcome = await self._driven_until_it_stops(parent, session)
        while (asks := _asks(outcome.stopped)) is not None:
            further = await self._answered(parent, asks)
            if further is None:
                break
            outcome = further
        return outcome

    async def _driven_until_it_stops(self, parent: Session, session: Session) -> DelegateOutcome:
        await self._driver.drive_in_time(session, session.run.start.expert_key)
        return self._outcome(parent, session.run)

    async def _answered(self, parent: Session, asks: Run) -> DelegateOutcome | None:
        """Drive one further that was answered while others are at work; None if nobody is, so that the Job rests."""
        driver, waiting = self._driver, Waiting(next(reversed(asks.questions.values())))
        session: Session | None = None
        try:
            said = await self.answers.to(waiting)
            if said is None:
                return None
            driver.answers[asks.id], driver.answered_by = said.answer, said.by
            session = self._taken_up(parent, asks)
            await session.flush()
            waiting.recorded.set_result(None)
        except PerstackError as error:
            waiting.recorded.set_exception(error)
            if session is not None:
                raise
            return DelegateOutcome.failed(str(error))
        finally:
            waiting.recorded.cancel()
        return await self._driven_until_it_stops(parent, session)

    def _taken_up(self, parent: Session, known: Run) -> Session:
        limits = limits_of_delegate(known, self._driver.wiring.overrides)
        return self._driver.take_up(known, "parent", limits=limits, above=parent.run.permissions)

    def _outcome(self, parent: Session, run: Run) -> DelegateOutcome:
        """A delegate that its own Expert's budget has stopped has failed; one that the Job's has stops all above it."""
        outcome, exceeded, spending = DelegateOutcome.of(run), run.exceeded, self._driver.spending
        if outcome.stopped is None or exceeded is None or spending is None:
            return outcome
        if spending.ledger.covers(parent.ref.run_id, exceeded.expert):
            return outcome
        return DelegateOutcome.failed(exceeded.words, run)
