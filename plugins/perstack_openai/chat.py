"""The request side of Chat Completions, as pure functions: a request to bytes. `chat_reply` is the other side.

Source: OpenAI API reference, «Chat Completions», section «Create chat completion»; guides «Images and vision» and
«File inputs».
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from pydantic import JsonValue

from perstack.core.base import JsonObject
from perstack.core.definitions import ReasoningBudget
from perstack.core.messages import (
    BlobPart,
    ExpertMessage,
    Message,
    ResultContent,
    TextPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from perstack.core.tools import ToolSpec, legal_tool_name
from perstack.ports.provider import GenerationRequest
from perstack_http.parts import (
    IMAGE_TYPES,
    PDF,
    arguments_of,
    as_base64,
    in_place_of,
    is_text,
    legal_id,
    to_bytes,
)

_LOW_TOKENS = 4_096
_MEDIUM_TOKENS = 12_288

_WITHOUT_REASONING = re.compile(r"gpt-(3|4)|chat-latest")
_TOOLS_ONLY_WITHOUT_REASONING = re.compile(r"^gpt-(5\.[4-9]|[6-9])")
"""Models that refuse tools over Chat Completions unless the effort is said to be none."""

_NEAREST_EFFORT: tuple[tuple[re.Pattern[str], Mapping[str, str]], ...] = (
    (re.compile(r"^o\d"), {"none": "low", "minimal": "low"}),
    (re.compile(r"^gpt-5(-|$)"), {"none": "minimal"}),
    (re.compile(r"^gpt-(5\.|[6-9])"), {"minimal": "low"}),
)
"""Where a family of OpenAI's own models lacks an effort, the nearest one that it has.

Source: OpenAI documentation, «Reasoning models», section «Reasoning effort»."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """In what one server's Chat Completions differ from another's, and what the user has set."""

    is_openai: bool = True
    takes_images: bool = True
    takes_documents: bool = True
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None


def encode_chat(request: GenerationRequest, dialect: Dialect, blobs: Mapping[str, bytes]) -> bytes:
    """The body of `POST /chat/completions`. Of two requests of one Run the later one's bytes extend the earlier's."""
    body: JsonObject = {"model": request.model, "stream": True, "stream_options": {"include_usage": True}}
    if dialect.max_tokens is not None:
        # compatible servers know the older name; OpenAI's reasoning models refuse it
        body["max_completion_tokens" if dialect.is_openai else "max_tokens"] = dialect.max_tokens
    if dialect.temperature is not None:
        body["temperature"] = dialect.temperature
    if dialect.top_p is not None:
        body["top_p"] = dialect.top_p
    effort = _effort(request, dialect)
    if effort is not None:
        body["reasoning_effort"] = effort
    if request.tools:
        body["tools"] = [_tool(spec) for spec in request.tools]
    if request.tools and not request.allow_tools:
        body["tool_choice"] = "none"
    body["messages"] = _messages(request.instruction, request.messages, _Contents(dialect, blobs))
    return to_bytes(body)


def _effort(request: GenerationRequest, dialect: Dialect) -> str | None:
    budget, model = request.reasoning_budget, request.model
    if not dialect.is_openai:
        return None if budget is None else _effort_word(budget)
    if _WITHOUT_REASONING.search(model):
        return None
    if budget is None:
        return "none" if request.tools and _TOOLS_ONLY_WITHOUT_REASONING.search(model) else None
    word = _effort_word(budget)
    for family, nearest in _NEAREST_EFFORT:
        if family.search(model):
            return nearest.get(word, word)
    return word


def _effort_word(budget: ReasoningBudget) -> str:
    if not isinstance(budget, int):
        return budget
    if budget == 0:
        return "none"
    if budget <= _LOW_TOKENS:
        return "low"
    return "medium" if budget <= _MEDIUM_TOKENS else "high"


def _tool(spec: ToolSpec) -> JsonObject:
    parameters: JsonObject = {"type": "object", **spec.input_schema}
    about: JsonObject = {"description": spec.description} if spec.description else {}
    return {"type": "function", "function": {"name": spec.name, **about, "parameters": parameters}}


def _messages(instruction: str, messages: Sequence[Message], contents: _Contents) -> list[JsonValue]:
    found: list[JsonValue] = []
    if instruction.strip():
        found.append({"role": "system", "content": instruction})
    for message in messages:
        match message:
            case UserMessage():
                found.append({"role": "user", "content": contents.of(message.contents)})
            case ToolMessage():
                found += _results(message, contents)
            case ExpertMessage():
                found += _reply(message)
            case _:
                assert_never(message)
    return found


def _reply(message: ExpertMessage) -> list[JsonValue]:
    calls: list[JsonValue] = [
        {
            "id": legal_id(call.tool_call_id),
            "type": "function",
            "function": {
                "name": legal_tool_name(call.tool_name),
                "arguments": json.dumps(arguments_of(call), ensure_ascii=False),
            },
        }
        for call in message.tool_calls
    ]
    text = message.text
    if not calls:
        return [{"role": "assistant", "content": text}] if text.strip() else []
    return [{"role": "assistant", "content": text or None, "tool_calls": calls}]


def _results(message: ToolMessage, contents: _Contents) -> list[JsonValue]:
    """One message each. What a tool message cannot hold follows all of them, as if a person had sent it."""
    found: list[JsonValue] = []
    shown: list[JsonValue] = []
    for result in message.contents:
        parts = contents.parts(result.contents)
        words = [part["text"] for part in parts if part["type"] == "text"]
        others = [part for part in parts if part["type"] != "text"]
        if others:
            words.append(f"[{len(others)} attached: see the next message]")
            label = f"What {result.tool_name} ({legal_id(result.tool_call_id)}) returned:"
            shown.append({"type": "text", "text": label})
            shown.extend(others)
        text = "\n".join(str(word) for word in words)
        found.append({"role": "tool", "tool_call_id": legal_id(result.tool_call_id), "content": _marked(result, text)})
    return [*found, {"role": "user", "content": shown}] if shown else found


def _marked(result: ToolResultPart, text: str) -> str:
    """There is no flag for an error: it must be read from the text."""
    is_told = not result.is_error or text.lower().startswith("error")
    return text if is_told else f"Error: {text}"


@dataclass(frozen=True, slots=True)
class _Contents:
    """Writes contents as one server takes them."""

    dialect: Dialect
    blobs: Mapping[str, bytes]

    def of(self, contents: Iterable[ResultContent]) -> JsonValue:
        """Text alone as a string, which every server takes; else parts."""
        parts = self.parts(contents)
        if all(part["type"] == "text" for part in parts):
            return "".join(str(part["text"]) for part in parts)
        return [*parts]

    def parts(self, contents: Iterable[ResultContent]) -> list[JsonObject]:
        """Each as a part of type `text`, `image_url` or `file`."""
        return [
            {"type": "text", "text": part.text} if isinstance(part, TextPart) else self._blob(part) for part in contents
        ]

    def _blob(self, part: BlobPart) -> JsonObject:
        content = self.blobs.get(part.sha256, b"")
        if content and is_text(part.mime_type):
            return {"type": "text", "text": content.decode("utf-8", "replace")}
        address = f"data:{part.mime_type};base64,{as_base64(content)}"
        if content and self.dialect.takes_images and part.mime_type in IMAGE_TYPES:
            return {"type": "image_url", "image_url": {"url": address}}
        if content and self.dialect.takes_documents and part.mime_type == PDF:
            return {"type": "file", "file": {"filename": part.name or "document.pdf", "file_data": address}}
        return {"type": "text", "text": in_place_of(part)}
