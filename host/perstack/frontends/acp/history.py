"""What was said in a Job, as updates that show it again when its session is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, assert_never

from acp.helpers import (
    SessionUpdate,
    start_tool_call,
    text_block,
    tool_content,
    update_agent_message_text,
    update_agent_thought_text,
    update_tool_call,
    update_user_message_text,
)

from perstack.core.messages import ExpertMessage, Message, TextPart, ThinkingPart, ToolMessage, UserMessage, text_of
from perstack.frontends.shared.words import brief, shorten

_TITLE = 120


def shown_again(messages: Iterable[Message]) -> Iterator[SessionUpdate]:
    """Queries, replies, calls with their results, in their order."""
    for number, message in enumerate(messages):
        match message:
            case UserMessage():
                yield update_user_message_text(text_of(message.contents))
            case ExpertMessage():
                yield from _reply(message, number)
            case ToolMessage():
                for result in message.contents:
                    content = [tool_content(text_block(text_of(result.contents)))]
                    status: Literal["failed", "completed"] = "failed" if result.is_error else "completed"
                    yield update_tool_call(f"{number - 1}-{result.tool_call_id}", status=status, content=content)
            case _:
                assert_never(message)


def _reply(message: ExpertMessage, number: int) -> Iterator[SessionUpdate]:
    for part in message.contents:
        if isinstance(part, TextPart):
            yield update_agent_message_text(part.text)
        elif isinstance(part, ThinkingPart):
            if part.thinking:
                yield update_agent_thought_text(part.thinking)
        else:
            title = shorten(f"{part.tool_name} {brief(part)}", _TITLE)
            yield start_tool_call(f"{number}-{part.tool_call_id}", title, status="completed", raw_input=part.args)
