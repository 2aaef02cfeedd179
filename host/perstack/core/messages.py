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


def _size_of_blobs(message: Message) -> int:
    match message:
        case UserMessage():
            parts: Iterable[object] = message.contents
        case ToolMessage():
            parts = (one for part in message.contents for one in part.contents)
        case ExpertMessage():
            return 0
        case _:
            assert_never(message)
    return sum(part.size * 4 // 3 + 4 for part in parts if isinstance(part, BlobPart))


NO_MESSAGES = bytes(32)
"""The digest of no messages at all."""


class History(Sequence[Message]):
    """An immutable sequence that grows at its end in constant time.

    Versions share one list and differ in length; growing an old version copies. So a Run of 5,000 steps costs the
    same per step as one of 5, and a branch never sees the other's messages. So with the digests: each message is hashed
    once, for all versions that have it.
    """

    __slots__ = ("_digests", "_items", "_length", "_sizes")

    def __init__(self, items: Iterable[Message] = (), digests: Iterable[bytes] = (), sizes: Iterable[int] = ()) -> None:
        self._items = list(items)
        self._length = len(self._items)
        self._digests = list(digests)
        """Of the first 1, 2, … items, as far as they were asked for."""
        self._sizes = list(sizes)
        """The same, for their sizes."""

    def append(self, message: Message) -> History:
        """A History with one message more; this one stays as it is."""
        if len(self._items) != self._length:
            grown = History(self._items[: self._length], self._digests[: self._length], self._sizes[: self._length])
            return grown.append(message)
        self._items.append(message)
        result = History.__new__(History)
        result._items = self._items
        result._digests = self._digests
        result._sizes = self._sizes
        result._length = self._length + 1
        return result

    def continues(self, earlier: History) -> bool:
        """Whether this was grown from `earlier`, or is the same; takes the same time at any length."""
        return self._items is earlier._items and self._length >= earlier._length

    def digest(self, length: int) -> bytes:
        """The digest of the first `length` messages: 32 zeros for none, then SHA-256 over the digest before and that
        of the message's canonical JSON."""
        if not 0 <= length <= self._length:
            raise IndexError(length)
        digests, sizes = self._digests, self._sizes
        for place in range(len(digests), length):
            before = digests[place - 1] if place else NO_MESSAGES
            text = canonical_fact(self._items[place])
            digests.append(sha256(before + sha256(text).digest()).digest())
            sizes.append((sizes[place - 1] if place else 0) + len(text) + _size_of_blobs(self._items[place]))
        return digests[length - 1] if length else NO_MESSAGES

    def size(self, length: int) -> int:
        """Bytes of the first `length` messages as JSON, with blobs in base64: no request for them has more tokens."""
        self.digest(length)
        return self._sizes[length - 1] if length else 0

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
