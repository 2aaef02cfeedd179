"""The current activity of a Job. Pure: times come from the events, so a log and a running Job are shown alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import NamedTuple, assert_never

from pydantic import TypeAdapter, ValidationError

from perstack.core.base.usage import NO_USAGE, Usage
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs import display_events, events, step_events
from perstack.core.runs.facts import Todo
from perstack.core.runs.messages import ToolCallPart, text_of
from perstack.dataclass import dataclass
from perstack.doors.shared.event_text import QUIET_TYPES, EventContext, LogRow, describe, run_label, tokens
from perstack.doors.shared.text import brief, count, duration, shorten

_MAX_TEXT_CHARS = 4_000  # maximum characters kept of a streamed text: more than a screen shows

_TODOS: TypeAdapter[dict[str, tuple[Todo, ...]]] = TypeAdapter(dict[str, tuple[Todo, ...]])


class LogLine(NamedTuple):
    """A log row with its time, Run and step."""

    timestamp: int
    run_id: str
    label: str
    step: int
    row: LogRow


@dataclass(slots=True)
class _ActiveCall:
    name: str
    words: str  # the call's arguments
    since: int
    progress: str = ""


@dataclass(slots=True)
class RunActivity:
    """The current activity of one Run."""

    run_id: str
    label: str
    since: int  # start of the current activity, in milliseconds since 1970
    steps: int | None = None  # number of this Run's steps that are counted; None before the first event that tells
    doing: str = ""
    text: str = ""  # the end of the text that the model is streaming
    is_thinking: bool = False
    work: dict[str, _ActiveCall] = field(default_factory=dict[str, _ActiveCall])
    calls: dict[str, ToolCallPart] = field(default_factory=dict[str, ToolCallPart])  # of the last reply, by id
    lists: frozenset[str] = frozenset()  # the ids of calls whose result is the whole todo list
    todos: tuple[Todo, ...] = ()
    began: tuple[int, int] = (0, 0)  # the current step and its start, in milliseconds since 1970
    context_tokens: int = 0
    context_window: int | None = None
    is_delegate: bool = False
    waits: bool = False  # True if it is waiting for its delegates

    def set_activity(self, doing: str, since: int) -> None:
        """Set the current activity and discard the streamed text."""
        self.doing, self.since, self.text = doing, since, ""

    def add_text(self, delta: str, *, is_thinking: bool) -> None:
        """Append streamed text; a change between thinking and text starts an empty text."""
        if is_thinking is not self.is_thinking:
            self.is_thinking, self.text = is_thinking, ""
        self.text = (self.text + delta)[-_MAX_TEXT_CHARS:]


class JobActivity:
    """The state that a Job's events add up to."""

    def __init__(self, *, full: bool = False) -> None:
        """Start without events. `full` also returns rows of little interest."""
        self._full = full
        self.lanes: dict[str, RunActivity] = {}  # the active Runs in the order of their start
        self.skills: dict[str, int] = {}  # the MCP servers that are starting, each with the time its start began
        self.latest: RunActivity | None = None  # the Coordinator's, kept after its end
        self.began: int | None = None
        self.steps = 0
        self.usage = NO_USAGE
        self.unpriced_tokens = 0
        self.asks_at_once = False  # True where the Job is driven: a delegate's question is asked while others run
        self._known: dict[str, RunActivity] = {}  # every Run seen so far: a stopped Run may continue

    def begin(self, job: JobSummary) -> None:
        """Start with the totals of a Job that was driven before."""
        self.steps = job.total_steps
        self.usage = job.usage
        self.unpriced_tokens = job.unpriced_tokens

    def stop(self) -> None:
        """Clear the activity: no process drives the Job any more."""
        self.lanes.clear()
        self.skills.clear()

    def is_delegate(self, run_id: str) -> bool:
        """Return whether another Run started this one, also after its end."""
        lane = self._known.get(run_id)
        return lane is not None and lane.is_delegate

    def asks_later(self, run_id: str) -> bool:
        """Return whether this Run's question is asked only after the other running delegates have stopped."""
        others = (lane for lane in self.lanes.values() if lane.run_id != run_id)
        is_watched = self.is_delegate(run_id) and not self.asks_at_once
        return is_watched and any(lane.is_delegate and not lane.waits for lane in others)

    def apply(self, event: events.Event) -> list[LogLine]:
        """Apply an event and return its log rows."""
        self.began = event.timestamp if self.began is None else self.began
        match event:
            case display_events.InitializeRuntime() | display_events.SkillStderr():
                pass
            case display_events.SkillStarting():
                self.skills[event.skill_name] = event.timestamp
            case display_events.SkillConnected() | display_events.SkillDisconnected():
                self.skills.pop(event.skill_name, None)
            case display_events.StreamText():
                self._lane(event.run_id, event.expert_key, event.timestamp).add_text(event.delta, is_thinking=False)
            case display_events.StreamReasoning():
                self._lane(event.run_id, event.expert_key, event.timestamp).add_text(event.delta, is_thinking=True)
            case display_events.WaitForEndpoint():
                lane = self._lane(event.run_id, event.expert_key, event.timestamp)
                lane.set_activity(f"waits for {event.provider}, {event.ahead} before it", event.timestamp)
            case display_events.ToolProgress():
                work = self._lane(event.run_id, event.expert_key, event.timestamp).work.get(event.tool_call_id)
                if work is not None:
                    work.progress = event.message
            case _:
                return list(self._stored(event))
        return []

    def _lane(self, run_id: str, expert_key: str, now: int) -> RunActivity:
        lane = self._known.get(run_id)
        if lane is None:
            lane = self._known[run_id] = RunActivity(run_id, run_label(expert_key, run_id), now)
        return self.lanes.setdefault(run_id, lane)

    def _stored(self, event: events.StoredEvent) -> Iterator[LogLine]:
        lane = self._lane(event.run_id, event.expert_key, event.timestamp)
        started, at = lane.began
        took = (
            event.timestamp - at if started == event.step_number and isinstance(event, step_events.FinishStep) else None
        )
        is_quiet = event.type in QUIET_TYPES and not (
            isinstance(event, step_events.StartGeneration) and event.unreachable
        )
        if self._full or not is_quiet:
            for row in describe(event, EventContext(lane.calls, took, self._full)):
                yield LogLine(event.timestamp, event.run_id, lane.label, event.step_number, row)
        self._follow(lane, event)

    def _follow(self, lane: RunActivity, event: events.StoredEvent) -> None:  # noqa: C901 - one case for each kind of event
        now = event.timestamp
        lane.waits = isinstance(event, events.StopRunByDelegate)
        match event:
            case events.StartRun():
                lane.steps = 0
                lane.is_delegate = event.delegated_by is not None
                if event.delegated_by is None:
                    # a killed process recorded no end for the previous Coordinator
                    self.lanes = {lane.run_id: lane}
                    self.latest = lane
            case events.ResumeRun():
                lane.steps = max(lane.steps or 0, event.step_number)
            case step_events.StartGeneration():
                before = event.step_number - 1 if lane.steps is None else lane.steps
                self.steps += max(0, event.step_number - before)
                lane.steps = max(before, event.step_number)
                if lane.began[0] != event.step_number:
                    lane.began = (event.step_number, now)
                lane.set_activity("waits for the model", now)
            case step_events.FinishGeneration():
                self._spent(event.usage)
                lane.context_tokens = event.usage.total_tokens
                lane.context_window = event.context_window or lane.context_window
                lane.calls = {part.tool_call_id: part for part in event.message.tool_calls}
                lane.set_activity("", now)
            case step_events.Retry():
                self._spent(event.usage)
                lane.set_activity("waits to try again", now)
            case step_events.SwitchModel():
                lane.context_window = event.context_window
                lane.set_activity("waits for the next model", now)
            case step_events.StartCompaction():
                lane.set_activity("summarises what came before", now)
            case step_events.CompactHistory():
                self._spent(event.usage)
                lane.set_activity("", now)
            case step_events.CallTools():
                lane.lists = frozenset(call.id for call in event.calls if call.kind in ("todo", "clearTodo"))
                for call in event.calls:
                    if call.kind == "tool" and not call.asks:
                        self._begins(lane, call.id, now)
            case step_events.StartToolCall():
                self._begins(lane, event.tool_call_id, now)
            case step_events.FinishToolCall():
                self._spent(event.usage)
                lane.work.pop(event.tool_call_id, None)
                if event.tool_call_id in lane.lists and not event.is_error:
                    lane.todos = _todos(text_of(event.contents), lane.todos)
            case step_events.CallDelegate():
                lane.set_activity(
                    f"waits for {', '.join(run_label(one.expert_key, one.run_id) for one in event.delegates)}", now
                )
            case step_events.CallInteractiveTool():
                self._spent(event.usage)
                lane.work.pop(event.tool_call_id, None)
            case step_events.FinishStep():
                lane.set_activity("", now)
            case (
                events.FinishRun()
                | events.ErrorRun()
                | events.StopRunByExceededMaxSteps()
                | events.StopRunByExceededBudget()
                | events.StopRunByInterrupt()
                | events.StopRunByInteractiveTool()
            ):
                lane.set_activity("", now)
                lane.work.clear()
                del self.lanes[event.run_id]
            case (
                events.StopRunByDelegate()
                | step_events.AnswerQuestion()
                | step_events.RequestApproval()
                | step_events.DecideApproval()
                | step_events.StartSample()
                | events.WidenPermissions()
                | step_events.AttemptCompletion()
                | events.RejectResult()
                | step_events.ShrinkResults()
                | step_events.RecordSnapshot()
            ):
                pass
            case (
                events.QueueRun()
                | events.CloseRun()
                | events.StartRewind()
                | events.FinishRewind()
                | events.RedactEvent()
            ):
                if not lane.began[0]:  # no process drives this Run
                    del self.lanes[event.run_id]
            case _:
                assert_never(event)

    def _begins(self, lane: RunActivity, call_id: str, now: int) -> None:
        part = lane.calls.get(call_id)
        name, words = (part.tool_name, brief(part)) if part is not None else ("an approved call", "")
        lane.work[call_id] = _ActiveCall(name, words, now)

    def _spent(self, usage: Usage | None) -> None:
        if usage is not None:
            self.usage += usage
            self.unpriced_tokens += usage.unpriced_tokens


def _todos(result: str, before: tuple[Todo, ...]) -> tuple[Todo, ...]:
    """Return the todo list in a todo tool's result; the list `before` if the result cannot be parsed."""
    try:
        return _TODOS.validate_json(result).get("todos", ())
    except ValidationError:
        return before


# The activity of a Job as text.

SECOND_MS = 1_000


def work_words(work: _ActiveCall, now: int, left: int) -> str:
    """Return a running call with its progress and duration, in `left` cells."""
    words = f"{work.name} {work.words}" if work.words else work.name
    return timed(f"{words}: {work.progress}" if work.progress else words, work.since, now, left)


def timed(words: str, since: int, now: int, left: int) -> str:
    """Return the words and, from one second on, the duration, cut to `left` cells."""
    took = f"  {whole_seconds(now - since)}" if now - since >= SECOND_MS else ""
    return shorten(words, max(4, left - len(took))) + took


def whole_seconds(milliseconds: int) -> str:
    """Return the duration in whole seconds: fractions would be outdated when they are read."""
    seconds = max(0, milliseconds) // SECOND_MS
    return f"{seconds} s" if seconds < 60 else duration(seconds * SECOND_MS)


def todos_words(lane: RunActivity) -> str:
    """Return the number of completed todos and the next open one."""
    done = sum(todo.completed for todo in lane.todos)
    following = next((f": {todo.title}" for todo in lane.todos if not todo.completed), "")
    return f"todos {done}/{len(lane.todos)}{following}"


def totals(state: JobActivity, now: int) -> list[str]:
    """Return the steps, tokens with cost, context use and elapsed time, one string each."""
    parts = [f"starting {', '.join(state.skills)}"] if state.skills else []
    parts.append(count(state.steps, "step"))
    if state.usage.total_tokens:
        parts.append(tokens(state.usage, state.unpriced_tokens))
    first = next(iter(state.lanes.values()), None)
    if first is not None and first.context_tokens:
        parts.append(context_words(first))
    if state.began is not None:
        parts.append(whole_seconds(now - state.began))
    return parts


def context_words(lane: RunActivity) -> str:
    """Return the used share of the model's context, or the tokens if its size is unknown."""
    share = f"{lane.context_tokens / lane.context_window:.0%}" if lane.context_window else ""
    return f"context {share or f'{lane.context_tokens:,} tokens'}"
