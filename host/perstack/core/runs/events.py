"""The events that start, resume, stop and complete a Run, and the union of all stored events.

A stored event is a line of the Run's log: it happened once and is never edited. Display events are shown and forgotten.
Field names are the JSON names in snake_case; docs/events.md describes them for readers of the JSON. `evolve.py` says
what must be changed together when an event is added. Old logs must stay readable: a new field needs a default.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, TypedDict

from pydantic import Field, TypeAdapter, field_validator

from perstack.core.base.ids import By, event_id_of
from perstack.core.base.records import EMPTIED, EventParser, JsonObject, Text, falsy, fields_of
from perstack.core.base.usage import BudgetName, Usage, amount
from perstack.core.definitions.instruction import AgentsMdFile
from perstack.core.definitions.permissions import RuleSets, Widening
from perstack.core.definitions.project import SnapshotPolicy
from perstack.core.definitions.sandbox import SandboxPolicy
from perstack.core.definitions.settings import Limits, ReasoningBudget
from perstack.core.files.trees import is_digest
from perstack.core.runs import display_events, step_events
from perstack.core.runs.facts import ContinuedFrom, Definition, DelegatedBy, ErrorInfo, ExpertOfRun, RunEvent
from perstack.core.runs.messages import ResultContent
from perstack.core.runs.step_events import CompactHistory as CompactHistory
from perstack.core.runs.step_events import RecordSnapshot as RecordSnapshot
from perstack.core.runs.step_events import ShrinkResults as ShrinkResults
from perstack.core.runs.step_events import StartCompaction as StartCompaction

# Closing a Run for good.


class CloseRun(RunEvent):
    """The permanent close of a Run: it keeps its state, and nothing continues it."""

    is_decided = False
    type: Literal["closeRun"] = "closeRun"
    by: By
    reason: Text = Field(default="", exclude_if=falsy)


# Handing a Run to workers.


class QueueRun(RunEvent):
    """The queueing of a Run for a worker: a Coordinator's, or a delegate's that another worker may drive."""

    is_decided = False
    is_progress = False
    type: Literal["queueRun"] = "queueRun"
    by: By
    definition: str | None = None  # SHA-256 (hex) of a blob with the Experts and settings that every worker uses
    due: int = Field(default=0, exclude_if=falsy)  # earliest start, in milliseconds since 1970
    priority: int = Field(default=0, exclude_if=falsy)  # higher values first

    @field_validator("definition")
    @classmethod
    def _is_digest(cls, value: str | None) -> str | None:
        if value is not None and not is_digest(value):
            raise ValueError("the definition is named by no sha256")
        return value


class QueueFields(TypedDict):
    """The fields of `QueueRun` without the common ones."""

    by: By
    definition: str | None
    due: int
    priority: int


# The result of a Run.


class RejectResult(RunEvent):
    """A result that does not fit the requested schema. The model sees the problem, and may try once more."""

    type: Literal["rejectResult"] = "rejectResult"
    problem: Text
    text: Text


class FinishRun(RunEvent):
    """The completion of a Run."""

    type: Literal["finishRun"] = "finishRun"
    checkpoint_id: str
    text: Text
    total_usage: Usage
    result: Annotated[JsonObject | None, EMPTIED] = None  # JSON that fits the schema; None without a schema
    without_effect: bool = Field(default=False, exclude_if=falsy)  # though its Expert declares an effect


# Rewinding the files of a workspace: the intent, and the outcome.


class StartRewind(RunEvent):
    """The intent to restore files of the workspace. It is on disk before any file is touched."""

    is_decided = False
    is_progress = False
    type: Literal["startRewind"] = "startRewind"
    to_checkpoint: str  # event id of the snapshot in a log of the Job whose files are restored
    tree: str  # tree of the files before the rewind: rewinding to this event undoes it
    only: tuple[str, ...] = Field(default=(), exclude_if=falsy)  # globs of the paths to restore; empty for all
    by: By


class FinishRewind(RunEvent):
    """The completion of a rewind. If it is missing after `startRewind`, nothing was changed."""

    is_decided = False
    is_progress = False
    type: Literal["finishRewind"] = "finishRewind"
    start: str
    tree: str | None = None  # tree of the files after the rewind; None if it could not be recorded
    files: int
    kept: int = Field(default=0, exclude_if=falsy)  # number of files that differ from the snapshot and were left alone


# Starting and resuming a Run.

FORMAT = 1  # version of the event shapes in this module; `upgrade` converts older ones

# Decision about an interrupted call without a result: `done` (it had its effect), `retry` (run it again), `ask` (the
# model learns that it was interrupted, and decides).
Settlement = Literal["done", "retry", "ask"]

ResumeReason = Literal["answer", "interrupt", "maxSteps", "budget", "error", "crash", "parent", "queued"]


class StartRun(RunEvent):
    """The start of a Run with all that it was started with, except secrets. Once per Run."""

    type: Literal["startRun"] = "startRun"
    format: int = FORMAT
    query: Text
    model: str
    provider: str
    instruction: Text  # complete, as rendered
    expert: ExpertOfRun
    limits: Limits
    reasoning_budget: ReasoningBudget | None = None
    delegated_by: DelegatedBy | None = None
    continued_from: ContinuedFrom | None = None
    runtime_version: str = Field(default="", exclude_if=falsy)
    labels: Annotated[dict[str, str], EMPTIED] = Field(default_factory=dict, exclude_if=falsy)
    overrides: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    permissions: RuleSets = Field(default=(), exclude_if=falsy)  # of project, Expert and all Runs above
    depth: int = Field(default=0, exclude_if=falsy)  # runs above; 0 for delegates in logs of earlier versions
    sandbox: SandboxPolicy | None = None  # of its tools' programs; None: they run as the host's user
    # JSON schema of the result that the caller requests, before the Expert's `output`
    output: Annotated[JsonObject | None, EMPTIED] = None
    agents_md: Annotated[tuple[AgentsMdFile, ...], EMPTIED] = Field(default=(), exclude_if=falsy)
    attachments: Annotated[tuple[ResultContent, ...], EMPTIED] = Field(default=(), exclude_if=falsy)
    fallbacks: tuple[str, ...] = Field(default=(), exclude_if=falsy)  # in order, as `provider/model`
    snapshots: SnapshotPolicy | None = None  # policy for recording the workspace; None if it is not recorded
    mask_secrets: bool = Field(default=False, exclude_if=falsy)


class ResumeRun(RunEvent):
    """The resumption of a stopped or interrupted Run."""

    is_progress = False
    type: Literal["resumeRun"] = "resumeRun"
    reason: ResumeReason
    checkpoint_id: str
    limits: Limits | None = None  # new limits; None if they are unchanged
    settled: dict[str, Settlement] = Field(default_factory=dict, exclude_if=falsy)  # by tool call id
    # source and id of the event from outside that resumed the Run; each is accepted once
    signal: Annotated[str | None, EMPTIED] = None
    by: By | None = None  # actor who gave the new limits; None in logs of earlier versions
    definition: Definition | None = None  # today's, for a Run that failed before its first reply
    permissions: RuleSets = Field(default=(), exclude_if=falsy)  # today's that are not in force yet
    worker: str = Field(default="", exclude_if=falsy)  # that drives the Run from now on; empty: this process


def started_as(start: StartRun, event: ResumeRun) -> StartRun:
    """Return `start` with the definition and limits of a resumption in place of the original ones."""
    if event.definition is None:
        return start
    fields = fields_of(event.definition, Definition)
    return start.model_copy(update={**fields, "limits": event.limits or start.limits})


class StopRunByDelegate(RunEvent):
    """The stop of a Run that waits for its delegates."""

    type: Literal["stopRunByDelegate"] = "stopRunByDelegate"
    checkpoint_id: str


class WidenPermissions(RunEvent):
    """A person's override of the rules in force, which may allow what was not allowed before."""

    is_decided = False
    is_progress = False
    type: Literal["widenPermissions"] = "widenPermissions"
    widening: Widening
    by: By


class StopRunByInteractiveTool(RunEvent):
    """The stop of a Run that waits for a person's answer."""

    type: Literal["stopRunByInteractiveTool"] = "stopRunByInteractiveTool"
    checkpoint_id: str


class ErrorRun(RunEvent):
    """The failure of a Run; it can be resumed."""

    is_decided = False
    type: Literal["errorRun"] = "errorRun"
    checkpoint_id: str
    error: ErrorInfo
    uncharged: bool = Field(default=False, exclude_if=falsy)  # True if the endpoint refused it: nothing is charged


class StopRunByExceededMaxSteps(RunEvent):
    """The stop of a Run whose Job has used all of its steps; it continues with a higher limit."""

    is_decided = False
    type: Literal["stopRunByExceededMaxSteps"] = "stopRunByExceededMaxSteps"
    checkpoint_id: str
    max_steps: int


class StopRunByExceededBudget(RunEvent):
    """The stop of a Run whose next call could exceed a budget; it continues with a higher one."""

    is_decided = False
    type: Literal["stopRunByExceededBudget"] = "stopRunByExceededBudget"
    checkpoint_id: str
    budget: BudgetName
    expert: str | None = None  # None for the Job's budget
    limit: float  # amount in dollars, tokens, milliseconds or calls, as are `spent` and `needed` (by the next call)
    spent: float  # includes the reservations of running calls
    needed: float

    @property
    def words(self) -> str:
        """Text of the reason, for people."""
        whose = "the Job" if self.expert is None else f"Expert {self.expert}"
        limit, spent, needed = (amount(self.budget, value) for value in (self.limit, self.spent, self.needed))
        if self.budget == "maxTime":
            return f"the time of {whose} is over, {limit} of work"
        return f"{whose} may spend {limit}: {spent} are spent, and the next call could need {needed}"


class StopRunByInterrupt(RunEvent):
    """An interrupt of the Run; the current step was abandoned."""

    is_decided = False
    is_progress = False
    type: Literal["stopRunByInterrupt"] = "stopRunByInterrupt"
    checkpoint_id: str
    reason: Literal["interrupt", "rateLimit"] = "interrupt"  # `rateLimit`: a pause too long to wait in a process
    resume_at: int | None = None  # time at which the Run may continue, in milliseconds since 1970; None if unknown


class RedactEvent(RunEvent):
    """The permanent removal of the content of an earlier event, which this event replaces."""

    is_decided = False
    is_progress = False
    type: Literal["redactEvent"] = "redactEvent"
    event_id: str
    event_type: str
    digest: str
    fields: tuple[str, ...]
    remains: JsonObject  # the event without their content; marks of the fields say what may remain
    blobs: tuple[str, ...] = Field(default=(), exclude_if=falsy)  # SHA-256 (hex) of the blobs removed with it
    copies: tuple[str, ...] = Field(default=(), exclude_if=falsy)  # of the text: ids of events, descriptions of places
    by: By
    reason: str


StoredEvent = (
    StartRun
    | ResumeRun
    | step_events.StartGeneration
    | step_events.FinishGeneration
    | step_events.Retry
    | step_events.SwitchModel
    | step_events.CallTools
    | step_events.FinishToolCall
    | step_events.CallDelegate
    | StopRunByDelegate
    | step_events.CallInteractiveTool
    | step_events.AnswerQuestion
    | step_events.RequestApproval
    | step_events.DecideApproval
    | step_events.StartToolCall
    | step_events.StartSample
    | WidenPermissions
    | StopRunByInteractiveTool
    | step_events.AttemptCompletion
    | ShrinkResults
    | StartCompaction
    | CompactHistory
    | RecordSnapshot
    | step_events.FinishStep
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
    display_events.InitializeRuntime
    | display_events.SkillStarting
    | display_events.SkillConnected
    | display_events.SkillStderr
    | display_events.SkillDisconnected
    | display_events.ToolProgress
    | display_events.WaitForEndpoint
    | display_events.StreamReasoning
    | display_events.StreamText
)

Event = StoredEvent | TransientEvent

parse_event = EventParser[StoredEvent](lambda: TypeAdapter(Annotated[StoredEvent, Field(discriminator="type")]))


def contents_of(event: StoredEvent) -> tuple[ResultContent, ...]:
    """Return the event's contents that may be images or documents: attachments of a query, or a tool's result."""
    match event:
        case StartRun():
            return event.attachments
        case step_events.FinishToolCall():
            return event.contents
        case _:
            return ()


# The ids in a log are untrusted input: check them against the location that the event was read from.


def is_at_home(event: StoredEvent, job_id: str, run_id: str, seq: int) -> bool:
    """Return True if the event's ids match position `seq` of this Run's log, and it names only Runs of this Job."""
    if event.id != event_id_of(run_id, seq) or event.run_id != run_id or event.job_id != job_id:
        return False
    return all(_is_run_of(other, job_id) for other in _named(event))


def _named(event: StoredEvent) -> Iterator[str]:
    if isinstance(event, StartRun):
        for place in (event.delegated_by, event.continued_from):
            if place is not None:
                yield place.run_id
    elif isinstance(event, step_events.CallDelegate):
        for delegation in event.delegates:
            yield delegation.run_id
    elif isinstance(event, step_events.FinishToolCall) and event.delegate is not None:
        yield event.delegate.run_id


def _is_run_of(run_id: str, job_id: str) -> bool:
    owner, separator, number = run_id.rpartition("-")
    return bool(separator) and owner == job_id and number.isdecimal() and number.isascii()


def trees_of(event: StoredEvent) -> tuple[str, ...]:
    """Return the digests of the trees that the event names; the blobs of these trees belong to it."""
    tree = event.tree if isinstance(event, RecordSnapshot | StartRewind | FinishRewind) else None
    return () if tree is None else (tree,)


# Upgrading older event shapes. Each step is a pure function from one format to the next and never changes once
# released. Format 1 is the first.


class TooNew(ValueError):
    """A log in a newer format than this version reads."""


def upgrade(event: StoredEvent) -> StoredEvent:
    """Return the event in the current shape. Raises TooNew."""
    if isinstance(event, StartRun) and event.format > FORMAT:
        raise TooNew(
            f"{event.run_id} was written in format {event.format}; this version reads up to {FORMAT}: upgrade it"
        )
    return event
