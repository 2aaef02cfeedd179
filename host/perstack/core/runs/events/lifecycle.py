"""Define the events that resume, stop and complete a Run, and those by which a person or a worker changes it."""

import json
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, TypedDict

from pydantic import Field, field_validator
from typing_extensions import override

from perstack.core.base.ids import By, event_id_of, is_digest
from perstack.core.base.records import EMPTIED, JsonObject, Text, falsy, fields_of
from perstack.core.base.text import count
from perstack.core.base.usage import BudgetName, BudgetRefusal, Usage
from perstack.core.definitions.permissions import RuleSets, Widening, apply_widening_to_all
from perstack.core.definitions.settings import Limits
from perstack.core.messages.messages import TextPart, UserMessage
from perstack.core.runs.commands import Command, EndRun, JudgeResult
from perstack.core.runs.events.base import (
    LaterEvent,
    Repetition,
    difference_of,
    is_emptied,
    settle_reservation,
    unexpected_event,
)
from perstack.core.runs.facts import WITHOUT_EFFECT, Closed, Definition, ErrorInfo, Queued, Settlement
from perstack.core.runs.log_rows import EventContext, LogRow, author_rows
from perstack.core.runs.start import StartRun
from perstack.core.runs.state import MAX_REJECTIONS, NO_REPEATS, Run, due_on_resume, is_unsettled, schema_of_run
from perstack.core.schemas.result_schemas import check_result
from perstack.dataclass import replace

ResumeReason = Literal["answer", "interrupt", "maxSteps", "budget", "error", "crash", "parent", "queued"]


class ResumeRun(LaterEvent):
    """The resumption of a stopped or interrupted Run."""

    is_progress = False
    reasons: ClassVar[dict[ResumeReason, str]] = {
        "answer": "with an answer",
        "interrupt": "after an interrupt",
        "maxSteps": "after the step limit",
        "budget": "after its budget was used",
        "error": "after an error",
        "crash": "after its process ended",
        "parent": "with the Run that started it",
        "queued": "from the queue",
    }
    original_types = ("resumeToolCalls",)
    type: Literal["resumeRun"] = "resumeRun"
    reason: ResumeReason
    checkpoint_id: str
    limits: Limits | None = None  # new limits; None if they are unchanged
    # by tool call id; `ask` is what earlier versions wrote for `tell`
    settled: dict[str, Settlement] = Field(default_factory=dict, exclude_if=falsy)
    asks: tuple[str, ...] = Field(default=(), exclude_if=falsy)  # ids of the calls that a person is asked about
    # source and id of the event from outside that resumed the Run; each is accepted once
    signal: Annotated[str | None, EMPTIED] = None
    by: By | None = None  # actor who gave the new limits; None in logs of earlier versions
    definition: Definition | None = None  # today's definition, for a Run that failed before its first reply
    permissions: RuleSets = Field(default=(), exclude_if=falsy)  # today's rules that are not in force yet
    # worker that drives the Run from now on; empty: the recording process
    worker: str = Field(default="", exclude_if=falsy)

    def start(self, previous_start: StartRun) -> StartRun:
        """Return `previous_start` with the definition and limits of this resumption in place of the original ones."""
        if self.definition is None:
            return previous_start
        fields = fields_of(self.definition, Definition)
        return previous_start.model_copy(update={**fields, "limits": self.limits or previous_start.limits})

    @override
    def repetitions(self, run: Run) -> Iterator[Repetition]:
        yield Repetition("the checkpoint", self.checkpoint_id, event_id_of(run.id, run.head.seq))
        unsettled = tuple(call_id for call_id in self.settled if call_id in run.calls)
        yield Repetition("which calls are settled", tuple(self.settled), unsettled)
        asked = tuple(call_id for call_id in self.asks if call_id in run.calls)
        yield Repetition("which calls a person is asked about", self.asks, asked)

    def _settlement(self, call_id: str) -> Settlement:
        settlement = self.settled.get(call_id, "tell")
        return "ask" if call_id in self.asks else "tell" if settlement == "ask" else settlement

    def fold(self, run: Run) -> Run:
        """Mark interrupted calls that may have had a side effect with the person's decision, by default `tell`."""
        calls = {
            call_id: replace(call, settlement=self._settlement(call_id)) if is_unsettled(call) else call
            for call_id, call in run.calls.items()
        }
        start = self.start(run.start)
        return replace(
            run,
            start=start,
            result_schema=schema_of_run(start),
            rejections=min(run.rejections, MAX_REJECTIONS - 1),
            error=None,
            unusable_reply=None,
            resume_at=None,
            waits_for_limit=False,
            continued_at_ms=self.timestamp,
            signals=run.signals if self.signal is None else run.signals | {self.signal},
            calls=calls,
            limits=self.limits or run.limits,
            permissions=(*run.permissions, *self.permissions),
            is_tightened=run.is_tightened or bool(self.permissions),
            repeats=NO_REPEATS,
            exceeded=None,
            spending=run.spending.settle(is_charged=True),
            # A person who resumes a failed Run may have made the request fit, or have repaired the first model: try
            # both.
            context=replace(run.context, overflow=None, is_relieved=False) if self.reason == "error" else run.context,
            primary_retry_at_ms=0 if self.reason == "error" else run.primary_retry_at_ms,
            fallback_model=run.fallback_model if self.definition is None else "",
            snapshot_due=due_on_resume(run),
            queued=None if run.status == "stoppedByError" and not run.has_generated else run.queued,
        )

    @override
    def difference(self, run: Run, command: Command | None) -> str | None:
        if run.status == "completed":
            return "resumeRun of a completed Run"
        if self.definition is not None and not run.may_be_redefined:
            return "resumeRun with another definition, where the model has replied under the first"
        return None

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        settled = {call_id: self._settlement(call_id) for call_id in (*self.settled, *self.asks)}
        rows = [LogRow("settled", f"{call}: {settlement}") for call, settlement in settled.items()]
        return [LogRow("resumes", self.reasons[self.reason], "yellow"), *rows]


class WidenPermissions(LaterEvent):
    """A person's override of the rules in force, which may allow what was not allowed before."""

    is_decided = False
    is_progress = False
    type: Literal["widenPermissions"] = "widenPermissions"
    widening: Widening
    by: By

    def fold(self, run: Run) -> Run:
        """Lay the override over the rules in force."""
        permissions = apply_widening_to_all(run.permissions, self.widening)
        return replace(run, permissions=permissions, widenings=(*run.widenings, self.widening))

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        rules = json.dumps(json.loads(self.widening.to_json()), ensure_ascii=False)
        return [LogRow("permits", rules, "yellow"), *author_rows(self.by)]


class RejectResult(LaterEvent):
    """A result that does not fit the requested schema. The model sees the problem, and may try once more."""

    type: Literal["rejectResult"] = "rejectResult"
    problem: Text
    text: Text
    by_program: bool = Field(default=False, exclude_if=falsy)  # True: the calling program refused what fits the schema

    def fold(self, run: Run) -> Run:
        """Give the model the problem."""
        return replace(
            run,
            messages=run.messages.append(UserMessage(contents=(TextPart(text=self.text),)), self.id),
            result=None,
            is_declared_done=False,
            is_final_generation=False,
            rejections=run.rejections + 1,
            rejected_for=self.problem,
        )

    def difference(self, run: Run, command: Command | None) -> str | None:
        """Judge the result again. The wording is not compared: it belongs to the version that wrote it."""
        if not isinstance(command, JudgeResult):
            return unexpected_event(self, run, command)
        is_fitting = check_result(command.text, command.schema).value is not None
        return "rejectResult of a result that fits" if is_fitting and not self.by_program else None

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        return [LogRow("rejects", f"the result: {self.problem}", "yellow")]


class FinishRun(LaterEvent):
    """The completion of a Run."""

    original_types = ("completeRun",)
    type: Literal["finishRun"] = "finishRun"
    checkpoint_id: str
    text: Text
    total_usage: Usage
    result: Annotated[JsonObject | None, EMPTIED] = None  # JSON that fits the schema; None without a schema
    without_effect: bool = Field(default=False, exclude_if=falsy)  # though its Expert declares an effect

    @override
    def repetitions(self, run: Run) -> Iterator[Repetition]:
        is_unknown = is_emptied(self.text) or is_emptied(run.result)
        yield Repetition("the result", self.text, run.result, is_emptied=is_unknown)
        yield Repetition("the usage", self.total_usage, run.spending.usage)
        yield Repetition("withoutEffect", self.without_effect, run.lacks_effect)
        value = None if run.result_schema is None else check_result(self.text, run.result_schema).value
        yield Repetition("the value of the result", self.result, value, is_emptied=is_unknown or self.result is None)

    def fold(self, run: Run) -> Run:
        return replace(run, result=self.text, result_value=self.result, without_effect=self.without_effect)

    @override
    def difference(self, run: Run, command: Command | None) -> str | None:
        if not isinstance(command, EndRun | JudgeResult):
            return unexpected_event(self, run, command)
        value = check_result(command.text, command.schema).value if isinstance(command, JudgeResult) else None
        return (
            difference_of(command.text, self.text, "text")
            or difference_of(run.spending.usage, self.total_usage, "total usage")
            or difference_of(value, self.result, "result")
            or difference_of(run.lacks_effect, self.without_effect, "withoutEffect")
        )

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        warnings = [LogRow("warning", WITHOUT_EFFECT, "yellow")] if self.without_effect else []
        return [LogRow("completed", self.text, "green", "end"), *warnings]


class ErrorRun(LaterEvent):
    """The failure of a Run; it can be resumed."""

    is_decided = False
    original_types = ("stopRunByError",)
    type: Literal["errorRun"] = "errorRun"
    checkpoint_id: str
    error: ErrorInfo
    uncharged: bool = Field(default=False, exclude_if=falsy)  # True if the endpoint refused it: nothing is charged

    def fold(self, run: Run) -> Run:
        return replace(settle_reservation(run, is_charged=not self.uncharged), error=self.error)

    def describe(self, context: EventContext) -> list[LogRow]:
        """Return the error; the checkpoint on request."""
        rows = [LogRow("waits", f"at checkpoint {self.checkpoint_id}", item="place")] if context.full else []
        return [LogRow("failed", self.error.words, "red"), *rows]


class StopRunByExceededMaxSteps(LaterEvent):
    """The stop of a Run whose Job has used all of its steps; it continues with a higher limit."""

    is_decided = False
    type: Literal["stopRunByExceededMaxSteps"] = "stopRunByExceededMaxSteps"
    checkpoint_id: str
    max_steps: int

    @override
    def repetitions(self, run: Run) -> Iterator[Repetition]:
        if run.is_coordinator and run.limits.max_steps is not None:  # a delegate stops at the limit of its Job
            yield Repetition("the limit", self.max_steps, run.limits.max_steps)

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        steps = count(self.max_steps, "step")
        return [LogRow("stopped", f"at the limit of {steps}, checkpoint {self.checkpoint_id}", "yellow")]


class StopRunByExceededBudget(LaterEvent):
    """The stop of a Run whose next call could exceed a budget; it continues with a higher one."""

    is_decided = False
    original_types = ("stopRunByExceededMaxSteps",)
    type: Literal["stopRunByExceededBudget"] = "stopRunByExceededBudget"
    checkpoint_id: str
    budget: BudgetName
    expert: str | None = None  # None for the Job's budget
    limit: float  # amount in dollars, tokens, milliseconds or calls, as are `spent` and `needed` (by the next call)
    spent: float  # includes the reservations of running calls
    needed: float

    @property
    def exceeded(self) -> BudgetRefusal:
        """The refusal of the next call."""
        return BudgetRefusal(self.budget, self.expert, self.limit, self.spent, self.needed)

    @override
    def repetitions(self, run: Run) -> Iterator[Repetition]:
        if run.is_coordinator and self.expert is None and run.limits.budget is not None:
            yield Repetition("the limit", self.limit, run.limits.budget.limit_of(self.budget))

    def fold(self, run: Run) -> Run:
        return replace(settle_reservation(run, is_charged=True), exceeded=self.exceeded)

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        return [LogRow("stops", self.exceeded.words, "yellow")]


class StopRunByInterrupt(LaterEvent):
    """An interrupt of the Run; the current step was abandoned."""

    is_decided = False
    is_progress = False
    original_types = ("stopRunByError",)
    type: Literal["stopRunByInterrupt"] = "stopRunByInterrupt"
    checkpoint_id: str
    reason: Literal["interrupt", "rateLimit"] = "interrupt"  # `rateLimit`: a pause too long to wait in a process
    resume_at: int | None = None  # time at which the Run may continue, in milliseconds since 1970; None if unknown

    def fold(self, run: Run) -> Run:
        """Keep the time at which the Run may continue."""
        run = settle_reservation(run, is_charged=True)
        return replace(run, resume_at=self.resume_at, waits_for_limit=self.reason == "rateLimit")

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        return [LogRow("stopped", f"by {self.reason}, checkpoint {self.checkpoint_id}", "yellow")]


class QueueRun(LaterEvent):
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
    def _check_definition(cls, value: str | None) -> str | None:
        if value is not None and not is_digest(value):
            raise ValueError("`definition` must be a SHA-256 in hex")
        return value

    def fold(self, run: Run) -> Run:
        """Keep who queued the Run, and with which settings."""
        queued = Queued(since=self.timestamp, due=self.due, priority=self.priority, by=self.by)
        return replace(run, queued=queued, queued_definition=self.definition)

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        due = f", not before {context.minute(self.due)}" if self.due else ""
        return [LogRow("queued", f"for a worker{due}, by {self.by}", "cyan")]


class QueueFields(TypedDict):
    """The fields of `QueueRun` without the common ones."""

    by: By
    definition: str | None
    due: int
    priority: int


class CloseRun(LaterEvent):
    """The permanent close of a Run: it keeps its state, and nothing continues it."""

    is_decided = False
    type: Literal["closeRun"] = "closeRun"
    by: By
    reason: Text = Field(default="", exclude_if=falsy)

    def fold(self, run: Run) -> Run:
        """Close the Run and drop its questions."""
        closed = Closed(by=self.by, reason=self.reason, at=self.timestamp)
        return replace(run, closed=closed, asked_call_id=None, questions={})

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        reason = f": {self.reason}" if self.reason else ""
        return [LogRow("closed", f"for good, by {self.by}{reason}", "yellow")]


class RedactEvent(LaterEvent):
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
    # places that still have the text: ids of events, or descriptions
    copies: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    by: By
    reason: str

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        text = f"{self.event_id} ({self.event_type}), by {self.by}: {self.reason}"
        return [LogRow("redacts", text, "yellow")]


LifecycleEvent = (
    ResumeRun
    | WidenPermissions
    | RejectResult
    | FinishRun
    | ErrorRun
    | StopRunByExceededMaxSteps
    | StopRunByExceededBudget
    | StopRunByInterrupt
    | QueueRun
    | CloseRun
    | RedactEvent
)
