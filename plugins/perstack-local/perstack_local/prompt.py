"""Prompts of the embedded model, and the interpretation of its replies.

A model this small makes no usable calls with llama.cpp's own `tools`. So with tools offered, a grammar restricts the
reply to one call, in the form that the prompt shows for each tool; otherwise the reply is free text. If no tool can end
the Run, an additional one is offered whose text is the reply.

Pure. The chat of a longer history begins with the chat of a shorter one, so that llama.cpp's prompt cache applies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Literal

from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.definitions.skills import NO_ARGUMENTS, ToolSpec
from perstack.core.messages.messages import (
    ExpertMessage,
    FinishReason,
    Message,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    UserMessage,
    text_of,
)
from perstack.core.schemas.result_schemas import move_schema
from perstack.dataclass import dataclass
from perstack_local.grammar import grammar_of, grammar_of_object, is_schema, json_text

MAX_DESCRIPTION_CHARS = 120  # characters of a tool's description (its first sentence) that the model is shown

MAX_RESULT_CHARS = 3_000  # characters of a tool's result that the model is shown, head and tail

ANSWER = "answer"  # name of the tool that is offered when no other can end the Run

_ANSWER_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"text": {"type": "string", "minLength": 1}},
    "required": ["text"],
}

_PROTOCOL = "You answer with one tool call and nothing else. The calls that you can make:"

_NO_CALL = "Do not call a tool now. Write the result for the user as plain text."
_NO_CALL_BUT_JSON = "Do not call a tool now. Write the result as one JSON object."


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """Message of the chat, in the form of the model's own template."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """Input of one generation. Without a grammar the reply is any text."""

    messages: tuple[ChatMessage, ...]
    grammar: str | None
    answer_tool: str | None  # name of the offered tool that means a reply without a call; None if there is none
    is_call: bool = False  # True if the reply is a call, False if it is text


def prompt_of(
    instruction: str,
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    *,
    allow_tools: bool = True,
    output: JsonObject | None = None,
) -> Prompt:
    """Build the chat; a reply that is the result must fit the schema `output`.

    Without `allow_tools` the tools are still shown, to keep the prefix.
    """
    offered, answer_tool = _order_tools(tools, output)
    chat = [ChatMessage("system", _system_text(instruction, offered))]
    chat += [turn for message in messages if (turn := _convert_message(message)).content]
    if not offered or allow_tools:
        grammar = grammar_of((tool.name, tool.input_schema) for tool in offered) if offered else _output_grammar(output)
        return Prompt(_join_roles(chat), grammar, answer_tool, is_call=bool(offered))
    notice = _NO_CALL if output is None else _NO_CALL_BUT_JSON
    return Prompt(_join_roles([*chat, ChatMessage("user", notice)]), _output_grammar(output), None)


def _output_grammar(output: JsonObject | None) -> str | None:
    return None if output is None else grammar_of_object(output)


def reply_of(
    text: str, prompt: Prompt, finish_reason: FinishReason, call_id: str
) -> tuple[ExpertMessage, FinishReason]:
    """Convert the model's text to a call or a text. A call that was cut off keeps its text in `raw_args`."""
    if not prompt.is_call:
        return ExpertMessage(contents=(TextPart(text=text.strip()),)), finish_reason
    name, args = _parse_call(text)
    if args is None:
        part = ToolCallPart(tool_call_id=call_id, tool_name=name, raw_args=text)
        return ExpertMessage(contents=(part,)), finish_reason
    if name == prompt.answer_tool:
        answer = args.get("text", "")
        text = answer if isinstance(answer, str) else json_text(answer)
        return ExpertMessage(contents=(TextPart(text=text),)), "stop"
    tool_call_part = ToolCallPart(tool_call_id=call_id, tool_name=name, args=args)
    return ExpertMessage(contents=(tool_call_part,)), "toolCalls"


def shorten(text: str, limit: int = MAX_RESULT_CHARS) -> str:
    """Shorten a text to about `limit` characters: two thirds from its head and a third from its tail."""
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    return f"{text[:head]}\n[{len(text) - head - tail} characters left out]\n{text[-tail:]}"


def _order_tools(tools: Sequence[ToolSpec], output: JsonObject | None) -> tuple[Sequence[ToolSpec], str | None]:
    """Return the tools in display order, and the name of the answer tool if it is among them.

    The tool that ends the Run comes last: shown first, it is called before the work is done.
    """
    tools = sorted(tools, key=lambda tool: tool.kind == "attemptCompletion")
    if not tools:
        return tools, None
    if tools[-1].kind == "attemptCompletion":
        last = tools[-1] if output is None else tools[-1].model_copy(update={"input_schema": NO_ARGUMENTS})
        return [*tools[:-1], last], None
    schema: JsonObject = _ANSWER_SCHEMA
    text_schema = None if output is None else move_schema(output, "#/properties/text")
    if text_schema is not None:
        schema = {"type": "object", "properties": {"text": text_schema}, "required": ["text"]}
    name = ANSWER
    while any(tool.name == name for tool in tools):
        name += "_"
    return [*tools, ToolSpec(name=name, description="Give the final answer.", input_schema=schema)], name


def _system_text(instruction: str, tools: Sequence[ToolSpec]) -> str:
    if not tools:
        return instruction.strip()
    calls = (line for tool in tools for line in (f"- {_sample_call(tool)}", f"  {_first_sentence(tool.description)}"))
    return "\n".join([instruction.strip(), "", _PROTOCOL, *calls]).rstrip()


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s|\n", text.strip(), maxsplit=1)[0][:MAX_DESCRIPTION_CHARS]


def _sample_call(tool: ToolSpec) -> str:
    """Return a call with a placeholder for every argument; meaningful values would be copied into real calls."""
    properties = tool.input_schema.get("properties")
    members = properties.items() if isinstance(properties, dict) else ()
    return call_text(tool.name, {name: _placeholder(name, schema) for name, schema in members})


def _placeholder(name: str, schema: JsonValue) -> JsonValue:
    """Return a value that shows an argument's type and meaning in a sample call."""
    if not is_schema(schema):
        return f"<{name}>"
    values = schema.get("enum")
    if isinstance(values, list):
        return "|".join(str(value) for value in values)
    if schema.get("type") == "array":
        return [_placeholder(name, schema.get("items"))]
    inner = schema.get("properties")
    if is_schema(inner):
        return {key: _placeholder(key, member) for key, member in inner.items()}
    samples: dict[str, JsonValue] = {"integer": 1, "number": 1.5, "boolean": True, "object": {}}
    description = schema.get("description")
    hint = _first_sentence(description).rstrip(".") if isinstance(description, str) else name
    return samples.get(str(schema.get("type")), f"<{hint}>")


def call_text(name: str, args: JsonObject) -> str:
    """Return a call as the grammar spells it."""
    return json_text({"tool": name, "args": args})


def _convert_message(message: Message) -> ChatMessage:
    match message:
        case UserMessage():
            return ChatMessage("user", text_of(message.contents))
        case ExpertMessage():
            calls = [part.raw_args or call_text(part.tool_name, part.args) for part in message.tool_calls]
            return ChatMessage("assistant", "\n".join(filter(None, [message.readable, *calls])))
        case _:
            return ChatMessage("user", "\n".join(_result_text(part) for part in message.contents))


def _result_text(part: ToolResultPart) -> str:
    label = "Error of" if part.is_error else "Result of"
    return f"{label} {part.tool_name}: {shorten(text_of(part.contents)) or 'done'}"


def _join_roles(chat: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Join adjacent messages of one role, because many models' templates reject them."""
    merged: list[ChatMessage] = []
    for turn in chat:
        if merged and merged[-1].role == turn.role:
            turn = ChatMessage(turn.role, f"{merged.pop().content}\n\n{turn.content}")
        merged.append(turn)
    return tuple(merged)


def _parse_call(text: str) -> tuple[str, JsonObject | None]:
    """Return the name and arguments of a call; None instead of the arguments if it was cut off or is not a call."""
    try:
        call: JsonValue = json.loads(text)
    except ValueError:
        match = re.match(r'\s*\{"tool": "([^"]*)"', text)
        return (match.group(1) if match else "unknown"), None
    if not isinstance(call, dict):
        return "unknown", None
    args = call.get("args")
    return str(call.get("tool", "unknown")), args if isinstance(args, dict) else None
