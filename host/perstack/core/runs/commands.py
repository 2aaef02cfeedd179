"""What a Run's state can ask for: the commands that `pending` gives and the driver performs."""

from __future__ import annotations

from perstack.core.base import JsonObject
from perstack.core.events import Settlement
from perstack.core.messages import ToolCallPart, ToolResultPart
from perstack.core.policy.approvals import Approval
from perstack.core.questions import Answer, Question
from perstack.core.run_facts import Delegation, ErrorInfo, ShrunkResult
from perstack.core.todos import Todo
from perstack.core.tools import DecidedCall
from perstack.dataclass import dataclass


@dataclass(frozen=True)
class Call:
    """One tool call of the latest reply: what was decided, and its result when there is one."""

    part: ToolCallPart
    decided: DecidedCall
    result: ToolResultPart | None = None
    settlement: Settlement | None = None
    """Set when the call began in a process that ended, and may not simply be run again."""
    delegation: Delegation | None = None
    question: Question | None = None
    """What its tool must know from a person before it can be called again."""
    answers: tuple[Answer, ...] = ()
    """What a person has said to it."""
    warning: str | None = None
    """What stands after its result, for the model."""
    has_report: bool = False
    """Whether the report of its delegate stands there as well."""
    requested: str | None = None
    """The digest that a person was asked to approve of."""
    approval: Approval | None = None
    """What they said."""
    is_unattended: bool = False
    """Whether nobody was there to say it."""
    began: bool = False
    """Whether it began, of a call that was approved."""
    leads_to: tuple[str, ...] = ()
    """Where its paths led when that was asked."""
    offers: tuple[str, ...] = ()
    """The rules that a person may choose to approve of more than this call."""

    @property
    def waits_for_approval(self) -> bool:
        """Whether it may not be run before a person has approved of it."""
        return self.decided.asks and self.approval is None


@dataclass(frozen=True)
class Generate:
    """Call the model for this step; `final` without tools, for the result's text only."""

    step: int
    final: bool = False


@dataclass(frozen=True)
class DecideCalls:
    """Say of each call of the reply what it is."""

    calls: tuple[ToolCallPart, ...]


@dataclass(frozen=True)
class RunTools:
    """Run these calls concurrently; each is answered by its skill."""

    calls: tuple[Call, ...]


@dataclass(frozen=True)
class RecordResult:
    """A result that needs no effect: a todo list, a refusal, word of an interruption."""

    call: Call
    text: str
    is_error: bool = False


@dataclass(frozen=True)
class StartDelegates:
    """Decide on a Run for each of these calls."""

    calls: tuple[Call, ...]


@dataclass(frozen=True)
class AwaitDelegates:
    """Drive these delegate Runs, and bring back each result."""

    delegations: tuple[Delegation, ...]


@dataclass(frozen=True)
class Ask:
    """Ask a person."""

    call: Call


@dataclass(frozen=True)
class AskApproval:
    """Ask a person to approve of a call before it is run."""

    call: Call


@dataclass(frozen=True)
class Complete:
    """Take the model's word that it is done, if no todo remains."""

    call: Call
    remaining: tuple[Todo, ...]
    result: str | None


@dataclass(frozen=True)
class Shrink:
    """Keep these old results as blobs, and show the model their ends only."""

    results: tuple[ShrunkResult, ...]
    head: int
    tail: int


@dataclass(frozen=True)
class Compact:
    """Have a part of the messages summarised, and show the model the summary in their place."""

    first: str
    """The place of the first message that is left out; a place is the id of an event."""
    through: str
    """That of the last."""
    kept: tuple[str, ...]
    """Those between them that are shown as before."""
    tokens_before: int
    tokens_after: int
    """With a summary as long as one may be."""


@dataclass(frozen=True)
class Snapshot:
    """Record the files of the workspace."""


@dataclass(frozen=True)
class EndStep:
    """Record that the step is whole."""


@dataclass(frozen=True)
class Fail:
    """Record that the Run failed: its model's reply is not a completion."""

    error: ErrorInfo
    uncharged: bool = False
    """Whether the endpoint refused the generation that failed."""


@dataclass(frozen=True)
class Switch:
    """Record that the next model generates, for the one in force has refused."""

    error: ErrorInfo


@dataclass(frozen=True)
class StopAtLimit:
    """Record that the Job has used its steps."""

    max_steps: int


@dataclass(frozen=True)
class JudgeResult:
    """Hold the result to the schema that was asked for: the Run is completed with it, or the model corrects it."""

    text: str
    schema: JsonObject


@dataclass(frozen=True)
class EndRun:
    """Record that the Run is completed."""

    text: str


Work = (
    Generate
    | DecideCalls
    | RunTools
    | RecordResult
    | StartDelegates
    | AwaitDelegates
    | Ask
    | AskApproval
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
"""What is performed with the model in force."""

Command = Work | Switch
