"""What is going on in a Job, read from its events: the rows that the log has of each, and what each Run is doing now.

Pure: the time comes with the events. A log on a disk and a Job in this process are watched by the same code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import NamedTuple, assert_never

from pydantic import TypeAdapter, ValidationError

from perstack.core.events import (
    AnswerQuestion,
    AttemptCompletion,
    CallDelegate,
    CallInteractiveTool,
    CallTools,
    CloseRun,
    CompactHistory,
    DecideApproval,
    ErrorRun,
    Event,
    FinishGeneration,
    FinishRewind,
    FinishRun,
    FinishStep,
    FinishToolCall,
    InitializeRuntime,
    QueueRun,
    RecordSnapshot,
    RedactEvent,
    RejectResult,
    RequestApproval,
    ResumeRun,
    Retry,
    ShrinkResults,
    SkillConnected,
    SkillDisconnected,
    SkillStarting,
    SkillStderr,
    StartCompaction,
    StartGeneration,
    StartRewind,
    StartRun,
    StartSample,
    StartToolCall,
    StopRunByDelegate,
    StopRunByExceededBudget,
    StopRunByExceededMaxSteps,
    StopRunByInteractiveTool,
    StopRunByInterrupt,
    StoredEvent,
    StreamReasoning,
    StreamText,
    SwitchModel,
    ToolProgress,
    WaitForEndpoint,
    WidenPermissions,
)
from perstack.core.job import JobSummary
from perstack.core.messages import ToolCallPart, text_of
from perstack.core.todos import Todo
from perstack.core.usage import NO_USAGE, Usage
from perstack.dataclass import dataclass
from perstack.frontends.shared.log_rows import QUIET_TYPES, Around, Row, describe, run_label
from perstack.frontends.shared.words import brief

_LONGEST = 4_000
"""Characters that are kept of a text while it comes: more than a screen shows of it."""

_TODOS: TypeAdapter[dict[str, tuple[Todo, ...]]] = TypeAdapter(dict[str, tuple[Todo, ...]])


class Told(NamedTuple):
    """A row of the log, and where it belongs."""

    timestamp: int
    run_id: str
    label: str
    step: int
    row: Row


@dataclass(slots=True)
class Work:
    """A call that is being run."""

    name: str
    words: str
    """Its arguments."""
    since: int
    progress: str = ""


@dataclass(slots=True)
class Lane:
    """What a Run is doing."""

    run_id: str
    label: str
    since: int
    """When it began to do what it does, in milliseconds since 1970."""
    steps: int | None = None
    """How many of its steps have been counted."""
    doing: str = ""
    text: str = ""
    """The end of what comes from the model."""
    is_thinking: bool = False
    work: dict[str, Work] = field(default_factory=dict[str, Work])
    calls: dict[str, ToolCallPart] = field(default_factory=dict[str, ToolCallPart])
    """Those of the last reply, by id."""
    lists: frozenset[str] = frozenset()
    """Those of them whose result is the whole list of todos."""
    todos: tuple[Todo, ...] = ()
    began: tuple[int, int] = (0, 0)
    """The step, and when it did."""
    context_tokens: int = 0
    context_window: int | None = None
    is_delegate: bool = False
    waits: bool = False
    """Whether it does nothing until its own delegates have come to rest."""

    def does(self, doing: str, since: int) -> None:
        """It does this now."""
        self.doing, self.since, self.text = doing, since, ""

    def hears(self, delta: str, *, is_thinking: bool) -> None:
        """More has come from the model."""
        if is_thinking is not self.is_thinking:
            self.is_thinking, self.text = is_thinking, ""
        self.text = (self.text + delta)[-_LONGEST:]


class LiveState:
    """What the events so far add up to."""

    def __init__(self, *, full: bool = False) -> None:
        self._full = full
        self.lanes: dict[str, Lane] = {}
        """The Runs at work, in the order in which they were started."""
        self.skills: dict[str, int] = {}
        """Servers that are being started, and since when."""
        self.latest: Lane | None = None
        """The Coordinator's, after its end too."""
        self.began: int | None = None
        self.steps = 0
        self.usage = NO_USAGE
        self.unpriced_tokens = 0
        self.asks_at_once = False
        """Whether a delegate is answered while others are at work: in the process that drives the Job."""
        self._known: dict[str, Lane] = {}
        """Every Run that was seen: one that was stopped may continue."""

    def begin(self, job: JobSummary) -> None:
        """It was driven before: this is what it had done by then."""
        self.steps = job.total_steps
        self.usage = job.usage
        self.unpriced_tokens = job.unpriced_tokens

    def rest(self) -> None:
        """Nobody drives it any more."""
        self.lanes.clear()
        self.skills.clear()

    def is_delegate(self, run_id: str) -> bool:
        """Whether another Run started this one, also when it has ended."""
        lane = self._known.get(run_id)
        return lane is not None and lane.is_delegate

    def asks_later(self, run_id: str) -> bool:
        """Whether a person is asked what this Run asks only when others have come to rest: delegates at work."""
        others = (lane for lane in self.lanes.values() if lane.run_id != run_id)
        is_watched = self.is_delegate(run_id) and not self.asks_at_once
        return is_watched and any(lane.is_delegate and not lane.waits for lane in others)

    def take(self, event: Event) -> list[Told]:
        """An event has happened; returns the rows that the log has of it."""
        self.began = event.timestamp if self.began is None else self.began
        match event:
            case InitializeRuntime() | SkillStderr():
                pass
            case SkillStarting():
                self.skills[event.skill_name] = event.timestamp
            case SkillConnected() | SkillDisconnected():
                self.skills.pop(event.skill_name, None)
            case StreamText():
                self._lane(event.run_id, event.expert_key, event.timestamp).hears(event.delta, is_thinking=False)
            case StreamReasoning():
                self._lane(event.run_id, event.expert_key, event.timestamp).hears(event.delta, is_thinking=True)
            case WaitForEndpoint():
                lane = self._lane(event.run_id, event.expert_key, event.timestamp)
                lane.does(f"waits for {event.provider}, {event.ahead} before it", event.timestamp)
            case ToolProgress():
                work = self._lane(event.run_id, event.expert_key, event.timestamp).work.get(event.tool_call_id)
                if work is not None:
                    work.progress = event.message
            case _:
                return list(self._stored(event))
        return []

    def _lane(self, run_id: str, expert_key: str, now: int) -> Lane:
        lane = self._known.get(run_id)
        if lane is None:
            lane = self._known[run_id] = Lane(run_id, run_label(expert_key, run_id), now)
        return self.lanes.setdefault(run_id, lane)

    def _stored(self, event: StoredEvent) -> Iterator[Told]:
        lane = self._lane(event.run_id, event.expert_key, event.timestamp)
        started, at = lane.began
        took = event.timestamp - at if started == event.step_number and isinstance(event, FinishStep) else None
        is_quiet = event.type in QUIET_TYPES and not (isinstance(event, StartGeneration) and event.unreachable)
        if self._full or not is_quiet:
            for row in describe(event, Around(lane.calls, took, self._full)):
                yield Told(event.timestamp, event.run_id, lane.label, event.step_number, row)
        self._follow(lane, event)

    def _follow(self, lane: Lane, event: StoredEvent) -> None:  # noqa: C901 - one case for each kind of event
        now = event.timestamp
        lane.waits = isinstance(event, StopRunByDelegate)
        match event:
            case StartRun():
                lane.steps = 0
                lane.is_delegate = event.delegated_by is not None
                if event.delegated_by is None:
                    # one of a process that was killed said nothing when it ended
                    self.lanes = {lane.run_id: lane}
                    self.latest = lane
            case ResumeRun():
                lane.steps = max(lane.steps or 0, event.step_number)
            case StartGeneration():
                before = event.step_number - 1 if lane.steps is None else lane.steps
                self.steps += max(0, event.step_number - before)
                lane.steps = max(before, event.step_number)
                if lane.began[0] != event.step_number:
                    lane.began = (event.step_number, now)
                lane.does("waits for the model", now)
            case FinishGeneration():
                self._spent(event.usage)
                lane.context_tokens = event.usage.total_tokens
                lane.context_window = event.context_window or lane.context_window
                lane.calls = {part.tool_call_id: part for part in event.message.tool_calls}
                lane.does("", now)
            case Retry():
                self._spent(event.usage)
                lane.does("waits to try again", now)
            case SwitchModel():
                lane.context_window = event.context_window
                lane.does("waits for the next model", now)
            case StartCompaction():
                lane.does("summarises what came before", now)
            case CompactHistory():
                self._spent(event.usage)
                lane.does("", now)
            case CallTools():
                lane.lists = frozenset(call.id for call in event.calls if call.kind in ("todo", "clearTodo"))
                for call in event.calls:
                    if call.kind == "tool" and not call.asks:
                        self._begins(lane, call.id, now)
            case StartToolCall():
                self._begins(lane, event.tool_call_id, now)
            case FinishToolCall():
                self._spent(event.usage)
                lane.work.pop(event.tool_call_id, None)
                if event.tool_call_id in lane.lists and not event.is_error:
                    lane.todos = _todos(text_of(event.contents), lane.todos)
            case CallDelegate():
                lane.does(
                    f"waits for {', '.join(run_label(one.expert_key, one.run_id) for one in event.delegates)}", now
                )
            case CallInteractiveTool():
                self._spent(event.usage)
                lane.work.pop(event.tool_call_id, None)
            case FinishStep():
                lane.does("", now)
            case (
                FinishRun()
                | ErrorRun()
                | StopRunByExceededMaxSteps()
                | StopRunByExceededBudget()
                | StopRunByInterrupt()
                | StopRunByInteractiveTool()
            ):
                lane.does("", now)
                lane.work.clear()
                del self.lanes[event.run_id]
            case (
                StopRunByDelegate()
                | AnswerQuestion()
                | RequestApproval()
                | DecideApproval()
                | StartSample()
                | WidenPermissions()
                | AttemptCompletion()
                | RejectResult()
                | ShrinkResults()
                | RecordSnapshot()
            ):
                pass
            case QueueRun() | CloseRun() | StartRewind() | FinishRewind() | RedactEvent():
                if not lane.began[0]:  # nobody works on it
                    del self.lanes[event.run_id]
            case _:
                assert_never(event)

    def _begins(self, lane: Lane, call_id: str, now: int) -> None:
        part = lane.calls.get(call_id)
        name, words = (part.tool_name, brief(part)) if part is not None else ("an approved call", "")
        lane.work[call_id] = Work(name, words, now)

    def _spent(self, usage: Usage | None) -> None:
        if usage is not None:
            self.usage += usage
            self.unpriced_tokens += usage.unpriced_tokens


def _todos(result: str, before: tuple[Todo, ...]) -> tuple[Todo, ...]:
    """The list that a todo tool has returned."""
    try:
        return _TODOS.validate_json(result).get("todos", ())
    except ValidationError:
        return before
