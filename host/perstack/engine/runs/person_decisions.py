"""People's decisions on a Job: answers and settlements that it resumes with, and answers while it is driven."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from perstack.core.base.ids import By
from perstack.core.definitions.permissions import Approval
from perstack.core.runs.facts import Answer, Settlement
from perstack.core.runs.open_questions import OpenQuestion
from perstack.dataclass import dataclass
from perstack.errors import Conflict
from perstack.next_steps import Inspect

if TYPE_CHECKING:
    from perstack.core.jobs.answer_reading import UnreadAnswer  # most Jobs read no answers


@dataclass(frozen=True, slots=True)
class PersonAnswer:
    """Answer to a question, and who gave it."""

    answer: str | Answer | Approval  # a text answers an interactive tool
    by: By


@dataclass(frozen=True, slots=True)
class PersonDecisions:
    """Decisions of a person, or of an external event, that a Job resumes with. They hold for all its Runs."""

    settled: Mapping[str, Settlement] = field(default_factory=dict[str, Settlement])
    """Settlements of calls that began and have no result, by key or call id."""
    answers: Mapping[str, PersonAnswer] = field(default_factory=dict[str, PersonAnswer])
    """Answers by the id of the Run that asks."""
    signal: str | None = None  # key of the external event that resumes the Coordinator
    limited_by: By | None = None  # person who set new limits; None for the operating-system user


NO_DECISIONS = PersonDecisions()


class PendingQuestion:
    """A delegate's question that waits for its answer."""

    def __init__(self, question: OpenQuestion) -> None:
        """Create its futures in the running event loop."""
        self.question = question
        loop = asyncio.get_running_loop()
        # the answer is None once no other Run of the Job is active
        self.answer: asyncio.Future[PersonAnswer | None] = loop.create_future()
        self.recorded: asyncio.Future[None] = loop.create_future()


class LiveQuestions:
    """Questions that delegates of a driven Job ask while other Runs are active; their logs say that they are stopped.

    This class counts the active Runs. When the last one stops, the Job rests and shows all its questions.
    """

    def __init__(self) -> None:
        """Start with one active Run and no question."""
        self._active = 1
        self.on_asked: Callable[[OpenQuestion], None] = lambda asking: None  # called with each question
        self._pending: dict[str, PendingQuestion] = {}

    # --- active Runs ----------------------------------------------------------------------------------------------

    def begin(self, count: int) -> None:
        """Count `count` starting delegates in place of the Run that awaits them."""
        self._active += count - 1

    def end(self, open_count: int) -> None:
        """Count a delegate as ended or at rest. If it was the last (`open_count` 0), its parent counts in its place."""
        if open_count:
            self._end_one()

    def _end_one(self) -> None:
        """Count one Run less. Without active Runs, end the waiting for answers: the Job rests."""
        self._active -= 1
        if self._active == 0:
            for pending in self._pending.values():
                self._active += 1
                pending.answer.set_result(None)
            self._pending.clear()

    # --- asking and answering -------------------------------------------------------------------------------------

    async def wait_for_answer(self, pending: PendingQuestion) -> PersonAnswer | None:
        """Wait for the answer to a question. Returns None once no other Run of the Job is active."""
        question_id = pending.question.id
        self._pending[question_id] = pending
        self._end_one()
        if not pending.answer.done():
            self.on_asked(pending.question)
        try:
            return await pending.answer
        finally:
            self._pending.pop(question_id, None)

    @property
    def open(self) -> tuple[OpenQuestion, ...]:
        """The questions that wait for an answer, oldest first."""
        return tuple(pending.question for pending in self._pending.values())

    def is_pending(self, question_id: str) -> bool:
        return question_id in self._pending

    async def answer(self, question_id: str, unread_answer: UnreadAnswer) -> None:
        """Answer a waiting question. Returns when the answer is recorded.

        Raises UsageError if the answer does not fit, Conflict if the Job was stopped before it was recorded.
        """
        pending = self._pending[question_id]
        answer = PersonAnswer(unread_answer.read_for(pending.question), unread_answer.by)
        del self._pending[question_id]
        self._active += 1
        pending.answer.set_result(answer)
        try:
            await asyncio.shield(pending.recorded)
        except asyncio.CancelledError:
            if not pending.recorded.cancelled():
                raise
            text = f"the Job was stopped before the answer to {question_id} was recorded"
            raise Conflict(text, next_steps=(Inspect("inbox"),)) from None
