"""Each event as rows for people: a word and a text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, assert_never

from perstack.core.base.ids import By
from perstack.core.base.usage import Usage
from perstack.core.definitions.permissions import DECISION_WORDS
from perstack.core.runs import events, step_events
from perstack.core.runs.facts import ErrorInfo
from perstack.core.runs.messages import BlobPart, ResultContent, TextPart, ThinkingPart, ToolCallPart, text_of
from perstack.doors.shared.job_status import WITHOUT_EFFECT
from perstack.doors.shared.text import cost, count, duration, local_time

# Change of the model.

_SWITCHED: dict[step_events.SwitchReason, str] = {
    "overloaded": "overloaded",
    "rateLimit": "its rate limit is used up",
    "quota": "its quota is used up",
    "refusal": "it refused",
    "timeout": "it took too long",
    "unreachable": "it cannot be reached",
    "circuitOpen": "it failed again and again",
    "serverError": "its server failed",
    "notConfigured": "it cannot be used here",
    "triedAgain": "the first one is tried again",
}


def switch_words(event: step_events.SwitchModel, *, whole: bool = False) -> str:
    """Return `from A to B: overloaded`; with `whole`, also the endpoint's error message."""
    said = f" ({event.error.message})" if whole and event.error is not None else ""
    return f"from {event.before} to {event.to}: {_SWITCHED[event.reason]}{said}"


QUIET_TYPES = frozenset({"startGeneration", "stopRunByDelegate"})  # shown only on request: they mark a position

_NUMBER = re.compile(r"-(\d+)\Z")


# Kinds of items that a view may draw in place of a row. `place`: it only marks a position, such as a checkpoint.
RowItem = Literal["query", "thought", "text", "call", "result", "delegate", "question", "approval", "place", "end"]


class LogRow(NamedTuple):
    """One row of the log for people."""

    word: str
    text: str
    colour: str = ""
    item: RowItem | None = None  # None: every view shows the row itself


class EventContext(NamedTuple):
    """The context that describing an event needs."""

    calls: Mapping[str, ToolCallPart]  # the calls of the reply that a `callTools` belongs to, by id
    step_ms: int | None = None  # duration of the step that a `finishStep` ends, in milliseconds; None if unknown
    full: bool = False  # True if rows of little interest are included


def describe(event: events.StoredEvent, around: EventContext) -> list[LogRow]:  # noqa: C901 - one case for each kind of event
    """Return the rows of one event; empty if it has nothing new for a person."""
    match event:
        case events.StartRun():
            return _start(event, around)
        case events.ResumeRun():
            return [LogRow("resumes", _RESUMED[event.reason], "yellow"), *_settled(event)]
        case step_events.StartGeneration():
            return _generation(event, around)
        case step_events.FinishGeneration():
            return _reply(event, around)
        case step_events.Retry():
            if event.overflow is not None:
                fits = f"; the context holds {event.overflow:,} tokens"
                return [LogRow("retries", _error(event.error) + fits, "yellow")]
            again = f"; try {event.attempt + 1} after {duration(event.delay_ms)}"
            return [LogRow("retries", _error(event.error) + again, "yellow")]
        case step_events.SwitchModel():
            return [LogRow("switches", switch_words(event, whole=True), "yellow")]
        case step_events.CallTools():
            return _calls(event, around)
        case step_events.FinishToolCall():
            warning = [] if event.warning is None else [LogRow("warning", event.warning, "yellow")]
            return [_result(event), *_report(event), *warning, *_given_by(event.by)]
        case step_events.CallDelegate():
            return [
                LogRow("delegates", f"{run_label(one.expert_key, one.run_id)}: {one.query}", "cyan", "delegate")
                for one in event.delegates
            ]
        case events.StopRunByDelegate():
            return [LogRow("waits", f"for its delegates, checkpoint {event.checkpoint_id}", item="place")]
        case step_events.CallInteractiveTool():
            return [LogRow("asks", _question_of(event), "magenta", "question")]
        case step_events.AnswerQuestion():
            return [LogRow("answered", _answer_of(event), "magenta"), *_given_by(event.by)]
        case step_events.RequestApproval():
            words = f"approval of {event.tool_name} {json.dumps(event.args, ensure_ascii=False)} (rule {event.rule})"
            return [LogRow("asks", words, "magenta", "approval")]
        case step_events.DecideApproval():
            return [LogRow("decided", _decision_of(event), "magenta"), *_given_by(event.by)]
        case step_events.StartToolCall():
            return [LogRow("calls", f"what was approved: {event.call_digest}")] if around.full else []
        case step_events.StartSample():
            words = f"the model for a tool; {event.reserved.tokens:,} tokens are reserved"
            return [LogRow("calls", words)] if around.full else []
        case events.WidenPermissions():
            rules = json.dumps(json.loads(event.widening.to_json()), ensure_ascii=False)
            return [LogRow("permits", f"{rules}", "yellow"), *_given_by(event.by)]
        case events.StopRunByInteractiveTool():
            return [LogRow("waits", f"for an answer, checkpoint {event.checkpoint_id}", "magenta", "place")]
        case step_events.AttemptCompletion():
            return _completion(event, around)
        case step_events.FinishStep():
            return [_step(event, around)]
        case events.RejectResult():
            return [LogRow("rejects", f"the result: {event.problem}", "yellow")]
        case events.FinishRun():
            marked = [LogRow("warning", WITHOUT_EFFECT, "yellow")] if event.without_effect else []
            return [LogRow("completed", event.text, "green", "end"), *marked]
        case events.ErrorRun():
            place = [LogRow("waits", f"at checkpoint {event.checkpoint_id}", item="place")] if around.full else []
            return [LogRow("failed", _error(event.error), "red"), *place]
        case events.StopRunByExceededBudget():
            return [LogRow("stops", event.words, "yellow")]
        case events.StopRunByExceededMaxSteps():
            steps = count(event.max_steps, "step")
            return [LogRow("stopped", f"at the limit of {steps}, checkpoint {event.checkpoint_id}", "yellow")]
        case events.StopRunByInterrupt():
            return [LogRow("stopped", f"by {event.reason}, checkpoint {event.checkpoint_id}", "yellow")]
        case step_events.RecordSnapshot():
            return _snapshot(event, around)
        case step_events.ShrinkResults():
            words = f"{count(len(event.results), 'old result')}: the model sees the ends of each"
            return [LogRow("shrinks", words, "yellow")]
        case step_events.StartCompaction():
            return [LogRow("compacts", f"{event.first} to {event.through}, by {event.model}")] if around.full else []
        case step_events.CompactHistory():
            return _compaction(event, around)
        case events.QueueRun():
            due = f", not before {local_time(event.due):%Y-%m-%d %H:%M}" if event.due else ""
            return [LogRow("queued", f"for a worker{due}, by {event.by}", "cyan")]
        case events.CloseRun():
            why = f": {event.reason}" if event.reason else ""
            return [LogRow("closed", f"for good, by {event.by}{why}", "yellow")]
        case events.StartRewind():
            only = f", only {' '.join(event.only)}" if event.only else ""
            return [LogRow("rewinds", f"the files to {event.to_checkpoint}{only}", "yellow"), *_given_by(event.by)]
        case events.FinishRewind():
            kept = f", {event.kept} left alone" if event.kept else ""
            # the id comes first: users copy it, so it must not be cut off
            return [LogRow("rewound", f"undo with {event.start}: {count(event.files, 'change')}{kept}", "yellow")]
        case events.RedactEvent():
            words = f"{event.event_id} ({event.event_type}), by {event.by}: {event.reason}"
            return [LogRow("redacts", words, "yellow")]
        case _:
            assert_never(event)


def run_label(expert_key: str, run_id: str) -> str:
    """Return `writer#2`: the Expert's key and the number of its Run in the Job."""
    number = _NUMBER.search(run_id)
    return f"{expert_key}#{number[1]}" if number else expert_key


def arguments(part: ToolCallPart | None) -> str:
    """Return a call's arguments as JSON, or as the model wrote them if they did not parse."""
    if part is None:
        return ""
    if part.raw_args is not None:
        return part.raw_args
    return json.dumps(part.args, ensure_ascii=False) if part.args else ""


def _question_of(event: step_events.CallInteractiveTool) -> str:
    if event.question is not None:
        return f"skill {event.skill_name}, {event.tool_name}: {event.question.message}"
    question = event.args.get("question")
    return question if isinstance(question, str) else f"{event.tool_name} {json.dumps(event.args, ensure_ascii=False)}"


def _decision_of(event: step_events.DecideApproval) -> str:
    words = DECISION_WORDS[event.decision]
    beside = "; ".join(part for part in (event.rule and f"rule {event.rule}", event.text) if part)
    return f"{words}: {beside}" if beside else words


def _answer_of(event: step_events.AnswerQuestion) -> str:
    content = event.answer.content
    return f"{event.answer.action} {json.dumps(content, ensure_ascii=False) if content else ''}".rstrip()


def tokens(usage: Usage, unpriced_tokens: int | None = None) -> str:
    """Return `120 + 30 tokens`, input and output, with the cached and reasoning parts and the cost."""
    cached = f" ({usage.cached_input_tokens:,} cached)" if usage.cached_input_tokens else ""
    reasoning = f" ({usage.reasoning_tokens:,} reasoning)" if usage.reasoning_tokens else ""
    price = cost(usage, usage.unpriced_tokens if unpriced_tokens is None else unpriced_tokens)
    words = f"{usage.input_tokens:,}{cached} + {usage.output_tokens:,}{reasoning} tokens"
    return f"{words}, {price}" if price else words


_RESUMED: dict[events.ResumeReason, str] = {
    "answer": "with an answer",
    "interrupt": "after an interrupt",
    "maxSteps": "after the step limit",
    "budget": "after its budget was used",
    "error": "after an error",
    "crash": "after its process ended",
    "parent": "with the Run that started it",
    "queued": "from the queue",
}


def _attached(part: ResultContent) -> str:
    if isinstance(part, BlobPart):
        return f"{part.name} ({part.mime_type}, {part.size:,} bytes)"
    return part.text.strip().partition("\n")[0].removeprefix("Attached file ").removesuffix(":")


def _start(event: events.StartRun, around: EventContext) -> list[LogRow]:
    rows = [LogRow("query", event.query, "bold", "query")]
    if event.attachments:
        rows.append(LogRow("attached", ", ".join(map(_attached, event.attachments))))
    if event.continued_from is not None:
        another = ", with another answer" if event.continued_from.answers else ""
        another = ", as it was there" if event.continued_from.as_it_was else another
        rows.append(LogRow("continues", f"from checkpoint {event.continued_from.checkpoint_id}{another}"))
    if around.full:
        rows.append(LogRow("model", f"{event.provider}/{event.model}"))
        rows += [LogRow("stands in", name) for name in event.fallbacks]
    return rows


def _settled(event: events.ResumeRun) -> list[LogRow]:
    return [LogRow("settled", f"{call}: {word}") for call, word in event.settled.items()]


def _reply(event: step_events.FinishGeneration, around: EventContext) -> list[LogRow]:
    parts = event.message.contents
    rows = [
        LogRow("thinks", part.thinking, "dim", "thought")
        for part in parts
        if isinstance(part, ThinkingPart) and part.thinking
    ]
    rows += [LogRow("says", part.text, item="text") for part in parts if isinstance(part, TextPart) and part.text]
    is_odd = event.finish_reason in ("length", "refusal", "other")
    if is_odd or around.full:
        text = f"{event.finish_reason}, {duration(event.duration_ms)}, {tokens(event.usage)}"
        rows.append(LogRow("replied", text, "yellow" if is_odd else "dim"))
    return rows


def _calls(event: step_events.CallTools, around: EventContext) -> list[LogRow]:
    # a delegate's query and a user's question have their own events
    calls = [call for call in event.calls if around.full or call.kind not in ("delegate", "interactive")]
    return [
        LogRow("calls", f"{call.tool_name} {arguments(around.calls.get(call.id))}".rstrip(), "cyan", "call")
        for call in calls
    ]


def _generation(event: step_events.StartGeneration, around: EventContext) -> list[LogRow]:
    generates = LogRow("generates", "only the result's text is to be written" if event.final else "")
    return [LogRow("missing", why, "red") for why in event.unreachable.values()] + [generates] * around.full


def _given_by(by: By | None) -> list[LogRow]:
    return [] if by is None else [LogRow("by", str(by), "magenta")]


def _result(event: step_events.FinishToolCall) -> LogRow:
    took = f" ({duration(event.duration_ms)})" if event.duration_ms else ""
    name = run_label(event.tool_name, event.delegate.run_id) if event.delegate else event.tool_name
    text = f"{name}{took}: {text_of(event.contents)}"
    return LogRow("error", text, "red", "result") if event.is_error else LogRow("result", text, item="result")


def _report(event: step_events.FinishToolCall) -> list[LogRow]:
    if event.report is None:
        return []
    return [LogRow("report", event.report.text, "yellow" if event.report.without_effect else "")]


def _step(event: step_events.FinishStep, around: EventContext) -> LogRow:
    # the id comes first: users copy it, so it must not be cut off
    took = "" if around.step_ms is None else f"{duration(around.step_ms)}, "
    return LogRow("step", f"{event.checkpoint_id}: {took}{tokens(event.usage)}", "dim", "place")


def _completion(event: step_events.AttemptCompletion, around: EventContext) -> list[LogRow]:
    if event.remaining_todos:
        titles = "; ".join(todo.title for todo in event.remaining_todos)
        return [LogRow("not done", f"{count(len(event.remaining_todos), 'todo')} left: {titles}", "yellow")]
    return [LogRow("is done", event.result or "")] if around.full else []


def _snapshot(event: step_events.RecordSnapshot, around: EventContext) -> list[LogRow]:
    if event.problem:
        return [LogRow("snapshot", f"not taken: {event.problem}", "red")]
    files = sum(filter(None, (event.added, event.removed, event.changed)))
    if not files:
        return [LogRow("snapshot", count(event.files, "file"))] if around.full else []
    lines = "" if event.lines_added is None else f"+{event.lines_added} −{event.lines_removed} in "
    return [LogRow("snapshot", f"{lines}{count(files, 'file')}")]


def _compaction(event: step_events.CompactHistory, around: EventContext) -> list[LogRow]:
    about = f"about {event.tokens_before:,} tokens became {event.tokens_after:,}"
    by = f", by {event.model}" if event.model else ""
    spent = "" if event.usage is None else f", {tokens(event.usage)}"
    failed = [] if event.error is None else [LogRow("error", f"no summary: {_error(event.error)}", "red")]
    text = [LogRow("summary", event.text)] if around.full else []
    place = f"{event.first} to {event.through}"
    return [LogRow("compacts", f"{place}: {about}{by}{spent}", "yellow"), *failed, *text]


def _error(error: ErrorInfo) -> str:
    status = f" {error.status_code}" if error.status_code else ""
    return f"{error.name}{status}: {error.message}"
