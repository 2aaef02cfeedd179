"""Limits of the vendors for images and documents, as data: one row for each wire format and family of models.

docs/providers.md prints the table. A row applies to a provider's name and to the models that its pattern matches; the
first match wins. Change a number only together with its source.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from perstack.core.messages.media import COMMON_IMAGE_TYPES, MediaLimits
from perstack.dataclass import dataclass

_MEBIBYTE = 1 << 20
_MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class VendorLimits:
    """Limits of one provider's endpoint for the models that a pattern matches."""

    providers: frozenset[str]
    media_limits: MediaLimits
    source: str  # page of the vendor's documentation
    models: str = ""  # regular expression, searched in the model's name; empty: every model


_CLAUDE = MediaLimits(
    takes_encrypted_pdfs=False,
    max_image_base64_bytes=5 * _MEBIBYTE,
    max_side_pixels=8_000,
    many_images=20,
    max_side_pixels_of_many=2_000,
    max_images=100,
    max_pdf_pages=600,
    max_request_bytes=32 * _MEGABYTE,
)
_GEMINI_IMAGES = frozenset({"image/jpeg", "image/png", "image/webp", "image/heic"})

ROWS = (
    VendorLimits(
        frozenset({"anthropic"}),
        _CLAUDE,
        'Claude API, "Images and vision", "PDF support", "Request size limits"',
    ),
    VendorLimits(
        frozenset({"amazon-bedrock"}),
        replace(_CLAUDE, max_pdfs=5, max_request_bytes=20 * _MEGABYTE),
        'Amazon Bedrock user guide, "API restrictions", "Anthropic Claude Messages API"',
        models="claude",
    ),
    VendorLimits(
        frozenset({"amazon-bedrock"}),
        MediaLimits(
            takes_encrypted_pdfs=False,
            max_image_base64_bytes=5 * _MEBIBYTE,
            max_side_pixels=8_000,
            max_images=20,
            max_pdf_bytes=4_500_000,
            max_pdfs=5,
            max_request_bytes=20 * _MEGABYTE,
        ),
        'Amazon Bedrock API reference, "Message": 3.75 MB, which is 5 MB in base64',
    ),
    VendorLimits(
        frozenset({"google-vertex"}),
        replace(_CLAUDE, max_request_bytes=30 * _MEGABYTE),
        'Claude API, "Claude on Vertex AI", "Images and vision"',
        models="^claude",
    ),
    VendorLimits(
        frozenset({"google-vertex"}),
        MediaLimits(
            image_types=_GEMINI_IMAGES,
            max_image_base64_bytes=7 * _MEGABYTE * 4 // 3,
            max_images=900,
            max_pdf_bytes=50 * _MEGABYTE,
            max_pdf_pages=1_000,
        ),
        'Vertex AI, "Image understanding", "Document understanding"',
    ),
    VendorLimits(
        frozenset({"google"}),
        MediaLimits(
            image_types=_GEMINI_IMAGES,
            max_images=3_600,
            max_pdf_bytes=50 * _MEGABYTE,
            max_pdf_pages=1_000,
            max_request_bytes=20 * _MEBIBYTE,
        ),
        'Gemini API, "Image understanding", "Document understanding"',
    ),
    VendorLimits(
        frozenset({"openai", "azure-openai"}),
        MediaLimits(
            takes_animations=False,
            max_image_base64_bytes=50 * _MEGABYTE,
            max_images=1_500,
            max_pdf_bytes=50 * _MEGABYTE,
            max_request_bytes=512 * _MEGABYTE,
        ),
        'OpenAI guides, "Images and vision", "File inputs"',
    ),
    VendorLimits(
        frozenset({"groq"}),
        MediaLimits(max_pixels=33_177_600, max_images=5, max_request_bytes=4 * _MEGABYTE),
        'GroqCloud, "Images and vision"',
    ),
    VendorLimits(
        frozenset({"mistral"}),
        MediaLimits(max_image_base64_bytes=10 * _MEGABYTE, max_images=8),
        'Mistral, "Vision"',
    ),
    VendorLimits(
        frozenset({"xai"}),
        MediaLimits(
            image_types=COMMON_IMAGE_TYPES - {"image/gif", "image/webp"}, max_image_base64_bytes=20 * _MEBIBYTE
        ),
        'xAI, "Image understanding", "Image input general limits"',
    ),
)


@lru_cache(maxsize=100)
def limits_of(provider: str, model: str) -> MediaLimits:
    """Return the limits of a provider's endpoint for a model; only the common types of images for an unknown one."""
    matches = (row for row in ROWS if provider in row.providers and re.search(row.models, model))
    row = next(matches, None)
    return MediaLimits() if row is None else row.media_limits
