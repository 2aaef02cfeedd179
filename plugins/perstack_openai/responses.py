"""The request side of the Responses API, as pure functions: a request to bytes. `responses_reply` is the other side.

Nothing is stored at the vendor: each request holds the whole conversation, with the reasoning as encrypted items.

Source: OpenAI API reference, «Responses», section «Create a model response»; guides «Reasoning models», section
«Encrypted reasoning items», «Function calling» and «Conversation state».
"""

from __future__ import annotations

import json
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
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from perstack.core.tools import ToolSpec, legal_tool_name
from perstack.dataclass import dataclass
from perstack.ports.provider import GenerationRequest
from perstack_http.parts import arguments_of, legal_id
from perstack_http.transcript import Items, body_of, head_of, transcript_of
from perstack_openai.dialect import Dialect, effort_of, marked, shown


def encode_responses(request: GenerationRequest, dialect: Dialect, blobs: Mapping[str, bytes]) -> bytes:
    """The body of `POST /responses`. Of two requests of one Run the later one's bytes extend the earlier's.

    `blobs` need hold only what `items_of_responses` lacks.
    """
    items = items_of_responses(request, dialect)
    items.extend(request.messages, blobs)
    return body_of(head_of(request, "responses", dialect, lambda: _head(request, dialect)), items.parts)


def items_of_responses(request: GenerationRequest, dialect: Dialect) -> Items:
    """The Run's items as far as they are written for this server."""

    def write(message: Message, blobs: Mapping[str, bytes]) -> list[JsonObject]:
        return _items(message, _Contents(dialect, blobs))

    return transcript_of(request, ("responses", dialect), Items, lambda: write)


def _head(request: GenerationRequest, dialect: Dialect) -> JsonObject:
    head: JsonObject = {"model": request.model, "stream": True, "store": False}
    limits: JsonObject = {
        "max_output_tokens": dialect.most_tokens(request),
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
        head["text"] = {"format": {"type": "json_schema", **schema}}
    if request.instruction.strip():
        head["instructions"] = request.instruction
    return {**head, "input": []}


def _reasoning(request: GenerationRequest, dialect: Dialect) -> JsonObject:
    if not dialect.reasons(request.model):
        return {}  # such models refuse both fields
    wanted = {
        "effort": effort_of(request.model, request.reasoning_budget, dialect),
        "summary": dialect.reasoning_summary,
    }
    said: JsonObject = {name: value for name, value in wanted.items() if value is not None}
    include: JsonObject = {"include": ["reasoning.encrypted_content"]}
    return {"reasoning": said, **include} if said else include


def _tool(spec: ToolSpec) -> JsonObject:
    parameters: JsonObject = {"type": "object", **spec.input_schema}
    about: JsonObject = {"description": spec.description} if spec.description else {}
    # strict is on if nothing is said, and refuses most schemas of MCP servers
    return {"type": "function", "name": spec.name, **about, "parameters": parameters, "strict": False}


def _items(message: Message, contents: _Contents) -> list[JsonObject]:
    match message:
        case UserMessage():
            return [{"type": "message", "role": "user", "content": contents.of(message.contents)}]
        case ToolMessage():
            return [_result(result, contents) for result in message.contents]
        case ExpertMessage():
            return _reply(message, contents.dialect.vendor)
        case _:
            assert_never(message)


def _reply(message: ExpertMessage, vendor: str) -> list[JsonObject]:
    """The items of a reply, in the order in which they came."""
    found: list[JsonObject] = []
    phase: JsonObject = {}
    for part in message.contents:
        match part:
            case TextPart():
                if part.text.strip():
                    found.append({"type": "message", "role": "assistant", "content": part.text, **phase})
                phase = {}
            case ToolCallPart():
                found.append(_call(part))
            case ThinkingPart():
                ours = (part.opaque or {}).get(vendor)
                if isinstance(ours, dict) and "phase" in ours:
                    phase = ours
                elif isinstance(ours, dict):
                    found.append({"type": "reasoning", **ours})
            case _:
                assert_never(part)
    # the API refuses reasoning without what it led to, which a reply that was too long can lack
    while found and found[-1]["type"] == "reasoning":
        found.pop()
    return found


def _call(part: ToolCallPart) -> JsonObject:
    return {
        "type": "function_call",
        "call_id": legal_id(part.tool_call_id),
        "name": legal_tool_name(part.tool_name),
        "arguments": json.dumps(arguments_of(part), ensure_ascii=False),
    }


def _result(result: ToolResultPart, contents: _Contents) -> JsonObject:
    output = contents.of(result.contents)
    if isinstance(output, str):
        output = marked(result, output)
    elif isinstance(output, list) and result.is_error:
        told: list[JsonValue] = [{"type": "input_text", "text": "Error:"}]
        output = told + output
    return {"type": "function_call_output", "call_id": legal_id(result.tool_call_id), "output": output}


@dataclass(frozen=True, slots=True)
class _Contents:
    """Writes contents as one server takes them."""

    dialect: Dialect
    blobs: Mapping[str, bytes]

    def of(self, contents: Iterable[ResultContent]) -> JsonValue:
        """Text alone as a string, which every server takes; else parts."""
        parts: list[JsonObject] = [
            {"type": "input_text", "text": part.text} if isinstance(part, TextPart) else self._blob(part)
            for part in contents
        ]
        if all(part["type"] == "input_text" for part in parts):
            return "".join(str(part["text"]) for part in parts)
        return [*parts]

    def _blob(self, part: BlobPart) -> JsonObject:
        kind, value = shown(part, self.dialect, self.blobs)
        match kind:
            case "image":
                return {"type": "input_image", "image_url": value, "detail": "auto"}
            case "file":
                return {"type": "input_file", "filename": part.name or "document.pdf", "file_data": value}
            case "text":
                return {"type": "input_text", "text": value}
            case _:
                assert_never(kind)
