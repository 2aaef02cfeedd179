"""Define the events of a step. An event described as «on disk before» an action is synced before that action."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AliasChoices, Field

from perstack.core.base.ids import By
from perstack.core.base.records import EMPTIED, TEXT, Fact, JsonObject, Text, Written, falsy
from perstack.core.base.text import REDACTED
from perstack.core.base.usage import Charge, Usage
from perstack.core.definitions.permissions import Approval, ApprovalDecision
from perstack.core.definitions.skills import DecidedCall
from perstack.core.files.trees import Reason
from perstack.core.runs.facts import (
    Answer,
    DelegateHead,
    DelegateReport,
    Delegation,
    ErrorInfo,
    Question,
    RunEvent,
    ShrunkResult,
    Todo,
    is_repeat_warning,
)
from perstack.core.runs.messages import ExpertMessage, ReplyPart, ResultContent, TextPart

UNKNOWN = "unknown"  # model and provider of a Run whose log, written by another program, does not name them


FinishReason = Literal["stop", "toolCalls", "length", "refusal", "other"]


class StartGeneration(RunEvent):
    """The start of a call of the model."""

    is_progress = False
    type: Literal["startGeneration"] = "startGeneration"
    final: bool = Field(default=False, exclude_if=falsy)  # True if the model gets no tools and only writes the result
    # texts of skills about their tools, or why one has none; None if unchanged
    guidance: Annotated[str | None, TEXT] = None
    # skill to reason, if guidance says so
    unreachable: Annotated[dict[str, str], EMPTIED] = Field(default_factory=dict, exclude_if=falsy)
    provider_settings: JsonObject | None = None  # only what affects replies, without secrets; None if unchanged
    tools_digest: str | None = None  # digest of the offered tools, which are a blob of the Job: `request_digest.py`
    request_digest: str | None = None  # of the whole request: `request_digest.py`. None in earlier logs
    max_tokens: int | None = None  # of the reply, by the budget, if less than the user's setting
    reserved: Charge | None = None  # most that this attempt may cost, until the cost is known; only with a budget


class FinishGeneration(RunEvent):
    """A reply of the model."""

    type: Literal["finishGeneration"] = "finishGeneration"
    usage: Usage
    reply: tuple[ReplyPart, ...]  # text, thinking and tool calls, in the model's order
    finish_reason: FinishReason
    context_window: int | None = None  # tokens that the model's context can hold; None if unknown
    duration_ms: int = Field(default=0, exclude_if=falsy)
    unreported: bool = Field(default=False, exclude_if=falsy)  # True: the whole reservation is charged
    over_reserved: Charge | None = None  # amount by which `usage` exceeds the reservation; only with a budget

    @property
    def message(self) -> ExpertMessage:
        """The reply as a message."""
        return ExpertMessage(contents=self.reply)


class Retry(RunEvent):
    """A failed generation that is tried again."""

    is_progress = False
    type: Literal["retry"] = "retry"
    error: ErrorInfo
    attempt: int  # number of the failed attempt, from 1
    delay_ms: int
    usage: Usage | None = None
    uncharged: bool = Field(default=False, exclude_if=falsy)  # True if the endpoint refused it: nothing is charged
    overflow: int | None = None  # tokens that the model's context holds, if the request exceeded it


class CallTools(RunEvent):
    """The decision about each call of the reply. Synced before any call with a side effect starts."""

    type: Literal["callTools"] = "callTools"
    calls: tuple[DecidedCall, ...]


def _placeholder(contents: tuple[ResultContent, ...]) -> tuple[ResultContent, ...]:
    return (TextPart(text=REDACTED),) if contents else ()


def _own_warning(warning: str) -> str:
    return warning if is_repeat_warning(warning) else REDACTED


class FinishToolCall(RunEvent):
    """The one result of a call."""

    type: Literal["finishToolCall"] = "finishToolCall"
    tool_call_id: str
    tool_name: str
    contents: Annotated[tuple[ResultContent, ...], Written(_placeholder)]
    is_error: bool = Field(default=False, exclude_if=falsy)
    duration_ms: int = Field(default=0, exclude_if=falsy)
    delegate: DelegateHead | None = None
    report: DelegateReport | None = None  # the outcome of a delegate's Run; None in logs of earlier versions
    usage: Usage | None = None  # usage of the generations that the tool itself requested
    assumed: Charge | None = None  # charge for generations whose endpoint reported no usage; only with a budget
    by: By | None = None  # actor who answered, if a person gave this result; None in logs of earlier versions
    warning: Annotated[str | None, Written(_own_warning)] = None
    secrets: int = Field(default=0, exclude_if=falsy)  # highest N of an assigned `[secret:N]`


class CallDelegate(RunEvent):
    """The assignment of delegate Runs, with their ids, before they start."""

    type: Literal["callDelegate"] = "callDelegate"
    delegates: tuple[Delegation, ...]


def _unknown_question(args: JsonObject) -> JsonObject:
    return {"question": REDACTED} if args else {}


class CallInteractiveTool(RunEvent):
    """A question to a person, by an interactive tool or by a tool that needs an answer to continue."""

    type: Literal["callInteractiveTool"] = "callInteractiveTool"
    tool_call_id: str
    tool_name: str
    skill_name: str
    args: Annotated[JsonObject, Written(_unknown_question)]
    approval: bool = Field(default=False, exclude_if=falsy)  # True: an approval is asked, no information
    question: Question | None = None  # question of a tool that has been called, and is called again with the answer
    usage: Usage | None = None
    assumed: Charge | None = None


class AnswerQuestion(RunEvent):
    """A person's answer to a tool's question; the tool is called again."""

    type: Literal["answerQuestion"] = "answerQuestion"
    tool_call_id: str
    answer: Answer
    by: By | None = None  # actor who answered; None in logs of earlier versions


def _no_arguments(args: JsonObject) -> JsonObject:
    return {}


class RequestApproval(RunEvent):
    """A request for a person's approval of a call, which a rule requires before the call runs."""

    type: Literal["requestApproval"] = "requestApproval"
    tool_call_id: str
    tool_name: str
    skill_name: str = Field(default="", exclude_if=falsy)
    args: Annotated[JsonObject, Written(_no_arguments)]
    call_digest: str  # digest of skill, tool and arguments that the approval is bound to
    rule: Text
    # resolved paths, the only ones approved
    leads_to: Annotated[tuple[str, ...], TEXT] = Field(default=(), exclude_if=falsy)
    offers: Annotated[tuple[str, ...], TEXT] = Field(
        default=(), exclude_if=falsy
    )  # that may be approved for the whole Job


class DecideApproval(RunEvent):
    """The decision on a call that waits for approval, by a person or because nobody can be asked."""

    type: Literal["decideApproval"] = "decideApproval"
    tool_call_id: str
    call_digest: str
    decision: ApprovalDecision
    by: By
    # for `job`; empty: calls of an equal digest
    rule: Annotated[str, EMPTIED] = Field(default="", exclude_if=falsy)
    text: Text = Field(default="", exclude_if=falsy)

    @property
    def approval(self) -> Approval:
        """The decision without its context."""
        return Approval(decision=self.decision, rule=self.rule, text=self.text)


class StartToolCall(RunEvent):
    """The start of an approved call. On disk before the call starts, if it may have a side effect."""

    is_progress = False
    type: Literal["startToolCall"] = "startToolCall"
    tool_call_id: str
    call_digest: str  # digest computed again from the call right before it runs


class StartSample(RunEvent):
    """With a budget: a tool's request for a generation by the Run's model. On disk before the model is called."""

    is_progress = False
    type: Literal["startSample"] = "startSample"
    tool_call_id: str
    reserved: Charge  # maximum cost, charged until the call has its result or asks a question


class AttemptCompletion(RunEvent):
    """The model's statement that it is done. It is rejected while todos remain."""

    type: Literal["attemptCompletion"] = "attemptCompletion"
    tool_call_id: str
    remaining_todos: tuple[Todo, ...] = Field(default=(), exclude_if=falsy)
    result: Annotated[str | None, TEXT] = None


class FinishStep(RunEvent):
    """The end of a step, which makes a checkpoint."""

    type: Literal["finishStep"] = "finishStep"
    checkpoint_id: str
    usage: Usage


# A nearly full context.


class ShrinkResults(RunEvent):
    """The shortening of old results of read-only tools: from now on the model sees only their beginning and end."""

    type: Literal["shrinkResults"] = "shrinkResults"
    results: tuple[ShrunkResult, ...]
    head: int  # characters kept of the beginning of each result; `tail`: of its end
    tail: int


class StartCompaction(RunEvent):
    """A summary of a part of the history, from message `first` through `through` (event ids), is requested."""

    is_progress = False
    type: Literal["startCompaction"] = "startCompaction"
    first: str = Field(serialization_alias="from", validation_alias=AliasChoices("from", "first"))
    through: str
    model: str
    reserved: Charge | None = None  # maximum cost, as in `StartGeneration`; only with a budget


class CompactHistory(RunEvent):
    """A text that replaces the history from message `first` through `through` (event ids). The log keeps all."""

    type: Literal["compactHistory"] = "compactHistory"
    first: str = Field(serialization_alias="from", validation_alias=AliasChoices("from", "first"))
    through: str
    kept: tuple[str, ...] = Field(default=(), exclude_if=falsy)  # event ids of messages between the two that stay
    text: Text
    model: str = Field(default="", exclude_if=falsy)  # `provider/model`; empty if no model wrote the text
    usage: Usage | None = None
    assumed: Charge | None = None  # additional charge if no usage was reported; only with a budget
    tokens_before: int = 0  # estimated tokens of the next request without the compaction; `tokens_after`: with it
    tokens_after: int = 0
    duration_ms: int = Field(default=0, exclude_if=falsy)
    error: ErrorInfo | None = None  # reason why no model wrote the summary although one was asked


SwitchReason = Literal[  # reasons for a switch of models; `triedAgain`: the pause of the primary model is over
    "overloaded",
    "rateLimit",
    "quota",
    "refusal",
    "timeout",
    "unreachable",
    "circuitOpen",
    "serverError",
    "notConfigured",
    "triedAgain",
]


class SwitchModel(RunEvent):
    """A switch to the next fallback model, or back to the primary one."""

    is_progress = False
    type: Literal["switchModel"] = "switchModel"
    before: str = Field(serialization_alias="from", validation_alias=AliasChoices("from", "before"))
    to: str
    reason: SwitchReason
    error: ErrorInfo | None = Field(default=None, exclude_if=falsy)  # failure of the previous model
    context_window: int | None = Field(default=None, exclude_if=falsy)
    uncharged: bool = Field(default=False, exclude_if=falsy)  # True if the endpoint refused the attempt


# Snapshots of the workspace.

MOST_NAMED = 20


class NotRecorded(Fact):
    """An entry of the workspace that a snapshot leaves out."""

    path: str  # relative to the workspace, spelled as in trees
    reason: Reason
    size: int | None = None


class RecordSnapshot(RunEvent):
    """A snapshot of the workspace, at the start and after calls that may change files; its blobs are on disk before."""

    is_progress = False
    type: Literal["recordSnapshot"] = "recordSnapshot"
    tree: str | None = None  # digest of the tree, a blob of the Job; None if it failed, see `problem`
    base: str | None = None  # tree of the Run's previous snapshot, which the counts compare with; None for the first
    files: int = 0
    added: int | None = None
    removed: int | None = None
    changed: int | None = None  # files and links that differ from `base`; None if unknown
    lines_added: int | None = None
    lines_removed: int | None = None  # lines of text that only one of the two has; None if unknown or too many to count
    # first `MOST_NAMED` of them
    left_out: Annotated[tuple[NotRecorded, ...], EMPTIED] = Field(default=(), exclude_if=falsy)
    left_out_count: int = Field(default=0, exclude_if=falsy)
    problem: Text = Field(default="", exclude_if=falsy)
