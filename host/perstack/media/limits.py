"""Which images and documents of a request do not fit the limits of its endpoint, and why.

A medium that an endpoint refuses is in every later request of the Run, which would fail with each. So what does not fit
is changed before sending: an image is made smaller or written in another format, anything else becomes a line of text.
The functions decide from headers (`MediaFacts`); fitting.py makes the substitutes and records them. Limits of one
medium are hard. Limits of a whole request are met with room to spare: each substitute changes the bytes of earlier
messages, which endpoints cache, so it must not happen at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perstack.core.messages.media import PDF, MediaLimits
from perstack.core.messages.messages import BlobPart
from perstack.dataclass import dataclass
from perstack.media.file_headers import MediaFacts

# Longest side, in pixels, to which an image is made smaller. No model sees more in a larger image. This size is also
# within the vendors' limits for requests with many images, so that no image is made smaller twice.
SMALLER_SIDE_PIXELS = 2_000

_FILL_RATIO = 0.75  # share of a whole request's limit that is used after media were left out
_HEADROOM_BYTES = 1 << 20  # bytes kept free for the instruction, tools and settings of a request


@dataclass(frozen=True, slots=True)
class SentMedium:
    """An image or document of a request, as it is sent."""

    name: str  # sha256 of the original in the history, which `part` may replace
    part: BlobPart
    facts: MediaFacts

    @property
    def is_image(self) -> bool:
        return self.part.mime_type != PDF


def find_problem(facts: MediaFacts, media_limits: MediaLimits, images: int) -> str | None:
    """Return why an endpoint would refuse a medium in a request with so many images; None if it fits."""
    if facts.mime_type == PDF:
        return _pdf_problem(facts, media_limits)
    if facts.mime_type not in media_limits.image_types:
        return f"the endpoint takes no {facts.mime_type}"
    if facts.is_animated and not media_limits.takes_animations:
        return "the endpoint takes no animations"
    return _image_excess(facts, media_limits, images) or facts.oddity or None


def _image_excess(facts: MediaFacts, media_limits: MediaLimits, images: int) -> str | None:
    max_bytes = media_limits.max_image_base64_bytes
    if max_bytes is not None and facts.base64_size > max_bytes:
        return f"it has {facts.base64_size:,} bytes in base64, and the endpoint takes {max_bytes:,}"
    if facts.sides is None:
        return None
    width, height = facts.sides
    side = media_limits.max_side(images)
    if side is not None and max(width, height) > side:
        return f"it has {width:,} × {height:,} pixels, and the endpoint takes {side:,} a side"
    if media_limits.max_pixels is not None and width * height > media_limits.max_pixels:
        return f"it has {width * height:,} pixels, and the endpoint takes {media_limits.max_pixels:,}"
    return None


def _pdf_problem(facts: MediaFacts, media_limits: MediaLimits) -> str | None:
    if facts.is_encrypted and not media_limits.takes_encrypted_pdfs:
        return "it is encrypted, and the endpoint takes no encrypted documents"
    if media_limits.max_pdf_bytes is not None and facts.size > media_limits.max_pdf_bytes:
        return f"it has {facts.size:,} bytes, and the endpoint takes {media_limits.max_pdf_bytes:,}"
    if media_limits.max_pdf_pages is not None and facts.pages > media_limits.max_pdf_pages:
        return f"it has {facts.pages:,} pages, and the endpoint takes {media_limits.max_pdf_pages:,}"
    return None


def find_excess_count(media: Sequence[SentMedium], media_limits: MediaLimits) -> dict[str, str]:
    """Return the oldest media to leave out of a request with too many, by name, with the reason.

    `media` has one item for each use, in the order of the request.
    """
    images = [medium for medium in media if medium.is_image]
    pdfs = [medium for medium in media if not medium.is_image]
    return {
        **_oldest_in_excess(images, media_limits.max_images, lambda facts: 1, "{:,} images"),
        **_oldest_in_excess(pdfs, media_limits.max_pdfs, lambda facts: 1, "{:,} documents"),
        **_oldest_in_excess(pdfs, media_limits.max_pdf_pages, lambda facts: facts.pages, "{:,} pages of documents"),
    }


def find_excess_bytes(media: Sequence[SentMedium], media_limits: MediaLimits, text_bytes: int) -> dict[str, str]:
    """Return the oldest media to leave out of a request with too many bytes, by name, with the reason."""
    max_bytes = media_limits.max_request_bytes
    if max_bytes is None:
        return {}
    remaining_bytes = max(0, max_bytes - _HEADROOM_BYTES - text_bytes)
    return _oldest_in_excess(media, remaining_bytes, lambda facts: facts.base64_size, f"{max_bytes:,} bytes")


def _oldest_in_excess(
    media: Sequence[SentMedium], max_total: int | None, weight: Callable[[MediaFacts], int], limit_text: str
) -> dict[str, str]:
    """Return the oldest media to leave out so that the rest fits `max_total`, and each medium that exceeds it alone."""
    weights = [weight(medium.facts) for medium in media]
    if max_total is None or sum(weights) <= max_total:
        return {}
    kept_names: set[str] = set()
    total = 0
    for medium, medium_weight in zip(reversed(media), reversed(weights), strict=True):
        if medium_weight > max_total:
            continue
        total += medium_weight
        if total > (max_total * _FILL_RATIO if kept_names else max_total):
            break
        kept_names.add(medium.name)
    reason = f"the endpoint takes no request with more than {limit_text.format(max_total)}"
    return {medium.name: reason for medium in media if medium.name not in kept_names}
