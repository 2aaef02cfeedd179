"""An answer as it came, and how it is read."""

from __future__ import annotations

from perstack.core.answers import read_job_answer
from perstack.core.by import By
from perstack.core.policy.approvals import Approval
from perstack.core.questions import Answer as Said
from perstack.core.runs.asking import OpenQuestion
from perstack.dataclass import dataclass
from perstack.errors import UsageError
from perstack.next_steps import Answer


@dataclass(frozen=True, slots=True)
class Given:
    """An answer as it came."""

    text: str
    by: By
    question_id: str | None = None
    """The question that it is to, if that was said."""
    signal: str | None = None
    """The event from outside that brings it."""

    def to(self, asking: OpenQuestion) -> str | Said | Approval:
        """What it says to this question. Raises UsageError if it does not fit.

        An approval is of one call: it names its question, so that it cannot be taken for that of another call, and only
        a person gives it.
        """
        if asking.call_digest:
            self._check_approval(asking)
        return read_job_answer(asking, self.text)

    def _check_approval(self, asking: OpenQuestion) -> None:
        if self.signal is not None:
            text = f"{asking.id} asks for a person's approval, which no event from outside gives"
            raise UsageError(text, next_steps=(Answer(asking.id, is_approval=True),))
        if self.question_id is None:
            step = Answer(asking.id, is_approval=True)
            raise UsageError("an approval must name the question that it answers", next_steps=(step,))
