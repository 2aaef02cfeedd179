"""What a person is being asked by a Run."""

from pydantic import Field

from perstack.core.base import Fact, JsonObject, falsy
from perstack.core.canonical import canonical_json
from perstack.core.events import CallInteractiveTool, RequestApproval

_LONGEST = 2_000
"""Characters of a call's arguments in one line; whole they stand in `args`."""


class OpenQuestion(Fact):
    """What a person is being asked."""

    id: str
    """That of the event which asks."""
    run_id: str
    expert_key: str
    tool_call_id: str
    tool_name: str
    skill_name: str = ""
    text: str
    args: JsonObject = Field(default_factory=dict, exclude_if=falsy)
    """What the model asked with, for a tool that is there to ask."""
    requested_schema: JsonObject | None = None
    """For a question of a tool at work: JSON schema of the answer's content. None: the answer is text."""
    approval: bool = Field(default=False, exclude_if=falsy)
    """Whether it asks for approval, rather than for something to be told."""
    call_digest: str = Field(default="", exclude_if=falsy)
    """Of the call that a rule asks approval for; empty if no rule does."""
    rule: str = Field(default="", exclude_if=falsy)
    """That rule."""
    offers: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    """Rules that may be approved of for the whole Job, in place of this call alone."""
    asked_at: int = 0

    @property
    def shown(self) -> str:
        """The question as a person sees it: with the skill in front whose tool asks, which may claim to be anybody."""
        if self.call_digest:
            args = canonical_json(self.args).decode("utf-8", "replace")
            return f"{self.text}: {args if len(args) <= _LONGEST else f'{args[:_LONGEST]} …'}"
        is_of_tool = self.requested_schema is not None and self.skill_name
        return f"skill {self.skill_name}: {self.text}" if is_of_tool else self.text


def approval_question(event: RequestApproval) -> OpenQuestion:
    """The approval that an event asks for."""
    of = f" of skill {event.skill_name}" if event.skill_name else ""
    return OpenQuestion(
        id=event.id,
        run_id=event.run_id,
        expert_key=event.expert_key,
        tool_call_id=event.tool_call_id,
        tool_name=event.tool_name,
        skill_name=event.skill_name,
        text=f"{event.expert_key} wants to call {event.tool_name}{of}, which needs approval ({event.rule})",
        args=event.args,
        approval=True,
        call_digest=event.call_digest,
        rule=event.rule,
        offers=event.offers,
        asked_at=event.timestamp,
    )


def open_question(event: CallInteractiveTool) -> OpenQuestion:
    """The question that an event tells of."""
    asked = event.args.get("question")
    text = event.question.message if event.question else asked if isinstance(asked, str) else event.tool_name
    return OpenQuestion(
        id=event.id,
        run_id=event.run_id,
        expert_key=event.expert_key,
        tool_call_id=event.tool_call_id,
        tool_name=event.tool_name,
        skill_name=event.skill_name,
        text=text,
        args=event.args,
        requested_schema=event.question.requested_schema if event.question else None,
        approval=event.approval,
        asked_at=event.timestamp,
    )
