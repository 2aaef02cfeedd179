"""A Run's messages as the bytes of one wire format: each message is written once, however often it is sent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from perstack.core.base import JsonObject
from perstack.core.messages import ExpertMessage, History, Message
from perstack.dataclass import dataclass
from perstack.ports.provider import GenerationRequest
from perstack_http.parts import load_blobs, to_bytes

Write = Callable[[Message, Mapping[str, bytes]], Iterable[JsonObject]]
"""Writes one message as a format's objects; the mapping has the bytes of the message's blobs."""


class Transcript(ABC):
    """The bytes of a list of messages that grows at its end, in one format.

    It belongs to one Run, and is kept in the memo of the Run's requests: see `transcript_of`.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self._seen: Sequence[Message] = ()
        self._count = 0

    def is_continued_by(self, messages: Sequence[Message]) -> bool:
        """Whether `messages` begin with those that are written already, which takes the same time at any length."""
        if not self._count:
            return True
        return isinstance(messages, History) and isinstance(self._seen, History) and messages.continues(self._seen)

    def missing(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Those of `messages` that are not written yet."""
        return messages[self._count :]

    def extend(self, messages: Sequence[Message], blobs: Mapping[str, bytes]) -> None:
        """Write what is missing. `blobs` has to hold what these messages refer to."""
        for message in self.missing(messages):
            self._add(message, [to_bytes(one) for one in self._write(message, blobs)])
            self._count += 1
            self._seen = messages

    @abstractmethod
    def _add(self, message: Message, written: list[bytes]) -> None:
        """Keep what a message was written as."""


class Items(Transcript):
    """For a format whose list holds objects that stand for themselves."""

    def __init__(self, write: Write) -> None:
        super().__init__(write)
        self._json = bytearray()

    def _add(self, message: Message, written: list[bytes]) -> None:
        for one in written:
            self._json += b"," + one if self._json else one

    @property
    def parts(self) -> tuple[bytes | bytearray, ...]:
        """What stands between the list's brackets, to be joined."""
        return (self._json,)


class Turns(Transcript):
    """For a format whose list holds turns of alternating roles: what one role says in a row is one turn's blocks."""

    def __init__(self, write: Write) -> None:
        super().__init__(write)
        self._past = bytearray()
        """All turns but the latest, with a comma after each."""
        self._role = ""
        self._blocks: list[bytes] = []

    def _add(self, message: Message, written: list[bytes]) -> None:
        if not written:
            return
        role = "assistant" if isinstance(message, ExpertMessage) else "user"
        if self._blocks and role != self._role:
            self._past += _turn(self._role, self._blocks) + b","
            self._blocks = []
        self._role = role
        self._blocks += written

    def parts(self, end: Callable[[list[bytes]], list[bytes]]) -> tuple[bytes | bytearray, ...]:
        """What stands between the list's brackets, to be joined; `end` makes the latest turn's blocks those of a
        request, which may be marked or be more."""
        return (self._past, _turn(self._role, end(self._blocks))) if self._blocks else ()


def _turn(role: str, blocks: list[bytes]) -> bytes:
    return b'{"role":"%s","content":[%s]}' % (role.encode(), b",".join(blocks))


_T = TypeVar("_T", bound=Transcript)


def transcript_of(request: GenerationRequest, key: Hashable, kind: type[_T], make: Callable[[], Write]) -> _T:
    """The Run's transcript in a format, which the messages of `request` continue; a new one if there is none.

    `key` says all that the writing of a message depends on, but for the blobs; `make` gives what writes.
    """
    found = request.memo.get(key)
    if isinstance(found, kind) and found.is_continued_by(request.messages):
        return found
    made = kind(make())
    request.memo[key] = made
    return made


async def missing_blobs(request: GenerationRequest, transcript: Transcript) -> dict[str, bytes]:
    """The bytes of the blobs that `transcript` lacks for this request."""
    return await load_blobs(transcript.missing(request.messages), request.blobs)


@dataclass(frozen=True, slots=True)
class _Head:
    asked: tuple[object, ...]
    json: bytes


def head_of(request: GenerationRequest, key: str, settings: object, make: Callable[[], JsonObject]) -> bytes:
    """The bytes of a body up to its messages: those of an object whose last key has a list, without the end.

    `make` gives that object, from the request but for its messages, and from `settings`. It is called again when one
    of them is other than it was, which in a Run is seldom: what a Run's tools are is written once.
    """
    asked = (
        settings,
        request.model,
        request.instruction,
        request.tools,
        request.allow_tools,
        request.reasoning_budget,
        request.max_tokens,
        request.temperature,
        request.output,
    )
    found = request.memo.get(("head", key))
    if not isinstance(found, _Head) or found.asked != asked:
        found = _Head(asked, to_bytes(make()).removesuffix(b"]}"))
        request.memo["head", key] = found
    return found.json


def body_of(head: bytes, items: Iterable[bytes | bytearray]) -> bytes:
    """A whole body: what `head_of` gives, and the messages, whose bytes are joined."""
    parts = tuple(items)
    comma = b"," if any(parts) and not head.endswith(b"[") else b""
    return b"".join((head, comma, *parts, b"]}"))
