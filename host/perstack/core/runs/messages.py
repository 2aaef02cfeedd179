"""What the model sees: messages and their parts, in Perstack's words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Annotated, Literal, assert_never, overload

from pydantic import Field

from perstack.core.base import Fact, JsonObject, falsy
from perstack.core.canonical import canonical_fact

REDACTED = "[redacted]"
"""What stands for a text that was taken out."""


class TextPart(Fact):
    """Text, by a person, a model or a tool."""

    type: Literal["textPart"] = "textPart"
    text: str


class ThinkingPart(Fact):
    """A model's reasoning. `opaque` is what its vendor needs sent back unchanged (signatures, encrypted items)."""

    type: Literal["thinkingPart"] = "thinkingPart"
    thinking: str
    opaque: JsonObject | None = None


class BlobPart(Fact):
    """An image, a PDF or other bytes, stored once in the Job's blobs under their sha256 (hex)."""

    type: Literal["blobPart"] = "blobPart"
    sha256: str
    mime_type: str
    size: int
    name: str | None = None


class ToolCallPart(Fact):
    """A call that the model asks for.

    `raw_args` is set, and `args` empty, when the model's arguments were not a JSON object: its own text.
    """

    type: Literal["toolCallPart"] = "toolCallPart"
    tool_call_id: str
    tool_name: str
    args: JsonObject = Field(default_factory=dict)
    raw_args: str | None = None
    opaque: JsonObject | None = None


ResultContent = Annotated[TextPart | BlobPart, Field(discriminator="type")]


class ToolResultPart(Fact):
    """The one result of a tool call."""

    type: Literal["toolResultPart"] = "toolResultPart"
    tool_call_id: str
    tool_name: str
    contents: tuple[ResultContent, ...]
    is_error: bool = Field(default=False, exclude_if=falsy)


ReplyPart = Annotated[TextPart | ThinkingPart | ToolCallPart, Field(discriminator="type")]


class InstructionMessage(Fact):
    """What an Expert is told it is. One per Run, never inherited by the next."""

    type: Literal["instructionMessage"] = "instructionMessage"
    contents: tuple[TextPart, ...]


class UserMessage(Fact):
    """A query."""

    type: Literal["userMessage"] = "userMessage"
    contents: tuple[ResultContent, ...]


class ExpertMessage(Fact):
    """A model's reply."""

    type: Literal["expertMessage"] = "expertMessage"
    contents: tuple[ReplyPart, ...] = ()

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(part.text for part in self.contents if isinstance(part, TextPart))

    @property
    def tool_calls(self) -> tuple[ToolCallPart, ...]:
        """The tool calls, in the order the model gave them."""
        return tuple(part for part in self.contents if isinstance(part, ToolCallPart))


class ToolMessage(Fact):
    """The results of all tool calls of one reply, in the order of the calls."""

    type: Literal["toolMessage"] = "toolMessage"
    contents: tuple[ToolResultPart, ...]


Message = Annotated[UserMessage | ExpertMessage | ToolMessage, Field(discriminator="type")]
AnyMessage = Annotated[InstructionMessage | UserMessage | ExpertMessage | ToolMessage, Field(discriminator="type")]


def blobs_of(message: Message) -> Sequence[BlobPart]:
    """The images and documents of a message."""
    match message:
        case UserMessage():
            parts: Iterable[object] = message.contents
        case ToolMessage():
            parts = (one for part in message.contents for one in part.contents)
        case ExpertMessage():
            return ()
        case _:
            assert_never(message)
    return [part for part in parts if isinstance(part, BlobPart)]


NO_MESSAGES = bytes(32)
"""The digest of no messages at all."""

_BYTES_A_TOKEN = 3
"""Few texts have as few: what is estimated is seldom too low."""
_IMAGE_TOKENS = 1_600
_MOST_DOCUMENT_TOKENS = 50_000


def estimated_tokens(size: int) -> int:
    """About how many tokens a text of so many bytes has: rather too many than too few."""
    return size // _BYTES_A_TOKEN


def _tokens_of_blob(blob: BlobPart) -> int:
    if blob.mime_type.startswith("image/"):
        return _IMAGE_TOKENS
    return max(_IMAGE_TOKENS, min(blob.size // 50, _MOST_DOCUMENT_TOKENS))


def tokens_of_contents(contents: Iterable[ResultContent]) -> int:
    """The same for a result or a query, blobs included."""
    return sum(
        _tokens_of_blob(part)
        if isinstance(part, BlobPart)
        else estimated_tokens(len(part.text.encode(errors="replace")))
        for part in contents
    )


class History(Sequence[Message]):
    """An immutable sequence that grows at its end in constant time.

    Versions share one list and differ in length; growing an old version copies. So a Run of 5,000 steps costs the
    same per step as one of 5, and a branch never sees the other's messages. So with the digests: each message is hashed
    once, for all versions that have it.

    Of each message it knows the place, which is the id of the event that it came with, the last of several.
    """

    __slots__ = ("_digests", "_items", "_length", "_places", "_sizes", "_tokens")

    def __init__(self, items: Iterable[Message] = (), places: Iterable[str] | None = None) -> None:
        self._items = list(items)
        self._length = len(self._items)
        self._places = [""] * self._length if places is None else list(places)
        self._digests: list[bytes] = []
        """Of the first 1, 2, … items, as far as they were asked for."""
        self._sizes: list[int] = []
        """The same, for their sizes."""
        self._tokens: list[int] = []
        """The same, for what they are estimated at."""

    def append(self, message: Message, place: str = "") -> History:
        """A History with one message more; this one stays as it is."""
        if len(self._items) != self._length:
            return self._copy().append(message, place)
        self._items.append(message)
        self._places.append(place)
        return self._sharing(self._length + 1)

    def _copy(self) -> History:
        copy = History(self._items[: self._length], self._places[: self._length])
        copy._digests = self._digests[: self._length]
        copy._sizes = self._sizes[: self._length]
        copy._tokens = self._tokens[: self._length]
        return copy

    def _sharing(self, length: int) -> History:
        result = History.__new__(History)
        result._items = self._items
        result._places = self._places
        result._digests = self._digests
        result._sizes = self._sizes
        result._tokens = self._tokens
        result._length = length
        return result

    def place(self, index: int) -> str:
        """The place of a message; empty if it came with no event."""
        if not 0 <= index < self._length:
            raise IndexError(index)
        return self._places[index]

    def continues(self, earlier: History) -> bool:
        """Whether this was grown from `earlier`, or is the same; takes the same time at any length."""
        return self._items is earlier._items and self._length >= earlier._length

    def digest(self, length: int) -> bytes:
        """The digest of the first `length` messages: 32 zeros for none, then SHA-256 over the digest before and that
        of the message's canonical JSON."""
        if not 0 <= length <= self._length:
            raise IndexError(length)
        digests, sizes, tokens = self._digests, self._sizes, self._tokens
        for index in range(len(digests), length):
            before = digests[index - 1] if index else NO_MESSAGES
            text = canonical_fact(self._items[index])
            digests.append(sha256(before + sha256(text).digest()).digest())
            blobs = blobs_of(self._items[index])
            sizes.append((sizes[index - 1] if index else 0) + len(text) + sum(one.size * 4 // 3 + 4 for one in blobs))
            estimated = estimated_tokens(len(text)) + sum(map(_tokens_of_blob, blobs))
            tokens.append((tokens[index - 1] if index else 0) + estimated)
        return digests[length - 1] if length else NO_MESSAGES

    def size(self, length: int) -> int:
        """Bytes of the first `length` messages as JSON, with blobs in base64: no request for them has more tokens."""
        self.digest(length)
        return self._sizes[length - 1] if length else 0

    def tokens(self, length: int) -> int:
        """About how many tokens the first `length` messages have, rather too many than too few."""
        self.digest(length)
        return self._tokens[length - 1] if length else 0

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        if isinstance(index, slice):
            return tuple(self._items[i] for i in range(*index.indices(self._length)))
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._items[index if index >= 0 else self._length + index]

    def __iter__(self) -> Iterator[Message]:
        for i in range(self._length):
            yield self._items[i]

    def __len__(self) -> int:
        return self._length

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, History):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]


def text_of(contents: Iterable[ResultContent]) -> str:
    """The text of a result or a query; other parts are named in brackets."""
    return "".join(
        part.text if isinstance(part, TextPart) else f"[{part.mime_type}, {part.size} bytes]" for part in contents
    )
