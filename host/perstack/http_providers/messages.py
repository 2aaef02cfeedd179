"""Encode requests in the vendors' wire formats, and decode the parts of replies that their formats share.

A Run sends its whole history with every request, and vendors cache a request's prefix by its bytes. So a message is
encoded only once: a `MessageEncoder` keeps the bytes of a growing list of messages in the memo of the Run's requests.
There is one class for each shape of a format's list: independent objects (`ListEncoder`), or turns of alternating roles
(`TurnEncoder`). `request_prefix` keeps the bytes before the messages, `request_body` joins both.

A codec must meet two conditions, or the cache silently misses:

- The key that it gives to `message_encoder` contains everything that the encoding of a message depends on, except
  blobs: model family, settings, vendor.
- Equal requests give equal bytes: `to_bytes` keeps the order of keys, and nothing random or timed may be encoded.

Change together: a new field of `GenerationRequest` that is encoded before the messages with `request_prefix`, which
compares these fields.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import field, replace
from typing import TypeVar

from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.definitions.settings import ReasoningBudget
from perstack.core.messages.adaptations import ANY_DOCUMENT, ANY_IMAGE, Adaptations, names_in
from perstack.core.messages.media import COMMON_IMAGE_TYPES, PDF
from perstack.core.messages.messages import (
    BlobPart,
    ExpertMessage,
    History,
    Message,
    ProviderToolPart,
    ReplyPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    blobs_of,
    readable_result,
)
from perstack.dataclass import dataclass
from perstack.http_providers.adapted_messages import adapted_message, of_messages
from perstack.ports.provider import BlobReader, Generation, GenerationRequest

# Parts of messages: encoding and decoding that the vendors' formats share.

IMAGE_TYPES = COMMON_IMAGE_TYPES  # image types that every vendor accepts

NO_TEXT, NO_OUTPUT = "(no text)", "(no output)"  # texts for a query or result without a printing character

BUDGET_TOKENS = {"none": 0, "minimal": 1_024, "low": 4_096, "medium": 10_240, "high": 24_576}  # thinking tokens


def budget_word(budget: ReasoningBudget, *, medium: int = BUDGET_TOKENS["medium"]) -> str:
    """Return the nearest word for a reasoning budget; `medium` is the highest number of tokens with that word."""
    if not isinstance(budget, int):
        return budget
    if budget <= 0:
        return "none"
    if budget <= BUDGET_TOKENS["low"]:
        return "low"
    return "medium" if budget <= medium else "high"


class ProviderToolBlocks:
    """Collects the parts of a reply in a format where uses of provider tools, and their results, are separate blocks.

    Blocks that follow each other are kept in the first of their parts, in their order, since they must be sent back as
    they came. A result belongs to the use before it; after a pause, that is in the message before.
    """

    def __init__(self, vendor: str) -> None:
        """Start before the first block; `vendor` is the key of opaque data."""
        self._vendor = vendor
        self._parts: list[ReplyPart | _Use] = []
        self._first: _Use | None = None  # the part that keeps the present row of blocks
        self._waiting: dict[str, _Use] = {}  # uses without a result, by id

    def part(self, part: ReplyPart) -> None:
        """Add a part of another kind."""
        self._parts.append(part)
        self._first = None

    def use(self, call_id: str, tool: str, args: JsonObject, block: JsonObject) -> None:
        """Add a use of a tool."""
        use = self._waiting[call_id] = self._add(call_id, tool)
        use.args = args
        self._keep_block(block)

    def result(self, call_id: str, tool: str, lines: Iterable[str], block: JsonObject, *, is_error: bool) -> None:
        """Add the result of a use."""
        use = self._waiting.pop(call_id, None)
        if use is None or self._first is None:
            use = self._add(call_id, tool)
        use.result, use.is_error = readable_result(lines) or "nothing", is_error
        self._keep_block(block)

    def parts(self) -> tuple[ReplyPart, ...]:
        """Return the parts of the reply."""
        return tuple(part.part(self._vendor) if isinstance(part, _Use) else part for part in self._parts)

    def _add(self, call_id: str, tool: str) -> _Use:
        use = _Use(call_id, tool)
        self._parts.append(use)
        self._first = self._first or use
        return use

    def _keep_block(self, block: JsonObject) -> None:
        if self._first is not None:
            self._first.blocks.append(block)


@dataclass(slots=True)
class _Use:
    call_id: str
    tool: str
    args: JsonObject = field(default_factory=dict[str, JsonValue])
    result: str = ""
    is_error: bool = False
    blocks: list[JsonValue] = field(default_factory=list[JsonValue])

    def part(self, vendor: str) -> ProviderToolPart:
        opaque: JsonObject = {vendor: {"blocks": self.blocks}}
        return ProviderToolPart(
            id=self.call_id,
            tool_name=self.tool,
            args=self.args,
            result=self.result,
            is_error=self.is_error,
            opaque=opaque,
        )


def offered_names(request: GenerationRequest) -> frozenset[str]:
    """Return the names of the provider's tools that the request offers; only their results may be sent back as such."""
    return frozenset(tool.name for tool in request.provider_tools)


def own_blocks(part: ProviderToolPart, vendor: str, offered: frozenset[str]) -> list[JsonObject] | None:
    """Return the blocks of a tool use that the vendor needs back; None if the use must be written as text."""
    own_data = (part.opaque or {}).get(vendor)
    blocks = own_data.get("blocks") if isinstance(own_data, dict) and part.tool_name in offered else None
    return [block for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else None


def sent_back(message: ExpertMessage, offered: frozenset[str]) -> frozenset[str]:
    """Return the tools whose blocks may be sent back with a reply: all, or none if one of them is not offered now.

    One part may hold the blocks of several uses in a row.
    """
    are_all_offered = all(part.tool_name in offered for part in message.provider_tools)
    return offered if are_all_offered else frozenset()


CONTINUE = "Continue."  # query after a paused reply of another vendor, which this one cannot continue


def ends_unfinished(request: GenerationRequest, offered: frozenset[str] = frozenset()) -> bool:
    """Return whether the conversation ends with a paused reply whose blocks this vendor does not get back."""
    last = request.messages[-1] if request.messages else None
    is_paused = isinstance(last, ExpertMessage) and bool(last.provider_tools) and not last.tool_calls
    return isinstance(last, ExpertMessage) and is_paused and not sent_back(last, offered)


def is_common_media(mime_type: str) -> bool:
    """Return whether most formats can hold this type as it is."""
    return mime_type in IMAGE_TYPES or mime_type == PDF


_TEXT_TYPES = frozenset({"application/json", "application/xml", "application/yaml", "application/toml"})
_ILLEGAL_IN_ID = re.compile(r"[^a-zA-Z0-9_-]")
_MAX_ID_CHARS = 64  # source: OpenAI API reference, "Responses", `call_id`; Amazon Bedrock API reference, `ToolUseBlock`


def to_bytes(body: JsonObject) -> bytes:
    """Return compact UTF-8 JSON with keys in the given order: equal requests give equal bytes."""
    # lone surrogates in a model's or a tool's broken text cannot be encoded in UTF-8
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def is_text(mime_type: str) -> bool:
    """Return whether content of this type can be sent as text."""
    kind = mime_type.partition(";")[0].strip().lower()
    return kind.startswith("text/") or kind in _TEXT_TYPES


def as_base64(content: bytes) -> str:
    """Return bytes as base64 text for JSON."""
    return b64encode(content).decode("ascii")


def blob_placeholder(part: BlobPart, why: str = "this model cannot be shown this kind of content") -> str:
    """Return the text that replaces a blob which cannot be sent."""
    name = f"{part.name}, " if part.name else ""
    return f"[{name}{part.mime_type}, {part.size} bytes: {why}]"


def with_failed_result(result: ToolResultPart) -> str:
    """Return the text before media of a failed result that a format cannot hold in the result itself."""
    return f"Returned with the failed result of {result.tool_name}:"


def legal_id(call_id: str) -> str:
    """Return a tool call id that every vendor accepts: other vendors' ids may have dots and colons, or be longer."""
    if call_id and len(call_id) <= _MAX_ID_CHARS and not _ILLEGAL_IN_ID.search(call_id):
        return call_id
    digest = hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{_ILLEGAL_IN_ID.sub('_', call_id)[:50]}_{digest}"


def arguments_of(part: ToolCallPart) -> JsonObject:
    """Return the arguments of a call as an object, the only form that vendors accept back."""
    return part.args if part.raw_args is None else {"unparsed": part.raw_args}


async def load_blobs(messages: Iterable[Message], read: BlobReader) -> dict[str, bytes]:
    """Return the bytes of every sendable blob in `messages`, reading each once, so that encoding stays pure."""
    blobs: dict[str, bytes] = {}
    for message in messages:
        for part in blobs_of(message):
            if part.sha256 not in blobs and _is_sendable(part.mime_type):
                blobs[part.sha256] = await read(part.sha256)
    return blobs


def _is_sendable(mime_type: str) -> bool:
    return mime_type.startswith("image/") or mime_type == PDF or is_text(mime_type)


Write = Callable[[Message, Mapping[str, bytes]], Iterable[JsonObject]]  # encode one message; the mapping has its blobs


class MessageEncoder(ABC):
    """One Run's growing list of messages, encoded in one format; kept in the memo of its requests."""

    def __init__(self, write: Write) -> None:
        """Start without messages."""
        self._write = write
        self._seen: Sequence[Message] = ()
        self._count = 0
        self._adaptations: Adaptations = ()
        self._media: set[str] = set()  # sha256 of the original images and documents in encoded messages

    def is_continued_by(self, messages: Sequence[Message]) -> bool:
        """Return whether `messages` begin with those already encoded. Takes constant time."""
        if not self._count:
            return True
        return isinstance(messages, History) and isinstance(self._seen, History) and messages.continues(self._seen)

    def accepts(self, adaptations: Adaptations) -> bool:
        """Encode later messages with these adaptations. Return False if they would change an encoded message.

        Most are for media that have just come. An encoder of its own for each set of adaptations would encode, and
        keep, the whole history again with every image that is made smaller.
        """
        if adaptations == self._adaptations:
            return True
        changed = {*adaptations} ^ {*self._adaptations}
        if self._count and any(item.part != "media" or self._has_medium(item.name) for item in changed):
            return False
        self._adaptations = adaptations
        return True

    def _has_medium(self, name: str) -> bool:
        """Return whether an encoded message has media that an adaptation of this name may change."""
        return name in self._media or (name in (ANY_IMAGE, ANY_DOCUMENT) and bool(self._media))

    def missing(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages that are not encoded yet."""
        return messages[self._count :]

    def extend(self, messages: Sequence[Message], blobs: Mapping[str, bytes]) -> None:
        """Encode the missing messages. `blobs` must have all blobs that they refer to."""
        for message in self.missing(messages):
            self._media.update(blob.sha256 for blob in blobs_of(message))
            adapted = adapted_message(message, self._adaptations) if self._adaptations else message
            self._add(message, [to_bytes(item) for item in self._write(adapted, blobs)])
            self._count += 1
            self._seen = messages

    @abstractmethod
    def _add(self, message: Message, objects: list[bytes]) -> None:
        """Keep the encoded objects of a message."""


class ListEncoder(MessageEncoder):
    """Encoder for a format whose list has independent objects."""

    def __init__(self, write: Write) -> None:
        """Start with an empty list."""
        super().__init__(write)
        self._json = bytearray()

    def _add(self, message: Message, objects: list[bytes]) -> None:
        for item in objects:
            self._json += b"," + item if self._json else item

    @property
    def parts(self) -> tuple[bytes | bytearray, ...]:
        """The content between the list's brackets, in pieces to be joined."""
        return (self._json,)


class TurnEncoder(MessageEncoder):
    """Encoder for a format with turns of alternating roles: consecutive messages of a role are one turn's blocks."""

    def __init__(self, write: Write) -> None:
        """Start without turns."""
        super().__init__(write)
        self._past = bytearray()  # all turns but the latest, with a comma after each
        self._role = ""
        self._blocks: list[bytes] = []

    def _add(self, message: Message, objects: list[bytes]) -> None:
        if not objects:
            return
        role = "assistant" if isinstance(message, ExpertMessage) else "user"
        if self._blocks and role != self._role:
            self._past += _turn(self._role, self._blocks) + b","
            self._blocks = []
        self._role = role
        self._blocks += objects

    def parts(self, finish_blocks: Callable[[list[bytes]], list[bytes]]) -> tuple[bytes | bytearray, ...]:
        """Return the list's content in pieces to be joined; `finish_blocks` converts the latest turn's blocks."""
        return (self._past, _turn(self._role, finish_blocks(self._blocks))) if self._blocks else ()


def _turn(role: str, blocks: list[bytes]) -> bytes:
    return b'{"role":"%s","content":[%s]}' % (role.encode(), b",".join(blocks))


_T = TypeVar("_T", bound=MessageEncoder)


def message_encoder(request: GenerationRequest, key: Hashable, kind: type[_T], make: Callable[[], Write]) -> _T:
    """Return the Run's encoder for a format if `request` continues its messages, or else a new one.

    `key` must contain all that the encoding of a message depends on, except blobs. `make` returns the encoding
    function.
    """
    adaptations = of_messages(request.adaptations)
    key = (key, request.model)
    existing = request.memo.get(key)
    if isinstance(existing, kind) and existing.is_continued_by(request.messages) and existing.accepts(adaptations):
        return existing
    encoder = kind(_write_own(make(), request.model))
    encoder.accepts(adaptations)
    request.memo[key] = encoder
    return encoder


def _write_own(write: Write, model: str) -> Write:
    def write_own(message: Message, blobs: Mapping[str, bytes]) -> Iterable[JsonObject]:
        return write(_without_other_models(message, model) if isinstance(message, ExpertMessage) else message, blobs)

    return write_own


def signed_by(generation: Generation, model: str) -> Generation:
    """Return a reply whose signatures name their model: every other model refuses them, even of the same vendor."""
    contents = tuple(_signed_part(part, model) for part in generation.reply.contents)
    if contents == generation.reply.contents:
        return generation
    return replace(generation, reply=ExpertMessage(contents=contents))


def _signed_part(part: ReplyPart, model: str) -> ReplyPart:
    if not isinstance(part, ThinkingPart | ToolCallPart) or part.opaque is None:
        return part
    opaque = {name: {**data, "model": model} if isinstance(data, dict) else data for name, data in part.opaque.items()}
    return part.model_copy(update={"opaque": opaque})


def _without_other_models(reply: ExpertMessage, model: str) -> ExpertMessage:
    """Return a reply without the thinking, and the signatures of calls, that another model made."""
    if not any(_is_of_other_model(part, model) for part in reply.contents):
        return reply
    parts = (
        part.model_copy(update={"opaque": None}) if _is_of_other_model(part, model) else part
        for part in reply.contents
        if not (isinstance(part, ThinkingPart) and _is_of_other_model(part, model))
    )
    return ExpertMessage(contents=tuple(parts))


def _is_of_other_model(part: ReplyPart, model: str) -> bool:
    if not isinstance(part, ThinkingPart | ToolCallPart) or part.opaque is None:
        return False
    makers = (data.get("model") for data in part.opaque.values() if isinstance(data, dict))
    return any(maker not in (None, model) for maker in makers)


async def missing_blobs(request: GenerationRequest, encoder: MessageEncoder) -> dict[str, bytes]:
    """Return the bytes of the blobs that `encoder` still needs for this request."""
    adaptations = of_messages(request.adaptations)
    missing = encoder.missing(request.messages)
    messages = [adapted_message(message, adaptations) for message in missing] if adaptations else missing
    return await load_blobs(messages, request.blobs)


@dataclass(frozen=True, slots=True)
class _Prefix:
    inputs: tuple[object, ...]
    json: bytes


REQUIRED_FIELDS = frozenset(
    {
        *("model", "anthropic_version", "stream", "messages", "input", "contents"),
        *("system", "instructions", "systemInstruction", "tools", "toolConfig"),
    }
)
"""Fields without which there is no request, in all formats: an endpoint that refuses one cannot be used."""

FIELD_GROUPS = frozenset(
    {"generationConfig", "inferenceConfig", "additionalModelRequestFields", "output_config", "outputConfig"}
)
"""Fields that contain other fields; a refusal names an inner field."""

MARKS = ("cache_control", "cachePoint")  # marks for a vendor's cache, which may be anywhere in a request


def without_fields(head: JsonObject, refused: frozenset[str], required: frozenset[str] = frozenset()) -> JsonObject:
    """Return the fields of a request without the refused ones; a required one is always sent."""
    omitted = refused - REQUIRED_FIELDS - required
    if not omitted:
        return head
    fields: JsonObject = {}
    for name, value in head.items():
        if name in FIELD_GROUPS and isinstance(value, dict):
            if kept := {inner: nested for inner, nested in value.items() if f"{name}.{inner}" not in omitted}:
                fields[name] = kept
        elif name not in omitted:
            fields[name] = value
    return _without_marks(fields, omitted.intersection(MARKS))


def _without_marks(fields: JsonObject, marks: Set[str]) -> JsonObject:
    """Return the fields without cache marks in the instruction, in either notation."""
    if not marks or not isinstance(blocks := fields.get("system"), list):
        return fields
    unmarked_blocks: list[JsonValue] = [
        {name: value for name, value in block.items() if name not in marks} if isinstance(block, dict) else block
        for block in blocks
    ]
    return {**fields, "system": [block for block in unmarked_blocks if block]}


def request_prefix(
    request: GenerationRequest,
    key: str,
    settings: object,
    make: Callable[[], JsonObject],
    required: frozenset[str] = frozenset(),
) -> bytes:
    """Return the bytes of a request body up to its messages: an object whose last key has a list, without its end.

    `make` builds that object from `settings` and the request without its messages. It is called again only when one of
    them has changed, which is rare within a Run, so that a Run's tools are encoded once. Fields that the endpoint
    refuses are left out, except for `REQUIRED_FIELDS` and `required`.
    """
    inputs = (
        settings,
        request.model,
        request.instruction,
        request.tools,
        request.allow_tools,
        request.reasoning_budget,
        request.max_tokens,
        request.temperature,
        request.output,
        request.provider_tools,
        request.adaptations,
    )
    prefix = request.memo.get(("prefix", key))
    if not isinstance(prefix, _Prefix) or prefix.inputs != inputs:
        head = without_fields(make(), names_in(request.adaptations, "field"), required)
        prefix = _Prefix(inputs, to_bytes(head).removesuffix(b"]}"))
        request.memo["prefix", key] = prefix
    return prefix.json


def request_body(prefix: bytes, items: Iterable[bytes | bytearray]) -> bytes:
    """Return a whole body: the prefix, and the joined bytes of the messages."""
    parts = tuple(items)
    comma = b"," if any(parts) and not prefix.endswith(b"[") else b""
    return b"".join((prefix, comma, *parts, b"]}"))
