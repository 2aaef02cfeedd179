"""The reply side of both APIs, as pure functions: the data of a stream's events to a reply.

Source: Amazon Bedrock API reference, «ConverseStream» (`ConverseStreamOutput`), «InvokeModelWithResponseStream»
(`ResponseStream`) and the errors of both.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NoBase64
from collections.abc import Callable
from dataclasses import field
from typing import TypeVar

from pydantic import Field, JsonValue, ValidationError

from perstack.core.base import JsonObject
from perstack.core.events import FinishReason
from perstack.core.messages import ExpertMessage, ReplyPart, TextPart, ThinkingPart, ToolCallPart
from perstack.core.usage import Usage
from perstack.dataclass import dataclass
from perstack.errors import ProviderError
from perstack.ports.provider import Delta, Generation
from perstack_anthropic.codec import ReplyDecoder as MessagesDecoder
from perstack_bedrock.request import VENDOR
from perstack_http.errors import bad_response, cut_stream, made_error
from perstack_http.parts import Text, Wire, read_arguments


class _Failure(Wire):
    message: Text = ""
    code: Text = ""


class _Failures(Wire):
    """What either stream may say in place of its next event."""

    internal: _Failure | None = Field(default=None, alias="internalServerException")
    model_stream: _Failure | None = Field(default=None, alias="modelStreamErrorException")
    model_timeout: _Failure | None = Field(default=None, alias="modelTimeoutException")
    service_unavailable: _Failure | None = Field(default=None, alias="serviceUnavailableException")
    throttling: _Failure | None = Field(default=None, alias="throttlingException")
    validation: _Failure | None = Field(default=None, alias="validationException")
    error: _Failure | None = None

    def told(self) -> ProviderError | None:
        """The error that it tells of, with the status that the same one has as an HTTP response."""
        for name in self.model_fields_set & _STATUS_OF.keys():
            found: _Failure | None = getattr(self, name)
            if found is not None:
                return made_error(found.message or found.code or name, _STATUS_OF[name])
        return None


_STATUS_OF = {
    "validation": 400,
    "model_timeout": 408,
    "model_stream": 424,
    "throttling": 429,
    "internal": 500,
    "error": 500,
    "service_unavailable": 503,
}
"""Source: the service model of bedrock-runtime, `error.httpStatusCode` of each exception."""


class _ToolUse(Wire):
    id: Text = Field(default="", alias="toolUseId")
    name: Text = ""
    type: Text = ""
    """Set for tools that Bedrock itself runs: nothing of ours to do."""
    input: Text = ""


class _Reasoning(Wire):
    text: Text = ""
    signature: Text = ""
    redacted: Text = Field(default="", alias="redactedContent")


class _Change(Wire):
    """The start of a block, or a piece of it; what a kind does not have is None."""

    text: Text = ""
    tool_use: _ToolUse | None = Field(default=None, alias="toolUse")
    reasoning: _Reasoning | None = Field(default=None, alias="reasoningContent")


class _BlockEvent(Wire):
    index: int = Field(default=0, alias="contentBlockIndex")
    start: _Change | None = None
    delta: _Change | None = None


class _Stop(Wire):
    reason: Text = Field(default="", alias="stopReason")


class _Usage(Wire):
    sent: int = Field(default=0, alias="inputTokens")
    generated: int = Field(default=0, alias="outputTokens")
    cached: int | None = Field(default=None, alias="cacheReadInputTokens")
    written: int | None = Field(default=None, alias="cacheWriteInputTokens")


class _Metadata(Wire):
    usage: _Usage | None = None


class _Event(_Failures):
    """Every kind of event at once, each under its name; the others are None."""

    start: _BlockEvent | None = Field(default=None, alias="contentBlockStart")
    delta: _BlockEvent | None = Field(default=None, alias="contentBlockDelta")
    stop: _Stop | None = Field(default=None, alias="messageStop")
    metadata: _Metadata | None = None


_FINISH: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "toolCalls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "guardrail_intervened": "refusal",
    "content_filtered": "refusal",
    "refusal": "refusal",
}


@dataclass(slots=True)
class _Block:
    """A content block as it grows."""

    call: _ToolUse | None = None
    text: list[str] = field(default_factory=list[str])
    thinking: list[str] = field(default_factory=list[str])
    signature: list[str] = field(default_factory=list[str])
    redacted: list[str] = field(default_factory=list[str])
    json: list[str] = field(default_factory=list[str])


class ConverseDecoder:
    """Puts a reply of ConverseStream together from the data of its events."""

    def __init__(self, on_delta: Callable[[Delta], None]) -> None:
        self._on_delta = on_delta
        self._blocks: dict[int, _Block] = {}
        self._stop_reason: str | None = None
        self._usage = _Usage()

    def feed(self, data: str) -> bool:
        """Take one event; true if it was the last. Raises ProviderError if it tells of one."""
        event = _read(_Event, data)
        if event.delta is not None and event.delta.delta is not None:
            self._grow(self._block(event.delta.index), event.delta.delta)
        elif event.start is not None and event.start.start is not None:
            self._block(event.start.index).call = event.start.start.tool_use
        elif event.stop is not None:
            self._stop_reason = event.stop.reason
        elif event.metadata is not None:
            self._usage = event.metadata.usage or self._usage
            return self._stop_reason is not None
        return False

    def finish(self) -> Generation:
        """The reply. Raises ProviderError if the stream ended before it did."""
        if self._stop_reason is None:
            raise cut_stream("no messageStop came")
        if self._stop_reason.startswith("malformed_"):
            raise bad_response(f"the model's reply was unreadable to Bedrock: {self._stop_reason}", retryable=True)
        parts = [part for index in sorted(self._blocks) if (part := _part(self._blocks[index])) is not None]
        reply = ExpertMessage(contents=tuple(parts))
        reason = _FINISH.get(self._stop_reason, "other")
        return Generation(reply, _usage(self._usage), "toolCalls" if reason == "stop" and reply.tool_calls else reason)

    def _block(self, index: int) -> _Block:
        return self._blocks.setdefault(index, _Block())

    def _grow(self, block: _Block, piece: _Change) -> None:
        if piece.text:
            block.text.append(piece.text)
            self._on_delta(Delta("text", piece.text))
        if piece.tool_use is not None:
            block.json.append(piece.tool_use.input)
        if piece.reasoning is not None:
            block.signature.append(piece.reasoning.signature)
            block.redacted.append(piece.reasoning.redacted)
            if piece.reasoning.text:
                block.thinking.append(piece.reasoning.text)
                self._on_delta(Delta("reasoning", piece.reasoning.text))


_E = TypeVar("_E", bound=_Failures)


class _Chunk(Wire):
    bytes: Text = ""


class _ChunkEvent(_Failures):
    chunk: _Chunk | None = None


class ChunkDecoder:
    """Puts a reply of InvokeModelWithResponseStream together: its chunks hold the events of Anthropic's format."""

    def __init__(self, on_delta: Callable[[Delta], None]) -> None:
        self._messages = MessagesDecoder(on_delta)

    def feed(self, data: str) -> bool:
        """Take one event; true if it was the last. Raises ProviderError if it tells of one."""
        chunk = _read(_ChunkEvent, data).chunk
        return chunk is not None and self._messages.feed(_bytes(chunk.bytes).decode("utf-8", "replace"))

    def finish(self) -> Generation:
        """The reply. Raises ProviderError if the stream ended before it did."""
        return self._messages.finish()


def _read(kind: type[_E], data: str) -> _E:
    """One event. Raises the error that it tells of."""
    try:
        event = kind.model_validate_json(data)
    except ValidationError as error:
        detail = f"an event is not as Bedrock has it: {data[:200]}"
        raise bad_response(detail, retryable=True) from error
    failure = event.told()
    if failure is not None:
        raise failure
    return event


def _usage(usage: _Usage) -> Usage:
    """Bedrock's `inputTokens` are only those that no cache had: ours are all that was sent."""
    cached, written = usage.cached or 0, usage.written or 0
    return Usage.of(usage.sent + cached + written, usage.generated, cached=cached, cache_writes=written)


def _part(block: _Block) -> ReplyPart | None:
    """A finished block; None for an empty one, and for what is not ours to understand."""
    if block.call is not None:
        return _call(block.call, "".join(block.json)) if not block.call.type else None
    if any(block.redacted):
        return ThinkingPart(thinking="", opaque={VENDOR: {"redacted": _joined(block.redacted)}})
    signature = "".join(block.signature)
    if block.thinking or signature:
        opaque: JsonObject | None = {VENDOR: {"signature": signature}} if signature else None
        return ThinkingPart(thinking="".join(block.thinking), opaque=opaque)
    return TextPart(text="".join(block.text)) if block.text else None


def _call(call: _ToolUse, text: str) -> ToolCallPart:
    args, raw_args = read_arguments(text)
    return ToolCallPart(tool_call_id=call.id, tool_name=call.name, args=args, raw_args=raw_args)


def _joined(pieces: list[str]) -> JsonValue:
    """Pieces that are base64 each, as one."""
    return b64encode(b"".join(map(_bytes, pieces))).decode("ascii")


def _bytes(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except NoBase64 as error:
        raise bad_response(f"an event holds no base64: {text[:200]}", retryable=True) from error
