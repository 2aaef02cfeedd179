"""A Job: what the logs of all its Runs add up to. Totals are derived here and nowhere counted by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from perstack.core.base import Fact, JsonObject, falsy
from perstack.core.definitions import Limits
from perstack.core.events import (
    AnswerQuestion,
    CallDelegate,
    CallInteractiveTool,
    ErrorRun,
    FinishGeneration,
    FinishRun,
    FinishToolCall,
    RedactEvent,
    ResumeRun,
    Retry,
    StartGeneration,
    StartRun,
    StopRunByDelegate,
    StopRunByExceededMaxSteps,
    StopRunByInteractiveTool,
    StopRunByInterrupt,
    StoredEvent,
    started_as,
)
from perstack.core.ids import number_of_run
from perstack.core.runs.state import RunStatus
from perstack.core.usage import NO_USAGE, Usage

JobStatus = Literal[
    "running",
    "completed",
    "stoppedByInteractiveTool",
    "stoppedByMaxSteps",
    "stoppedByInterrupt",
    "stoppedByError",
]
Lifecycle = Literal["running", "paused", "completed", "failed"]
PauseReason = Literal[
    "human_approval", "human_input", "external_dependency", "scheduled_wait", "rate_limit", "checkpoint"
]


class RunSummary(Fact):
    """One Run of a Job, in brief."""

    id: str
    expert_key: str
    status: RunStatus
    steps: int = 0
    usage: Usage = NO_USAGE
    delegated_by: str | None = None
    """The Run that started it; None for a Coordinator."""
    continued_from: str | None = None
    """The checkpoint it continues from."""
    started_at: int = 0
    updated_at: int = 0
    head_seq: int = Field(default=0, exclude_if=falsy)
    head_hash: str = Field(default="", exclude_if=falsy)
    job_id: str = Field(default="", exclude_if=falsy)
    """Only in a list of the Runs of all Jobs."""


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
    asked_at: int = 0

    @property
    def shown(self) -> str:
        """The question as a person sees it: with the skill in front whose tool asks, which may claim to be anybody."""
        is_of_tool = self.requested_schema is not None and self.skill_name
        return f"skill {self.skill_name}: {self.text}" if is_of_tool else self.text


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


class JobSummary(Fact):
    """job.json: what a Job is and where it stands. A cache, derivable from the logs."""

    id: str
    expert_key: str
    coordinator_expert_key: str = ""
    """The same, under another name that programs read."""
    runtime_version: str = Field(default="", exclude_if=falsy)
    """The version of perstack that started the Coordinator's Run; empty where its log does not say."""
    query: str
    labels: dict[str, str] = Field(default_factory=dict, exclude_if=falsy)
    status: JobStatus
    lifecycle: Lifecycle
    pause_reason: PauseReason | None = None
    resume_at: int | None = None
    """From when on a paused Job may be resumed, in milliseconds since 1970."""
    total_steps: int = 0
    max_steps: int | None = None
    usage: Usage = NO_USAGE
    usage_by_expert: dict[str, Usage] = Field(default_factory=dict, exclude_if=falsy)
    """The same by the Expert that used it, over all its Runs."""
    started_at: int = 0
    updated_at: int = 0
    finished_at: int | None = None
    coordinator_run_id: str
    """The Coordinator's Run that was written to last; `--continue` and `resume` mean this one."""
    question: str | None = None
    """What a person is being asked, if anything."""
    asking: OpenQuestion | None = None
    """The same, with who asks and what an answer looks like."""
    text: str | None = None
    """The result, when completed."""
    error: str | None = None
    runs: tuple[RunSummary, ...] = ()

    @property
    def asks(self) -> str | None:
        """The open question as a person sees it, with the skill that asks."""
        return self.question if self.asking is None else self.asking.shown


@dataclass(slots=True)
class RunTally:
    """What a Job keeps of one Run."""

    start: StartRun
    status: RunStatus = "running"
    steps: int = 0
    usage: Usage = field(default_factory=Usage)
    updated_at: int = 0
    touched: int = 0
    """When it was last started or resumed; the latest Coordinator Run is the Job's."""
    questions: dict[str, OpenQuestion] = field(default_factory=dict[str, "OpenQuestion"])
    """What is asked and not answered yet, by call; the latest is put to a person."""
    text: str | None = None
    error: str | None = None
    waits_for_limit: bool = False
    """Whether it was stopped last by a limit of its provider's rate."""
    resume_at: int | None = None
    head_seq: int = 0
    head_hash: str = ""


@dataclass(slots=True)
class Job:
    """The fold of many Runs. Feed it every event once, each Run's in order; the order among Runs does not matter."""

    id: str
    runs: dict[str, RunTally] = field(default_factory=dict[str, RunTally])
    total_steps: int = 0
    usage: Usage = field(default_factory=Usage)
    next_number: int = 1
    """The number of the Run that would be decided on next."""
    signals: set[str] = field(default_factory=set[str])
    """The events from outside that it has taken."""

    def apply(self, event: StoredEvent) -> None:
        """Take in one event."""
        if isinstance(event, StartRun):
            self.runs[event.run_id] = RunTally(event, touched=event.timestamp)
            self._seen(event.run_id)
        tally = self.runs[event.run_id]
        tally.updated_at = max(tally.updated_at, _went_on_at(event))
        match event:
            case StartGeneration():
                if event.step_number > tally.steps:
                    self.total_steps += event.step_number - tally.steps
                    tally.steps = event.step_number
                tally.status = "running"
            case FinishGeneration():
                self._spend(tally, event.usage)
            case Retry():
                self._spend(tally, event.usage or NO_USAGE)
            case CallDelegate():
                for delegation in event.delegates:
                    self._seen(delegation.run_id)
            case ResumeRun():
                tally.start = started_as(tally.start, event)
                tally.status, tally.touched, tally.error = "running", event.timestamp, None
                tally.waits_for_limit, tally.resume_at = False, None
                if event.signal is not None:
                    self.signals.add(event.signal)
            case _:
                self._apply_stop(tally, event)

    def _apply_stop(self, tally: RunTally, event: StoredEvent) -> None:
        match event:
            case CallInteractiveTool():
                self._spend(tally, event.usage or NO_USAGE)
                tally.questions.pop(event.tool_call_id, None)
                tally.questions[event.tool_call_id] = open_question(event)
            case FinishToolCall():
                self._spend(tally, event.usage or NO_USAGE)
                tally.questions.pop(event.tool_call_id, None)
            case AnswerQuestion():
                tally.questions.pop(event.tool_call_id, None)
            case StopRunByDelegate():
                tally.status = "stoppedByDelegate"
            case StopRunByInteractiveTool():
                tally.status = "stoppedByInteractiveTool"
            case FinishRun():
                tally.status, tally.text = "completed", event.text
            case ErrorRun():
                tally.status, tally.error = "stoppedByError", event.error.message
            case StopRunByExceededMaxSteps():
                tally.status = "stoppedByMaxSteps"
            case StopRunByInterrupt():
                tally.status = "stoppedByInterrupt"
                tally.waits_for_limit, tally.resume_at = event.reason == "rateLimit", event.resume_at
            case _:
                pass

    def anchor(self, run_id: str, seq: int, chained: str) -> None:
        """Remember where a Run's log ended, so that a cut or rewritten log is found out."""
        tally = self.runs[run_id]
        tally.head_seq, tally.head_hash = seq, chained

    def limit_reached(self, limits: Limits) -> int | None:
        """The most steps that the Job, over all its Runs, may have, if it has used them."""
        return limits.max_steps if limits.max_steps is not None and self.total_steps >= limits.max_steps else None

    @property
    def coordinator(self) -> RunTally:
        """The Coordinator's Run that was written to last. Raises LookupError if there is none."""
        runs = [tally for tally in self.runs.values() if tally.start.delegated_by is None]
        if not runs:
            raise LookupError(self.id)
        return max(runs, key=lambda tally: (tally.touched, number_of_run(tally.start.run_id)))

    @property
    def coordinators(self) -> list[RunTally]:
        """All Runs that a person started, oldest first."""
        return [tally for tally in self.runs.values() if tally.start.delegated_by is None]

    @property
    def question(self) -> OpenQuestion | None:
        """What is asked by the Run that was written to last, or by a delegate that it waits for."""
        for _, tally in sorted(self.runs.items(), key=lambda item: number_of_run(item[0])):
            is_asking = tally.status == "stoppedByInteractiveTool" and tally.questions
            if is_asking and self._root(tally) is self.coordinator:
                return next(reversed(tally.questions.values()))
        return None

    @property
    def labels(self) -> dict[str, str]:
        """Those of all Runs that a person started; of one key the latest."""
        found: dict[str, str] = {}
        for tally in sorted(self.coordinators, key=lambda tally: number_of_run(tally.start.run_id)):
            found |= tally.start.labels
        return found

    def _root(self, tally: RunTally) -> RunTally:
        while tally.start.delegated_by is not None:
            tally = self.runs[tally.start.delegated_by.run_id]
        return tally

    def _seen(self, run_id: str) -> None:
        self.next_number = max(self.next_number, number_of_run(run_id) + 1)

    def _spend(self, tally: RunTally, usage: Usage) -> None:
        tally.usage = tally.usage + usage
        self.usage = self.usage + usage


def _went_on_at(event: StoredEvent) -> int:
    return 0 if isinstance(event, RedactEvent) else event.timestamp


def summarize(job: Job, *, is_driven: bool) -> JobSummary:
    """The summary of a Job. One that says it runs and that nobody drives was interrupted."""
    last = job.coordinator
    first = min(job.coordinators, key=lambda tally: tally.start.timestamp)
    status = _job_status(last.status, is_driven)
    updated = max(tally.updated_at for tally in job.runs.values())
    question = job.question if status == "stoppedByInteractiveTool" else None
    return JobSummary(
        id=job.id,
        expert_key=last.start.expert_key,
        coordinator_expert_key=last.start.expert_key,
        runtime_version=last.start.runtime_version,
        query=first.start.query,
        labels=job.labels,
        status=status,
        lifecycle=lifecycle_of(status),
        pause_reason=pause_reason_of(
            status, waits_for_limit=last.waits_for_limit, is_approval=question is not None and question.approval
        ),
        resume_at=last.resume_at,
        total_steps=job.total_steps,
        max_steps=last.start.limits.max_steps,
        usage=job.usage,
        usage_by_expert=_usage_by_expert(job),
        started_at=first.start.timestamp,
        updated_at=updated,
        finished_at=updated if status == "completed" else None,
        coordinator_run_id=last.start.run_id,
        question=question.text if question else None,
        asking=question,
        text=last.text if status == "completed" else None,
        error=last.error,
        runs=tuple(_run_summary(tally) for tally in job.runs.values()),
    )


def _usage_by_expert(job: Job) -> dict[str, Usage]:
    found: dict[str, Usage] = {}
    for tally in job.runs.values():
        key = tally.start.expert_key
        found[key] = found.get(key, NO_USAGE) + tally.usage
    return found


def lifecycle_of(status: JobStatus) -> Lifecycle:
    """The four words that all kinds of long work share."""
    match status:
        case "running":
            return "running"
        case "completed":
            return "completed"
        case "stoppedByError":
            return "failed"
        case "stoppedByInteractiveTool" | "stoppedByMaxSteps" | "stoppedByInterrupt":
            return "paused"


def pause_reason_of(
    status: JobStatus, *, waits_for_limit: bool = False, is_approval: bool = False
) -> PauseReason | None:
    """Why a paused Job is paused."""
    if status == "stoppedByInteractiveTool" and is_approval:
        return "human_approval"
    if status == "stoppedByInterrupt" and waits_for_limit:
        return "rate_limit"
    if status == "stoppedByInteractiveTool":
        return "human_input"
    return "checkpoint" if lifecycle_of(status) == "paused" else None


def _job_status(status: RunStatus, is_driven: bool) -> JobStatus:
    if status in ("running", "stoppedByDelegate"):
        return "running" if is_driven else "stoppedByInterrupt"
    return status  # type: ignore[return-value]  # the two others are handled above


def _run_summary(tally: RunTally) -> RunSummary:
    start = tally.start
    return RunSummary(
        id=start.run_id,
        expert_key=start.expert_key,
        status=tally.status,
        steps=tally.steps,
        usage=tally.usage,
        delegated_by=start.delegated_by.run_id if start.delegated_by else None,
        continued_from=start.continued_from.checkpoint_id if start.continued_from else None,
        started_at=start.timestamp,
        updated_at=tally.updated_at,
        head_seq=tally.head_seq,
        head_hash=tally.head_hash,
    )
