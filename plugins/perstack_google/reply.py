"""The reply side of streamGenerateContent: the data of a stream's events to a reply.

Source: Gemini API reference, «Generating content» (`GenerateContentResponse`, `Candidate`, `UsageMetadata`), and
«Thought signatures».
"""

from __future__ import annotations

import json
from collections.abc import Callable

from pydantic import Field, JsonValue, ValidationError

from perstack.core.base import JsonObject
from perstack.core.events import FinishReason
from perstack.core.messages import ExpertMessage, ReplyPart, TextPart, ThinkingPart, ToolCallPart
from perstack.core.usage import Usage
from perstack.ports.provider import Delta, Generation
from perstack_google.request import VENDOR
from perstack_http.errors import bad_response, cut_stream, delay_in, made_error
from perstack_http.parts import Text, Wire


class _Call(Wire):
    id: Text = ""
    name: Text = ""
    args: JsonValue = None


class _Part(Wire):
    """Every kind of part at once; what a kind does not have is empty."""

    text: str | None = None
    thought: bool | None = None
    signature: Text = Field(default="", alias="thoughtSignature")
    call: _Call | None = Field(default=None, alias="functionCall")


class _Content(Wire):
    parts: list[_Part] | None = None


class _Candidate(Wire):
    content: _Content | None = None
    finish_reason: Text = Field(default="", alias="finishReason")
    finish_message: Text = Field(default="", alias="finishMessage")


class _Usage(Wire):
    """The counts are cumulative: a later one replaces an earlier one, an absent one does not."""

    prompt: int | None = Field(default=None, alias="promptTokenCount")
    tool_use: int | None = Field(default=None, alias="toolUsePromptTokenCount")
    candidates: int | None = Field(default=None, alias="candidatesTokenCount")
    thoughts: int | None = Field(default=None, alias="thoughtsTokenCount")
    cached: int | None = Field(default=None, alias="cachedContentTokenCount")


class _Feedback(Wire):
    block_reason: Text = Field(default="", alias="blockReason")


class _Error(Wire):
    code: int = 500
    message: Text = ""
    status: Text = ""


class _Response(Wire):
    candidates: list[_Candidate] | None = None
    usage: _Usage | None = Field(default=None, alias="usageMetadata")
    feedback: _Feedback | None = Field(default=None, alias="promptFeedback")
    error: _Error | None = None


_FINISH: dict[str, FinishReason] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "CONTINUATION": "length",
    **dict.fromkeys(
        (
            "SAFETY",
            "RECITATION",
            "LANGUAGE",
            "BLOCKLIST",
            "PROHIBITED_CONTENT",
            "SPII",
            "IMAGE_SAFETY",
            "IMAGE_PROHIBITED_CONTENT",
            "IMAGE_RECITATION",
            "MODEL_ARMOR",
            "ESCALATION",
            "PUP_LIMITED_DISABLED",
        ),
        "refusal",
    ),
}

_INVALID = frozenset({"MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL"})
"""The model's mistakes in the form of a reply, of which nothing is left: it makes them seldom twice."""


class ReplyDecoder:
    """Puts a reply together from the data of its events.

    A text has no room for a signature: one that came with it is kept in an empty ThinkingPart before it.
    """

    def __init__(self, on_delta: Callable[[Delta], None]) -> None:
        self._on_delta = on_delta
        self._parts: list[_Part] = []
        self._texts: list[list[str]] = []
        """The pieces of each part's text, joined at the end."""
        self._counts: dict[str, int] = {}
        self._ending: _Candidate | None = None
        self._blocked = ""

    def feed(self, data: str) -> bool:
        """Take one event; true if it was the last. Raises ProviderError if it tells of one."""
        response = _read(data)
        if response.error is not None:
            found = response.error
            raise made_error(found.message or found.status, found.code, retry_after=delay_in(data))
        if response.usage is not None:
            self._counts.update(response.usage.model_dump(exclude_none=True))
        if response.feedback is not None:
            self._blocked = response.feedback.block_reason or self._blocked
        for candidate in (response.candidates or ())[:1]:
            self._take(candidate)
        return self._is_whole and response.usage is not None

    def finish(self) -> Generation:
        """The reply. Raises ProviderError if the stream ended before it did, or is invalid."""
        if not self._is_whole:
            raise cut_stream("no finishReason came")
        if self._ending is None:
            text = f"The prompt was blocked by Google: {self._blocked}"
            return Generation(ExpertMessage(contents=(TextPart(text=text),)), self._usage(), "refusal")
        if self._ending.finish_reason in _INVALID:
            detail = f"{self._ending.finish_reason} {self._ending.finish_message}".strip()
            raise bad_response(f"the model's reply is invalid: {detail}", retryable=True)
        parts = (
            part
            for piece, texts in zip(self._parts, self._texts, strict=True)
            for part in _finished(piece, "".join(texts))
        )
        reply = ExpertMessage(contents=tuple(parts))
        reason = _FINISH.get(self._ending.finish_reason, "other")
        return Generation(reply, self._usage(), "toolCalls" if reason == "stop" and reply.tool_calls else reason)

    @property
    def _is_whole(self) -> bool:
        return self._ending is not None or bool(self._blocked)

    def _take(self, candidate: _Candidate) -> None:
        for part in (candidate.content or _Content()).parts or ():
            self._show(part)
            if self._continues(part):
                self._texts[-1].append(part.text or "")
            elif part.call is not None or part.text or part.signature:
                self._parts.append(part)
                self._texts.append([part.text or ""])
        if candidate.finish_reason and candidate.finish_reason != "FINISH_REASON_UNSPECIFIED":
            self._ending = candidate

    def _continues(self, part: _Part) -> bool:
        """Whether a piece belongs to the part before it. What is signed stands for itself."""
        if not self._parts or part.call is not None or part.signature:
            return False
        last = self._parts[-1]
        return last.call is None and not last.signature and bool(last.thought) == bool(part.thought)

    def _show(self, part: _Part) -> None:
        if part.text and part.call is None:
            self._on_delta(Delta("reasoning" if part.thought else "text", part.text))

    def _usage(self) -> Usage:
        """Thoughts are counted apart by the API, and are output for us."""
        thoughts = self._counts.get("thoughts", 0)
        sent = self._counts.get("prompt", 0) + self._counts.get("tool_use", 0)
        generated = self._counts.get("candidates", 0) + thoughts
        return Usage.of(sent, generated, reasoning=thoughts, cached=self._counts.get("cached", 0))


def _read(data: str) -> _Response:
    try:
        return _Response.model_validate_json(data)
    except ValidationError as error:
        raise bad_response(
            f"an event is not as the Gemini API has it: {data[:200]}",
            retryable=True,
        ) from error


def _finished(piece: _Part, text: str) -> list[ReplyPart]:
    signed: JsonObject = {"signature": piece.signature} if piece.signature else {}
    if piece.call is not None:
        return [_call(piece.call, {VENDOR: signed} if signed else None)]
    if piece.thought:
        return [ThinkingPart(thinking=text, opaque={VENDOR: signed} if signed else None)]
    if not signed:
        return [TextPart(text=text)]
    mark = ThinkingPart(thinking="", opaque={VENDOR: {**signed, "on": "text" if text else "empty"}})
    return [mark, TextPart(text=text)] if text else [mark]


def _call(call: _Call, opaque: JsonObject | None) -> ToolCallPart:
    args = call.args if isinstance(call.args, dict) else {}
    raw_args = None if call.args is None or isinstance(call.args, dict) else json.dumps(call.args)
    return ToolCallPart(tool_call_id=call.id, tool_name=call.name, args=args, raw_args=raw_args, opaque=opaque)
