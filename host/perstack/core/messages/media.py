"""Types of images and documents, and the limits that an endpoint has for them.

The type is read from the bytes, never from a declaration: a provider refuses a request with a wrong type. The feature
`media` reads the rest of a header when a message has an image or a document.
"""

from __future__ import annotations

from perstack.dataclass import dataclass

PDF = "application/pdf"
COMMON_IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})


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
    return PDF if b"%PDF-" in head[:1024] else None


def medium_noun(kind: str, name: str | None) -> str:
    """Return `image` or `document`, with the medium's name."""
    noun = "document" if kind == PDF else "image"
    return f"{noun} {name}" if name else noun


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """Limits of an endpoint for images and documents. None: unlimited, or unknown."""

    image_types: frozenset[str] = COMMON_IMAGE_TYPES
    takes_animations: bool = True
    takes_encrypted_pdfs: bool = True
    max_image_base64_bytes: int | None = None
    max_side_pixels: int | None = None
    many_images: int | None = None  # number of images in a request above which `max_side_pixels_of_many` applies
    max_side_pixels_of_many: int | None = None
    max_pixels: int | None = None  # width times height
    max_images: int | None = None  # maximum images in a request
    max_pdf_bytes: int | None = None
    max_pdf_pages: int | None = None  # maximum pages of PDFs in a request
    max_pdfs: int | None = None  # maximum PDFs in a request
    max_request_bytes: int | None = None

    def max_side(self, images: int) -> int | None:
        """Return the maximum pixels per side in a request with this number of images."""
        is_many = self.many_images is not None and images > self.many_images
        return self.max_side_pixels_of_many if is_many else self.max_side_pixels
