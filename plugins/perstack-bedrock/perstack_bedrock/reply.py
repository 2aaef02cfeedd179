"""Decoders for the streams of both APIs.

Source: Amazon Bedrock API reference, «ConverseStream» (`ConverseStreamOutput`), «InvokeModelWithResponseStream»
(`ResponseStream`) and the errors of both.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from binascii import Error as NoBase64
from collections.abc import AsyncGenerator, Callable
from dataclasses import field
from typing import TYPE_CHECKING, TypeVar, cast

from pydantic import Field, JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.base.usage import Usage
from perstack.core.runs.messages import ExpertMessage, FinishReason, ReplyPart, TextPart, ThinkingPart, ToolCallPart
from perstack.dataclass import dataclass
from perstack.errors import ProviderError
from perstack.ports.provider import Delta, Generation
from perstack.support.http.errors import bad_response, error_from_status, stream_interrupted
from perstack.support.http.messages import Text, Wire, finish_reason, read_arguments, read_event
from perstack_anthropic.messages_api import MessagesDecoder
from perstack_bedrock.request import VENDOR

if TYPE_CHECKING:
    import httpx
    from botocore.eventstream import EventStreamMessage


class _AwsFailure(Wire):
    message: Text = ""
    code: Text = ""


class _Failures(Wire):
    internal: _AwsFailure | None = Field(default=None, alias="internalServerException")
    model_stream: _AwsFailure | None = Field(default=None, alias="modelStreamErrorException")
    model_timeout: _AwsFailure | None = Field(default=None, alias="modelTimeoutException")
    service_unavailable: _AwsFailure | None = Field(default=None, alias="serviceUnavailableException")
    throttling: _AwsFailure | None = Field(default=None, alias="throttlingException")
    validation: _AwsFailure | None = Field(default=None, alias="validationException")
    error: _AwsFailure | None = None

    def to_error(self) -> ProviderError | None:
        """Return the error of the event, with the status that an HTTP response would have; None without one."""
        for name in self.model_fields_set & _STATUS_OF.keys():
            failure: _AwsFailure | None = getattr(self, name)
            if failure is not None:
                return error_from_status(failure.message or failure.code or name, _STATUS_OF[name])
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
"""HTTP status of each error. Source: service model of bedrock-runtime, `error.httpStatusCode` of each exception."""


class _ToolUse(Wire):
    id: Text = Field(default="", alias="toolUseId")
    name: Text = ""
    type: Text = ""  # set for tools that Bedrock itself runs; their calls are ignored
    input: Text = ""


class _Reasoning(Wire):
    text: Text = ""
    signature: Text = ""
    redacted: Text = Field(default="", alias="redactedContent")


class _Change(Wire):
    """Start or piece of a block; fields that a type lacks are empty or None."""

    text: Text = ""
    tool_use: _ToolUse | None = Field(default=None, alias="toolUse")
    reasoning: _Reasoning | None = Field(default=None, alias="reasoningContent")


class _BlockEvent(Wire):
    index: int = Field(default=0, alias="contentBlockIndex")
    start: _Change | None = None
    delta: _Change | None = None


class _Stop(Wire):
    reason: Text = Field(default="", alias="stopReason")


class _ConverseUsage(Wire):
    sent: int = Field(default=0, alias="inputTokens")
    generated: int = Field(default=0, alias="outputTokens")
    cached: int | None = Field(default=None, alias="cacheReadInputTokens")
    written: int | None = Field(default=None, alias="cacheWriteInputTokens")


class _Metadata(Wire):
    usage: _ConverseUsage | None = None


class _ConverseEvent(_Failures):
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
class _ConverseBlock:
    call: _ToolUse | None = None
    text: list[str] = field(default_factory=list[str])
    thinking: list[str] = field(default_factory=list[str])
    signature: list[str] = field(default_factory=list[str])
    redacted: list[str] = field(default_factory=list[str])
    json: list[str] = field(default_factory=list[str])


class ConverseDecoder:
    """Decoder of a ConverseStream reply from the data of its events."""

    def __init__(self, on_delta: Callable[[Delta], None]) -> None:
        """Pass each piece of text to `on_delta`."""
        self._on_delta = on_delta
        self._blocks: dict[int, _ConverseBlock] = {}
        self._stop_reason: str | None = None
        self._usage = _ConverseUsage()

    def feed(self, data: str) -> bool:
        """Process one event. Return True after the last one. Raises ProviderError for an error event."""
        event = _read(_ConverseEvent, data)
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
        """Return the reply. Raises ProviderError if the stream ended early."""
        if self._stop_reason is None:
            raise stream_interrupted("no messageStop came")
        if self._stop_reason.startswith("malformed_"):
            raise bad_response(f"the model's reply was unreadable to Bedrock: {self._stop_reason}", retryable=True)
        parts = [part for index in sorted(self._blocks) if (part := _part(self._blocks[index])) is not None]
        reply = ExpertMessage(contents=tuple(parts))
        reason = _FINISH.get(self._stop_reason, "other")
        return Generation(reply, _usage(self._usage), finish_reason(reason, reply))

    def _block(self, index: int) -> _ConverseBlock:
        return self._blocks.setdefault(index, _ConverseBlock())

    def _grow(self, block: _ConverseBlock, piece: _Change) -> None:
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


_EventT = TypeVar("_EventT", bound=_Failures)


class _PayloadPart(Wire):
    bytes: Text = ""


class _ChunkEvent(_Failures):
    chunk: _PayloadPart | None = None


class ChunkDecoder:
    """Decoder of an InvokeModelWithResponseStream reply, whose chunks contain events of Anthropic's format."""

    def __init__(self, on_delta: Callable[[Delta], None]) -> None:
        """Pass each piece of text to `on_delta`."""
        self._messages = MessagesDecoder(on_delta)

    def feed(self, data: str) -> bool:
        """Process one event. Return True after the last one. Raises ProviderError for an error event."""
        chunk = _read(_ChunkEvent, data).chunk
        return chunk is not None and self._messages.feed(_bytes(chunk.bytes).decode("utf-8", "replace"))

    def finish(self) -> Generation:
        """Return the reply. Raises ProviderError if the stream ended early."""
        return self._messages.finish()


def _read(kind: type[_EventT], data: str) -> _EventT:
    event = read_event(kind, data, "Bedrock")
    failure = event.to_error()
    if failure is not None:
        raise failure
    return event


def _usage(usage: _ConverseUsage) -> Usage:
    """Convert the token counts. Bedrock's `inputTokens` exclude cached tokens; ours include them."""
    cached, written = usage.cached or 0, usage.written or 0
    return Usage.of(usage.sent + cached + written, usage.generated, cached=cached, cache_writes=written)


def _part(block: _ConverseBlock) -> ReplyPart | None:
    if block.call is not None:
        return _call(block.call, "".join(block.json)) if not block.call.type else None
    if any(block.redacted):
        return ThinkingPart(thinking="", opaque={VENDOR: {"redacted": _join_base64(block.redacted)}})
    signature = "".join(block.signature)
    if block.thinking or signature:
        opaque: JsonObject | None = {VENDOR: {"signature": signature}} if signature else None
        return ThinkingPart(thinking="".join(block.thinking), opaque=opaque)
    return TextPart(text="".join(block.text)) if block.text else None


def _call(call: _ToolUse, text: str) -> ToolCallPart:
    args, raw_args = read_arguments(text)
    return ToolCallPart(tool_call_id=call.id, tool_name=call.name, args=args, raw_args=raw_args)


def _join_base64(pieces: list[str]) -> JsonValue:
    """Join pieces of base64 that were each encoded separately."""
    return b64encode(b"".join(map(_bytes, pieces))).decode("ascii")


def _bytes(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except NoBase64 as error:
        raise bad_response(f"an event holds no base64: {text[:200]}", retryable=True) from error


# AWS's binary event stream, parsed and checked by botocore.
#
# Source: Smithy specification, «Amazon Event Stream»; botocore.eventstream.

MEDIA_TYPE = "application/vnd.amazon.eventstream"


async def aws_events(response: httpx.Response) -> AsyncGenerator[str]:
    """Yield each event as a JSON object of its type and payload. Raises ProviderError for a damaged frame."""
    from botocore.eventstream import EventStreamBuffer, ParserError

    buffer = EventStreamBuffer()
    async for chunk in response.aiter_bytes():
        buffer.add_data(chunk)
        try:
            texts = [_data_of(message) for message in buffer]
        except ParserError as error:
            raise stream_interrupted(f"a frame is damaged: {error}") from error
        for text in texts:
            yield text


def _data_of(message: EventStreamMessage) -> str:
    headers = cast("dict[str, JsonValue]", message.headers)  # the stubs declare numbers
    if headers.get(":message-type") == "error":
        error = {"code": headers.get(":error-code"), "message": headers.get(":error-message")}
        return json.dumps({"error": error})
    kind = headers.get(":event-type") or headers.get(":exception-type") or ""
    # Composed as text: the payload is JSON already, and is parsed only once.
    return f"{{{json.dumps(kind)}: {message.payload.decode('utf-8', 'replace') or 'null'}}}"
