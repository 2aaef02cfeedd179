"""The reply side of the Responses API: the data of a stream's events to a reply.

Source: OpenAI API reference, «Responses», section «Streaming events», and the objects «Response» and its output items.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pydantic import JsonValue, ValidationError

from perstack.core.base import JsonObject
from perstack.core.events import FinishReason
from perstack.core.messages import ExpertMessage, ReplyPart, TextPart, ThinkingPart, ToolCallPart
from perstack.core.usage import Usage
from perstack.ports.provider import Delta, Generation
from perstack_http.errors import bad_response, cut_stream
from perstack_http.parts import Text, Wire, read_arguments
from perstack_openai.stream_errors import stream_error

_END = "[DONE]"


class _Content(Wire):
    type: Text = ""
    text: Text = ""
    refusal: Text = ""


class _Item(Wire):
    """An output item; what its type does not have is empty."""

    type: Text = ""
    id: Text = ""
    call_id: Text = ""
    name: Text = ""
    arguments: Text = ""
    phase: Text = ""
    encrypted_content: Text = ""
    content: list[_Content] | None = None
    summary: list[_Content] | None = None


class _InputDetails(Wire):
    cached_tokens: int | None = None


class _OutputDetails(Wire):
    reasoning_tokens: int | None = None


class _Usage(Wire):
    input_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None
    output_tokens: int | None = None
    output_tokens_details: _OutputDetails | None = None
    total_tokens: int | None = None


class _Error(Wire):
    message: Text = ""
    code: JsonValue = None


class _Incomplete(Wire):
    reason: Text = ""


class _Response(Wire):
    status: Text = ""
    output: list[_Item] | None = None
    usage: _Usage | None = None
    error: _Error | None = None
    incomplete_details: _Incomplete | None = None


class _Event(Wire):
    """Every kind of event at once; what a kind does not have is empty."""

    type: Text = ""
    delta: JsonValue = None
    summary_index: int | None = None
    output_index: int | None = None
    item: _Item | None = None
    response: _Response | None = None
    error: _Error | None = None
    message: Text = ""
    code: JsonValue = None


_DELTAS = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "text",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.reasoning_text.delta": "reasoning",
}

_INCOMPLETE: dict[str, FinishReason] = {"max_output_tokens": "length", "content_filter": "refusal"}


class ResponsesDecoder:
    """Puts a reply together from the data of its events."""

    def __init__(self, on_delta: Callable[[Delta], None], vendor: str) -> None:
        self._on_delta = on_delta
        self._vendor = vendor
        self._done: list[tuple[int, _Item]] = []
        self._response: _Response | None = None

    def feed(self, data: str) -> bool:
        """Take one event; true if it was the last. Raises ProviderError if it tells of one."""
        if data.strip() == _END:
            return True
        event = _read(_Event, data)
        match event.type:
            case "response.output_item.done":
                if event.item is not None:
                    at = len(self._done) if event.output_index is None else event.output_index
                    self._done.append((at, event.item))
            case "response.completed" | "response.incomplete" | "response.failed":
                self._end(event.response or _Response(status=event.type.removeprefix("response.")))
            case "error":
                found = event.error or _Error(message=event.message, code=event.code)
                raise stream_error(found.message, found.code)
            case "":
                # the whole response as one document, from a server that does not stream; or an error without a type
                self._take_document(_read(_Response, data))
            case _:
                self._show(event)
        return self._response is not None

    def finish(self) -> Generation:
        """The reply. Raises ProviderError if the stream ended before it did."""
        if self._response is None:
            raise cut_stream("no response.completed came")
        items = self._items(self._response)
        reply = ExpertMessage(contents=tuple(part for item in items for part in _parts(item, self._vendor)))
        return Generation(reply, _usage(self._response.usage), _finish_reason(self._response, items))

    def _show(self, event: _Event) -> None:
        kind = _DELTAS.get(event.type)
        if event.type == "response.reasoning_summary_part.added" and event.summary_index:
            self._on_delta(Delta("reasoning", "\n\n"))
        elif kind is not None and isinstance(event.delta, str) and event.delta:
            self._on_delta(Delta("text" if kind == "text" else "reasoning", event.delta))

    def _take_document(self, response: _Response) -> None:
        if response.error is not None or response.output is not None:
            self._end(response)

    def _end(self, response: _Response) -> None:
        if response.error is not None or response.status in ("failed", "cancelled"):
            error = response.error or _Error()
            raise stream_error(error.message, error.code)
        self._response = response

    def _items(self, response: _Response) -> list[_Item]:
        """Those that came one by one; some servers tell of them at the end alone, others not at the end."""
        done = [item for _, item in sorted(self._done, key=lambda one: one[0])]
        whole = response.output or []
        return whole if len(whole) > len(done) else done


_W = TypeVar("_W", bound=Wire)


def _read(kind: type[_W], data: str) -> _W:
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        detail = f"an event is not as the Responses API has it: {data[:200]}"
        raise bad_response(detail, retryable=True) from error


def _parts(item: _Item, vendor: str) -> list[ReplyPart]:
    """The parts of one item; none for what is not ours to understand."""
    match item.type:
        case "reasoning":
            return _thinking(item, vendor)
        case "function_call":
            args, raw_args = read_arguments(item.arguments)
            call_id = item.call_id or item.id
            return [ToolCallPart(tool_call_id=call_id, tool_name=item.name, args=args, raw_args=raw_args)]
        case "message":
            text = "".join(content.text or content.refusal for content in item.content or ())
            if not text:
                return []
            # the phase has to be sent back with its message
            mark = [ThinkingPart(thinking="", opaque={vendor: {"phase": item.phase}})] if item.phase else []
            return [*mark, TextPart(text=text)]
        case _:
            return []


def _thinking(item: _Item, vendor: str) -> list[ReplyPart]:
    """What can be read of a reasoning item, and what must be sent back. Without either there is nothing to keep."""
    summary, content = item.summary or [], item.content or []
    thinking = "\n\n".join(one.text for one in summary) or "".join(one.text for one in content)
    ours: JsonObject = {"id": item.id, "summary": [{"type": "summary_text", "text": one.text} for one in summary]}
    if item.encrypted_content:
        ours["encrypted_content"] = item.encrypted_content
    elif content:
        ours["content"] = [{"type": "reasoning_text", "text": one.text} for one in content]
    elif not thinking:
        return []
    else:
        # an item that is kept nowhere cannot be referred to
        return [ThinkingPart(thinking=thinking)]
    return [ThinkingPart(thinking=thinking, opaque={vendor: ours})]


def _finish_reason(response: _Response, items: list[_Item]) -> FinishReason:
    if any(content.refusal for item in items for content in item.content or ()):
        return "refusal"
    if response.status == "incomplete" or response.incomplete_details is not None:
        return _INCOMPLETE.get((response.incomplete_details or _Incomplete()).reason, "other")
    return "toolCalls" if any(item.type == "function_call" for item in items) else "stop"


def _usage(usage: _Usage | None) -> Usage:
    """All zero if the server told nothing."""
    if usage is None:
        return Usage()
    sent, generated = usage.input_tokens or 0, usage.output_tokens or 0
    return Usage(
        input_tokens=sent,
        output_tokens=generated,
        reasoning_tokens=(usage.output_tokens_details or _OutputDetails()).reasoning_tokens or 0,
        total_tokens=usage.total_tokens or sent + generated,
        cached_input_tokens=(usage.input_tokens_details or _InputDetails()).cached_tokens or 0,
    )
