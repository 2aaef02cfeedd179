"""What single facts of the original say, in our shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import ValidationError

from perstack.core import run_facts
from perstack.core.base import Fact
from perstack.core.messages import ExpertMessage, ReplyPart, TextPart, ThinkingPart, ToolCallPart
from perstack.core.todos import Todo
from perstack.core.tools import DecidedCall, ToolKind
from perstack_original import shapes as theirs

_BASE_KINDS: dict[str, ToolKind] = {
    "todo": "todo",
    "clearTodo": "clearTodo",
    "attemptCompletion": "attemptCompletion",
}


class _Remaining(Fact):
    remaining_todos: tuple[Todo, ...] = ()


def last_message(checkpoint: theirs.Checkpoint | None) -> str:
    """The id of the last message that was known there; empty if there is none."""
    return checkpoint.messages[-1].id if checkpoint and checkpoint.messages else ""


def query_of(start: theirs.Event) -> str:
    """The text of the user's message that a run begins with; none if it only goes on."""
    return "".join(_text(message) for message in start.input_messages or () if message.type == "userMessage")


def answer_of(start: theirs.Event) -> str:
    """The text of the results that a run begins with."""
    partial = start.initial_checkpoint.partial_tool_results if start.initial_checkpoint else ()
    return "\n".join("".join(part.text or "" for part in result.result) for result in partial)


def instruction_of(messages: Iterable[theirs.Message]) -> str:
    """The text of the instruction among these messages; empty if there is none."""
    return next((_text(message) for message in messages if message.type == "instructionMessage"), "")


def _text(message: theirs.Message) -> str:
    return "".join(part.text or "" for part in message.contents)


def callees_of(event: theirs.Event) -> tuple[theirs.Callee, ...]:
    """The delegates that a run waits for after this."""
    return event.checkpoint.delegate_to if event.checkpoint else ()


def result_order(events: Sequence[theirs.Event], reply: theirs.Event) -> dict[str, int]:
    """The place of each result in the message that answers this reply."""
    asked = {call.id for call in reply.tool_calls or ()}
    messages = (message for event in events for message in event.new_messages or ())
    ids = [part.tool_call_id for message in messages for part in message.contents if part.tool_call_id in asked]
    return {str(call_id): index for index, call_id in enumerate(ids)}


def decided(part: ToolCallPart, skill: str, events: Sequence[theirs.Event]) -> DecidedCall:
    """A call of a reply, and of which kind the events that followed show it to be."""
    kind: ToolKind = "tool"
    if part.tool_name in _BASE_KINDS and skill in ("@perstack/base", ""):
        kind = _BASE_KINDS[part.tool_name]
    for event in events:
        if event.type == "callDelegate" and any(call.id == part.tool_call_id for call in event.tool_calls or ()):
            kind = "delegate"
        if event.type == "callInteractiveTool" and event.tool_call and event.tool_call.id == part.tool_call_id:
            kind = "interactive"
    return DecidedCall(id=part.tool_call_id, tool_name=part.tool_name, skill_name=skill, kind=kind)


def expert_message(message: theirs.Message | None) -> ExpertMessage:
    """A reply; an empty one for none."""
    return ExpertMessage(contents=tuple(_reply_part(part) for part in (message.contents if message else ())))


def _reply_part(part: theirs.Part) -> ReplyPart:
    if part.type == "toolCallPart":
        return ToolCallPart(tool_call_id=part.tool_call_id or "", tool_name=part.tool_name or "", args=part.args or {})
    if part.type == "thinkingPart":
        return ThinkingPart(thinking=part.thinking or "")
    return TextPart(text=part.text or "")


def remaining_todos(result: Iterable[theirs.Part]) -> tuple[Todo, ...]:
    """The todos that kept an Expert from completing, as the tool's result has them."""
    try:
        return _Remaining.model_validate_json("".join(part.text or "" for part in result)).remaining_todos
    except ValidationError:
        return ()


def error_of(event: theirs.Event) -> run_facts.ErrorInfo:
    """Why a run stopped, as far as its last event says."""
    error = event.error or {}
    return run_facts.ErrorInfo(
        name=str(error.get("name", "Error")), message=str(error.get("message", event.reason or "unknown"))
    )
