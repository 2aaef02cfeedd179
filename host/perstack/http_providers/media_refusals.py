"""Find the image or document that an endpoint refuses, and write the text that is sent in its place.

Endpoints name it by a path in the request (`messages.2.content.0.tool_result.content.1.image.source.base64: …`,
`input[4].output[1].image_url`, `contents[3].parts[0].inline_data`), by its kind alone ("Could not process image"), or
not at all. A path is followed in the body as it was sent, whose base64 data lead back to the medium: so nothing here
knows how a codec arranges its messages. Without a path, the newest medium of that kind is replaced, since the earlier
ones were accepted; after another refusal, all that came with it; then all of the kind. So one bad medium causes at most
three refusals.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256

from pydantic import JsonValue

from perstack.core.base.text import one_line
from perstack.core.messages.adaptations import ANY_DOCUMENT, ANY_IMAGE, Adaptation, Adaptations, media_adaptation
from perstack.core.messages.media import PDF, medium_noun
from perstack.core.messages.messages import BlobPart, ExpertMessage, Message, blobs_of
from perstack.core.runs.context_window import OVERFLOW
from perstack.dataclass import dataclass
from perstack.errors import ProviderError
from perstack.http_providers.refused_places import named_places, values_along, words_of
from perstack.ports.provider import GenerationRequest

_IMAGE = re.compile(r"image|\b(png|jpe?g|gif|webp)\b|inline_?data|media[_ ]type|mime[_ ]?type|图片|图像", re.IGNORECASE)
_DOCUMENT = re.compile(r"\bpdf|\bdocument|\bfile_data\b|\binput_file\b", re.IGNORECASE)
_CANNOT_SEE = re.compile(
    r"(not|n't|no) (support|accept|allow|take|enabled?)\w*\b.{0,40}\b(image|vision|multi-?modal|document|pdf|file)"
    r"|(image|vision|document|pdf|file)s?( input| content|_url)?\b.{0,30}\b(not|n't|only) (be )?(support|accept|allow)"
    r"|not a (multimodal|vision)|without vision",
    re.IGNORECASE,
)
"""Refusals of a kind, not of one medium: the model cannot see it, so that all of them are replaced."""
_FORMAT = re.compile(r"\bformats?\b|\btypes?\b|\b(png|jpe?g|gif|webp|tiff?|hei[cf]|bmp|svg|avif)\b", re.IGNORECASE)
_TOO_MANY = re.compile(
    r"too many (images|documents|files|media)|(at most|maximum of|up to|limit of) (\d+) (images|documents|files)",
    re.IGNORECASE,
)
_UNNAMED = re.compile(
    r"contains an invalid argument|provider returned error|upstream request failed|failed to (decode|process) input",
    re.IGNORECASE,
)
"""Refusals without a reason. Only media that came since the last reply may be the cause: the others were accepted."""

_LEADING = re.compile(
    r"^(the model returned the following errors?:\s*)?[`'\"]?[A-Za-z_]\w*(\.\w+|\[\d+\])+[`'\"]?\s*[:.]?\s*",
    re.IGNORECASE,
)
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_DATA_URL = re.compile(r"data:[^,]{0,200};base64,")
_MAX_REASON_CHARS = 300
_MIN_BASE64_CHARS = 4


@dataclass(frozen=True, slots=True)
class _SentMedium:
    """A medium of a request: the original in the history, and the blob that was sent for it."""

    original: BlobPart
    sent: BlobPart
    is_new: bool  # True if it came after the latest reply

    @property
    def is_document(self) -> bool:
        return self.sent.mime_type == PDF


def named_media(
    request: GenerationRequest, error: ProviderError, body: Mapping[str, JsonValue]
) -> tuple[Adaptation, ...]:
    """Return a replacement text for each image or document that a refusal of `body` names; none if it names none."""
    media = list(_media_of(request.messages, request.adaptations))
    if not media:
        return ()
    words = words_of(error)
    matching_media = _media_of_named_kind(media, words)
    digests_at_path = _blobs_at(body, words) if matching_media else frozenset[str]()
    refused: Sequence[_SentMedium] = [medium for medium in matching_media if medium.sent.sha256 in digests_at_path]
    crowding_media = () if refused else _crowding_media(media, matching_media, request, error)
    if not refused and not crowding_media and (replacements := _unseen_kinds(matching_media, request, error)):
        return replacements
    refused = refused or crowding_media or _suspected_media(media, matching_media, request, error)
    return tuple(
        Adaptation(
            part="media",
            form="replaced",
            name=name,
            text=_replacement_text(part, error.message),
            shared_limit=bool(crowding_media),
        )
        for name, part in {medium.original.sha256: medium.sent for medium in refused}.items()
    )


def _crowding_media(
    media: Sequence[_SentMedium], kinds: Sequence[_SentMedium], request: GenerationRequest, error: ProviderError
) -> Sequence[_SentMedium]:
    """Return the media without which the others may fit the limits of a request."""
    message = words_of(error)
    if error.status_code == 413 and _are_over_half_of_request(media, request):
        return [max(media, key=lambda medium: medium.sent.size)]
    if error.name == OVERFLOW or not kinds or _CANNOT_SEE.search(message):
        return ()
    if match := _TOO_MANY.search(message):
        max_count = int(match[3]) if match[3] else len(kinds) // 2
        return kinds[: max(1, len(kinds) - max_count)]
    return ()


_MAX_UNSEEN = 2  # refused media of a kind, after which none of the kind is sent


def _unseen_kinds(
    kinds: Sequence[_SentMedium], request: GenerationRequest, error: ProviderError
) -> tuple[Adaptation, ...]:
    """Return one replacement text for all media of a kind that the model has refused repeatedly."""
    if error.name == OVERFLOW or not _says_model_is_blind(words_of(error)):
        return ()
    names = dict.fromkeys(ANY_DOCUMENT if medium.is_document else ANY_IMAGE for medium in kinds)
    texts = [item.text for item in request.adaptations if item.part == "media" and _says_model_is_blind(item.text)]
    return tuple(
        Adaptation(part="media", form="replaced", name=name, text=f"[{name} left out: {_short_reason(error.message)}]")
        for name in names
        if sum(text.startswith(f"[{name}") for text in texts) >= _MAX_UNSEEN
    )


def _says_model_is_blind(words: str) -> bool:
    """Return whether a text says that a model takes no media of a kind, and not only that it refuses a format."""
    return _CANNOT_SEE.search(words) is not None and _FORMAT.search(words) is None


def _suspected_media(
    media: Sequence[_SentMedium], kinds: Sequence[_SentMedium], request: GenerationRequest, error: ProviderError
) -> Sequence[_SentMedium]:
    """Return the media that a refusal without a path may mean: by their kind, or new ones if it has no reason."""
    message = words_of(error)
    if error.name == OVERFLOW:
        return ()  # compaction shortens a request that is too long
    if kinds and _CANNOT_SEE.search(message):
        return kinds
    if kinds:
        return _newest_or_new_media(kinds, request)
    return [medium for medium in media if medium.is_new] if _UNNAMED.search(message) else ()


def _newest_or_new_media(media: Sequence[_SentMedium], request: GenerationRequest) -> Sequence[_SentMedium]:
    """Return the media that may be meant: the newest, or those around it if it was replaced already."""
    new_media = [medium for medium in media if medium.is_new]
    replaced_names = {item.name for item in request.adaptations if item.part == "media" and _REFUSED in item.text}
    reply_index = _latest_reply_index(request.messages)
    if not any(
        blob.sha256 in replaced_names for message in request.messages[reply_index + 1 :] for blob in blobs_of(message)
    ):
        return (new_media or media)[-1:]
    return new_media or media


def _are_over_half_of_request(media: Sequence[_SentMedium], request: GenerationRequest) -> bool:
    """Return True if media are more than half of a request, so that texts alone cannot make it small."""
    request_chars = sum(len(message.to_json()) for message in request.messages)
    return sum(medium.sent.size * 4 // 3 for medium in media) > request_chars


def _media_of_named_kind(media: Sequence[_SentMedium], message: str) -> Sequence[_SentMedium]:
    is_document, is_image = _DOCUMENT.search(message) is not None, _IMAGE.search(message) is not None
    return [medium for medium in media if (is_document if medium.is_document else is_image)]


def _media_of(messages: Sequence[Message], adaptations: Adaptations) -> Iterator[_SentMedium]:
    """Yield the media as they were sent, without the ones that were replaced by a text."""
    substitutes = {item.name: item for item in adaptations if item.part == "media"}
    reply_index = _latest_reply_index(messages)
    for index, message in enumerate(messages):
        for part in blobs_of(message):
            substitute = media_adaptation(part, substitutes)
            sent = part if substitute is None else substitute.blob
            if sent is not None and (sent.mime_type == PDF or sent.mime_type.startswith("image/")):
                yield _SentMedium(part, sent, index > reply_index)


def _latest_reply_index(messages: Sequence[Message]) -> int:
    replies = (index for index in reversed(range(len(messages))) if isinstance(messages[index], ExpertMessage))
    return next(replies, -1)


_REFUSED = "the API could not process this"


def _replacement_text(part: BlobPart, message: str) -> str:
    kind = "document" if part.mime_type == PDF else "image"
    noun = medium_noun(part.mime_type, part.name)
    return (
        f"[{noun} removed: {_REFUSED} {kind} ({_short_reason(message)}). The file may be unsupported or corrupt; do not"
        " retry reading it.]"
    )


def _short_reason(message: str) -> str:
    return one_line(_LEADING.sub("", message, count=1) or message)[:_MAX_REASON_CHARS].rstrip(". ")


# Base64 data at a place in a request's body.


def _blobs_at(body: Mapping[str, JsonValue], words: str) -> frozenset[str]:
    """Return the sha256 of base64 data at the first path of the text that has some; empty without one."""
    for place in named_places(words, body):
        *_, value = values_along(body, place)
        digests = {name for data in _data_below(value) if (name := _digest_of(data))}
        if digests:
            return frozenset(digests)
    return frozenset()


def _data_below(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _data_below(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _data_below(item)


def _digest_of(text: str) -> str | None:
    data = text[match.end() :] if (match := _DATA_URL.match(text)) else text
    if len(data) < _MIN_BASE64_CHARS or len(data) % 4 or not _BASE64.fullmatch(data):
        return None
    return sha256(b64decode(data)).hexdigest()
