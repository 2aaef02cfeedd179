"""Adapt messages to an endpoint: substitute images and documents, and leave out refused thinking."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from hashlib import sha256
from typing import assert_never

from perstack.core.base.records import canonical_json
from perstack.core.messages.adaptations import (
    ANY_THINKING,
    Adaptation,
    Adaptations,
    media_adaptation,
)
from perstack.core.messages.messages import (
    BlobPart,
    ExpertMessage,
    Message,
    ReplyPart,
    ResultContent,
    TextPart,
    ThinkingPart,
    ToolMessage,
    UserMessage,
)


def digest_of_thought(part: ReplyPart) -> str:
    """Return the name of a part of a reply in `Adaptation.thoughts`: 16 hex digits."""
    return sha256(canonical_json(part.model_dump(mode="json"))).hexdigest()[:16]


def thoughts_of(messages: Iterable[Message], known: Adaptations = ()) -> tuple[str, ...]:
    """Return the digests of the thinking and signatures in replies, without those that `known` leaves out already."""
    if _omits_any_thinking(known):
        return ()
    omitted = {digest for item in known for digest in item.thoughts}
    replies = (message for message in messages if isinstance(message, ExpertMessage))
    digests = (digest_of_thought(part) for reply in replies for part in reply.contents if _has_thought(part))
    return tuple(digest for digest in dict.fromkeys(digests) if digest not in omitted)


def _omits_any_thinking(adaptations: Adaptations) -> bool:
    return any(item.part == "thinking" and item.name == ANY_THINKING for item in adaptations)


def _has_thought(part: ReplyPart) -> bool:
    """Return True for thinking, and for a call that its vendor has signed."""
    return isinstance(part, ThinkingPart) or (not isinstance(part, TextPart) and part.opaque is not None)


def of_messages(adaptations: Adaptations) -> Adaptations:
    """Return the adaptations of messages that are the same for every wire format."""
    return tuple(item for item in adaptations if item.part in ("media", "thinking"))


def adapted_message(message: Message, adaptations: Adaptations) -> Message:
    """Return a message as it is sent: with substitutes of images and documents, and without refused thinking."""
    media = {item.name: item for item in adaptations if item.part == "media"}
    match message:
        case ExpertMessage():
            return _without_thoughts(message, adaptations)
        case UserMessage():
            return message.model_copy(update={"contents": _adapted(message.contents, media)}) if media else message
        case ToolMessage():
            results = (
                result.model_copy(update={"contents": _adapted(result.contents, media)}) for result in message.contents
            )
            return message.model_copy(update={"contents": tuple(results)}) if media else message
        case _:
            assert_never(message)


def _without_thoughts(message: ExpertMessage, adaptations: Adaptations) -> ExpertMessage:
    is_any = _omits_any_thinking(adaptations)
    refused = {digest for item in adaptations for digest in item.thoughts}
    if not (is_any or refused) or not any(_has_thought(part) for part in message.contents):
        return message
    parts = (_without_thought(part, None if is_any else refused) for part in message.contents)
    return ExpertMessage(contents=tuple(part for part in parts if part is not None))


def _without_thought(part: ReplyPart, refused: Set[str] | None) -> ReplyPart | None:
    """Return a part without refused thinking; `refused` None: any is refused."""
    if not _has_thought(part) or (refused is not None and digest_of_thought(part) not in refused):
        return part
    return None if isinstance(part, ThinkingPart) else part.model_copy(update={"opaque": None})


def _adapted(contents: Sequence[ResultContent], media: Mapping[str, Adaptation]) -> tuple[ResultContent, ...]:
    return tuple(
        _substitute(part, media_adaptation(part, media)) if isinstance(part, BlobPart) else part for part in contents
    )


def _substitute(part: BlobPart, adaptation: Adaptation | None) -> ResultContent:
    if adaptation is None:
        return part
    return TextPart(text=adaptation.text) if adaptation.blob is None else adaptation.blob
