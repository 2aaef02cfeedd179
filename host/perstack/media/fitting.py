"""Images and documents of a Run: repair what tools return, and fit what is sent to the limits of an endpoint.

A result is repaired when it arrives: its type becomes the one that its bytes have, and an image that nobody can read
becomes a line of text, so that the history has no such image. What an endpoint takes is known only when a request is
sent, and may change with the model from one request to the next. So a medium that does not fit stays in the history,
and `adaptRequest` records what is sent in its place: a smaller image, stored as another blob, since another version of
Pillow would make other bytes; or a line of text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import cast

from perstack.core.messages.adaptations import Adaptation, Adaptations, media_adaptation, new_adaptations
from perstack.core.messages.media import PDF, MediaLimits
from perstack.core.messages.messages import BlobPart, History, Message, ResultContent, TextPart, blobs_of
from perstack.core.runs.events.generations import AdaptRequest
from perstack.dataclass import dataclass
from perstack.engine.log.run_session import RunSession
from perstack.engine.runs.input_protocols import MediaTokens
from perstack.errors import NotFound
from perstack.media.file_headers import SVG, MediaFacts, facts_of, left_out, media_type, most_tokens, readable_medium
from perstack.media.limits import SentMedium, problem_of, too_large_together, too_many
from perstack.media.smaller_images import UnreadableImage, smaller_image
from perstack.ports.provider import BlobReader, Provider
from perstack.ports.skill import BlobStore, ToolResult
from perstack.system.user import notice

# Results of tools.


async def repair_result(result: ToolResult, read: BlobReader, tool_name: str) -> ToolResult:
    """Return a tool's result with the true types of its media, and a text for each image that nobody can read."""
    contents = [await _readable(part, read) if isinstance(part, BlobPart) else part for part in result.contents]
    for change in _changes(result.contents, contents):
        notice(f"{tool_name}: {change}")
    return replace(result, contents=tuple(contents))


async def _readable(part: BlobPart, read: BlobReader) -> ResultContent:
    try:
        data = await read(part.sha256)
    except NotFound:
        return part
    if len(data) > _THREAD_FROM_BYTES:
        return await asyncio.to_thread(readable_medium, part, data)
    return readable_medium(part, data)


_THREAD_FROM_BYTES = 1 << 20
_MAX_NOTICE_CHARS = 200


def _changes(before: Iterable[ResultContent], after: Iterable[ResultContent]) -> Iterable[str]:
    """Yield what a person must know about repaired media."""
    for old, new in zip(before, after, strict=True):
        if old is new or not isinstance(old, BlobPart):
            continue
        if isinstance(new, TextPart):
            yield new.text[:_MAX_NOTICE_CHARS] if new.text.startswith("[") else "an SVG image is sent as its text"
        elif old.mime_type.lower() != new.mime_type:
            yield f"what it calls {old.mime_type} is {new.mime_type}, and is sent as that"


# Requests.


@dataclass(slots=True)
class _KnownMedia:
    """Facts about the images and documents that one model was sent, so that no step examines them again."""

    facts: dict[str, MediaFacts] = field(default_factory=dict[str, MediaFacts])  # facts of blobs, by their sha256
    fitted: History = field(default_factory=History)  # the latest messages whose media fit

    def are_fitted(self, messages: History) -> bool:
        """Return whether `fitted` has all media of `messages`."""
        count = messages.blobs(len(messages))
        return not count or (messages.continues(self.fitted) and count == self.fitted.blobs(len(self.fitted)))


def _known_media(session: RunSession) -> _KnownMedia:
    return cast("_KnownMedia", session.memo.setdefault((_KnownMedia, session.run.active_model), _KnownMedia()))


async def fit_request(session: RunSession, provider: Provider, blobs: BlobStore) -> None:
    """Record what is sent in place of the images and documents of the Run that its endpoint would refuse."""
    run, known = session.run, _known_media(session)
    media_limits = provider.media_limits(run.model)
    if media_limits is None or (known.are_fitted(run.messages) and not _may_be_too_large(run.messages, media_limits)):
        return
    adaptations = await substitutes(session, provider, blobs, run.messages)
    known.fitted = run.messages
    if adaptations:
        session.add(AdaptRequest(**session.stamp(), model=run.active_model, adaptations=adaptations))


def _may_be_too_large(messages: History, media_limits: MediaLimits) -> bool:
    most = media_limits.max_request_bytes
    return most is not None and messages.blobs(len(messages)) > 0 and messages.size(len(messages)) > most // 2


async def substitutes(session: RunSession, provider: Provider, blobs: BlobStore, messages: History) -> Adaptations:
    """Return the adaptations, beyond those of the Run, that make the media of `messages` fit its endpoint."""
    facts = _known_media(session).facts
    return await MediaFitting(provider, session.run.model, blobs, facts).adaptations(messages, session.run.adaptations)


class MediaFitting:
    """Substitutes for the media of one request that an endpoint would refuse."""

    def __init__(self, provider: Provider, model: str, blobs: BlobStore, facts: dict[str, MediaFacts]) -> None:
        """Prepare for one model; `facts` keeps what is known of blobs from one request to the next."""
        self._limits = provider.media_limits(model)
        self._takes_images = any(provider.takes(model, kind) for kind in ("image/png", "image/jpeg"))
        self._takes_pdfs = provider.takes(model, PDF)
        self._blobs = blobs
        self._facts = facts

    async def adaptations(self, messages: History, known: Adaptations) -> Adaptations:
        """Return the new adaptations that make the media of `messages` fit."""
        media_limits = self._limits
        if media_limits is None:
            return ()
        media = await self._media(messages, known)
        usable = [medium for medium in media if medium.is_image or problem_of(medium.facts, media_limits, 0) is None]
        new: dict[str, Adaptation] = _texts(media, too_many(usable, media_limits))
        media = [medium for medium in media if medium.name not in new]
        images = sum(medium.is_image for medium in media)
        for medium in {medium.name: medium for medium in media}.values():
            adaptation = await self._fitted(medium, media_limits, images)
            if adaptation is not None:
                new[medium.name] = adaptation
        if media_limits.max_request_bytes is not None:
            media = await self._media(messages, (*known, *new.values()))
            new |= _texts(media, too_large_together(media, media_limits, _bytes_of_texts(messages)))
        return new_adaptations(known, new.values())

    async def _media(self, messages: Sequence[Message], known: Adaptations) -> list[SentMedium]:
        """Return the media as they would be sent, one for each use, in the order of the request."""
        media: list[SentMedium] = []
        for part, sent in _with_substitutes(messages, known):
            facts = await self._facts_of(sent) if self._is_sent(sent.mime_type) else None
            if facts is not None:
                media.append(SentMedium(part.sha256, sent, facts))
        return media

    def _is_sent(self, mime_type: str) -> bool:
        if mime_type == PDF:
            return self._takes_pdfs
        return self._takes_images and mime_type.startswith("image/") and mime_type != SVG

    async def _facts_of(self, part: BlobPart) -> MediaFacts | None:
        facts = self._facts.get(part.sha256)
        if facts is None:
            try:
                data = await self._blobs.get(part.sha256)
            except NotFound:
                return None  # a missing blob is not sent either
            facts = await asyncio.to_thread(facts_of, media_type(data) or part.mime_type, data)
            self._facts[part.sha256] = facts
        return facts

    async def _fitted(self, medium: SentMedium, media_limits: MediaLimits, images: int) -> Adaptation | None:
        part, facts = medium.part, medium.facts
        problem = problem_of(facts, media_limits, images)
        if problem is None:
            if facts.mime_type == part.mime_type:
                return None
            return _substitute(medium, part.model_copy(update={"mime_type": facts.mime_type}))
        if facts.mime_type == PDF:
            return _text(medium, problem)
        try:
            data = await self._blobs.get(part.sha256)
            smaller = await asyncio.wait_for(
                asyncio.to_thread(
                    smaller_image,
                    data,
                    max_side=media_limits.max_side(images),
                    max_pixels=media_limits.max_pixels,
                    max_bytes=None
                    if media_limits.max_image_base64_bytes is None
                    else media_limits.max_image_base64_bytes // 4 * 3,
                ),
                _DECODING_TIMEOUT_S,
            )
        except UnreadableImage as error:
            if problem == facts.oddity:
                return None  # the endpoint's decoder may be better than ours
            return _text(medium, f"{problem}; {error}")
        except TimeoutError:
            return _text(medium, f"{problem}; making it smaller takes longer than {_DECODING_TIMEOUT_S} s")
        sha256 = await self._blobs.put(smaller.data)
        changes = {"sha256": sha256, "mime_type": smaller.mime_type, "size": len(smaller.data)}
        return _substitute(medium, part.model_copy(update=changes), problem)


_DECODING_TIMEOUT_S = 30


def _substitute(medium: SentMedium, part: BlobPart, reason: str = "") -> Adaptation:
    return Adaptation(part="media", form="replaced", name=medium.name, blob=part, reason=reason)


def _text(medium: SentMedium, reason: str, *, shared_limit: bool = False) -> Adaptation:
    text = left_out(medium.part, reason)
    return Adaptation(part="media", form="replaced", name=medium.name, text=text, shared_limit=shared_limit)


def _texts(media: Iterable[SentMedium], reasons: Mapping[str, str]) -> dict[str, Adaptation]:
    named = {medium.name: medium for medium in media if medium.name in reasons}
    hint = "read it again if it is needed"
    return {name: _text(medium, f"{reasons[name]}; {hint}", shared_limit=True) for name, medium in named.items()}


def _bytes_of_texts(messages: History) -> int:
    media = sum(part.size * 4 // 3 + 4 for message in messages for part in blobs_of(message))
    return messages.size(len(messages)) - media


def _with_substitutes(messages: Iterable[Message], adaptations: Adaptations) -> Iterator[tuple[BlobPart, BlobPart]]:
    """Yield each image and document, and what is sent of it; without those that a text replaces."""
    by_name = {item.name: item for item in adaptations if item.part == "media"}
    for part in (part for message in messages for part in blobs_of(message)):
        substitute = media_adaptation(part, by_name)
        sent = part if substitute is None else substitute.blob
        if sent is not None:
            yield part, sent


# Tokens.


async def max_tokens_beyond_bytes(
    messages: Iterable[Message], adaptations: Adaptations, read: BlobReader, known: MediaTokens
) -> int | None:
    """Return the most tokens of the media as they are sent, beyond one per byte; None without a bound."""
    total = 0
    for _, sent in _with_substitutes(messages, adaptations):
        if _is_read_as_text(sent.mime_type):
            continue
        key = (sent.sha256, sent.mime_type)
        if key not in known:
            try:
                data = await read(sent.sha256)
            except NotFound:  # a missing blob is not sent either
                continue
            known[key] = most_tokens(sent.mime_type, data)
        tokens = known[key]
        if tokens is None:
            return None
        total += max(0, tokens - sent.size * 4 // 3)
    return total


def _is_read_as_text(mime_type: str) -> bool:
    return mime_type != PDF and not mime_type.startswith(("image/", "audio/", "video/"))
