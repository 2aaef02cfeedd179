"""A pure fold of a Run's stored events into finished spans.

Three rules keep a trace the same for everyone who makes it:

- A span is returned once, when the event that ends it comes, and never changes afterwards.
- A Run has one `invoke_agent` span for each time that it was driven: it ends where the Run stops, and another begins
  where the Run continues. A wait for a person is between two spans, not in one that is open for days.
- What was open when a process ended is closed by the `resumeRun` that follows, at the time of the last event before it:
  the log does not say when the process ended. A delegate's call, and a call that waits for a person, stay open: they
  are in the log, not in a process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Literal, assert_never

from perstack.core.base.ids import By
from perstack.core.base.records import JsonObject
from perstack.core.base.usage import Usage
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.skills import (
    CATALOGUE_STAGE,
    AnySkill,
    DecidedCall,
    McpSseSkill,
    McpStdioSkill,
    is_base_skill,
)
from perstack.core.messages.messages import ReplyPart, TextPart, ThinkingPart, ToolCallPart, text_of
from perstack.core.runs.events import StartRun, StoredEvent
from perstack.core.runs.events.changed_calls import ChangeCall, DecideChangedCall
from perstack.core.runs.events.context import CompactHistory, DropText, StartCompaction, TellRun
from perstack.core.runs.events.files import FinishRewind, StartRewind
from perstack.core.runs.events.generations import (
    AdaptRequest,
    FinishGeneration,
    Retry,
    StartGeneration,
    SwitchModel,
)
from perstack.core.runs.events.lifecycle import (
    CloseRun,
    ErrorRun,
    FinishRun,
    QueueRun,
    RedactEvent,
    RejectResult,
    ResumeRun,
    StopRunByExceededBudget,
    StopRunByExceededMaxSteps,
    StopRunByInterrupt,
    WidenPermissions,
)
from perstack.core.runs.events.questions import (
    AnswerQuestion,
    CallInteractiveTool,
    DecideApproval,
    RequestApproval,
    SettleCall,
    StopRunByInteractiveTool,
)
from perstack.core.runs.events.tool_calls import (
    AttemptCompletion,
    CallDelegate,
    CallTools,
    FinishToolCall,
    StartToolCall,
    StopRunByDelegate,
)
from perstack.core.runs.facts import ErrorInfo
from perstack.dataclass import dataclass
from perstack_otel.attributes import FINISH_REASONS, PROVIDERS, SpanName

Value = str | bool | int | float | tuple[str, ...]

MAX_EVENTS = 128  # maximum events of a span, the SDK's default; later ones are counted and left out
MAX_CONTENT_CHARS = 8_000  # maximum characters of each text, of arguments and of a result
UNKNOWN_TOOL = "unknown"  # name of a tool that was not offered, in a trace without content
INTERRUPTED = "interrupted"  # `error.type` of what was open when its process ended or was interrupted


def trace_id_of(job_id: str) -> str:
    """Return the trace id of a Job, in hex."""
    return _digest("trace", job_id)[:32]


def delegation_span_id(delegate_run_id: str) -> str:
    """Return the id of the call that started a delegate, in hex."""
    return _digest("delegation", delegate_run_id)[:16]


def span_id_of(run_id: str, opening_hash: str, call_id: str = "") -> str:
    """Return the id of a span by the chain hash of the event that opens it. An event may open several calls."""
    return _digest("span", run_id, opening_hash, call_id)[:16]


def _digest(*parts: str) -> str:
    return sha256("\0".join(("perstack", *parts)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened during a span."""

    name: str
    time_ms: int
    attributes: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """A finished span. Times are in milliseconds since 1970; ids are lower-case hex."""

    trace_id: str
    span_id: str
    parent_id: str  # empty for a span without parent
    operation: SpanName
    name: str
    start_ms: int
    end_ms: int
    attributes: Mapping[str, Value]
    events: tuple[SpanEvent, ...] = ()
    dropped_events: int = 0
    is_error: bool = False


class _OpenSpan:
    """A span whose end has not been seen."""

    def __init__(self, operation: SpanName, target: str, span_id: str, parent_id: str, first: StoredEvent) -> None:
        self.operation: SpanName = operation
        self.name = f"{operation} {target}".rstrip()
        self.span_id = span_id
        self.parent_id = parent_id
        self.start_ms = first.timestamp
        self.events: list[SpanEvent] = []
        self.dropped_events = 0
        self.is_error = False
        self.attributes: dict[str, Value] = {
            "gen_ai.operation.name": operation,
            "gen_ai.conversation.id": first.job_id,
            "perstack.run.id": first.run_id,
            "perstack.step": first.step_number,
            "perstack.event.first": first.id,
        }

    def set(self, name: str, value: Value | None) -> None:
        """Set an attribute; leave it out if the value is None or empty."""
        if value is not None and value not in ("", ()):
            self.attributes[name] = value

    def fail(self, error_type: str) -> None:
        self.is_error = True
        self.attributes["error.type"] = error_type

    def add_event(self, name: str, time_ms: int, **attributes: Value) -> None:
        """Add a span event. `__` in a keyword becomes a dot."""
        if len(self.events) >= MAX_EVENTS:
            self.dropped_events += 1
            return
        named = {key.replace("__", "."): value for key, value in attributes.items() if value != ""}
        self.events.append(SpanEvent(name, time_ms, named))

    def end(self, last: StoredEvent, end_ms: int) -> TraceSpan:
        self.attributes["perstack.event.last"] = last.id
        return TraceSpan(
            trace_id=trace_id_of(last.job_id),
            span_id=self.span_id,
            parent_id=self.parent_id,
            operation=self.operation,
            name=self.name,
            start_ms=min(self.start_ms, end_ms),  # a clock may have been set back
            end_ms=end_ms,
            attributes=self.attributes,
            events=tuple(self.events),
            dropped_events=self.dropped_events,
            is_error=self.is_error,
        )


class _OpenCall:
    """A call without a result. It has no span between an interruption and its next attempt."""

    def __init__(self, decided: DecidedCall, args: str) -> None:
        self.decided = decided
        self.args = args
        self.span: _OpenSpan | None = None
        self.asked_ms: int | None = None  # time since which a person is asked; None while nobody is
        self.began = False
        self.is_delegated = False
        self.approval = ""
        self.approved_by = ""

    @property
    def is_running(self) -> bool:
        """True if the call may be running in the process that drives the Run."""
        waits = self.asked_ms is not None or self.is_delegated or (self.decided.asks and not self.began)
        return self.decided.kind == "tool" and not waits


_STOPS = (
    FinishRun
    | ErrorRun
    | StopRunByExceededMaxSteps
    | StopRunByExceededBudget
    | StopRunByInterrupt
    | StopRunByInteractiveTool
)
# Events that may be written while nobody drives the Run.
_FROM_OUTSIDE = WidenPermissions | RedactEvent | TellRun | DropText | StartRewind | FinishRewind
_ENDS_OF_CHAT = FinishGeneration | Retry | SwitchModel | AdaptRequest | CompactHistory
_CALLS = CallTools | CallDelegate | StartToolCall | FinishToolCall | AttemptCompletion
_APPROVALS = RequestApproval | DecideApproval | ChangeCall | DecideChangedCall
_QUESTIONS = CallInteractiveTool | AnswerQuestion | SettleCall


class RunSpans:
    """The spans of one Run. Apply all of its events in order, from `startRun` on."""

    def __init__(self, *, content: bool = False) -> None:
        """Include texts, arguments and results if `content`."""
        self._content = content
        self._finished: list[TraceSpan] = []
        self._hash = ""
        self._opening_hash = ""  # of the open `invoke_agent` span
        self._start: StartRun | None = None
        self._provider, self._model = "", ""
        self._transports: dict[str, Literal["pipe", "tcp"]] = {}
        self._run_span: _OpenSpan | None = None
        self._chat: _OpenSpan | None = None
        self._calls: dict[str, _OpenCall] = {}
        self._reply: tuple[ReplyPart, ...] = ()
        self._previous: StoredEvent | None = None  # the last event of a process that drove the Run

    def apply(self, event: StoredEvent, line_hash: str) -> list[TraceSpan]:
        """Return the spans that the event ends. `line_hash`: the hash that seals its line."""
        self._finished, self._hash = [], line_hash
        if isinstance(event, StartRun):
            self._begin(event)
        elif isinstance(event, ResumeRun):
            self._resume(event)
        elif isinstance(event, QueueRun | CloseRun):
            self._stop(event, is_interrupted=isinstance(event, CloseRun))
        elif not isinstance(event, _FROM_OUTSIDE):
            self._apply_driven(event)
        elif isinstance(event, TellRun) and self._run_span is not None:
            self._run_span.add_event("perstack.told", event.timestamp, perstack__by=str(event.by))
        if not isinstance(event, _FROM_OUTSIDE):
            self._previous = event
        return self._finished

    # The spans of the Run.

    def _begin(self, start: StartRun) -> None:
        self._start = start
        self._provider, self._model = start.provider, start.model
        self._read_skills(start.expert)
        run_span = self._open_run(start)
        if self._content:
            run_span.set("gen_ai.system_instructions", _messages("", start.instruction))
            run_span.set("gen_ai.input.messages", _messages("user", start.query))

    def _open_run(self, event: StoredEvent) -> _OpenSpan:
        is_delegate = self._start is not None and self._start.delegated_by is not None
        parent_id = delegation_span_id(event.run_id) if is_delegate else ""
        span_id = span_id_of(event.run_id, self._hash)
        self._opening_hash = self._hash
        self._run_span = run_span = _OpenSpan("invoke_agent", event.expert_key, span_id, parent_id, event)
        run_span.set("gen_ai.agent.name", event.expert_key)
        if self._start is not None:
            run_span.set("gen_ai.agent.version", self._start.expert.version)
            run_span.set("gen_ai.agent.description", self._start.expert.description)
        self._set_model(run_span, self._provider, self._model)
        return run_span

    def _resume(self, event: ResumeRun) -> None:
        """Close what the last process left open, and open the next `invoke_agent` span."""
        if self._run_span is not None:
            # A Run that waits for delegates alone may be left without another event: that is no interruption.
            self._stop(event, is_interrupted=not isinstance(self._previous, StopRunByDelegate))
        if event.definition is not None:
            self._provider, self._model = event.definition.provider, event.definition.model
            self._read_skills(event.definition.expert)
            if self._start is not None:
                self._start = event.start(self._start)
        self._open_run(event).set("perstack.run.resumed", event.reason)

    def _stop(self, event: StoredEvent, *, is_interrupted: bool) -> None:
        run_span = self._run_span
        if run_span is None:
            return
        is_later = isinstance(event, ResumeRun | CloseRun)  # written by a process that did not drive the Run
        end_ms = self._previous.timestamp if is_later and self._previous is not None else event.timestamp
        self._end_chat(event, end_ms=end_ms, error_type=INTERRUPTED)
        for open_call in self._calls.values():
            if open_call.span is not None and open_call.is_running:
                open_call.span.set("perstack.interrupted", True)
                open_call.span.fail(INTERRUPTED)
                self._finished.append(open_call.span.end(event, end_ms))
                open_call.span = None
        run_span.set("perstack.run.end", event.type)
        if is_interrupted:
            run_span.set("perstack.interrupted", True)
            run_span.fail(INTERRUPTED)
        if isinstance(event, ErrorRun):
            run_span.fail(_error_type(event.error))
        if self._content and isinstance(event, FinishRun):
            run_span.set("gen_ai.output.messages", _messages("assistant", event.text))
        self._finished.append(run_span.end(event, end_ms))
        self._run_span = None

    def _apply_driven(self, event: StoredEvent) -> None:
        """Apply an event of a process that drives the Run; it opens a span if none is open."""
        run_span = self._run_span or self._open_run(event)
        if isinstance(event, StartGeneration | StartCompaction):
            self._open_chat(event)
        elif isinstance(event, _ENDS_OF_CHAT):
            self._apply_end_of_chat(event, run_span)
        elif isinstance(event, _STOPS):
            if isinstance(event, ErrorRun):
                self._end_chat(event, error_type=_error_type(event.error))
            # a pause until a rate limit is lifted is no interruption
            is_interrupt = isinstance(event, StopRunByInterrupt) and event.reason == "interrupt"
            self._stop(event, is_interrupted=is_interrupt)
        elif isinstance(event, RejectResult):
            run_span.add_event("perstack.result.rejected", event.timestamp)
        elif isinstance(event, _APPROVALS):
            self._apply_approval(event, run_span)
        elif isinstance(event, _QUESTIONS):
            self._apply_question(event, run_span)
        elif isinstance(event, _CALLS):
            self._apply_call(event, run_span)

    # Generations.

    def _open_chat(self, event: StartGeneration | StartCompaction | FinishGeneration | CompactHistory | Retry) -> None:
        self._end_chat(event, error_type=INTERRUPTED)
        provider, model = self._provider, self._model
        if isinstance(event, StartCompaction | CompactHistory):
            named_provider, _, named_model = event.model.partition("/")
            provider, model = (named_provider, named_model) if named_model else (provider, event.model or model)
        parent_id = "" if self._run_span is None else self._run_span.span_id
        self._chat = chat = _OpenSpan("chat", model, span_id_of(event.run_id, self._hash), parent_id, event)
        self._set_model(chat, provider, model)
        if isinstance(event, StartGeneration):
            chat.set("gen_ai.request.max_tokens", event.max_tokens)
        elif isinstance(event, StartCompaction | CompactHistory):
            chat.set("perstack.generation.purpose", "summary")

    def _apply_end_of_chat(self, event: _ENDS_OF_CHAT, run_span: _OpenSpan) -> None:
        match event:
            case FinishGeneration():
                self._reply = event.reply
                self._finish_chat(event)
            case CompactHistory():
                if event.usage is not None or self._chat is not None:
                    self._finish_chat(event)
            case Retry():
                if self._chat is None:
                    self._open_chat(event)
                self._end_retry(event)
            case AdaptRequest():
                if event.error is not None and not event.tool_call_id:
                    self._end_chat(event, error_type=_error_type(event.error))
            case SwitchModel():
                if event.error is not None:
                    self._end_chat(event, error_type=_error_type(event.error))
                self._provider, _, self._model = event.to.partition("/")
                run_span.add_event(
                    "perstack.model.switch",
                    event.timestamp,
                    perstack__model__from=event.before,
                    perstack__model__to=event.to,
                    perstack__model__reason=event.reason,
                )
            case _:
                assert_never(event)

    def _end_retry(self, event: Retry) -> None:
        if self._chat is not None:
            self._chat.set("perstack.generation.attempt", event.attempt)
            self._chat.set("perstack.generation.delay_ms", event.delay_ms)
            _set_usage(self._chat, event.usage)
        self._end_chat(event, error_type=_error_type(event.error))

    def _finish_chat(self, event: FinishGeneration | CompactHistory) -> None:
        """End the span of a generation. An attempt after a `retry` has no event of its start: it has its duration."""
        if self._chat is None:
            self._open_chat(event)
            if self._chat is not None:
                self._chat.start_ms = event.timestamp - event.duration_ms
        chat = self._chat
        if chat is None:
            return
        _set_usage(chat, event.usage)
        error = event.problem if isinstance(event, FinishGeneration) else event.error
        if isinstance(event, FinishGeneration):
            reason = FINISH_REASONS.get(event.finish_reason, event.finish_reason)
            chat.set("gen_ai.response.finish_reasons", (reason,))
            if self._content:
                chat.set("gen_ai.output.messages", _reply_messages(event.reply, reason))
        self._end_chat(event, error_type="" if error is None else _error_type(error))

    def _end_chat(self, event: StoredEvent, *, error_type: str, end_ms: int | None = None) -> None:
        chat, self._chat = self._chat, None
        if chat is None:
            return
        if error_type:
            chat.fail(error_type)
        if error_type == INTERRUPTED:
            chat.set("perstack.interrupted", True)
        self._finished.append(chat.end(event, event.timestamp if end_ms is None else end_ms))

    @staticmethod
    def _set_model(span: _OpenSpan, provider: str, model: str) -> None:
        span.set("gen_ai.provider.name", PROVIDERS.get(provider, provider))
        span.set("gen_ai.request.model", model)

    # Calls.

    def _apply_call(self, event: _CALLS, run_span: _OpenSpan) -> None:
        match event:
            case CallTools():
                args = {part.tool_call_id: _arguments(part) for part in self._reply if isinstance(part, ToolCallPart)}
                for decided in event.calls:
                    self._calls[decided.id] = open_call = _OpenCall(decided, args.get(decided.id, ""))
                    self._open_tool_span(open_call, event, span_id_of(event.run_id, self._hash, decided.id))
            case CallDelegate():
                for delegation in event.delegates:
                    self._delegate(event, delegation.tool_call_id, delegation.run_id)
            case StartToolCall():
                if (started := self._calls.get(event.tool_call_id)) is not None:
                    started.began = True
                    if started.span is not None:
                        started.span.start_ms = event.timestamp
            case FinishToolCall() | AttemptCompletion():
                self._finish_call(event, run_span)
            case _:
                assert_never(event)

    def _open_tool_span(self, open_call: _OpenCall, event: StoredEvent, span_id: str) -> _OpenSpan:
        decided = open_call.decided
        parent_id = "" if self._run_span is None else self._run_span.span_id
        # the model has made up a name that was not offered: it is content, and each one would be a name of its own
        is_invented = decided.kind == "refused" and decided.decider == CATALOGUE_STAGE and not self._content
        name = UNKNOWN_TOOL if is_invented else decided.tool_name
        open_call.span = span = _OpenSpan("execute_tool", name, span_id, parent_id, event)
        span.set("gen_ai.tool.name", name)
        span.set("gen_ai.tool.call.id", decided.id)
        span.set("gen_ai.tool.type", "function")
        span.set("perstack.tool.skill", decided.skill_name)
        span.set("perstack.tool.kind", decided.kind)
        span.set("perstack.tool.decider", decided.decider)
        span.set("perstack.tool.rule", decided.rule)
        transport = self._transports.get(decided.skill_name)
        if transport is not None:
            span.set("mcp.method.name", "tools/call")
            span.set("network.transport", transport)
        return span

    def _delegate(self, event: CallDelegate, call_id: str, delegate_run_id: str) -> None:
        open_call = self._calls.get(call_id)
        if open_call is None or open_call.is_delegated:
            return
        open_call.is_delegated = True
        span = open_call.span or self._open_tool_span(open_call, event, "")
        span.span_id = delegation_span_id(delegate_run_id)
        span.start_ms = event.timestamp
        span.set("perstack.tool.delegate", delegate_run_id)

    def _finish_call(self, event: FinishToolCall | AttemptCompletion, run_span: _OpenSpan) -> None:
        """End a call's span. An interrupted call, or a call of the continued Run, began with this drive."""
        open_call = self._calls.pop(event.tool_call_id, None)
        if open_call is None:
            name = event.tool_name if isinstance(event, FinishToolCall) else "attemptCompletion"
            open_call = _OpenCall(DecidedCall(id=event.tool_call_id, tool_name=name), "")
        span = open_call.span
        if span is None:
            span = self._open_tool_span(
                open_call, event, span_id_of(event.run_id, self._opening_hash, event.tool_call_id)
            )
            span.start_ms = run_span.start_ms
        span.set("perstack.tool.approval", open_call.approval)
        span.set("perstack.tool.approved_by", open_call.approved_by)
        if self._content:
            span.set("gen_ai.tool.call.arguments", open_call.args)
        if isinstance(event, FinishToolCall):
            self._set_result(span, open_call, event)
            if open_call.asked_ms is not None:
                self._answer(open_call, event.tool_call_id, event.timestamp, event.by, run_span)
        self._finished.append(span.end(event, event.timestamp))
        if isinstance(event, FinishToolCall) and event.change is not None:
            self._read_skill(event.change.skill)

    def _set_result(self, span: _OpenSpan, open_call: _OpenCall, event: FinishToolCall) -> None:
        if event.duration_ms and not open_call.is_delegated:
            span.start_ms = max(span.start_ms, event.timestamp - event.duration_ms)
        if event.is_error:
            span.fail("tool_error")
        if event.usage is not None:
            span.set("perstack.tool.input_tokens", event.usage.input_tokens)
            span.set("perstack.tool.output_tokens", event.usage.output_tokens)
            span.set("perstack.tool.cost_usd", event.usage.cost_usd)
        if self._content:
            span.set("gen_ai.tool.call.result", _cut(text_of(event.contents)))

    def _read_skills(self, expert: Expert) -> None:
        for skill in expert.skills:
            self._read_skill(skill)

    def _read_skill(self, skill: AnySkill | None) -> None:
        if isinstance(skill, McpSseSkill):
            self._transports[skill.name] = "tcp"
        elif isinstance(skill, McpStdioSkill) and not is_base_skill(skill):
            self._transports[skill.name] = "pipe"

    # What people decide.

    def _apply_approval(self, event: _APPROVALS, run_span: _OpenSpan) -> None:
        match event:
            case RequestApproval():
                self._ask(event.tool_call_id, event.timestamp)
                run_span.add_event(
                    "perstack.approval.requested",
                    event.timestamp,
                    gen_ai__tool__name=event.tool_name,
                    gen_ai__tool__call__id=event.tool_call_id,
                    perstack__tool__rule=event.rule,
                )
            case DecideApproval():
                self._decide(event.tool_call_id, event.timestamp, event.decision, event.by, run_span)
            case ChangeCall():
                self._decide(event.tool_call_id, event.timestamp, "changed", event.by, run_span)
                if (open_call := self._calls.get(event.tool_call_id)) is not None:
                    open_call.args = _cut(_json(event.args))
            case DecideChangedCall():
                if (open_call := self._calls.get(event.tool_call_id)) is not None and event.decided is not None:
                    open_call.decided = event.decided
            case _:
                assert_never(event)

    def _apply_question(self, event: _QUESTIONS, run_span: _OpenSpan) -> None:
        match event:
            case CallInteractiveTool():
                self._ask(event.tool_call_id, event.timestamp)
                run_span.add_event(
                    "perstack.question.asked",
                    event.timestamp,
                    gen_ai__tool__name=event.tool_name,
                    gen_ai__tool__call__id=event.tool_call_id,
                )
            case AnswerQuestion() | SettleCall():
                if (open_call := self._calls.get(event.tool_call_id)) is not None:
                    self._answer(open_call, event.tool_call_id, event.timestamp, event.by, run_span)
            case _:
                assert_never(event)

    def _ask(self, call_id: str, time_ms: int) -> None:
        if (open_call := self._calls.get(call_id)) is not None:
            open_call.asked_ms = time_ms

    def _answer(self, open_call: _OpenCall, call_id: str, time_ms: int, by: By | None, run_span: _OpenSpan) -> None:
        waited_ms = 0 if open_call.asked_ms is None else max(0, time_ms - open_call.asked_ms)
        open_call.asked_ms = None
        run_span.add_event(
            "perstack.question.answered",
            time_ms,
            gen_ai__tool__call__id=call_id,
            perstack__by="" if by is None else str(by),
            perstack__wait__duration_ms=waited_ms,
        )

    def _decide(self, call_id: str, time_ms: int, decision: str, by: By, run_span: _OpenSpan) -> None:
        open_call, waited_ms = self._calls.get(call_id), 0
        if open_call is not None:
            waited_ms = 0 if open_call.asked_ms is None else max(0, time_ms - open_call.asked_ms)
            open_call.asked_ms, open_call.approval, open_call.approved_by = None, decision, str(by)
        run_span.add_event(
            "perstack.approval.decided",
            time_ms,
            gen_ai__tool__call__id=call_id,
            perstack__tool__approval=decision,
            perstack__by=str(by),
            perstack__wait__duration_ms=waited_ms,
        )


def _error_type(error: ErrorInfo) -> str:
    return str(error.status_code) if error.status_code else error.name


def _set_usage(span: _OpenSpan, usage: Usage | None) -> None:
    if usage is None:
        return
    span.set("gen_ai.usage.input_tokens", usage.input_tokens)
    span.set("gen_ai.usage.output_tokens", usage.output_tokens)
    span.set("gen_ai.usage.cache_read.input_tokens", usage.cached_input_tokens or None)
    span.set("gen_ai.usage.cache_creation.input_tokens", usage.cache_write_tokens or None)
    span.set("gen_ai.usage.reasoning.output_tokens", usage.reasoning_tokens or None)
    span.set("perstack.usage.cost_usd", usage.cost_usd)
    span.set("perstack.usage.assumed_tokens", usage.assumed_tokens or None)


# Content, in the JSON of the conventions.


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CONTENT_CHARS else f"{text[:MAX_CONTENT_CHARS]}…"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _arguments(part: ToolCallPart) -> str:
    return _cut(_json(part.args) if part.raw_args is None else part.raw_args)


def _messages(role: str, text: str) -> str:
    """Return one message of one text; the text alone, as instructions are written, without a role."""
    part: JsonObject = {"type": "text", "content": _cut(text)}
    return _json([{"role": role, "parts": [part]}] if role else [part])


def _reply_messages(reply: tuple[ReplyPart, ...], reason: str) -> str:
    parts: list[JsonObject] = []
    for part in reply:
        if isinstance(part, TextPart):
            parts.append({"type": "text", "content": _cut(part.text)})
        elif isinstance(part, ThinkingPart):
            parts.append({"type": "reasoning", "content": _cut(part.thinking)})
        elif isinstance(part, ToolCallPart):
            is_cut = part.raw_args is not None or len(_json(part.args)) > MAX_CONTENT_CHARS
            arguments = _arguments(part) if is_cut else part.args
            parts.append({"type": "tool_call", "id": part.tool_call_id, "name": part.tool_name, "arguments": arguments})
    return _json([{"role": "assistant", "parts": parts, "finish_reason": reason}])
