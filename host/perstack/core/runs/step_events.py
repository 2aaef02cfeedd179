"""The facts. One event happened once, is never edited, and carries only what is its own.

Stored events make up a Run's log; display events are shown and forgotten. The field names are those of the JSON, in
snake_case. `docs/events.md` describes each for readers of the JSON.
"""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from perstack.core.base import JsonObject, falsy
from perstack.core.by import By
from perstack.core.closing import CloseRun as CloseRun
from perstack.core.context_events import CompactHistory as CompactHistory
from perstack.core.context_events import ShrinkResults as ShrinkResults
from perstack.core.context_events import StartCompaction as StartCompaction
from perstack.core.display_events import DisplayEvent as DisplayEvent
from perstack.core.display_events import InitializeRuntime as InitializeRuntime
from perstack.core.display_events import SkillConnected as SkillConnected
from perstack.core.display_events import SkillDisconnected as SkillDisconnected
from perstack.core.display_events import SkillStarting as SkillStarting
from perstack.core.display_events import SkillStderr as SkillStderr
from perstack.core.display_events import StreamReasoning as StreamReasoning
from perstack.core.display_events import StreamText as StreamText
from perstack.core.display_events import ToolProgress as ToolProgress
from perstack.core.display_events import WaitForEndpoint as WaitForEndpoint
from perstack.core.messages import ExpertMessage, ReplyPart, ResultContent
from perstack.core.model_events import SwitchModel as SwitchModel
from perstack.core.policy.approvals import Approval, ApprovalDecision
from perstack.core.policy.widening import Widening
from perstack.core.questions import Answer, Question
from perstack.core.queueing import QueueRun as QueueRun
from perstack.core.result_events import FinishRun as FinishRun
from perstack.core.result_events import RejectResult as RejectResult
from perstack.core.run_event import RunEvent as RunEvent
from perstack.core.run_facts import (
    BudgetName,
    DelegateHead,
    DelegateReport,
    Delegation,
    ErrorInfo,
    amount,
)
from perstack.core.snapshots.events import RecordSnapshot as RecordSnapshot
from perstack.core.snapshots.rewind_events import FinishRewind as FinishRewind
from perstack.core.snapshots.rewind_events import StartRewind as StartRewind
from perstack.core.start_events import FORMAT as FORMAT
from perstack.core.start_events import ResumeReason as ResumeReason
from perstack.core.start_events import ResumeRun as ResumeRun
from perstack.core.start_events import Settlement as Settlement
from perstack.core.start_events import StartRun as StartRun
from perstack.core.start_events import started_as as started_as
from perstack.core.todos import Todo
from perstack.core.tools import DecidedCall
from perstack.core.usage import Charge, Usage

UNKNOWN = "unknown"
"""The model and provider of a Run whose log, written by another program, does not say them."""

FinishReason = Literal["stop", "toolCalls", "length", "refusal", "other"]


class StartGeneration(RunEvent):
    """The model is called."""

    type: Literal["startGeneration"] = "startGeneration"
    final: bool = Field(default=False, exclude_if=falsy)
    """Without tools: only the result is to be written."""
    guidance: str | None = None
    """What the skills say of their tools, and why one has none, for the model; None: the same as before."""
    unreachable: dict[str, str] = Field(default_factory=dict, exclude_if=falsy)
    """Skills that cannot be reached, and why, where the guidance tells of them."""
    provider_settings: JsonObject | None = None
    """The provider's settings that change replies, none of them secret; None: the same as before."""
    tools_digest: str | None = None
    """Of the tools that the model was offered, which a blob of the Job holds: `core.digests`."""
    request_digest: str | None = None
    """Of all that the model was sent: `core.digests`. None in a log of an older version."""
    max_tokens: int | None = None
    """The most tokens that the reply may have by the budget, if that is less than its user allows."""
    reserved: Charge | None = None
    """With a budget: what this try costs at most, which counts until it is known what it did cost."""


class FinishGeneration(RunEvent):
    """The model has replied."""

    type: Literal["finishGeneration"] = "finishGeneration"
    usage: Usage
    reply: tuple[ReplyPart, ...]
    """Text, thinking and tool calls, in the model's order."""
    finish_reason: FinishReason
    context_window: int | None = None
    """How many tokens the model's context can hold, where that is known."""
    duration_ms: int = Field(default=0, exclude_if=falsy)
    unreported: bool = Field(default=False, exclude_if=falsy)
    """With a budget: the endpoint did not say what it used, so that all that was reserved counts."""
    over_reserved: Charge | None = None
    """With a budget: by how much `usage` is more than was reserved."""

    @property
    def message(self) -> ExpertMessage:
        """The reply as a message."""
        return ExpertMessage(contents=self.reply)


class Retry(RunEvent):
    """A generation failed and is tried again."""

    type: Literal["retry"] = "retry"
    error: ErrorInfo
    attempt: int
    """The number of the try that failed, from 1."""
    delay_ms: int
    usage: Usage | None = None
    uncharged: bool = Field(default=False, exclude_if=falsy)
    """With a budget: the endpoint refused the try. Any other may have been charged for: what was reserved counts."""
    overflow: int | None = None
    """More than the model's context can hold was sent: so many tokens it holds, as far as is known. Old content is
    shortened before the next try."""


class CallTools(RunEvent):
    """What was decided about each call of the reply. Synced before any of them with a side effect begins."""

    type: Literal["callTools"] = "callTools"
    calls: tuple[DecidedCall, ...]


class FinishToolCall(RunEvent):
    """The one result of a call."""

    type: Literal["finishToolCall"] = "finishToolCall"
    tool_call_id: str
    tool_name: str
    contents: tuple[ResultContent, ...]
    is_error: bool = Field(default=False, exclude_if=falsy)
    duration_ms: int = Field(default=0, exclude_if=falsy)
    delegate: DelegateHead | None = None
    report: DelegateReport | None = None
    """Of a delegate: how its Run came out; a log of an earlier version does not say."""
    usage: Usage | None = None
    """What the generations cost that the tool itself asked for."""
    assumed: Charge | None = None
    """With a budget: what counts besides, of generations whose endpoint did not say what they used."""
    by: By | None = None
    """Who answered, if a person was asked for this result; a log of an earlier version does not say."""
    warning: str | None = None
    """What the model is shown after the result: that it repeats itself."""


class CallDelegate(RunEvent):
    """Delegate Runs are decided on, with their ids."""

    type: Literal["callDelegate"] = "callDelegate"
    delegates: tuple[Delegation, ...]


class StopRunByDelegate(RunEvent):
    """The Run waits for its delegates."""

    type: Literal["stopRunByDelegate"] = "stopRunByDelegate"
    checkpoint_id: str


class CallInteractiveTool(RunEvent):
    """A person is asked: by a tool that is there for it, or by one that must know something before it can continue."""

    type: Literal["callInteractiveTool"] = "callInteractiveTool"
    tool_call_id: str
    tool_name: str
    skill_name: str
    args: JsonObject
    approval: bool = Field(default=False, exclude_if=falsy)
    """A person is asked to approve of something, rather than to tell something."""
    question: Question | None = None
    """What a tool asks that has been called already, and will be called again with the answer."""
    usage: Usage | None = None
    """What the generations cost that the tool had asked for before."""
    assumed: Charge | None = None
    """As in `finishToolCall`."""


class AnswerQuestion(RunEvent):
    """A person has answered what a tool asked; it is called again."""

    type: Literal["answerQuestion"] = "answerQuestion"
    tool_call_id: str
    answer: Answer
    by: By | None = None
    """Who answered; a log of an earlier version does not say."""


class RequestApproval(RunEvent):
    """A rule asks for a person's approval of a call, which is not run before."""

    type: Literal["requestApproval"] = "requestApproval"
    tool_call_id: str
    tool_name: str
    skill_name: str = Field(default="", exclude_if=falsy)
    args: JsonObject
    call_digest: str
    """Of skill, tool and arguments: what an approval is bound to."""
    rule: str
    """The rule that asks."""
    leads_to: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    """Where the paths among its arguments lead, relative to the workspace: an approval is of these places."""
    offers: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    """Rules that match this call, one of which may be approved of for the whole Job."""


class DecideApproval(RunEvent):
    """A person, or the lack of one, has decided on a call that waited for approval."""

    type: Literal["decideApproval"] = "decideApproval"
    tool_call_id: str
    call_digest: str
    decision: ApprovalDecision
    by: By
    rule: str = Field(default="", exclude_if=falsy)
    """For `job`: the rule that was chosen; if left out, it holds for calls with the same digest."""
    text: str = Field(default="", exclude_if=falsy)
    """Words beside it, for the model."""

    @property
    def approval(self) -> Approval:
        """What was said."""
        return Approval(decision=self.decision, rule=self.rule, text=self.text)


class StartToolCall(RunEvent):
    """A call that a person approved of begins. On disk before it does, if it may have a side effect."""

    type: Literal["startToolCall"] = "startToolCall"
    tool_call_id: str
    call_digest: str
    """Taken again of what is about to be run."""


class StartSample(RunEvent):
    """With a budget: a tool asks the Run's model for a generation. On disk before the model is called."""

    type: Literal["startSample"] = "startSample"
    tool_call_id: str
    reserved: Charge
    """What it costs at most, which counts until the call has its result, or asks something."""


class WidenPermissions(RunEvent):
    """A person has laid rules over those in force, which may allow what was not allowed before."""

    type: Literal["widenPermissions"] = "widenPermissions"
    widening: Widening
    by: By


class StopRunByInteractiveTool(RunEvent):
    """The Run waits for the person's answer."""

    type: Literal["stopRunByInteractiveTool"] = "stopRunByInteractiveTool"
    checkpoint_id: str


class AttemptCompletion(RunEvent):
    """The model says it is done. With todos that remain, it is not."""

    type: Literal["attemptCompletion"] = "attemptCompletion"
    tool_call_id: str
    remaining_todos: tuple[Todo, ...] = Field(default=(), exclude_if=falsy)
    result: str | None = None


class FinishStep(RunEvent):
    """A step is whole and a checkpoint exists."""

    type: Literal["finishStep"] = "finishStep"
    checkpoint_id: str
    usage: Usage


class ErrorRun(RunEvent):
    """The Run failed; it can be resumed."""

    type: Literal["errorRun"] = "errorRun"
    checkpoint_id: str
    error: ErrorInfo
    uncharged: bool = Field(default=False, exclude_if=falsy)
    """With a budget, and a generation that failed: the endpoint refused it."""


class StopRunByExceededMaxSteps(RunEvent):
    """The Job has used its steps; a higher limit lets the Run go on."""

    type: Literal["stopRunByExceededMaxSteps"] = "stopRunByExceededMaxSteps"
    checkpoint_id: str
    max_steps: int


class StopRunByExceededBudget(RunEvent):
    """The next call could cross a budget; a higher one lets the Run continue."""

    type: Literal["stopRunByExceededBudget"] = "stopRunByExceededBudget"
    checkpoint_id: str
    budget: BudgetName
    expert: str | None = None
    """The Expert whose budget it is; None: the Job's."""
    limit: float
    """In dollars, tokens, milliseconds or calls, as the two that follow."""
    spent: float
    """With what was reserved for calls under way."""
    needed: float
    """What the next call would have needed."""

    @property
    def words(self) -> str:
        """For people."""
        whose = "the Job" if self.expert is None else f"Expert {self.expert}"
        limit, spent, needed = (amount(self.budget, value) for value in (self.limit, self.spent, self.needed))
        if self.budget == "maxTime":
            return f"the time of {whose} is over, {limit} of work"
        return f"{whose} may spend {limit}: {spent} are spent, and the next call could need {needed}"


class StopRunByInterrupt(RunEvent):
    """Somebody stopped the Run; the step in hand was abandoned."""

    type: Literal["stopRunByInterrupt"] = "stopRunByInterrupt"
    checkpoint_id: str
    reason: Literal["interrupt", "rateLimit"] = "interrupt"
    """`rateLimit`: the endpoint asked for a pause that is too long to wait for in a process."""
    resume_at: int | None = None
    """From when on it may go on, in milliseconds since 1970."""


class RedactEvent(RunEvent):
    """The content of an earlier event of this log was taken out for good, and this is what stands for it."""

    type: Literal["redactEvent"] = "redactEvent"
    event_id: str
    """Which event."""
    event_type: str
    digest: str
    """That of what was taken out, as it stands in the event's line."""
    fields: tuple[str, ...]
    """Which fields were taken out, as JSON names them."""
    remains: JsonObject
    """The event without their content; `core.redaction` says what may be left."""
    blobs: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    """The blobs that were removed with it, by their sha256 (hex)."""
    copies: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    """Where else the same text stood then: events by their id, and what is not an event of a Run in words."""
    by: By
    reason: str


StoredEvent = (
    StartRun
    | ResumeRun
    | StartGeneration
    | FinishGeneration
    | Retry
    | SwitchModel
    | CallTools
    | FinishToolCall
    | CallDelegate
    | StopRunByDelegate
    | CallInteractiveTool
    | AnswerQuestion
    | RequestApproval
    | DecideApproval
    | StartToolCall
    | StartSample
    | WidenPermissions
    | StopRunByInteractiveTool
    | AttemptCompletion
    | ShrinkResults
    | StartCompaction
    | CompactHistory
    | RecordSnapshot
    | FinishStep
    | RejectResult
    | FinishRun
    | ErrorRun
    | StopRunByExceededMaxSteps
    | StopRunByExceededBudget
    | StopRunByInterrupt
    | QueueRun
    | CloseRun
    | StartRewind
    | FinishRewind
    | RedactEvent
)


TransientEvent = (
    InitializeRuntime
    | SkillStarting
    | SkillConnected
    | SkillStderr
    | SkillDisconnected
    | ToolProgress
    | WaitForEndpoint
    | StreamReasoning
    | StreamText
)

Event = StoredEvent | TransientEvent

_stored: TypeAdapter[StoredEvent] | None = None


def parse_event(payload: bytes) -> StoredEvent:
    """A stored event from its JSON. Raises pydantic's ValidationError if it is none.

    The parser for all kinds together is built at its first use: a new Job never needs it.
    """
    global _stored
    if _stored is None:
        _stored = TypeAdapter(Annotated[StoredEvent, Field(discriminator="type")])
    return _stored.validate_json(payload)


def contents_of(event: StoredEvent) -> tuple[ResultContent, ...]:
    """What of an event may be an image or a document: what was attached to a query, or a tool gave."""
    match event:
        case StartRun():
            return event.attachments
        case FinishToolCall():
            return event.contents
        case _:
            return ()
