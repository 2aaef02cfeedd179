"""What the vendors' formats share in how a message's parts are written and read."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Annotated, assert_never

from pydantic import BaseModel, BeforeValidator, ConfigDict, JsonValue

from perstack.core.base import JsonObject
from perstack.core.messages import BlobPart, ExpertMessage, Message, ToolCallPart, ToolMessage, UserMessage
from perstack.ports.provider import BlobReader

IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""The images that every vendor takes."""

PDF = "application/pdf"

Text = Annotated[str, BeforeValidator(lambda value: "" if value is None else value)]
"""A text that compatible servers may send as null."""


class Wire(BaseModel):
    """A piece of what an endpoint sends: what we do not know of it is passed over."""

    model_config = ConfigDict(extra="ignore", defer_build=True)


def takes_all(mime_type: str) -> bool:
    """Whether most formats hold it as it is."""
    return mime_type in IMAGE_TYPES or mime_type == PDF


_TEXT_TYPES = frozenset({"application/json", "application/xml", "application/yaml", "application/toml"})
_ILLEGAL_IN_ID = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_ID = 64
"""Source: OpenAI API reference, «Responses», `call_id`; Amazon Bedrock API reference, `ToolUseBlock`."""


def to_bytes(body: JsonObject) -> bytes:
    """Compact UTF-8 JSON, keys in the order given: the same request makes the same bytes."""
    # lone surrogates, which a model's or a tool's broken text may hold, have no UTF-8
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def is_text(mime_type: str) -> bool:
    """Whether the bytes can be shown as they are."""
    kind = mime_type.partition(";")[0].strip().lower()
    return kind.startswith("text/") or kind in _TEXT_TYPES


def as_base64(content: bytes) -> str:
    """Bytes as JSON can hold them."""
    return b64encode(content).decode("ascii")


def in_place_of(part: BlobPart, why: str = "this model cannot be shown this kind of content") -> str:
    """The text that stands for a blob which cannot be sent."""
    name = f"{part.name}, " if part.name else ""
    return f"[{name}{part.mime_type}, {part.size} bytes: {why}]"


def legal_id(call_id: str) -> str:
    """A tool call's id as every vendor takes it: another's may hold dots and colons, or be longer."""
    if call_id and len(call_id) <= _LONGEST_ID and not _ILLEGAL_IN_ID.search(call_id):
        return call_id
    digest = hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{_ILLEGAL_IN_ID.sub('_', call_id)[:50]}_{digest}"


def arguments_of(call: ToolCallPart) -> JsonObject:
    """The arguments of a call as an object, which is all that a vendor takes back."""
    return call.args if call.raw_args is None else {"unparsed": call.raw_args}


def read_arguments(text: str) -> tuple[JsonObject, str | None]:
    """`args` and `raw_args` from a model's own text: one of them says it all."""
    if not text.strip():
        return {}, None
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return {}, text
    if isinstance(value, dict):
        return value, None
    return {}, None if value is None else text


async def load_blobs(messages: Iterable[Message], read: BlobReader) -> dict[str, bytes]:
    """The bytes of every blob in `messages` that some vendor takes, each read once, so that encoding stays pure."""
    found: dict[str, bytes] = {}
    for message in messages:
        for part in _blobs_of(message):
            if part.sha256 not in found and _is_sendable(part.mime_type):
                found[part.sha256] = await read(part.sha256)
    return found


def _is_sendable(mime_type: str) -> bool:
    return mime_type in IMAGE_TYPES or mime_type == PDF or is_text(mime_type)


def _blobs_of(message: Message) -> Iterator[BlobPart]:
    match message:
        case UserMessage():
            yield from (part for part in message.contents if isinstance(part, BlobPart))
        case ToolMessage():
            for result in message.contents:
                yield from (part for part in result.contents if isinstance(part, BlobPart))
        case ExpertMessage():
            return
        case _:
            assert_never(message)
