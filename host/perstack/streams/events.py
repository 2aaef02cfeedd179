"""The six kinds of events that a program iterates over while a Job is driven, made of the Job's events.

A `StreamEvent` is what a user interface shows: text as it arrives, calls with their results, questions, delegates and
the end. Everything else of a Job is left out; a listener (`on_event`) receives all of it. The union is closed: a new
kind is a breaking change, because programs match it with `assert_never`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from perstack.core.base.records import JsonObject
from perstack.core.definitions.permissions import PROVIDER
from perstack.core.definitions.skills import ToolKind
from perstack.core.jobs.answer_reading import accepted_answers
from perstack.core.jobs.summary import JobSummary
from perstack.core.messages.messages import ProviderToolPart, ResultContent, TextPart, text_of
from perstack.core.runs.display_events import StreamText
from perstack.core.runs.events import Event, StoredEvent
from perstack.core.runs.events.generations import FinishGeneration, StartGeneration
from perstack.core.runs.events.questions import CallInteractiveTool, RequestApproval
from perstack.core.runs.events.tool_calls import CallDelegate, CallTools, FinishToolCall
from perstack.core.runs.open_questions import OpenQuestion
from perstack.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A part of a model's text, as it arrives; the whole text, with its event, if the model does not stream."""

    text: str
    run_id: str
    event: StoredEvent | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool by the model. Calls of delegates and questions to a person are events of their own.

    A tool that the model's provider has run itself has the skill `provider`; its call is shown with its result.
    """

    id: str
    name: str
    arguments: JsonObject
    run_id: str
    skill_name: str = ""
    event: StoredEvent | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call, a delegate or a question; `id` is the call's."""

    id: str
    name: str
    text: str
    run_id: str
    is_error: bool = False
    contents: tuple[ResultContent, ...] = ()
    event: StoredEvent | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a person, or a call that needs approval. Answer it in the loop: `host.answer(text, question=…)`."""

    id: str
    text: str
    run_id: str
    open_question: OpenQuestion
    options: tuple[str, ...] = ()  # answers that are offered; empty for any text
    allows_other: bool = True  # False if the answer must be one of the options, or fit the form in `open_question`
    is_approval: bool = False
    event: StoredEvent | None = None


@dataclass(frozen=True, slots=True)
class DelegateStarted:
    """A delegate's Run that an Expert has called; `id` is the call's."""

    id: str
    expert_key: str
    query: str
    run_id: str
    parent_run_id: str
    event: StoredEvent | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of the Job, or a stop without a question: the last event. `summary.status` says which."""

    summary: JobSummary
    event: StoredEvent | None = None


StreamEvent: TypeAlias = TextDelta | ToolCall | ToolResult | Question | DelegateStarted | Finished

_SHOWN_KINDS: frozenset[ToolKind] = frozenset(("tool", "todo", "clearTodo", "refused"))


class StreamReader:
    """Converter of one Job's events to stream events, in the order in which they are shown."""

    def __init__(self) -> None:
        """Start before the first event."""
        self._streamed: set[str] = set()  # Runs whose current generation has shown text
        self._arguments: dict[tuple[str, str], JsonObject] = {}
        self._asked: dict[str, StoredEvent] = {}
        self._last: dict[str, StoredEvent] = {}

    def read(self, event: Event) -> Iterable[StreamEvent]:
        """Return the stream events for an event; none if it shows nothing."""
        if isinstance(event, StreamText):
            self._streamed.add(event.run_id)
            return (TextDelta(event.delta, event.run_id),)
        if not isinstance(event, StoredEvent):
            return ()
        self._last[event.run_id] = event
        return self._convert_stored(event)

    def question(self, question: OpenQuestion) -> Question:
        """Return the event of an open question."""
        allowed = accepted_answers(question)
        return Question(
            question.id,
            question.shown,
            question.run_id,
            question,
            options=allowed.options,
            allows_other=allowed.allows_other and allowed.schema is None,
            is_approval=bool(question.call_digest) or question.approval,
            event=self._asked.get(question.id),
        )

    def finish_event(self, summary: JobSummary) -> Finished:
        """Return the last event."""
        return Finished(summary, self._last.get(summary.coordinator_run_id))

    def _convert_stored(self, event: StoredEvent) -> Iterable[StreamEvent]:
        match event:
            case StartGeneration():
                self._streamed.discard(event.run_id)
            case FinishGeneration():
                return self._convert_reply(event)
            case CallTools():
                return tuple(self._convert_calls(event))
            case FinishToolCall():
                return (_convert_result(event),)
            case CallDelegate():
                return tuple(
                    DelegateStarted(
                        delegation.tool_call_id,
                        delegation.expert_key,
                        delegation.query,
                        delegation.run_id,
                        event.run_id,
                        event,
                    )
                    for delegation in event.delegates
                )
            case CallInteractiveTool() | RequestApproval():
                self._asked[event.id] = event
            case _:
                pass
        return ()

    def _convert_reply(self, event: FinishGeneration) -> Iterable[StreamEvent]:
        for tool_call_part in event.message.tool_calls:
            self._arguments[event.run_id, tool_call_part.tool_call_id] = tool_call_part.args
        text = "".join(part.text for part in event.reply if isinstance(part, TextPart))
        is_shown = event.run_id in self._streamed or not text
        items = tuple(item for part in event.message.provider_tools for item in _provider_tool_events(part, event))
        return items if is_shown else (*items, TextDelta(text, event.run_id, event))

    def _convert_calls(self, event: CallTools) -> Iterator[ToolCall]:
        for decided in event.calls:
            arguments = self._arguments.pop((event.run_id, decided.id), {})
            if decided.kind in _SHOWN_KINDS:
                yield ToolCall(decided.id, decided.tool_name, arguments, event.run_id, decided.skill_name, event)


def _provider_tool_events(part: ProviderToolPart, event: FinishGeneration) -> Iterator[ToolCall | ToolResult]:
    if not part.is_rest:
        yield ToolCall(part.id, part.tool_name, part.args, event.run_id, PROVIDER, event)
    if part.result:
        contents = (TextPart(text=part.result),)
        yield ToolResult(part.id, part.tool_name, part.result, event.run_id, part.is_error, contents, event)


def _convert_result(event: FinishToolCall) -> ToolResult:
    text = text_of(event.contents)
    return ToolResult(
        event.tool_call_id, event.tool_name, text, event.run_id, event.is_error, tuple(event.contents), event
    )
