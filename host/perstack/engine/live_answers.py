"""Answers to delegates that ask while others of their Job are at work: nobody waits for those to stop.

A Job rests, and is asked what it is stopped at, when each of its Runs waits for a person. Until then a delegate that
asks waits here, stopped as its log says.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from perstack.core.by import By
from perstack.core.policy.approvals import Approval
from perstack.core.questions import Answer
from perstack.core.runs.asking import OpenQuestion
from perstack.dataclass import dataclass
from perstack.errors import Conflict
from perstack.next_steps import Look

if TYPE_CHECKING:
    from perstack.engine.given import Given  # reading answers takes what most Jobs never need


@dataclass(frozen=True, slots=True)
class Said:
    """What a person answered."""

    answer: str | Answer | Approval
    by: By


class Waiting:
    """A delegate that waits for its answer."""

    def __init__(self, asking: OpenQuestion) -> None:
        self.asking = asking
        loop = asyncio.get_running_loop()
        self.said: asyncio.Future[Said | None] = loop.create_future()
        """None: nobody is at work any more."""
        self.recorded: asyncio.Future[None] = loop.create_future()


class LiveAnswers:
    """Those of one Job that is driven.

    Each Run that does something has a place; who awaits delegates leaves its own to them.
    """

    def __init__(self) -> None:
        self._places = 1
        self._waiting: dict[str, Waiting] = {}

    # --- who is at work -------------------------------------------------------------------------------------------

    def begin(self, count: int) -> None:
        """So many delegates begin, in place of the Run that awaits them."""
        self._places += count - 1

    def end(self, left: int) -> None:
        """One of them has ended, or rests, and so many are left; the last one leaves its place to who awaits it."""
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
        """What is answered while others are at work; None if nobody is any more."""
        asking = waiting.asking
        self._waiting[asking.id] = waiting
        self._leave()
        try:
            return await waiting.said
        finally:
            self._waiting.pop(asking.id, None)

    @property
    def asked(self) -> tuple[OpenQuestion, ...]:
        """What is asked now, oldest first."""
        return tuple(waiting.asking for waiting in self._waiting.values())

    def asks(self, question_id: str) -> bool:
        """Whether this is asked now."""
        return question_id in self._waiting

    async def give(self, question_id: str, given: Given) -> None:
        """Answer what is asked. Returns when the answer is recorded.

        Raises UsageError if it does not fit, and Conflict if the Job was stopped before it was recorded.
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
            raise Conflict(text, next_steps=(Look("inbox"),)) from None
