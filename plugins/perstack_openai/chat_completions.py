"""The reply side of Chat Completions: the data of a stream's events to a reply, for servers that keep to it and others.

Source: OpenAI API reference, «Chat Completions», section «Streaming» (the chunk object); `reasoning_content` after
DeepSeek's API reference, `reasoning` after OpenRouter's and vLLM's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import field

from pydantic import JsonValue, ValidationError

from perstack.core.events import FinishReason
from perstack.core.messages import ExpertMessage, ReplyPart, TextPart, ThinkingPart, ToolCallPart
from perstack.core.usage import Usage
from perstack.dataclass import dataclass
from perstack.errors import ProviderError
from perstack.ports.provider import Delta, Generation
from perstack_http.errors import bad_response, cut_stream
from perstack_http.parts import Text, Wire, read_arguments
from perstack_openai.stream_errors import stream_error

_END = "[DONE]"


class _Function(Wire):
    name: Text = ""
    arguments: JsonValue = None


class _ToolCallDelta(Wire):
    index: int | None = None
    id: Text = ""
    function: _Function | None = None


class _ChoiceDelta(Wire):
    content: JsonValue = None
    refusal: Text = ""
    reasoning_content: Text = ""
    reasoning: JsonValue = None
    tool_calls: list[_ToolCallDelta] | None = None


class _Choice(Wire):
    index: int | None = None
    delta: _ChoiceDelta | None = None
    message: _ChoiceDelta | None = None
    """In place of `delta`, from a server that does not stream."""
    finish_reason: Text = ""


class _PromptDetails(Wire):
    cached_tokens: int | None = None


class _CompletionDetails(Wire):
    reasoning_tokens: int | None = None


class _Usage(Wire):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_cache_hit_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _Error(Wire):
    message: Text = ""
    code: JsonValue = None


class _Chunk(Wire):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: _Error | str | None = None


_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "tool_calls": "toolCalls",
    "function_call": "toolCalls",
    "length": "length",
    "max_tokens": "length",
    "content_filter": "refusal",
    "refusal": "refusal",
}


@dataclass(slots=True)
class _Call:
    """A tool call as it grows."""

    index: int | None
    id: str
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])


class ChatDecoder:
    """Puts a reply together from the data of its events."""

    def __init__(self, on_delta: Callable[[Delta], None]) -> None:
        self._on_delta = on_delta
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_Call] = []
        self._finish = ""
        self._refused = False
        self._usage: _Usage | None = None
        self._is_whole = False

    def feed(self, data: str) -> bool:
        """Take one event; true if it was the last. Raises ProviderError if it tells of one."""
        if data.strip() == _END:
            self._is_whole = True
            return True
        try:
            chunk = _Chunk.model_validate_json(data)
        except ValidationError as error:
            detail = f"an event is not as Chat Completions have it: {data[:200]}"
            raise bad_response(detail, retryable=True) from error
        if chunk.error is not None:
            raise _error(chunk.error)
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices or ():
            if not choice.index:
                self._take(choice)
        return False

    def finish(self) -> Generation:
        """The reply. Raises ProviderError if the stream ended before it did: neither a reason nor an end came."""
        if not self._is_whole and not self._finish:
            raise cut_stream(f"neither a finish_reason nor {_END} came")
        parts: list[ReplyPart] = []
        if self._reasoning:
            parts.append(ThinkingPart(thinking="".join(self._reasoning)))
        if self._text:
            parts.append(TextPart(text="".join(self._text)))
        parts += [_call_part(call) for call in self._calls]
        return Generation(ExpertMessage(contents=tuple(parts)), _usage(self._usage), self._finish_reason())

    def _take(self, choice: _Choice) -> None:
        self._finish = choice.finish_reason or self._finish
        delta = choice.delta or choice.message
        if delta is None:
            return
        self._add("reasoning", delta.reasoning_content or _plain(delta.reasoning))
        self._add("text", _plain(delta.content))
        self._add("text", delta.refusal)
        self._refused = self._refused or bool(delta.refusal)
        for call in delta.tool_calls or ():
            self._grow(call)

    def _add(self, kind: str, text: str) -> None:
        if not text:
            return
        if kind == "text":
            self._text.append(text)
            self._on_delta(Delta("text", text))
        else:
            self._reasoning.append(text)
            self._on_delta(Delta("reasoning", text))

    def _grow(self, delta: _ToolCallDelta) -> None:
        call = self._call_of(delta)
        function = delta.function or _Function()
        # some servers send the name in pieces, others whole with every delta
        if function.name and function.name != call.name:
            call.name += function.name
        if isinstance(function.arguments, str):
            call.arguments.append(function.arguments)
        elif function.arguments is not None:
            call.arguments.append(json.dumps(function.arguments))

    def _call_of(self, delta: _ToolCallDelta) -> _Call:
        """The call that a delta belongs to; a new one if none does."""
        known = self._known_call(delta)
        if known is None:
            known = _Call(delta.index, delta.id)
            self._calls.append(known)
        return known

    def _known_call(self, delta: _ToolCallDelta) -> _Call | None:
        """A new id with a name begins a call, whatever the index says: some servers give every call index 0, others a
        new id to every delta. Without id and index, a name begins one."""
        begins = delta.function is not None and bool(delta.function.name)
        if delta.id:
            known = next((call for call in self._calls if call.id == delta.id), None)
            if known is not None or begins:
                return known
        if delta.index is not None:
            return next((call for call in reversed(self._calls) if call.index == delta.index), None)
        return self._calls[-1] if self._calls and not begins else None

    def _finish_reason(self) -> FinishReason:
        reason = _FINISH.get(self._finish, "other")
        if self._refused:
            return "refusal"
        if self._calls and reason in ("stop", "other"):
            return "toolCalls"
        return reason


def _plain(content: JsonValue) -> str:
    """Text, or the text of a list of parts as some servers send it."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_plain(part) for part in content)
    if isinstance(content, dict):
        return _plain(content.get("text"))
    return ""


def _call_part(call: _Call) -> ToolCallPart:
    args, raw_args = read_arguments("".join(call.arguments))
    return ToolCallPart(tool_call_id=call.id, tool_name=call.name, args=args, raw_args=raw_args)


def _usage(usage: _Usage | None) -> Usage:
    """All zero if the server told nothing."""
    if usage is None:
        return Usage()
    sent, generated = usage.prompt_tokens or 0, usage.completion_tokens or 0
    reasoning = (usage.completion_tokens_details or _CompletionDetails()).reasoning_tokens or 0
    cached = (usage.prompt_tokens_details or _PromptDetails()).cached_tokens or usage.prompt_cache_hit_tokens or 0
    if reasoning and usage.total_tokens == sent + generated + reasoning:
        generated += reasoning  # a server that does not count its reasoning as generated
    return Usage(
        input_tokens=sent,
        output_tokens=generated,
        reasoning_tokens=reasoning,
        total_tokens=usage.total_tokens or sent + generated,
        cached_input_tokens=cached,
    )


def _error(error: _Error | str) -> ProviderError:
    return stream_error(error, None) if isinstance(error, str) else stream_error(error.message, error.code)
