"""What the embedded model is told: a short chat, and how its replies are read.

A model this small makes no usable calls from llama.cpp's own `tools`. So with tools offered the reply is held to a
grammar and is always one call, as the prompt shows one of each tool; without, it is free text. If no tool can end the
Run, one more is offered, whose text is the reply.

Pure. The chat of a longer history begins with the chat of a shorter one, so that llama.cpp's prompt cache holds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Literal

from pydantic import JsonValue

from perstack.core.base import JsonObject
from perstack.core.events import FinishReason
from perstack.core.messages import ExpertMessage, Message, TextPart, ToolCallPart, ToolResultPart, UserMessage, text_of
from perstack.core.results import placed_below
from perstack.core.tools import NO_ARGUMENTS, ToolSpec
from perstack.dataclass import dataclass
from perstack_local.grammar import grammar_of, grammar_of_object, is_schema, json_text

MAX_DESCRIPTION = 120
"""Characters of a tool's description that the model is shown: its first sentence."""

MAX_RESULT = 3_000
"""Characters of a tool's result that the model is shown, head and tail."""

ANSWER = "answer"
"""The tool that is offered when no other can end the Run."""

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
    """One turn of the chat, as the model's own template takes it."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """Everything that a reply is made from. With `grammar` None the reply is any text."""

    messages: tuple[ChatMessage, ...]
    grammar: str | None
    answer_tool: str | None
    """The name of the tool that stands for a reply without a call, if one was offered."""
    is_call: bool = False
    """Whether the reply is a call; else it is a text."""


def prompt_of(
    instruction: str,
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    *,
    allow_tools: bool = True,
    output: JsonObject | None = None,
) -> Prompt:
    """The chat for one generation. With `allow_tools` false the tools are shown all the same, for the prefix's sake.

    `output` is the schema that the result has to fit: where the reply is the result, it is held to that.
    """
    offered, answer_tool = _offered(tools, output)
    chat = [ChatMessage("system", _system(instruction, offered))]
    chat += [turn for message in messages if (turn := _turn(message)).content]
    if not offered or allow_tools:
        grammar = grammar_of((tool.name, tool.input_schema) for tool in offered) if offered else _shape(output)
        return Prompt(_alternating(chat), grammar, answer_tool, is_call=bool(offered))
    told = _NO_CALL if output is None else _NO_CALL_BUT_JSON
    return Prompt(_alternating([*chat, ChatMessage("user", told)]), _shape(output), None)


def _shape(output: JsonObject | None) -> str | None:
    return None if output is None else grammar_of_object(output)


def reply_of(
    text: str, prompt: Prompt, finish_reason: FinishReason, call_id: str
) -> tuple[ExpertMessage, FinishReason]:
    """What the model's text means: a call, or text; and why the reply ended.

    A call that was cut off by the token limit keeps what there is of it in `raw_args`.
    """
    if not prompt.is_call:
        return ExpertMessage(contents=(TextPart(text=text.strip()),)), finish_reason
    name, args = _call(text)
    if args is None:
        part = ToolCallPart(tool_call_id=call_id, tool_name=name, raw_args=text)
        return ExpertMessage(contents=(part,)), finish_reason
    if name == prompt.answer_tool:
        said = args.get("text", "")
        return ExpertMessage(contents=(TextPart(text=said if isinstance(said, str) else json_text(said)),)), "stop"
    call = ToolCallPart(tool_call_id=call_id, tool_name=name, args=args)
    return ExpertMessage(contents=(call,)), "toolCalls"


def shortened(text: str, limit: int = MAX_RESULT) -> str:
    """Text of at most about `limit` characters: two thirds from its head and a third from its tail."""
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    return f"{text[:head]}\n[{len(text) - head - tail} characters left out]\n{text[-tail:]}"


def _offered(tools: Sequence[ToolSpec], output: JsonObject | None) -> tuple[Sequence[ToolSpec], str | None]:
    """The tools in the order they are shown, and the name of the answer's if it is among them.

    What ends the Run comes last: shown first, it is called before the work is done. It takes no result that has to fit
    a schema: the generation that follows writes that.
    """
    tools = sorted(tools, key=lambda tool: tool.kind == "attemptCompletion")
    if not tools:
        return tools, None
    if tools[-1].kind == "attemptCompletion":
        bare = tools[-1] if output is None else tools[-1].model_copy(update={"input_schema": NO_ARGUMENTS})
        return [*tools[:-1], bare], None
    schema: JsonObject = _ANSWER_SCHEMA
    placed = None if output is None else placed_below(output, "#/properties/text")
    if placed is not None:
        schema = {"type": "object", "properties": {"text": placed}, "required": ["text"]}
    name = ANSWER
    while any(tool.name == name for tool in tools):
        name += "_"
    return [*tools, ToolSpec(name=name, description="Give the final answer.", input_schema=schema)], name


def _system(instruction: str, tools: Sequence[ToolSpec]) -> str:
    if not tools:
        return instruction.strip()
    calls = (line for tool in tools for line in (f"- {_sample_call(tool)}", f"  {_first_sentence(tool.description)}"))
    return "\n".join([instruction.strip(), "", _PROTOCOL, *calls]).rstrip()


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s|\n", text.strip(), maxsplit=1)[0][:MAX_DESCRIPTION]


def _sample_call(tool: ToolSpec) -> str:
    """A call with every argument, each a placeholder: a value that means something would be copied into real calls."""
    properties = tool.input_schema.get("properties")
    members = properties.items() if isinstance(properties, dict) else ()
    return call_text(tool.name, {name: _placeholder(name, schema) for name, schema in members})


def _placeholder(name: str, schema: JsonValue) -> JsonValue:
    """A value of the schema's type. Text is what the schema says of it, or else its name."""
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
    told = schema.get("description")
    hint = _first_sentence(told).rstrip(".") if isinstance(told, str) else name
    return samples.get(str(schema.get("type")), f"<{hint}>")


def call_text(name: str, args: JsonObject) -> str:
    """A call as the grammar spells it."""
    return json_text({"tool": name, "args": args})


def _turn(message: Message) -> ChatMessage:
    match message:
        case UserMessage():
            return ChatMessage("user", text_of(message.contents))
        case ExpertMessage():
            calls = [part.raw_args or call_text(part.tool_name, part.args) for part in message.tool_calls]
            return ChatMessage("assistant", "\n".join(filter(None, [message.text, *calls])))
        case _:
            return ChatMessage("user", "\n".join(_result(part) for part in message.contents))


def _result(part: ToolResultPart) -> str:
    word = "Error of" if part.is_error else "Result of"
    return f"{word} {part.tool_name}: {shortened(text_of(part.contents)) or 'done'}"


def _alternating(chat: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """The chat with neighbours of one role joined: many models' templates refuse two in a row."""
    joined: list[ChatMessage] = []
    for turn in chat:
        if joined and joined[-1].role == turn.role:
            turn = ChatMessage(turn.role, f"{joined.pop().content}\n\n{turn.content}")
        joined.append(turn)
    return tuple(joined)


def _call(text: str) -> tuple[str, JsonObject | None]:
    """The tool's name, as far as it is there, and its arguments, if they are whole."""
    try:
        found: JsonValue = json.loads(text)
    except ValueError:
        match = re.match(r'\s*\{"tool": "([^"]*)"', text)
        return (match.group(1) if match else "unknown"), None
    if not isinstance(found, dict):
        return "unknown", None
    args = found.get("args")
    return str(found.get("tool", "unknown")), args if isinstance(args, dict) else None
