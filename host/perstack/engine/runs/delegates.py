"""Drive delegates in this process or on other workers, and record each result for the call that asked for it.

Delegates in this process run concurrently. One that asks a person waits while other Runs of the Job are active; when
the last active Run stops, the Job rests with all its questions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from perstack.config.settings import DEFAULT_RESULT_LIMIT
from perstack.core.base.actor import By
from perstack.core.base.text import head_and_tail
from perstack.core.definitions.permissions import Approval
from perstack.core.jobs.resuming import limits_of_delegate
from perstack.core.runs.decide import has_ended, stopped_with
from perstack.core.runs.facts import Answer, Delegation
from perstack.core.runs.messages import TextPart
from perstack.core.runs.pending import pending
from perstack.core.runs.questions import OpenQuestion
from perstack.core.runs.repeats import warned
from perstack.core.runs.results import report_of
from perstack.core.runs.state import Run
from perstack.core.runs.step_events import FinishToolCall
from perstack.dataclass import dataclass
from perstack.engine.log.run_session import RunSession
from perstack.engine.runs.delegation import DelegateOutcome, Drives, begin_delegate
from perstack.errors import Conflict, PerstackError
from perstack.next_steps import Inspect
from perstack.ports.skill import BlobStore
from perstack.system.user import this_process

if TYPE_CHECKING:
    from perstack.core.jobs.answers import Given  # reading answers takes what most Jobs never need
    from perstack.engine.runs.remote_delegates import Distribution


# Answers to delegates that ask while other Runs of the Job are active, without waiting for those to stop.
#
# The Job rests, and shows its questions, when each of its Runs waits for a person. Until then a delegate that asks
# waits here; its log says that it is stopped.


@dataclass(frozen=True, slots=True)
class Said:
    """A person's answer, and who gave it."""

    answer: str | Answer | Approval
    by: By


class Waiting:
    """A delegate's question that waits for its answer."""

    def __init__(self, asking: OpenQuestion) -> None:
        """Create its futures in the running event loop."""
        self.asking = asking
        loop = asyncio.get_running_loop()
        self.said: asyncio.Future[Said | None] = loop.create_future()
        """None once no other Run of the Job is active."""
        self.recorded: asyncio.Future[None] = loop.create_future()


class LiveAnswers:
    """Questions that delegates of a driven Job ask while other Runs are active.

    It counts the active Runs. A Run that awaits its delegates gives its place in the count to them.
    """

    def __init__(self) -> None:
        """Start with one active Run and no question."""
        self._places = 1
        self._waiting: dict[str, Waiting] = {}

    # --- active Runs ----------------------------------------------------------------------------------------------

    def begin(self, count: int) -> None:
        """Count `count` starting delegates in place of the Run that awaits them."""
        self._places += count - 1

    def end(self, left: int) -> None:
        """Count a delegate as ended or at rest, with `left` others open. The last one's place goes to its parent."""
        if left:
            self._leave()

    def _leave(self) -> None:
        self._places -= 1
        if self._places == 0:
            for waiting in self._waiting.values():
                self._places += 1
                waiting.said.set_result(None)
            self._waiting.clear()

    # --- asking and answering -------------------------------------------------------------------------------------

    async def to(self, waiting: Waiting) -> Said | None:
        """Wait for the answer to a question. Returns None once no other Run of the Job is active."""
        asking = waiting.asking
        self._waiting[asking.id] = waiting
        self._leave()
        try:
            return await waiting.said
        finally:
            self._waiting.pop(asking.id, None)

    @property
    def asked(self) -> tuple[OpenQuestion, ...]:
        """The questions that wait for an answer, oldest first."""
        return tuple(waiting.asking for waiting in self._waiting.values())

    def asks(self, question_id: str) -> bool:
        """Return whether this question waits for an answer."""
        return question_id in self._waiting

    async def give(self, question_id: str, given: Given) -> None:
        """Answer a waiting question. Returns when the answer is recorded.

        Raises UsageError if the answer does not fit, Conflict if the Job was stopped before it was recorded.
        """
        waiting = self._waiting[question_id]
        said = Said(given.to(waiting.asking), given.by)
        del self._waiting[question_id]
        self._places += 1
        waiting.said.set_result(said)
        try:
            await asyncio.shield(waiting.recorded)
        except asyncio.CancelledError:
            if not waiting.recorded.cancelled():
                raise
            text = f"the Job was stopped before the answer to {question_id} was recorded"
            raise Conflict(text, next_steps=(Inspect("inbox"),)) from None


async def _shown(outcome: DelegateOutcome, blobs: BlobStore, most: int) -> str:
    """Return the result as the caller sees it. A long text is stored as a blob before the cut text names it."""
    text = outcome.text or ""
    own = None if outcome.run is None else outcome.run.start.expert.result_limit
    most = most if own is None else own
    if len(text) <= most:
        return text
    return head_and_tail(text, most, await blobs.put(text.encode("utf-8", "replace")))


def _asks(run: Run | None) -> Run | None:
    return run if run is not None and run.status == "stoppedByInteractiveTool" and run.questions else None


class Delegates:
    """The delegates of all Runs that one driver drives, in its process or on other workers."""

    def __init__(self, driver: Drives, blobs: BlobStore) -> None:
        """Serve the Runs of this driver; `blobs` stores long results."""
        self._driver = driver
        self._blobs = blobs
        self.answers = LiveAnswers()

    async def awaited(
        self, parent: RunSession, delegations: Sequence[Delegation], distribution: Distribution | None
    ) -> None:
        """Drive all delegates of a Run. Record each result as it arrives, and a stop if some have none.

        `distribution` decides which of them other workers may drive; None for none. The caller sees at most
        `resultLimit` characters of a result.
        """
        driver = self._driver
        if distribution is not None and distribution.takes(parent, delegations):
            stopped, is_left = await self._elsewhere(distribution, parent, delegations)
        else:
            stopped, is_left = await self._here(parent, delegations), False
        if (stopped or is_left) and driver.is_leaving():
            driver.note_interrupt(parent)
        elif stopped and pending(parent.run) is not None:
            parent.record(stopped_with(stopped, driver.limits.max_steps or 0, parent.stamp))

    async def _here(self, parent: RunSession, delegations: Sequence[Delegation]) -> list[Run]:
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
        self, distribution: Distribution, parent: RunSession, delegations: Sequence[Delegation]
    ) -> tuple[list[Run], bool]:
        """Return the delegates that stopped without a result, and whether some are still active on other workers."""
        from perstack.engine.runs.remote_delegates import Batch  # most Jobs are driven in one process

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

    async def _record(self, parent: RunSession, delegation: Delegation, outcome: DelegateOutcome) -> None:
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
        parent.record(warned(parent.run, finished))
        await parent.flush()

    # --- one delegate in this process -----------------------------------------------------------------------------

    async def _driven(self, parent: RunSession, delegation: Delegation) -> DelegateOutcome:
        """Drive a delegate from the point that its log has reached. An error in setting it up is its failure."""
        known = self._driver.runs.pop(delegation.run_id, None)
        if known is not None and not has_ended(known) and known.queued is not None:
            return await self._taken_back(parent, delegation, known)
        return await self._driven_on(parent, delegation, known)

    async def _taken_back(self, parent: RunSession, delegation: Delegation, known: Run) -> DelegateOutcome:
        """Drive a delegate that was queued for another worker, holding its lease so that no other can drive it."""
        from perstack.engine.log.leases import DelegateLeases
        from perstack.engine.runs.remote_delegates import stop_elsewhere

        driver, wiring = self._driver, self._driver.wiring
        driver.runs[known.id] = known
        await stop_elsewhere(
            wiring.storage, driver.job, driver.runs, wiring.emit, wiring.clock, wiring.dispatching, only=known.id
        )
        holders = DelegateLeases(wiring.storage)
        async with holders.lease(known.id, this_process()):
            outcome = await self._driven_on(parent, delegation, driver.runs.pop(known.id, known))
        if outcome.run is not None and has_ended(outcome.run):
            await holders.forget(known.id)
        return outcome

    async def _driven_on(self, parent: RunSession, delegation: Delegation, known: Run | None) -> DelegateOutcome:
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

    async def _driven_until_it_stops(self, parent: RunSession, session: RunSession) -> DelegateOutcome:
        await self._driver.drive_in_time(session, session.run.start.expert_key)
        return self._outcome(parent, session.run)

    async def _answered(self, parent: RunSession, asks: Run) -> DelegateOutcome | None:
        """Drive a delegate further after its answer. Returns None if no other Run is active, so that the Job rests."""
        driver, waiting = self._driver, Waiting(next(reversed(asks.questions.values())))
        session: RunSession | None = None
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

    def _taken_up(self, parent: RunSession, known: Run) -> RunSession:
        limits = limits_of_delegate(known, self._driver.wiring.overrides)
        return self._driver.take_up(known, "parent", limits=limits, above=parent.run.permissions)

    def _outcome(self, parent: RunSession, run: Run) -> DelegateOutcome:
        """Return the outcome of a Run.

        A delegate that its Expert's own budget stopped has failed; one that the Job's budget stopped stops its
        ancestors.
        """
        outcome, exceeded, spending = DelegateOutcome.of(run), run.exceeded, self._driver.spending
        if outcome.stopped is None or exceeded is None or spending is None:
            return outcome
        if spending.ledger.covers(parent.ref.run_id, exceeded.expert):
            return outcome
        return DelegateOutcome.failed(exceeded.words, run)
