"""Headers of images and documents: their types, sizes and defects, and the tokens that they cost at most.

An endpoint's price of an image depends on the pixels, the price of a document on pages and texts, which only a reader
of the format knows. Nothing here decodes an image: headers are enough to judge it, and decoding is what hostile files
attack.
"""

import re
from math import ceil
from typing import Literal

from perstack.core.messages.media import PDF, image_type, medium_noun, pdf_type
from perstack.core.messages.messages import BlobPart, ResultContent, TextPart
from perstack.dataclass import dataclass

SVG = "image/svg+xml"

_HEADS = (
    (b"II*\0", "image/tiff"),
    (b"MM\0*", "image/tiff"),
    (b"\0\0\1\0", "image/x-icon"),
    (b"\0\0\0\x0cjP  ", "image/jp2"),
)
_BRANDS = {b"avif": "image/avif", b"avis": "image/avif"} | dict.fromkeys(
    (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1"), "image/heic"
)
_BMP_HEADER_BYTES = frozenset((12, 40, 52, 56, 64, 108, 124))  # sizes of a bitmap's second header, by version


def other_image_type(head: bytes) -> str | None:
    """Return the media type of an image in a format that most models cannot see; None for anything else."""
    for start, kind in _HEADS:
        if head.startswith(start):
            return kind
    if head.startswith(b"BM") and int.from_bytes(head[14:18], "little") in _BMP_HEADER_BYTES:
        return "image/bmp"
    if head[4:8] == b"ftyp":
        return _BRANDS.get(head[8:12])
    return SVG if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<") and b"<svg" in head[:4096] else None


def media_type(data: bytes) -> str | None:
    """Return the media type of an image or a PDF, from its bytes; None for anything else."""
    return image_type(data) or pdf_type(data) or other_image_type(data)


_TILE_PIXELS = 512
_TILE_TOKENS = 5_667
# The model with the most tokens per pixel is gpt-4o-mini (OpenAI, "Images and vision"): these are its figures.
_IMAGE_TOKENS_MEDIA = 2_833

_MAX_SEGMENTS = 10_000
_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_WITHOUT_LENGTH = frozenset((0x01, *range(0xD0, 0xD9)))
# Decoders do not treat these as segments, but continue right after them. Reading a length there could skip the frame.
_IGNORED_MARKERS = frozenset((0x00, 0xD9))


def max_tokens_of(mime_type: str, data: bytes) -> int | None:
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
            size = _read_pair(data, 16, 4, "big") if data[12:16] == b"IHDR" else None
        case "image/jpeg":
            size = _jpeg_size(data)
        case "image/webp":
            size = _webp_size(data)
        case _:
            size = None
    return size if size is not None and min(size) > 0 else None


@dataclass(frozen=True, slots=True)
class MediaFacts:
    """The properties of an image or document that endpoints limit."""

    mime_type: str
    size: int  # bytes
    sides: tuple[int, int] | None = None  # width and height in pixels; None if the header does not say
    is_animated: bool = False
    oddity: str = ""  # property at which decoders often fail, as the end of "refused because …"
    is_encrypted: bool = False
    pages: int = 0  # pages of a PDF that are counted without parsing it

    @property
    def base64_size(self) -> int:
        """Return the bytes in base64."""
        return -(-self.size // 3) * 4


def facts_of(mime_type: str, data: bytes) -> MediaFacts:
    """Return the facts of an image or document from its headers."""
    if mime_type == PDF:
        return MediaFacts(mime_type, len(data), is_encrypted=_is_encrypted(data), pages=_count_pages(data))
    return MediaFacts(
        mime_type,
        len(data),
        sides=image_size(data) or _gif_size(data),
        is_animated=_is_animated(data),
        oddity=_find_oddity(data),
    )


def defect_of(data: bytes) -> str | None:
    """Return why no decoder can read an image, judged by its header; None if one may.

    A JPEG has no fixed place for its size, and decoders find it where a search of the header does not.
    """
    match image_type(data):
        case "image/png" | "image/webp" if image_size(data) is None:
            return "its header is damaged"
        case "image/gif" if _gif_size(data) is None:
            return "its header is damaged"
        case _:
            return None


_MAX_TRAILER_BYTES = 1 << 16  # bytes that cameras add after the end of a JPEG


def _find_oddity(data: bytes) -> str:
    """Return the property of an image at which decoders of endpoints often fail; empty for a common image."""
    match image_type(data):
        case "image/jpeg" if _jpeg_components(data) == 4:
            return "its colours are for print (CMYK)"
        case "image/jpeg":
            is_whole = b"\xff\xd9" in data[-_MAX_TRAILER_BYTES:]
        case "image/png":
            is_whole = _is_png_complete(data)
        case "image/webp":
            is_whole = len(data) >= 8 + int.from_bytes(data[4:8], "little")
        case _:
            is_whole = True
    return "" if is_whole else "its end is missing"


def _is_png_complete(data: bytes) -> bool:
    position = 8
    while position + 8 <= len(data):
        if data[position + 4 : position + 8] == b"IEND":
            return True
        position += 12 + int.from_bytes(data[position : position + 4], "big")
    return False


_ENCRYPTED = rb"/Encrypt\s*(\d+\s+\d+\s+R|<<)"
_PAGE = rb"/Type\s*/Page(?![A-Za-z])"
_LINEARIZED = rb"/Linearized\b[^>]{0,200}/N\s+(\d{1,6})\b"  # a linearized PDF states its number of pages at its start


def _is_encrypted(data: bytes) -> bool:
    return re.search(_ENCRYPTED, data) is not None


def _count_pages(data: bytes) -> int:
    linearized = re.search(_LINEARIZED, data[:2048])
    return max(0 if linearized is None else int(linearized[1]), sum(1 for _ in re.finditer(_PAGE, data)))


def _gif_size(data: bytes) -> tuple[int, int] | None:
    size = _read_pair(data, 6, 2, "little") if image_type(data) == "image/gif" else None
    return size if size is not None and min(size) > 0 else None


def _is_animated(data: bytes) -> bool:
    match image_type(data):
        case "image/gif":
            return _has_second_frame(data)
        case "image/webp":
            return data[12:16] == b"VP8X" and bool(data[20:21] and data[20] & 0x02)
        case _:
            return False


def _has_second_frame(data: bytes) -> bool:
    """Return True if a GIF has a second frame: its blocks are walked, since their data may contain any byte."""
    if len(data) < 13:
        return False
    position = 13 + _palette_bytes(data[10])
    frames = 0
    for _ in range(_MAX_SEGMENTS):
        match data[position : position + 1]:
            case b",":
                frames += 1
                if frames > 1 or len(data) < position + 10:
                    return frames > 1
                position = _skip_blocks(data, position + 11 + _palette_bytes(data[position + 9]))
            case b"!":
                position = _skip_blocks(data, position + 2)
            case _:
                return False
    return True


def _palette_bytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _skip_blocks(data: bytes, position: int) -> int:
    while position < len(data) and data[position]:
        position += 1 + data[position]
    return position + 1


def _read_pair(data: bytes, position: int, size: int, order: Literal["big", "little"]) -> tuple[int, int] | None:
    if len(data) < position + 2 * size:
        return None
    return int.from_bytes(data[position : position + size], order), int.from_bytes(
        data[position + size : position + 2 * size], order
    )


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    frame = _jpeg_frame(data)
    dimensions = None if frame is None else _read_pair(data, frame + 5, 2, "big")
    return None if dimensions is None else (dimensions[1], dimensions[0])


def _jpeg_components(data: bytes) -> int:
    frame = _jpeg_frame(data)
    return 0 if frame is None or len(data) < frame + 10 else data[frame + 9]


def _jpeg_frame(data: bytes) -> int | None:
    """Return the position of the segment that tells size and components of a JPEG; None without one."""
    position = 2
    for _ in range(_MAX_SEGMENTS):
        while data[position : position + 2] == b"\xff\xff":
            position += 1
        if len(data) < position + 4 or data[position] != 0xFF:
            return None
        kind = data[position + 1]
        if kind in _START_OF_FRAME:
            return position
        if kind in _IGNORED_MARKERS:
            return None
        position += 2 if kind in _WITHOUT_LENGTH else 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    return None


def _webp_size(data: bytes) -> tuple[int, int] | None:
    match data[12:16]:
        case b"VP8X":
            dimensions = _read_pair(data, 24, 3, "little")
            return None if dimensions is None else (dimensions[0] + 1, dimensions[1] + 1)
        case b"VP8L" if data[20:21] == b"\x2f" and len(data) >= 25:
            bits = int.from_bytes(data[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 " if data[23:26] == b"\x9d\x01\x2a":
            dimensions = _read_pair(data, 26, 2, "little")
            return None if dimensions is None else (dimensions[0] & 0x3FFF, dimensions[1] & 0x3FFF)
        case _:
            return None


# Results of tools: a tool declares a media type, which may be wrong.

_MAX_SVG_CHARS = 30_000
_MAX_QUOTED_CHARS = 2_000
_SYNONYMS = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg", "image/x-png": "image/png"}


def declared_type(mime_type: str) -> str:
    """Return a declared media type in its usual spelling, without parameters."""
    kind = mime_type.partition(";")[0].strip().lower()
    return _SYNONYMS.get(kind, kind)


def with_true_type(part: BlobPart, data: bytes) -> ResultContent:
    """Return a blob with the media type that its bytes have, or a text in place of an image that nobody can read.

    A blob that neither is an image or document nor claims to be one is returned unchanged.
    """
    declared, kind = declared_type(part.mime_type), media_type(data)
    is_medium = declared.startswith("image/") or declared == PDF
    if not is_medium and (kind is None or kind == SVG or declared.startswith("text/")):
        return part
    if kind == SVG:
        return TextPart(text=_shorten(data.decode("utf-8", "replace"), _MAX_SVG_CHARS))
    reason = _unreadable_reason(data) if kind is None else defect_of(data)
    if reason is not None:
        return TextPart(text=unreadable_text(PDF if declared == PDF else "image", part.name, reason))
    return part if kind == part.mime_type else part.model_copy(update={"mime_type": kind})


def unreadable_text(kind: str, name: str | None, reason: str) -> str:
    """Return the text for the model in place of an image or document."""
    return f"[{medium_noun(kind, name)} could not be read: {reason}]"


def left_out_text(part: BlobPart, reason: str) -> str:
    """Return the text for the model in place of an image or document that its endpoint does not take."""
    return f"[{medium_noun(part.mime_type, part.name)} left out: {reason}]"


def _unreadable_reason(data: bytes) -> str:
    if not data:
        return "it is empty"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        return "its bytes are in no known format"
    return f"it is a text: {_shorten(text, _MAX_QUOTED_CHARS)}"


def _shorten(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[:max_chars]} … ({len(text) - max_chars:,} characters more)"
