"""What a person adds to a query: images and documents as they are, and texts with their names."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from perstack.core.media import image_type, pdf_type
from perstack.core.messages import BlobPart, ResultContent, TextPart
from perstack.dataclass import dataclass
from perstack.errors import UsageError

MOST = 20
"""Of one query."""
_MEBIBYTE = 1 << 20
LARGEST = 30 * _MEBIBYTE
"""Bytes of a PDF, which may be the largest."""
_LARGEST_IMAGE = 15 * _MEBIBYTE
_LARGEST_TEXT = 256 << 10
_LARGEST_TOGETHER = 60 * _MEBIBYTE
_LONGEST_NAME = 255
_KINDS = "a PNG, JPEG, GIF or WebP image, a PDF, or text in UTF-8"


@dataclass(frozen=True, slots=True)
class Attached:
    """Something that was added, and the part of the query that it becomes."""

    part: ResultContent
    name: str
    data: bytes

    @property
    def media_type(self) -> str | None:
        """None for a text."""
        return self.part.mime_type if isinstance(self.part, BlobPart) else None


def attached_of(name: str, data: bytes) -> Attached:
    """What its bytes say that it is, whatever its name says. Raises UsageError for what no model is sent."""
    name = "".join(sign if sign.isprintable() else "\ufffd" for sign in name)[:_LONGEST_NAME] or "attachment"
    image = image_type(data)
    kind = image or pdf_type(data)
    if kind is not None:
        _check_size(name, data, _LARGEST_IMAGE if image else LARGEST)
        part = BlobPart(sha256=sha256(data).hexdigest(), mime_type=kind, size=len(data), name=name)
        return Attached(part, name, data)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UsageError(f"{name} cannot be attached: it is not {_KINDS}")
    _check_size(name, data, _LARGEST_TEXT)
    return Attached(TextPart(text=f"\n\nAttached file {name}:\n{text}"), name, data)


def check_together(found: Sequence[Attached]) -> None:
    """Raises UsageError if they are too many, or too much."""
    if len(found) > MOST:
        raise UsageError(f"{len(found)} files are attached: attach at most {MOST}")
    size = sum(len(one.data) for one in found)
    if size > _LARGEST_TOGETHER:
        raise UsageError(f"what is attached has {size:,} bytes together: attach at most {_LARGEST_TOGETHER:,}")


def _check_size(name: str, data: bytes, most: int) -> None:
    if len(data) > most:
        raise UsageError(f"{name} cannot be attached: it has {len(data):,} bytes, more than {most:,}")
