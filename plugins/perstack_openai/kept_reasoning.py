"""Reasoning over Chat Completions: fields that an endpoint needs back with its reply, kept as its opaque data.

Servers send reasoning in different places: in a field of the message, in parts of its content, in tags at the start of
its text, as a signature on a call. `KeptFields` collects all of it while a reply arrives, under any name.
`OpaqueOwner` writes it into the parts of the reply under a key for the endpoint and the model, and reads it back only
for these, so that none of it is sent after a switch of either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.messages.messages import ExpertMessage, ThinkingPart, ToolCallPart
from perstack.dataclass import dataclass

_KEPT = re.compile(r"^(reasoning|thinking|thought)|^(extra_content|provider_specific_fields)$|signature$")
"""Fields of messages and calls that an endpoint needs back.

Source: DeepSeek, Moonshot, vLLM (`reasoning_content`, `reasoning`); OpenRouter (`reasoning_details`); Google's
compatible address (`extra_content`); LiteLLM (`thinking_blocks`, `provider_specific_fields`).
"""

_TEXTS = ("reasoning_content", "reasoning", "reasoning_text", "thinking")  # fields that hold readable reasoning

_GROWING = frozenset({"text", "summary", "thinking", "data"})  # text fields of a listed item that arrive in pieces


@dataclass(frozen=True, slots=True)
class OpaqueOwner:
    """The endpoint and model that can read their own opaque data."""

    endpoint: str
    model: str

    def data(self, fields: JsonObject) -> JsonObject | None:
        """Return the opaque data of a part; None without any field."""
        return {self.endpoint: {"model": self.model, **fields}} if fields and self.endpoint else None

    def fields(self, opaque: JsonObject | None) -> JsonObject:
        """Return the fields that came from this owner; empty for another owner's data."""
        own_data = (opaque or {}).get(self.endpoint)
        if not isinstance(own_data, dict) or own_data.get("model") != self.model:
            return {}
        return {name: value for name, value in own_data.items() if name != "model"}


def call_fields(part: ToolCallPart, opaque_owner: OpaqueOwner) -> JsonObject:
    """Return the fields to send back with a call."""
    return opaque_owner.fields(part.opaque)


def message_fields(message: ExpertMessage, opaque_owner: OpaqueOwner) -> JsonObject:
    """Return the fields to send back with a reply; `_content` and `_tags` tell how its text is written."""
    collected: JsonObject = {}
    for part in message.contents:
        if isinstance(part, ThinkingPart):
            fields = opaque_owner.fields(part.opaque)
            names = fields.pop("_text", None)
            collected.update({str(name): part.thinking for name in names} if isinstance(names, list) else {})
            if isinstance(tags := fields.get("_tags"), list):
                fields["_tags"] = part.thinking.join(map(str, tags))
            collected.update(fields)
    return collected


def plain_thinking(message: ExpertMessage) -> str:
    """Return the thinking that belongs to no endpoint."""
    parts = (part for part in message.contents if isinstance(part, ThinkingPart) and part.opaque is None)
    return "".join(part.thinking for part in parts)


def readable_reasoning(fields: Mapping[str, JsonValue]) -> str:
    """Return the readable reasoning in the extra fields of a delta. Servers may send one text under two names."""
    texts = (value for name in _TEXTS if isinstance(value := fields.get(name), str) and value)
    return next(texts, "") or _listed_text(fields.get("reasoning_details") or fields.get("reasoning"))


def _listed_text(items: JsonValue) -> str:
    if isinstance(items, dict):
        items = [items]
    if not isinstance(items, list):
        return ""
    texts = (item.get("text") or item.get("summary") for item in items if isinstance(item, dict))
    return "".join(text for text in texts if isinstance(text, str))


def thinking_parts(content: JsonValue) -> list[JsonObject]:
    """Return the parts of a content that are thinking. Source: Mistral documentation, "Reasoning"."""
    parts = content if isinstance(content, list) else []
    return [part for part in parts if isinstance(part, dict) and part.get("type") in ("thinking", "reasoning")]


def thinking_text(parts: list[JsonObject]) -> str:
    """Return the text of parts that are thinking."""
    return "".join(_text_of_value(part.get("thinking") or part.get("reasoning") or part.get("text")) for part in parts)


def _text_of_value(value: JsonValue) -> str:
    return value if isinstance(value, str) else _listed_text(value)


class KeptFields:
    """Collector of the fields of one message, or of one call, that its endpoint needs back."""

    def __init__(self) -> None:
        self._fields: JsonObject = {}

    def add(self, fields: Mapping[str, JsonValue]) -> None:
        """Add the extra fields of one delta."""
        for name, value in fields.items():
            if value is not None and _KEPT.search(name):
                self._fields[name] = _extend_value(self._fields.get(name), value)

    def add_thinking(self, parts: list[JsonObject]) -> None:
        """Add parts of the content that are thinking."""
        if parts:
            self._fields["_content"] = _extend_value(self._fields.get("_content"), [*parts])

    def add_tags(self, opening: str, closing: str) -> None:
        """Add the tags that surrounded the thinking in the text."""
        self._fields["_tags"] = [opening, closing]

    def fields(self, thinking: str = "") -> JsonObject:
        """Return the fields; `_text` has the names of the fields that equal `thinking`, which is not stored twice."""
        names: list[JsonValue] = [name for name, value in self._fields.items() if thinking and value == thinking]
        rest: JsonObject = {name: value for name, value in self._fields.items() if name not in names}
        return {"_text": names, **rest} if names else rest


def _extend_value(old: JsonValue, value: JsonValue) -> JsonValue:
    """Return a field extended by another piece: texts are joined, listed items by index, objects by name."""
    if isinstance(old, str) and isinstance(value, str):
        return old + value
    if isinstance(value, list):
        items = [*old] if isinstance(old, list) else []
        for item in value:
            _add_item(items, item)
        return items
    if isinstance(old, dict) and isinstance(value, dict):
        return _extend_object(old, value, frozenset())
    return value


def _add_item(items: list[JsonValue], item: JsonValue) -> None:
    position = _find_continued(items, item)
    old_item = None if position is None else items[position]
    if position is None or not isinstance(old_item, dict) or not isinstance(item, dict):
        items.append(item)
    else:
        items[position] = _extend_object(old_item, item, _GROWING)


def _find_continued(items: list[JsonValue], item: JsonValue) -> int | None:
    """Return the position of the item that this one continues: that with its index, or the last if neither has one."""
    if not isinstance(item, dict):
        return None
    index, kind = item.get("index"), item.get("type")
    for position in range(len(items) - 1, -1, -1):
        old_item = items[position]
        if not isinstance(old_item, dict):
            return None
        if old_item.get("index") == index and (kind is None or old_item.get("type") == kind):
            # a complete item, such as an encrypted one, is not continued by an item without an index
            return position if index is not None or _GROWING & old_item.keys() - {"data"} else None
        if index is None:
            return None
    return None


def _extend_object(old_object: JsonObject, value: JsonObject, growing: frozenset[str]) -> JsonObject:
    extended: JsonObject = dict(old_object)
    for name, new in value.items():
        old = extended.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            extended[name] = _extend_object(old, new, growing)
        elif name in growing and isinstance(old, str | list) and type(old) is type(new):
            extended[name] = _extend_value(old, new)
        elif new is not None:
            extended[name] = new
    return extended


_OPENING, _CLOSING = "<think>", "</think>"

Piece = tuple[Literal["text", "reasoning"], str]


class ThinkTags:
    """Splitter of a reply's text: text in `<think>` tags at its start is reasoning."""

    def __init__(self) -> None:
        self._state: Literal["start", "thinking", "after", "text"] = "start"
        self._unread = ""
        self.opening, self.closing = "", ""

    def feed(self, text: str) -> list[Piece]:
        """Return the pieces of the reply up to the end of `text`, as far as they are certain."""
        self._unread += text
        pieces: list[Piece] = []
        while self._unread and (step := self._read_piece()) is not None:
            pieces += [step] if step[1] else []
        return pieces

    def finish(self) -> list[Piece]:
        """Return the pieces held back. Thinking without an end tag stays thinking."""
        unread, self._unread = self._unread, ""
        if self._state == "after":
            self.closing += unread
            return []
        return [("reasoning" if self._state == "thinking" else "text", unread)] if unread else []

    def _read_piece(self) -> Piece | None:
        match self._state:
            case "start":
                return self._read_start()
            case "thinking":
                return self._read_thinking()
            case "after":
                return self._read_end()
            case "text":
                unread, self._unread = self._unread, ""
                return ("text", unread)

    def _read_start(self) -> Piece | None:
        begun = self._unread.lstrip()
        if begun.startswith(_OPENING):
            blanks = self._unread[: len(self._unread) - len(begun)]
            self.opening, self._unread = blanks + _OPENING, begun[len(_OPENING) :]
            self._state = "thinking"
            return ("reasoning", "")
        if _OPENING.startswith(begun):
            return None
        self._state = "text"
        return ("text", "")

    def _read_thinking(self) -> Piece | None:
        thought, closing, rest = self._unread.partition(_CLOSING)
        if closing:
            self._state, self.closing, self._unread = "after", closing, rest
            return ("reasoning", thought)
        unread_chars = next((size for size in range(len(_CLOSING) - 1, 0, -1) if thought.endswith(_CLOSING[:size])), 0)
        if unread_chars == len(thought):
            return None
        self._unread = thought[len(thought) - unread_chars :]
        return ("reasoning", thought[: len(thought) - unread_chars])

    def _read_end(self) -> Piece | None:
        rest = self._unread.lstrip()
        self.closing += self._unread[: len(self._unread) - len(rest)]
        self._unread = rest
        if not rest:
            return None
        self._state = "text"
        return ("text", "")
