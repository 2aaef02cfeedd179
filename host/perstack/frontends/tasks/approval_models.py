"""What is given and had over HTTP of approvals."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from perstack.core.answers import ALWAYS, DENIES, ApprovalWord
from perstack.core.base import Fact, JsonObject
from perstack.errors import UsageError
from perstack.frontends.shared.arguments import Arguments


class Decision(Arguments):
    """What a person says to a call that waits for approval."""

    answer: ApprovalWord
    rule: Annotated[str | None, Field(description="With `always`: one of the rules that are offered.")] = None
    text: Annotated[str | None, Field(description="With `no`: a text for the model.")] = None
    call_digest: Annotated[str | None, Field(description="Of the call that is meant; another is refused.")] = None
    wait: Annotated[bool, Field(description="Reply when the Job has ended or stopped, and not at once.")] = False

    @property
    def said(self) -> str:
        """As `Host.answer` takes it. Raises UsageError for a rule or words where there can be none."""
        if self.rule is not None and self.answer != ALWAYS:
            raise UsageError(f"`rule` goes with the answer `{ALWAYS}`: leave it out")
        if self.text is not None and self.answer != DENIES:
            raise UsageError(f"`text` goes with the answer `{DENIES}`: leave it out")
        beside = self.rule or self.text
        return f"{self.answer}: {beside}" if beside else self.answer


class OpenApproval(Fact):
    """A call that waits for a person's approval."""

    id: str
    """What a decision names."""
    job_id: str
    run_id: str
    expert_key: str
    tool_name: str
    skill_name: str
    args: JsonObject
    call_digest: str
    rule: str
    offers: tuple[str, ...]
    asked_at: int
    text: str
    """All of it, for a person to read."""
