"""The request side of Chat Completions, as pure functions: a request to bytes. `chat_reply` is the other side.

Source: OpenAI API reference, «Chat Completions», section «Create chat completion»; guides «Images and vision» and
«File inputs».
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import assert_never

from pydantic import JsonValue

from perstack.core.base import JsonObject
from perstack.core.messages import (
    BlobPart,
    ExpertMessage,
    Message,
    ResultContent,
    TextPart,
    ThinkingPart,
    ToolMessage,
    UserMessage,
)
from perstack.core.tools import ToolSpec, legal_tool_name
from perstack.dataclass import dataclass
from perstack.ports.provider import GenerationRequest
from perstack_http.parts import arguments_of, legal_id
from perstack_http.transcript import Items, body_of, head_of, transcript_of
from perstack_openai.dialect import Dialect, effort_of, marked, shown

_TOOLS_ONLY_WITHOUT_REASONING = re.compile(r"^gpt-(5\.[4-9]|[6-9])")
"""Models that refuse tools over Chat Completions unless the effort is said to be none."""


def encode_chat(request: GenerationRequest, dialect: Dialect, blobs: Mapping[str, bytes]) -> bytes:
    """The body of `POST /chat/completions`. Of two requests of one Run the later one's bytes extend the earlier's.

    `blobs` need hold only what `items_of_chat` lacks.
    """
    items = items_of_chat(request, dialect)
    items.extend(request.messages, blobs)
    return body_of(head_of(request, "chat", dialect, lambda: _head(request, dialect)), items.parts)


def items_of_chat(request: GenerationRequest, dialect: Dialect) -> Items:
    """The Run's messages as far as they are written for this server."""

    def write(message: Message, blobs: Mapping[str, bytes]) -> list[JsonObject]:
        return _message(message, _Contents(dialect, blobs))

    return transcript_of(request, ("chat", dialect), Items, lambda: write)


def _head(request: GenerationRequest, dialect: Dialect) -> JsonObject:
    head: JsonObject = {"model": request.model, "stream": True, "stream_options": {"include_usage": True}}
    limits: JsonObject = {
        # compatible servers know the older name; OpenAI's reasoning models refuse it
        "max_completion_tokens" if dialect.is_openai else "max_tokens": dialect.most_tokens(request),
        "temperature": dialect.temperature_for(request),
        "top_p": dialect.top_p,
    }
    head.update({name: value for name, value in limits.items() if value is not None})
    head.update(_reasoning(request, dialect))
    if request.tools:
        head["tools"] = [_tool(spec) for spec in request.tools]
    if request.tools and not request.allow_tools:
        head["tool_choice"] = "none"
    schema = dialect.schema_format(request)
    if schema is not None:
        head["response_format"] = {"type": "json_schema", "json_schema": schema}
    head["messages"] = [{"role": "system", "content": request.instruction}] if request.instruction.strip() else []
    return head


def _reasoning(request: GenerationRequest, dialect: Dialect) -> JsonObject:
    """How much to think; DeepSeek has a switch besides. Source: DeepSeek API guide, «Thinking Mode»."""
    effort = effort_of(request.model, request.reasoning_budget, dialect)
    if effort is None:
        needs_none = dialect.is_openai and request.reasoning_budget is None and request.tools
        return {"reasoning_effort": "none"} if needs_none and _refuses_tools(request.model, dialect) else {}
    if dialect.vendor != "deepseek":
        return {"reasoning_effort": effort}
    if effort == "none":
        return {"thinking": {"type": "disabled"}}
    return {"thinking": {"type": "enabled"}, "reasoning_effort": effort}


def _refuses_tools(model: str, dialect: Dialect) -> bool:
    return dialect.reasons(model) and _TOOLS_ONLY_WITHOUT_REASONING.search(model) is not None


def _tool(spec: ToolSpec) -> JsonObject:
    parameters: JsonObject = {"type": "object", **spec.input_schema}
    about: JsonObject = {"description": spec.description} if spec.description else {}
    return {"type": "function", "function": {"name": spec.name, **about, "parameters": parameters}}


def _message(message: Message, contents: _Contents) -> list[JsonObject]:
    match message:
        case UserMessage():
            return [{"role": "user", "content": contents.of(message.contents)}]
        case ToolMessage():
            return _results(message, contents)
        case ExpertMessage():
            return _reply(message, contents.dialect)
        case _:
            assert_never(message)


def _reply(message: ExpertMessage, dialect: Dialect) -> list[JsonObject]:
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
    if not calls and not text.strip():
        return []
    reply: JsonObject = {"role": "assistant", "content": text if text or not calls else None}
    if dialect.vendor == "deepseek":
        # it refuses a history of tool calls without their reasoning, were it empty
        reply["reasoning_content"] = _thinking(message)
    if calls:
        reply["tool_calls"] = calls
    return [reply]


def _thinking(message: ExpertMessage) -> str:
    return "".join(part.thinking for part in message.contents if isinstance(part, ThinkingPart))


def _results(message: ToolMessage, contents: _Contents) -> list[JsonObject]:
    """One message each. What a tool message cannot hold follows all of them, as if a person had sent it."""
    found: list[JsonObject] = []
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
        found.append({"role": "tool", "tool_call_id": legal_id(result.tool_call_id), "content": marked(result, text)})
    return [*found, {"role": "user", "content": shown}] if shown else found


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
        kind, value = shown(part, self.dialect, self.blobs)
        match kind:
            case "image":
                return {"type": "image_url", "image_url": {"url": value}}
            case "file":
                return {"type": "file", "file": {"filename": part.name or "document.pdf", "file_data": value}}
            case "text":
                return {"type": "text", "text": value}
            case _:
                assert_never(kind)
