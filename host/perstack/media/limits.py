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


def problem_of(facts: MediaFacts, media_limits: MediaLimits, images: int) -> str | None:
    """Return why an endpoint would refuse a medium in a request with so many images; None if it fits."""
    if facts.mime_type == PDF:
        return _problem_of_pdf(facts, media_limits)
    if facts.mime_type not in media_limits.image_types:
        return f"the endpoint takes no {facts.mime_type}"
    if facts.is_animated and not media_limits.takes_animations:
        return "the endpoint takes no animations"
    return _excess(facts, media_limits, images) or facts.oddity or None


def _excess(facts: MediaFacts, media_limits: MediaLimits, images: int) -> str | None:
    most = media_limits.max_image_base64_bytes
    if most is not None and facts.base64_size > most:
        return f"it has {facts.base64_size:,} bytes in base64, and the endpoint takes {most:,}"
    if facts.sides is None:
        return None
    width, height = facts.sides
    side = media_limits.max_side(images)
    if side is not None and max(width, height) > side:
        return f"it has {width:,} × {height:,} pixels, and the endpoint takes {side:,} a side"
    if media_limits.max_pixels is not None and width * height > media_limits.max_pixels:
        return f"it has {width * height:,} pixels, and the endpoint takes {media_limits.max_pixels:,}"
    return None


def _problem_of_pdf(facts: MediaFacts, media_limits: MediaLimits) -> str | None:
    if facts.is_encrypted and not media_limits.takes_encrypted_pdfs:
        return "it is encrypted, and the endpoint takes no encrypted documents"
    if media_limits.max_pdf_bytes is not None and facts.size > media_limits.max_pdf_bytes:
        return f"it has {facts.size:,} bytes, and the endpoint takes {media_limits.max_pdf_bytes:,}"
    if media_limits.max_pdf_pages is not None and facts.pages > media_limits.max_pdf_pages:
        return f"it has {facts.pages:,} pages, and the endpoint takes {media_limits.max_pdf_pages:,}"
    return None


def too_many(media: Sequence[SentMedium], media_limits: MediaLimits) -> dict[str, str]:
    """Return the oldest media of a request that has too many, by name, with the reason.

    `media` has one item for each use, in the order of the request.
    """
    images = [medium for medium in media if medium.is_image]
    pdfs = [medium for medium in media if not medium.is_image]
    return {
        **_oldest(images, media_limits.max_images, lambda facts: 1, "{:,} images"),
        **_oldest(pdfs, media_limits.max_pdfs, lambda facts: 1, "{:,} documents"),
        **_oldest(pdfs, media_limits.max_pdf_pages, lambda facts: facts.pages, "{:,} pages of documents"),
    }


def too_large_together(media: Sequence[SentMedium], media_limits: MediaLimits, text_bytes: int) -> dict[str, str]:
    """Return the oldest media of a request that has too many bytes, by name, with the reason."""
    most = media_limits.max_request_bytes
    if most is None:
        return {}
    left = max(0, most - _HEADROOM_BYTES - text_bytes)
    return _oldest(media, left, lambda facts: facts.base64_size, f"{most:,} bytes")


def _oldest(
    media: Sequence[SentMedium], most: int | None, weight: Callable[[MediaFacts], int], limit_text: str
) -> dict[str, str]:
    """Return the oldest media to leave out so that the rest fits `most`, and each medium that exceeds it alone."""
    weights = [weight(medium.facts) for medium in media]
    if most is None or sum(weights) <= most:
        return {}
    kept: set[str] = set()
    total = 0
    for medium, medium_weight in zip(reversed(media), reversed(weights), strict=True):
        if medium_weight > most:
            continue
        total += medium_weight
        if total > (most * _FILL_RATIO if kept else most):
            break
        kept.add(medium.name)
    reason = f"the endpoint takes no request with more than {limit_text.format(most)}"
    return {medium.name: reason for medium in media if medium.name not in kept}
