"""Short constructors of messages and requests, for tests of codecs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perstack.core.definitions.skills import ToolSpec
from perstack.core.messages.messages import (
    BlobPart,
    History,
    Message,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    UserMessage,
)
from perstack.ports.provider import GenerationRequest

TOOLS = (
    ToolSpec(name="read", description="Reads.", input_schema={"type": "object", "properties": {"path": {}}}),
    ToolSpec(name="bare", input_schema={}),
)


async def _no_blobs(sha256: str) -> bytes:
    raise AssertionError(f"nobody should read blob {sha256}")


def user(text: str) -> UserMessage:
    return UserMessage(contents=(TextPart(text=text),))


def call(call_id: str = "call_1", name: str = "read", **rest: Any) -> ToolCallPart:
    return ToolCallPart(tool_call_id=call_id, tool_name=name, **rest)


def result(call_id: str, *contents: TextPart | BlobPart, is_error: bool = False) -> ToolResultPart:
    return ToolResultPart(tool_call_id=call_id, tool_name="read", contents=contents, is_error=is_error)


def request_to(model: str, *messages: Message, **rest: Any) -> GenerationRequest:
    """Return a request with TOOLS, and with a query if there are no messages."""
    arguments: dict[str, Any] = {"model": model, "instruction": "You are terse.", "tools": TOOLS, **rest}
    return GenerationRequest(messages=History(messages or (user("hi"),)), blobs=_no_blobs, **arguments)


def plain(value: Any) -> Any:
    """Return a document parsed by an SDK with its iterables as lists, for comparison."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [plain(item) for item in value]
    return value
