"""Images and documents: their types, the tokens that they cost at most, and the attachments of a query.

The first bytes tell the type: a wrong media type makes a provider refuse the request. Its price of an image depends on
the pixels, the price of a document on pages and texts, which only a reader of the format knows.
"""

from collections.abc import Sequence
from hashlib import sha256
from math import ceil
from typing import Literal

from perstack.core.runs.messages import BlobPart, ResultContent, TextPart
from perstack.dataclass import dataclass
from perstack.errors import UsageError


def image_type(head: bytes) -> str | None:
    """Return the media type of an image that a model can see; None for anything else."""
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "image/webp"
    return None


def pdf_type(head: bytes) -> str | None:
    """Return the media type of a PDF. Readers accept a header that other bytes precede, so search for it."""
    return "application/pdf" if b"%PDF-" in head[:1024] else None


PDF = "application/pdf"

_TILE_PIXELS = 512
_TILE_TOKENS = 5_667
_IMAGE_TOKENS_MEDIA = 2_833  # openAI, «Images and vision»: gpt-4o-mini, most tokens per pixel of all models

_MAX_SEGMENTS = 10_000
_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_WITHOUT_LENGTH = frozenset((0x01, *range(0xD0, 0xD9)))
# No segments for decoders, which continue right after them; bytes taken for a length could hide the real frame.
_IGNORED_MARKERS = frozenset((0x00, 0xD9))


def most_tokens(mime_type: str, data: bytes) -> int | None:
    """Return the maximum tokens of a medium at any endpoint; None without a bound, as for all but images."""
    size = image_size(data) if mime_type.startswith("image/") else None
    if size is None:
        return None
    width, height = size
    return _IMAGE_TOKENS_MEDIA + _TILE_TOKENS * ceil(width / _TILE_PIXELS) * ceil(height / _TILE_PIXELS)


def image_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height from an image's header; None without one, and for a GIF, whose frames may be larger."""
    match image_type(data):
        case "image/png":
            size = _numbers(data, 16, 4, "big") if data[12:16] == b"IHDR" else None
        case "image/jpeg":
            size = _size_of_jpeg(data)
        case "image/webp":
            size = _size_of_webp(data)
        case _:
            size = None
    return size if size is not None and min(size) > 0 else None


def _numbers(data: bytes, position: int, size: int, order: Literal["big", "little"]) -> tuple[int, int] | None:
    if len(data) < position + 2 * size:
        return None
    return int.from_bytes(data[position : position + size], order), int.from_bytes(
        data[position + size : position + 2 * size], order
    )


def _size_of_jpeg(data: bytes) -> tuple[int, int] | None:
    position = 2
    for _ in range(_MAX_SEGMENTS):
        while data[position : position + 2] == b"\xff\xff":
            position += 1
        if len(data) < position + 4 or data[position] != 0xFF:
            return None
        kind = data[position + 1]
        if kind in _START_OF_FRAME:
            dimensions = _numbers(data, position + 5, 2, "big")
            return None if dimensions is None else (dimensions[1], dimensions[0])
        if kind in _IGNORED_MARKERS:
            return None
        position += 2 if kind in _WITHOUT_LENGTH else 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    return None


def _size_of_webp(data: bytes) -> tuple[int, int] | None:
    match data[12:16]:
        case b"VP8X":
            dimensions = _numbers(data, 24, 3, "little")
            return None if dimensions is None else (dimensions[0] + 1, dimensions[1] + 1)
        case b"VP8L" if data[20:21] == b"\x2f" and len(data) >= 25:
            bits = int.from_bytes(data[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 " if data[23:26] == b"\x9d\x01\x2a":
            dimensions = _numbers(data, 26, 2, "little")
            return None if dimensions is None else (dimensions[0] & 0x3FFF, dimensions[1] & 0x3FFF)
        case _:
            return None


# Attachments of a query: images and documents as they are, and texts with their names.

MAX_ATTACHMENTS = 20
_MEBIBYTE = 1 << 20
MAX_PDF_BYTES = 30 * _MEBIBYTE  # maximum bytes of a PDF, which is the highest limit of all types
_MAX_IMAGE_BYTES = 15 * _MEBIBYTE
_MAX_TEXT_BYTES = 256 << 10
_MAX_TOTAL_BYTES = 60 * _MEBIBYTE
_MAX_NAME_CHARS = 255
_KINDS = "a PNG, JPEG, GIF or WebP image, a PDF, or text in UTF-8"


@dataclass(frozen=True, slots=True)
class Attached:
    """An attachment, and the part of the query that it becomes."""

    part: ResultContent
    name: str
    data: bytes

    @property
    def media_type(self) -> str | None:
        """The media type; None for a text."""
        return self.part.mime_type if isinstance(self.part, BlobPart) else None


def read_attachment(name: str, data: bytes) -> Attached:
    """Return an attachment; its bytes tell its type. Raises UsageError for an unsupported type, or one too large."""
    name = "".join(char if char.isprintable() else "\ufffd" for char in name)[:_MAX_NAME_CHARS] or "attachment"
    image = image_type(data)
    kind = image or pdf_type(data)
    if kind is not None:
        _check_size(name, data, _MAX_IMAGE_BYTES if image else MAX_PDF_BYTES)
        part = BlobPart(sha256=sha256(data).hexdigest(), mime_type=kind, size=len(data), name=name)
        return Attached(part, name, data)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UsageError(f"{name} cannot be attached: it is not {_KINDS}")
    _check_size(name, data, _MAX_TEXT_BYTES)
    return Attached(TextPart(text=f"\n\nAttached file {name}:\n{text}"), name, data)


def check_together(attachments: Sequence[Attached]) -> None:
    """Raise UsageError if the attachments are too many, or too large in total."""
    if len(attachments) > MAX_ATTACHMENTS:
        raise UsageError(f"{len(attachments)} files are attached: attach at most {MAX_ATTACHMENTS}")
    size = sum(len(attachment.data) for attachment in attachments)
    if size > _MAX_TOTAL_BYTES:
        raise UsageError(f"what is attached has {size:,} bytes together: attach at most {_MAX_TOTAL_BYTES:,}")


def _check_size(name: str, data: bytes, max_bytes: int) -> None:
    if len(data) > max_bytes:
        raise UsageError(f"{name} cannot be attached: it has {len(data):,} bytes, more than {max_bytes:,}")
