"""The current activity of a Job. Pure: times come from the events, so a log and a running Job are shown alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Literal, NamedTuple

from pydantic import TypeAdapter, ValidationError

from perstack.core.base.text import count, duration
from perstack.core.base.usage import NO_USAGE, Usage
from perstack.core.definitions.models import full_name
from perstack.core.definitions.skills import ToolKind
from perstack.core.jobs.summary import JobSummary
from perstack.core.messages.messages import ToolCallPart, text_of
from perstack.core.runs import display_events, events
from perstack.core.runs.facts import RunEvent, Todo
from perstack.core.runs.log_rows import EventContext, LogRow, run_label, tokens
from perstack.dataclass import dataclass
from perstack.doors.shared.text import brief, minute, shorten

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
class CallActivity:
    """A tool call of a Run's last reply, with its state."""

    name: str
    part: ToolCallPart | None = None  # None if its arguments are unknown
    kind: ToolKind | None = None  # None until the call is decided
    words: str = ""  # the arguments of a call that has begun
    began: int | None = None  # milliseconds since 1970; None unless it runs
    progress: str = ""
    rule: str | None = None  # permission rule that requires the approval; None if the call waits for none
    is_interrupted: bool = False
    result: str | None = None
    is_error: bool = False
    took_ms: int = 0

    def interrupt(self) -> None:
        """Mark the call as stopped without a result, if it is running."""
        if self.began is not None:
            self.began, self.is_interrupted = None, True


@dataclass(slots=True)
class RunActivity:
    """A Run: its query, its current activity, and its end."""

    run_id: str
    label: str
    since: int  # start of the current activity, in milliseconds since 1970
    is_delegate: bool = False
    query: str = ""
    state: Literal["working", "asks", "stopped", "failed", "completed"] = "working"
    started: int | None = None  # milliseconds since 1970, as is `ended`; None if unknown
    ended: int | None = None
    steps: int | None = None  # number of steps counted for this Run; None before the first event that has it
    step_began: tuple[int, int] = (0, 0)  # the current step and its start, in milliseconds since 1970
    doing: str = ""
    text: str = ""  # the end of the text that the model is streaming
    is_thinking: bool = False
    last_text: str = ""  # the last text that the model has written
    calls: dict[str, CallActivity] = field(default_factory=dict[str, CallActivity])  # calls of the last reply, by id
    work: dict[str, CallActivity] = field(
        default_factory=dict[str, CallActivity]
    )  # running calls in the order of their start
    todos: tuple[Todo, ...] = ()
    context_tokens: int = 0
    context_window: int | None = None
    waits: bool = False  # True if it is waiting for its delegates
    model: str = ""  # `provider/model`; empty before the first event

    def set_activity(self, doing: str, since: int) -> None:
        """Set the current activity and discard the streamed text."""
        self.doing, self.since, self.text = doing, since, ""

    def add_text(self, delta: str, *, is_thinking: bool) -> None:
        """Append streamed text; a change between thinking and text starts an empty text."""
        if is_thinking is not self.is_thinking:
            self.is_thinking, self.text = is_thinking, ""
        self.text = (self.text + delta)[-_MAX_TEXT_CHARS:]

    def begin_call(self, call_id: str, now: int) -> None:
        call_activity = self.calls.setdefault(call_id, CallActivity("an approved call"))
        call_activity.began, call_activity.rule, call_activity.progress, call_activity.is_interrupted = (
            now,
            None,
            "",
            False,
        )
        call_activity.words = "" if call_activity.part is None else brief(call_activity.part)
        self.work[call_id] = call_activity

    def hold_call(self, call_id: str, rule: str | None) -> None:
        """Set the rule that requires an approval of the call; None once the approval is decided."""
        call_activity = self.calls.get(call_id)
        if call_activity is not None:
            call_activity.rule, call_activity.began = rule, None

    def stop_calls(self) -> None:
        for call_activity in self.calls.values():
            call_activity.interrupt()
        self.work.clear()


_InRun = (
    display_events.StreamText
    | display_events.StreamReasoning
    | display_events.WaitForEndpoint
    | display_events.ToolProgress
)


class JobActivity:
    """The state of a Job, folded from its events; each door shows a part of it."""

    def __init__(self, *, full: bool = False) -> None:
        """Start without events. `full` also returns rows of little interest."""
        self._full = full
        self.lanes: dict[str, RunActivity] = {}  # the active Runs in the order of their start
        self.skills: dict[str, int] = {}  # the MCP servers that are starting, each with the time its start began
        self.latest: RunActivity | None = None  # the Coordinator's todos, kept after its end
        self.began: int | None = None
        self.steps = 0
        self.usage = NO_USAGE
        self.unpriced_tokens = 0
        self.asks_at_once = (
            False  # True in the process that drives the Job, which asks a delegate's question while others run
        )
        self._coordinator = ""  # the id of the Coordinator's latest Run; empty before the first event
        self._known: dict[str, RunActivity] = {}  # every Run seen so far: a stopped Run may continue

    def begin(self, summary: JobSummary) -> None:
        """Start with the totals of an existing Job."""
        self.steps = summary.total_steps
        self.usage = summary.usage
        self.unpriced_tokens = summary.unpriced_tokens

    def stop(self) -> None:
        """Stop all Runs and calls: no process drives the Job any more."""
        for activity in self._known.values():
            activity.stop_calls()
            if activity.state == "working":
                activity.state = "stopped"
        self.lanes.clear()
        self.skills.clear()

    def run(self, run_id: str) -> RunActivity | None:
        """Return a Run of the Job; None before its first event, and for an event of no Run."""
        return self._known.get(run_id)

    def is_delegate(self, run_id: str) -> bool:
        """Return whether another Run started this one, even after its end."""
        activity = self._known.get(run_id)
        return activity is not None and activity.is_delegate

    def is_asked_later(self, run_id: str) -> bool:
        """Return whether this Run's question is asked only after the other running delegates have stopped."""
        others = (lane for lane in self.lanes.values() if lane.run_id != run_id)
        is_watched = self.is_delegate(run_id) and not self.asks_at_once
        return is_watched and any(lane.is_delegate and not lane.waits for lane in others)

    def apply(self, event: events.Event) -> list[LogLine]:
        """Apply an event and return its log rows."""
        rows = list(self._rows(event)) if isinstance(event, RunEvent) else []
        self.follow(event)
        return rows

    def follow(self, event: events.Event) -> None:
        """Apply an event, whose log rows are not needed."""
        self.began = event.timestamp if self.began is None else self.began
        match event:
            case display_events.InitializeRuntime():
                self._coordinator = event.run_id
            case display_events.SkillStarting():
                self.skills[event.skill_name] = event.timestamp
            case display_events.SkillConnected() | display_events.SkillDisconnected():
                self.skills.pop(event.skill_name, None)
            case display_events.SkillStderr():
                pass
            case display_events.StreamText():
                self._lane(event).add_text(event.delta, is_thinking=False)
            case display_events.StreamReasoning():
                self._lane(event).add_text(event.delta, is_thinking=True)
            case display_events.WaitForEndpoint():
                activity = f"waits for {event.provider}, {event.ahead} ahead of it"
                self._lane(event).set_activity(activity, event.timestamp)
            case display_events.ToolProgress():
                call_activity = self._lane(event).calls.get(event.tool_call_id)
                if call_activity is not None:
                    call_activity.progress = event.message
            case _:
                self._follow(self._lane(event), event)

    def _lane(self, event: events.StoredEvent | _InRun) -> RunActivity:
        activity = self._run(event.run_id, event.expert_key, event.timestamp)
        return self.lanes.setdefault(event.run_id, activity)

    def _run(self, run_id: str, expert_key: str, now: int) -> RunActivity:
        self._coordinator = self._coordinator or run_id
        activity = self._known.get(run_id)
        if activity is None:
            is_delegate = run_id != self._coordinator
            activity = self._known[run_id] = RunActivity(run_id, run_label(expert_key, run_id), now, is_delegate)
        return activity

    def _rows(self, event: events.StoredEvent) -> Iterator[LogLine]:
        activity = self._run(event.run_id, event.expert_key, event.timestamp)
        step, began = activity.step_began
        took = event.timestamp - began if step == event.step_number and isinstance(event, events.FinishStep) else None
        if self._full or not isinstance(event, events.StopRunByDelegate):
            parts = {
                call_id: call_activity.part
                for call_id, call_activity in activity.calls.items()
                if call_activity.part is not None
            }
            for row in event.describe(EventContext(parts, minute, took, self._full)):
                yield LogLine(event.timestamp, event.run_id, activity.label, event.step_number, row)

    def _follow(self, activity: RunActivity, event: events.StoredEvent) -> None:  # noqa: C901 - one case for each kind of event that changes what is shown
        now = event.timestamp
        activity.waits = isinstance(event, events.StopRunByDelegate)
        match event:
            case events.StartRun():
                activity.steps, activity.since, activity.started, activity.query = 0, now, now, event.query
                activity.is_delegate = event.delegated_by is not None
                activity.model = full_name(event.provider, event.model)
                if event.delegated_by is None:
                    # a killed process recorded no end for the previous Coordinator
                    self.lanes = {activity.run_id: activity}
                    self.latest, self._coordinator = activity, activity.run_id
            case events.ResumeRun():
                activity.steps = max(activity.steps or 0, event.step_number)
                activity.text = ""
            case events.StartGeneration():
                counted_steps = event.step_number - 1 if activity.steps is None else activity.steps
                self.steps += max(0, event.step_number - counted_steps)
                activity.steps, activity.state = max(counted_steps, event.step_number), "working"
                if activity.step_began[0] != event.step_number:
                    activity.step_began = (event.step_number, now)
                activity.set_activity("waits for the model", now)
            case events.FinishGeneration():
                self._add_usage(event.usage)
                # the usage of several passes together says nothing about the context
                if not event.message.provider_tools:
                    activity.context_tokens = event.usage.total_tokens
                activity.context_window = event.context_window or activity.context_window
                activity.calls = {
                    part.tool_call_id: CallActivity(part.tool_name, part) for part in event.message.tool_calls
                }
                activity.last_text = event.message.text if event.message.text.strip() else activity.last_text
                activity.set_activity("", now)
            case events.Retry():
                self._add_usage(event.usage)
                activity.set_activity("waits to try again", now)
            case events.AdaptRequest() if event.error is not None:
                activity.set_activity("sends an adapted request", now)
            case events.SwitchModel():
                activity.context_window, activity.model = event.context_window, event.to
                activity.set_activity("waits for the next model", now)
            case events.StartCompaction():
                activity.set_activity("summarises the history", now)
            case events.CompactHistory():
                self._add_usage(event.usage)
                activity.set_activity("", now)
            case events.CallTools():
                for decided in event.calls:
                    activity.calls.setdefault(decided.id, CallActivity(decided.tool_name)).kind = decided.kind
                    if decided.kind == "tool" and not decided.asks:
                        activity.begin_call(decided.id, now)
            case events.RequestApproval():
                activity.hold_call(event.tool_call_id, event.rule)
            case events.DecideApproval() | events.ChangeCall():
                activity.hold_call(event.tool_call_id, None)
            case events.StartToolCall():
                activity.begin_call(event.tool_call_id, now)
            case events.FinishToolCall():
                self._add_usage(event.usage)
                self._finish_call(activity, event)
            case events.CallDelegate():
                for delegation in event.delegates:
                    delegate_activity = self._run(delegation.run_id, delegation.expert_key, now)
                    delegate_activity.is_delegate, delegate_activity.query = True, delegation.query
                names = ", ".join(run_label(delegation.expert_key, delegation.run_id) for delegation in event.delegates)
                activity.set_activity(f"waits for {names}", now)
            case events.CallInteractiveTool():
                self._add_usage(event.usage)
                activity.work.pop(event.tool_call_id, None)
                activity.hold_call(event.tool_call_id, None)  # a tool that asks was not interrupted
            case events.FinishStep():
                activity.set_activity("", now)
            case events.FinishRun():
                activity.ended = now
                self._close(activity, "completed", now)
            case events.ErrorRun():
                self._close(activity, "failed", now)
            case events.StopRunByInteractiveTool():
                self._close(activity, "asks", now)
            case events.StopRunByExceededMaxSteps() | events.StopRunByExceededBudget() | events.StopRunByInterrupt():
                self._close(activity, "stopped", now)
            case (
                events.QueueRun()
                | events.CloseRun()
                | events.StartRewind()
                | events.FinishRewind()
                | events.RedactEvent()
            ):
                if not activity.step_began[0]:  # no process drives this Run
                    del self.lanes[event.run_id]
            case _:
                pass

    def _close(self, activity: RunActivity, state: Literal["asks", "stopped", "failed", "completed"], now: int) -> None:
        activity.state = state
        activity.set_activity("", now)
        activity.stop_calls()
        del self.lanes[activity.run_id]

    def _finish_call(self, activity: RunActivity, event: events.FinishToolCall) -> None:
        activity.work.pop(event.tool_call_id, None)
        call_activity = activity.calls.get(event.tool_call_id)
        if call_activity is not None:
            call_activity.result, call_activity.is_error, call_activity.took_ms = (
                text_of(event.contents),
                event.is_error,
                event.duration_ms,
            )
            call_activity.began, call_activity.rule, call_activity.is_interrupted = None, None, False
            if call_activity.kind in ("todo", "clearTodo") and not event.is_error:
                todos = todos_in(call_activity.result)
                activity.todos = activity.todos if todos is None else todos
        delegate = None if event.delegate is None else self._known.get(event.delegate.run_id)
        if delegate is not None:
            delegate.state = "failed" if event.is_error else "completed"
            delegate.ended = delegate.ended or event.timestamp

    def _add_usage(self, usage: Usage | None) -> None:
        if usage is not None:
            self.usage += usage
            self.unpriced_tokens += usage.unpriced_tokens


def todos_in(result: str) -> tuple[Todo, ...] | None:
    """Return the todo list in a todo tool's result; None if it has none."""
    try:
        return _TODOS.validate_json(result).get("todos")
    except ValidationError:
        return None


# The activity of a Job as text.

SECOND_MS = 1_000


def call_line(call_activity: CallActivity, now: int, width: int) -> str:
    """Return a running call with its progress and duration, in `width` cells."""
    text = f"{call_activity.name} {call_activity.words}" if call_activity.words else call_activity.name
    return with_duration(
        f"{text}: {call_activity.progress}" if call_activity.progress else text, call_activity.began or now, now, width
    )


def with_duration(text: str, since: int, now: int, width: int) -> str:
    """Return the words and, from one second on, the duration, cut to `width` cells."""
    suffix = f"  {whole_seconds(now - since)}" if now - since >= SECOND_MS else ""
    return shorten(text, max(4, width - len(suffix))) + suffix


def whole_seconds(milliseconds: int) -> str:
    """Return the duration in whole seconds: fractions would be outdated when they are read."""
    seconds = max(0, milliseconds) // SECOND_MS
    return f"{seconds} s" if seconds < 60 else duration(seconds * SECOND_MS)


def todos_words(lane: RunActivity) -> str:
    """Return the number of completed todos and the next open one."""
    completed = sum(todo.completed for todo in lane.todos)
    next_title = next((f": {todo.title}" for todo in lane.todos if not todo.completed), "")
    return f"todos {completed}/{len(lane.todos)}{next_title}"


def total_texts(state: JobActivity, now: int) -> list[str]:
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
