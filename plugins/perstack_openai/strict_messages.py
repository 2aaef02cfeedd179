"""Lists of messages for servers that refuse an order of roles, because the model's template requires alternation."""

from __future__ import annotations

import json
from typing import ClassVar

from pydantic import JsonValue
from typing_extensions import override

from perstack.core.base.records import JsonObject
from perstack.core.messages.messages import Message
from perstack.http_providers.messages import ListEncoder, Write, to_bytes

_USER, _TOOL = b'{"role":"user"', b'{"role":"tool"'


class AlternatingEncoder(ListEncoder):
    """Encoder that joins the user's messages in a row into one.

    The user's latest message is held back, since another may follow and be joined: only it may change between requests.
    """

    bridge: ClassVar[bytes] = b""  # text of a message between a tool's result and a user's message; empty for none

    def __init__(self, write: Write) -> None:
        super().__init__(write)
        self._held_message = b""
        self._is_after_tool = False

    @override
    def _add(self, message: Message, objects: list[bytes]) -> None:
        for item in objects:
            if not item.startswith(_USER):
                super()._add(message, [*self._take_held_message(), item])
                self._is_after_tool = item.startswith(_TOOL)
            elif self._held_message:
                self._held_message = _join_messages(self._held_message, item)
            else:
                super()._add(message, [self.bridge] if self.bridge and self._is_after_tool else [])
                self._held_message = item

    def _take_held_message(self) -> list[bytes]:
        message, self._held_message = self._held_message, b""
        return [message] if message else []

    @property
    @override
    def parts(self) -> tuple[bytes | bytearray, ...]:
        if not self._held_message:
            return super().parts
        return (self._json, b"," if self._json else b"", self._held_message)


class BridgingEncoder(AlternatingEncoder):
    """Encoder for servers that refuse a user's message right after a tool's result."""

    bridge: ClassVar[bytes] = b'{"role":"assistant","content":"OK."}'


def _join_messages(first: bytes, second: bytes) -> bytes:
    contents: list[JsonValue] = [json.loads(message)["content"] for message in (first, second)]
    if all(isinstance(content, str) for content in contents):
        return to_bytes({"role": "user", "content": "\n\n".join(map(str, contents))})
    parts = [part for content in contents for part in _to_parts(content)]
    return to_bytes({"role": "user", "content": parts})


def _to_parts(content: JsonValue) -> list[JsonValue]:
    if isinstance(content, list):
        return content
    text: JsonObject = {"type": "text", "text": content}
    return [text]
