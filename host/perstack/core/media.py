"""What images and documents are, by their first bytes: a provider refuses a whole request over a wrong media type."""

from __future__ import annotations


def image_type(head: bytes) -> str | None:
    """The media type of an image that a model can see."""
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
    """The media type of a PDF; readers take one whose header is a little way in, so it is looked for."""
    return "application/pdf" if b"%PDF-" in head[:1024] else None
