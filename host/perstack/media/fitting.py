"""Images and documents of a Run: repair what tools return, and fit what is sent to the limits of an endpoint.

Two places, because two things are known at different times. A result is repaired when it arrives: its type is the one
that its bytes have, and an image that nobody can read becomes a line of text, so that the history has no such image.
What an endpoint takes is known when a request is sent, and may change from one to the next with the model. So a medium
that does not fit is left in the history, and what is sent in its place is recorded by `adaptRequest`: a smaller image,
stored as another blob, since another version of Pillow would make other bytes; or a line of text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from perstack.core.messages.adaptations import Adaptation, Adaptations, media_adaptation, new_adaptations, of_messages
from perstack.core.messages.media import PDF, SVG, MediaFacts, facts_of, left_out, media_type, readable_medium
from perstack.core.messages.media_limits import MediaLimits, SentMedium, problem_of, too_large_together, too_many
from perstack.core.messages.messages import BlobPart, History, Message, ResultContent, TextPart, blobs_of
from perstack.core.runs.events import AdaptRequest
from perstack.engine.runs.job_context import RunContext
from perstack.errors import NotFound
from perstack.ports.provider import BlobReader, Provider
from perstack.ports.skill import BlobStore, ToolResult
from perstack.support.images import UnreadableImage, smaller_image
from perstack.system.user import notice

# Results of tools.


async def with_readable_media(result: ToolResult, read: BlobReader, tool_name: str) -> ToolResult:
    """Return a tool's result with the true types of its media, and a text for each image that nobody can read."""
    if not any(isinstance(part, BlobPart) for part in result.contents):
        return result
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


async def fit_media(context: RunContext) -> None:
    """Record what is sent in place of the images and documents of the Run that its endpoint would refuse."""
    session, run, known = context.session, context.session.run, context.media
    if not run.messages.blobs(len(run.messages)):
        return
    limits = context.endpoint.provider.media_limits(run.model)
    if limits is None or (known.are_fitted(run.messages) and not _may_be_too_large(run.messages, limits)):
        return
    adaptations = await substitutes_for(context, run.messages, run.adaptations)
    known.fitted = run.messages
    if adaptations:
        session.record(AdaptRequest(**session.stamp(), model=run.on, adaptations=adaptations))


def _may_be_too_large(messages: History, limits: MediaLimits) -> bool:
    most = limits.max_request_bytes
    return most is not None and messages.blobs(len(messages)) > 0 and messages.size(len(messages)) > most // 2


async def substitutes_for(context: RunContext, messages: History, known: Adaptations = ()) -> Adaptations:
    """Return the adaptations, beyond the known ones, that make the media of `messages` fit the Run's endpoint."""
    if not messages.blobs(len(messages)):
        return ()
    provider, model = context.endpoint.provider, context.session.run.model
    return await MediaFitting(provider, model, context.job.blobs, context.media.facts).adaptations(messages, known)


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
        limits = self._limits
        if limits is None:
            return ()
        known = of_messages(known)
        media = await self._media(messages, known)
        usable = [medium for medium in media if medium.is_image or problem_of(medium.facts, limits, 0) is None]
        new: dict[str, Adaptation] = _texts(media, too_many(usable, limits))
        media = [medium for medium in media if medium.name not in new]
        images = sum(medium.is_image for medium in media)
        for medium in {medium.name: medium for medium in media}.values():
            adaptation = await self._fitted(medium, limits, images)
            if adaptation is not None:
                new[medium.name] = adaptation
        if limits.max_request_bytes is not None:
            media = await self._media(messages, (*known, *new.values()))
            new |= _texts(media, too_large_together(media, limits, _bytes_of_texts(messages)))
        return new_adaptations(known, new.values())

    async def _media(self, messages: Sequence[Message], known: Adaptations) -> list[SentMedium]:
        """Return the media as they would be sent, one for each use, in the order of the request."""
        substitutes = {item.name: item for item in known if item.part == "media"}
        media: list[SentMedium] = []
        for part in (part for message in messages for part in blobs_of(message)):
            substitute = media_adaptation(part, substitutes)
            used = part if substitute is None else substitute.blob
            if used is None or not self._is_sent(used.mime_type):
                continue
            facts = await self._facts_of(used)
            if facts is not None:
                media.append(SentMedium(part.sha256, used, facts))
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

    async def _fitted(self, medium: SentMedium, limits: MediaLimits, images: int) -> Adaptation | None:
        part, facts = medium.part, medium.facts
        problem = problem_of(facts, limits, images)
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
                    max_side=limits.max_side(images),
                    max_pixels=limits.max_pixels,
                    max_bytes=None if limits.max_image_base64_bytes is None else limits.max_image_base64_bytes // 4 * 3,
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
