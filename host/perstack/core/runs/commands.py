"""The commands that `pending` returns and the driver performs, and the state of one tool call.

Each command class is one thing to do next. `pending.py` says when, `engine/runs/loop.py` performs it, and the events
that it may lead to compare themselves with it (`difference`): change the three together.
"""

from __future__ import annotations

import json

from perstack.core.base.ids import By
from perstack.core.base.records import JsonObject
from perstack.core.definitions.permissions import Approval, call_digest
from perstack.core.definitions.skills import DecidedCall
from perstack.core.messages.messages import ToolCallPart, ToolResultPart
from perstack.core.runs.facts import Answer, Delegation, ErrorInfo, Question, Settlement, ShrunkResult, Todo
from perstack.dataclass import dataclass


@dataclass(frozen=True)
class ChangedArguments:
    """A person's arguments for a call that waits for approval, until the host has judged the changed call."""

    args: JsonObject
    by: By


@dataclass(frozen=True)
class Call:
    """One tool call of the latest reply: the decision about it, and its result once there is one."""

    part: ToolCallPart
    decided: DecidedCall
    result: ToolResultPart | None = None
    settlement: Settlement | None = None  # decision about an interrupted call that may have had its effect
    settled_with: str = ""  # text for the model from the person who settled the call
    delegation: Delegation | None = None
    tool_question: Question | None = None  # the tool's question, which a person must answer before the call is repeated
    answers: tuple[Answer, ...] = ()
    warning: str | None = None
    has_report: bool = False
    requested: str | None = None
    approval: Approval | None = None  # the decision on the request; None before it
    is_unattended: bool = False  # True if the approval was refused because nobody could be asked
    began: bool = False
    leads_to: tuple[str, ...] = ()
    offers: tuple[str, ...] = ()  # rules that a person may approve for the whole Job instead of this call
    content: str = ""  # state of the file that the call changes, as in `RequestApproval`; empty if not recorded
    change: ChangedArguments | None = None  # pending until the host has decided about the changed call
    change_problem: str = ""  # why the latest change was dropped
    asked_args: JsonObject | None = None  # the model's arguments, if a person has changed them
    changed_by: By | None = None

    @property
    def waits_for_approval(self) -> bool:
        """True if the call must not run before a person approves it."""
        return self.decided.asks and self.approval is None

    @property
    def may_be_asked_again(self) -> bool:
        """True if the call was approved and has not begun."""
        return self.approval is not None and not self.approval.denies and not self.began and self.decided.asks

    @property
    def changed_part(self) -> ToolCallPart:
        """The call as a person has changed it, or as it is."""
        return self.part if self.change is None else with_arguments(self.part, self.change.args)

    @property
    def change_note(self) -> str:
        """Text about a person's change of the arguments, which the model sees with the result; empty without one."""
        before, now = self.asked_args, self.part.args
        if before is None:
            return ""
        changed = {name: value for name, value in now.items() if name not in before or before[name] != value}
        removed = [name for name in before if name not in now]
        parts = [f"changed to {json.dumps(changed, ensure_ascii=False)}"] if changed else []
        parts += [f"left out: {', '.join(removed)}"] if removed else []
        author = self.changed_by.user if self.changed_by is not None and self.changed_by.user else "a person"
        return f"[Arguments of this call, by {author}, who approved it so: {'; '.join(parts)}]"

    @property
    def digest(self) -> str:
        """The digest of skill, tool, its definition and the arguments that an approval of this call is bound to."""
        return call_digest(self.decided.skill_name, self.decided.tool_name, self.part.args, self.decided.definition)


def with_arguments(part: ToolCallPart, args: JsonObject) -> ToolCallPart:
    """Return the call with these arguments in place of the model's, and without its text that did not parse."""
    return part.model_copy(update={"args": args, "raw_args": None})


def query_of(call: Call) -> str:
    """Return the query that a call gives to its delegate."""
    return str(call.part.args.get("query", ""))


@dataclass(frozen=True)
class Generate:
    """Call the model for this step. `final`: without tools, so that it only writes the text of the result."""

    step: int
    final: bool = False


@dataclass(frozen=True)
class DecideCalls:
    """Look up, check and rule on each call of the reply."""

    calls: tuple[ToolCallPart, ...]


@dataclass(frozen=True)
class RunTools:
    """Run these calls concurrently."""

    calls: tuple[Call, ...]


@dataclass(frozen=True)
class RecordResult:
    """Record a result that needs no side effect: a todo list, a refusal, a note that the call was interrupted."""

    call: Call
    text: str
    is_error: bool = False


@dataclass(frozen=True)
class StartDelegates:
    """Assign a Run to each of these calls."""

    calls: tuple[Call, ...]


@dataclass(frozen=True)
class AwaitDelegates:
    """Drive these delegate Runs, and record each result."""

    delegations: tuple[Delegation, ...]


@dataclass(frozen=True)
class Ask:
    """Ask a person, and stop."""

    call: Call


@dataclass(frozen=True)
class DecideChange:
    """Decide about a call with the arguments that a person has changed."""

    call: Call


@dataclass(frozen=True)
class AskApproval:
    """Ask a person to approve a call before it runs."""

    call: Call


@dataclass(frozen=True)
class Complete:
    """Accept the model's statement that it is done, if no todo remains."""

    call: Call
    remaining: tuple[Todo, ...]
    result: str | None


@dataclass(frozen=True)
class Shrink:
    """Store these old results as blobs, and show the model only their beginning and end."""

    results: tuple[ShrunkResult, ...]
    head: int
    tail: int


@dataclass(frozen=True)
class Compact:
    """Have a part of the messages summarised, and show the model the summary instead."""

    first: str
    through: str
    kept: tuple[str, ...]  # event ids of messages between `first` and `through`, which are event ids too, that stay
    tokens_before: int
    tokens_after: int  # estimate with a summary of the maximum length


@dataclass(frozen=True)
class Snapshot:
    """Record the files of the workspace."""


@dataclass(frozen=True)
class EndStep:
    """Record that the step is complete."""


@dataclass(frozen=True)
class Fail:
    """Record that the Run failed: its replies are unusable, or its context cannot be made to fit."""

    error: ErrorInfo
    uncharged: bool = False  # True if the endpoint refused the failed generation, so that nothing is charged


@dataclass(frozen=True)
class Switch:
    """Record that the next model generates: the active one has refused."""

    error: ErrorInfo


@dataclass(frozen=True)
class StopAtLimit:
    """Record that the Job has used all of its steps."""

    max_steps: int


@dataclass(frozen=True)
class JudgeResult:
    """Check the result against the requested schema: the Run completes, or the model corrects the result."""

    text: str
    schema: JsonObject


@dataclass(frozen=True)
class EndRun:
    """Record that the Run is completed."""

    text: str


PerformedCommand = (
    Generate
    | DecideCalls
    | RunTools
    | RecordResult
    | StartDelegates
    | AwaitDelegates
    | Ask
    | AskApproval
    | DecideChange
    | Complete
    | Shrink
    | Compact
    | Snapshot
    | EndStep
    | JudgeResult
    | EndRun
    | Fail
    | StopAtLimit
)

Command = PerformedCommand | Switch


def command_phrase(command: Command) -> str:
    """Return the command as a phrase that follows «the loop would», for differences that a replay reports."""
    if isinstance(command, Generate):
        return f"generate for step {command.step}"
    names = {
        DecideCalls: "decide on the calls of the reply",
        RunTools: "run tools",
        RecordResult: "record a result of its own",
        StartDelegates: "start delegates",
        AwaitDelegates: "await delegates",
        Ask: "ask a person",
        AskApproval: "ask a person's approval",
        DecideChange: "decide on a changed call",
        Complete: "judge the attempt to complete",
        Shrink: "shorten old results",
        Compact: "summarise a part of the history",
        Snapshot: "record the workspace's files",
        EndStep: "end the step",
        JudgeResult: "check the result against its schema",
        EndRun: "end the Run",
        Fail: "record that the Run failed",
        Switch: "switch to the next model",
        StopAtLimit: "stop at the step limit",
    }
    return names[type(command)]
