"""The messages that a model sees (with Perstack's names), their parts, and the history of a Run."""

import json
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from math import isfinite
from typing import Annotated, Literal, NamedTuple, assert_never, overload

from pydantic import Field

from perstack.core.base.records import EMPTIED, JsonObject, Record, Text, canonical_record, falsy, layers
from perstack.core.schemas.json_schema import MAX_VALUE_DEPTH


class TextPart(Record):
    """A text from a person, a model or a tool."""

    type: Literal["textPart"] = "textPart"
    text: Text


class ThinkingPart(Record):
    """A model's reasoning. `opaque` must be sent back to its vendor unchanged (signatures, encrypted items)."""

    type: Literal["thinkingPart"] = "thinkingPart"
    thinking: Text
    opaque: Annotated[JsonObject | None, EMPTIED] = None


class BlobPart(Record):
    """An image, a PDF or other bytes, stored once in the Job's blobs under their sha256 (hex)."""

    type: Literal["blobPart"] = "blobPart"
    sha256: str
    mime_type: str
    size: int
    name: str | None = None


class ToolCallPart(Record):
    """A call by the model. `raw_args`: the arguments as text if they are no JSON object; then `args` is empty."""

    type: Literal["toolCallPart"] = "toolCallPart"
    tool_call_id: str
    tool_name: str
    args: Annotated[JsonObject, EMPTIED] = Field(default_factory=dict)
    raw_args: Annotated[str | None, EMPTIED] = None
    opaque: Annotated[JsonObject | None, EMPTIED] = None


class ProviderToolPart(Record):
    """A use of a tool that the model's provider has run itself, with the readable part of its result.

    `opaque` must be sent back to its vendor unchanged. `args` are for people: they are never executed.
    """

    type: Literal["providerToolPart"] = "providerToolPart"
    id: str = ""
    tool_name: str
    args: Annotated[JsonObject, EMPTIED] = Field(default_factory=dict)
    result: Text = Field(default="", exclude_if=falsy)  # empty while the provider has not answered
    is_error: bool = Field(default=False, exclude_if=falsy)
    opaque: Annotated[JsonObject | None, EMPTIED] = None

    @property
    def is_rest(self) -> bool:
        """True if this part has only a result: its call is in the previous reply, which was paused."""
        return bool(self.result) and not self.args

    @property
    def call(self) -> "ToolCallPart":
        """The use in the form of a call, to show it like one."""
        return ToolCallPart(tool_call_id=self.id, tool_name=self.tool_name, args=self.args)

    @property
    def shown(self) -> str:
        """The use as one text, for people and for models of other vendors."""
        arguments = ", ".join(f"{name}={value}" for name, value in self.args.items())
        return f"[{self.tool_name}({arguments[:_MAX_ARGS_CHARS]}): {self.result or 'no result'}]"


_MAX_ARGS_CHARS = 500
_MAX_RESULT_CHARS = 4_000  # characters of a result that are kept readable; `opaque` has all of it
_MAX_OPAQUE_BYTES = 4 << 20  # bytes of JSON that the provider tools of a reply may have, to be sent back


def readable_result(lines: Iterable[str]) -> str:
    """Return the readable result of a provider's tool: its lines, up to a maximum length."""
    text = "\n".join(lines)
    return text if len(text) <= _MAX_RESULT_CHARS else f"{text[:_MAX_RESULT_CHARS]} …"


ResultContent = Annotated[TextPart | BlobPart, Field(discriminator="type")]


class ToolResultPart(Record):
    """Result of one tool call."""

    type: Literal["toolResultPart"] = "toolResultPart"
    tool_call_id: str
    tool_name: str
    contents: tuple[ResultContent, ...]
    is_error: bool = Field(default=False, exclude_if=falsy)


ReplyPart = Annotated[TextPart | ThinkingPart | ToolCallPart | ProviderToolPart, Field(discriminator="type")]

FinishReason = Literal["stop", "toolCalls", "paused", "length", "refusal", "other"]
"""`paused`: the provider, which runs tools itself, has stopped in the middle. The next request continues the reply."""


class InstructionMessage(Record):
    """An Expert's instruction. Each Run has one; a continuing Run does not inherit it."""

    type: Literal["instructionMessage"] = "instructionMessage"
    contents: tuple[TextPart, ...]


class UserMessage(Record):
    """A query."""

    type: Literal["userMessage"] = "userMessage"
    contents: tuple[ResultContent, ...]


class ExpertMessage(Record):
    """A model's reply."""

    type: Literal["expertMessage"] = "expertMessage"
    contents: tuple[ReplyPart, ...] = ()

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(part.text for part in self.contents if isinstance(part, TextPart))

    @property
    def readable(self) -> str:
        """The text parts and the results of the provider's tools, for models of other vendors."""
        parts = (part for part in self.contents if isinstance(part, TextPart | ProviderToolPart))
        return "".join(part.text if isinstance(part, TextPart) else f"{part.shown}\n" for part in parts)

    @property
    def tool_calls(self) -> tuple[ToolCallPart, ...]:
        """The tool calls, in the model's order."""
        return tuple([part for part in self.contents if isinstance(part, ToolCallPart)])

    @property
    def provider_tools(self) -> tuple[ProviderToolPart, ...]:
        """The uses of tools that the provider has run itself, in their order."""
        return tuple([part for part in self.contents if isinstance(part, ProviderToolPart)])


class ToolMessage(Record):
    """The results of all tool calls of one reply, in the order of the calls."""

    type: Literal["toolMessage"] = "toolMessage"
    contents: tuple[ToolResultPart, ...]


Message = Annotated[UserMessage | ExpertMessage | ToolMessage, Field(discriminator="type")]
AnyMessage = Annotated[InstructionMessage | UserMessage | ExpertMessage | ToolMessage, Field(discriminator="type")]


def blobs_of(message: Message) -> Sequence[BlobPart]:
    match message:
        case UserMessage():
            parts: Iterable[object] = message.contents
        case ToolMessage():
            parts = (content for part in message.contents for content in part.contents)
        case ExpertMessage():
            return ()
        case _:
            assert_never(message)
    return [part for part in parts if isinstance(part, BlobPart)]


def _may_have_floats(message: Message) -> bool:
    """Return False if the message certainly has no float; only the top level of arguments is examined."""
    if not isinstance(message, ExpertMessage):
        return False
    for part in message.contents:
        if not isinstance(part, TextPart) and part.opaque is not None:
            return True
        args = part.args if isinstance(part, ToolCallPart | ProviderToolPart) else {}
        if not all(type(value) in _NO_FLOATS for value in args.values()):
            return True
    return False


_NO_FLOATS = (str, int, bool, type(None))

NO_MESSAGES = bytes(32)  # digest of an empty history

_BYTES_PER_TOKEN = 3  # bytes per token: fewer than most texts have, so that estimates are seldom too low
_IMAGE_TOKENS = 1_600
_MAX_DOCUMENT_TOKENS = 50_000


def estimated_tokens(size: int) -> int:
    """Return an estimate of the tokens of `size` bytes of text, on the high side."""
    return size // _BYTES_PER_TOKEN


def generated_tokens(reply: ExpertMessage) -> int:
    """Return an estimate of the tokens of a reply."""
    return sum(estimated_tokens(len(part.to_json())) for part in reply.contents)


def _tokens_of_blob(blob: BlobPart) -> int:
    if blob.mime_type.startswith("image/"):
        return _IMAGE_TOKENS
    return max(_IMAGE_TOKENS, min(blob.size // 50, _MAX_DOCUMENT_TOKENS))


def tokens_of_contents(contents: Iterable[ResultContent]) -> int:
    """Return an estimate of the tokens of a result or query, including blobs."""
    return sum(
        _tokens_of_blob(part)
        if isinstance(part, BlobPart)
        else estimated_tokens(len(part.text.encode(errors="replace")))
        for part in contents
    )


class _Sums(NamedTuple):
    digest: bytes = NO_MESSAGES
    size: int = 0
    tokens: int = 0
    blobs: int = 0


class History(Sequence[Message]):
    """An immutable sequence of messages with an `append` in constant time.

    Versions share one list and differ in length; appending to an old version copies the list. So the cost per step does
    not grow with the length of a Run, and a branch never sees another's messages. Digests are shared too: each message
    is hashed once for all versions.

    Each message has a place: the id of the event that added it, or of the last one if several did.
    """

    __slots__ = ("_items", "_length", "_places", "_sums")

    def __init__(self, items: Iterable[Message] = (), places: Iterable[str] | None = None) -> None:
        """Start with `items`; `places` are their event ids."""
        self._items = list(items)
        self._length = len(self._items)
        self._places = [""] * self._length if places is None else list(places)
        self._sums = [_Sums()]  # sums of the first 0, 1, 2, … messages, computed on demand

    def append(self, message: Message, place: str = "") -> "History":
        """Return a History with one more message, in constant time. This History does not change."""
        if len(self._items) != self._length:
            return self._copy().append(message, place)
        self._items.append(message)
        self._places.append(place)
        return self._sharing(self._length + 1)

    def _copy(self) -> "History":
        copy = History(self._items[: self._length], self._places[: self._length])
        copy._sums = self._sums[: self._length + 1]
        return copy

    def _sharing(self, length: int) -> "History":
        result = History.__new__(History)
        result._items = self._items
        result._places = self._places
        result._sums = self._sums
        result._length = length
        return result

    def place(self, index: int) -> str:
        """Return the event id of a message; empty if no event added it."""
        if not 0 <= index < self._length:
            raise IndexError(index)
        return self._places[index]

    def continues(self, earlier: "History") -> bool:
        """Return True if this history extends `earlier` or equals it; takes constant time."""
        return self._items is earlier._items and self._length >= earlier._length

    def _sum(self, length: int) -> _Sums:
        if not 0 <= length <= self._length:
            raise IndexError(length)
        for item in self._items[len(self._sums) - 1 : length]:
            text = canonical_record(item, has_floats=_may_have_floats(item))
            previous, blobs = self._sums[-1], blobs_of(item)
            self._sums.append(
                _Sums(
                    sha256(previous.digest + sha256(text).digest()).digest(),
                    previous.size + len(text) + sum(blob.size * 4 // 3 + 4 for blob in blobs),
                    previous.tokens + estimated_tokens(len(text)) + sum(map(_tokens_of_blob, blobs)),
                    previous.blobs + len(blobs),
                )
            )
        return self._sums[length]

    def digest(self, length: int) -> bytes:
        """Return the digest of the first `length` messages: SHA-256 over the previous digest and the message's."""
        return self._sum(length).digest

    def size(self, length: int) -> int:
        """Return the bytes of the first `length` messages as JSON, not fewer than their tokens except for media."""
        return self._sum(length).size

    def blobs(self, length: int) -> int:
        """Return the number of images and documents in the first `length` messages."""
        return self._sum(length).blobs

    def tokens(self, length: int) -> int:
        """Return an estimate of the tokens of the first `length` messages, on the high side."""
        return self._sum(length).tokens

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
        """Iterate over this version's messages only."""
        for i in range(self._length):
            yield self._items[i]

    def __len__(self) -> int:
        return self._length

    def __eq__(self, other: object) -> bool:
        """Compare the messages, not their places."""
        if not isinstance(other, History):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]


def text_of(contents: Iterable[ResultContent]) -> str:
    """Return the text of a result or query; other parts are named in brackets."""
    return "".join(
        part.text if isinstance(part, TextPart) else f"[{part.mime_type}, {part.size} bytes]" for part in contents
    )


# What of a reply can be stored, sent back and digested: not all JSON can.


def usable_reply(reply: ExpertMessage) -> ExpertMessage:
    """Return the reply in a form that can be stored: vendor data is bounded, and unusable arguments are replaced.

    Raises ValueError if vendor data is nested too deep.
    """
    reply = _with_small_opaque(_with_storable_data(reply))
    problems = {
        index: problem
        for index, part in enumerate(reply.contents)
        if isinstance(part, ToolCallPart) and (problem := _arguments_problem(part.args)) is not None
    }
    if not problems:
        return reply
    contents = tuple(
        part.model_copy(update={"args": {}, "raw_args": problems[index]}) if index in problems else part
        for index, part in enumerate(reply.contents)
    )
    return reply.model_copy(update={"contents": contents})


def _with_storable_data(reply: ExpertMessage) -> ExpertMessage:
    """Return the reply with vendor data as JSON can hold it: servers in Python send NaN."""
    parts = tuple(_with_storable_parts(part) for part in reply.contents)
    return reply if parts == reply.contents else reply.model_copy(update={"contents": parts})


def _with_storable_parts(part: ReplyPart) -> ReplyPart:
    if isinstance(part, TextPart):
        return part
    changes: dict[str, JsonObject] = {}
    if part.opaque and _arguments_problem(part.opaque):
        changes["opaque"] = _storable_json(part.opaque)
    if isinstance(part, ProviderToolPart) and _arguments_problem(part.args):
        changes["args"] = _storable_json(part.args)
    return part.model_copy(update=changes) if changes else part


def _storable_json(value: JsonObject) -> JsonObject:
    """Return the value with null in place of numbers that are not finite. Raises ValueError if it is too deep."""
    if any(level > MAX_VALUE_DEPTH for level, _ in enumerate(layers(value))):
        raise ValueError("the reply is nested too deeply to be stored")
    finite: JsonObject = json.loads(json.dumps(value), parse_constant=lambda name: None)
    return finite


def _with_small_opaque(reply: ExpertMessage) -> ExpertMessage:
    """Drop the vendor data of provider tools if it is too large; the readable results remain."""
    if sum(len(part.to_json()) for part in reply.provider_tools) <= _MAX_OPAQUE_BYTES:
        return reply
    parts = (
        part.model_copy(update={"opaque": None}) if isinstance(part, ProviderToolPart) else part
        for part in reply.contents
    )
    return reply.model_copy(update={"contents": tuple(parts)})


def _arguments_problem(args: JsonObject) -> str | None:
    for level, layer in enumerate(layers(args)):
        if level > MAX_VALUE_DEPTH:
            return f"(they have more than {MAX_VALUE_DEPTH} levels)"
        if any(isinstance(value, float) and not isfinite(value) for value in layer):
            return "(they have a number that is not finite)"
    return None
