"""Make images smaller, or write them in another format, with Pillow.

Only this module imports Pillow, and only when an image needs it. Images come from servers and files that nobody has
checked, so decoding is bounded: few formats, whose decoders are in Pillow itself; a limit of pixels, from the header,
before any is decoded; a fixed number of tries to write the result. Pillow's bytes differ from version to version, so a
caller stores a result and never makes it again.
"""

from __future__ import annotations

import warnings
from io import BytesIO
from threading import Lock
from typing import TYPE_CHECKING

from perstack.core.messages.media import image_type
from perstack.dataclass import dataclass
from perstack.errors import PerstackError
from perstack.media.limits import SMALLER_SIDE_PIXELS

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS = 120_000_000  # maximum pixels of an image that is decoded: 480 MB at most, in 1 to 2 s
_ONE_AT_A_TIME = Lock()  # held while decoding, because concurrent decoding would need that memory several times
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "AVIF", "ICO", "JPEG2000")
_LOSSLESS = frozenset({"PNG", "GIF", "BMP", "TIFF", "ICO", "WEBP", "AVIF"})
_JPEG_QUALITIES = (85, 60, 35)
_SHRINK_FACTOR = 0.6
_MAX_ROUNDS = 5


class UnreadableImage(PerstackError):
    """Raised for an image that cannot be decoded here; the message is the reason."""


@dataclass(frozen=True, slots=True)
class SmallerImage:
    """An image as PNG or JPEG."""

    data: bytes
    mime_type: str


def smaller_image(data: bytes, *, max_side: int | None, max_pixels: int | None, max_bytes: int | None) -> SmallerImage:
    """Return the image as PNG or JPEG within these limits; blocks, up to some seconds.

    An image within its limits of pixels keeps them. Of an animation the first frame remains. Raises UnreadableImage.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise UnreadableImage("making it fit needs Pillow, which is not installed (pip install pillow)") from None
    try:
        with _ONE_AT_A_TIME, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's warnings of odd files, and of sizes, which are limited here
            with Image.open(BytesIO(data), formats=_FORMATS) as image:
                return _convert(image, max_side, max_pixels, max_bytes, is_large=_is_large(data, max_bytes))
    except UnidentifiedImageError:
        raise UnreadableImage("its format cannot be decoded here") from None
    except UnreadableImage:
        raise
    # decoders of foreign bytes raise nearly anything
    except (OSError, ValueError, SyntaxError, ArithmeticError, LookupError, TypeError, MemoryError) as error:
        raise UnreadableImage(f"it cannot be decoded: {error}"[:200]) from None
    except Image.DecompressionBombError:
        raise UnreadableImage(f"it has more than the {MAX_PIXELS:,} pixels that are decoded here") from None


def _is_large(data: bytes, max_bytes: int | None) -> bool:
    return max_bytes is not None and len(data) > max_bytes


def _convert(
    image: Image, max_side: int | None, max_pixels: int | None, max_bytes: int | None, *, is_large: bool
) -> SmallerImage:
    if image.width * image.height > MAX_PIXELS:
        raise UnreadableImage(f"it has more than the {MAX_PIXELS:,} pixels that are decoded here")
    is_lossless = image.format in _LOSSLESS
    size = _target_size(image.size, max_side, max_pixels, is_large=is_large)
    if size != image.size:
        image.draft("RGB", size)  # a JPEG is decoded at a fraction of its pixels
    picture = _decode_upright(image)
    if (picture.width > picture.height) != (size[0] > size[1]):
        size = (size[1], size[0])
    for _ in range(_MAX_ROUNDS):
        if picture.size != size:
            picture = picture.resize(size, reducing_gap=2.0)  # pyright: ignore[reportUnknownMemberType] - needs numpy
        result = _encode_within(picture, max_bytes, is_lossless=is_lossless)
        if result is not None:
            return result
        size = (max(1, round(size[0] * _SHRINK_FACTOR)), max(1, round(size[1] * _SHRINK_FACTOR)))
    raise UnreadableImage("it cannot be made small enough")


def _target_size(
    size: tuple[int, int], max_side: int | None, max_pixels: int | None, *, is_large: bool
) -> tuple[int, int]:
    """Return the size in pixels that an image gets, with its proportions."""
    width, height = size
    if not is_large and _is_within(size, max_side, max_pixels):
        return size
    side = min(SMALLER_SIDE_PIXELS, max_side or SMALLER_SIDE_PIXELS)
    scale = min(1.0, side / max(width, height))
    if max_pixels is not None:
        scale = min(scale, (max_pixels / (width * height)) ** 0.5)
    return max(1, int(width * scale)), max(1, int(height * scale))


def _is_within(size: tuple[int, int], max_side: int | None, max_pixels: int | None) -> bool:
    width, height = size
    return (max_side is None or max(width, height) <= max_side) and (max_pixels is None or width * height <= max_pixels)


def _decode_upright(image: Image) -> Image:
    """Return the first frame, turned as its metadata say, in a mode that PNG and JPEG can hold."""
    from PIL import ImageOps

    image.seek(0)
    turned = ImageOps.exif_transpose(image)
    if turned.mode in ("L", "RGB", "RGBA"):
        return turned
    if turned.mode.startswith(("I", "F")):  # 16 bits and more, which a conversion would cut off
        grey = turned.convert("F").point(lambda value: value / 256)  # pyright: ignore[reportUnknownMemberType] - numpy
        return ImageOps.autocontrast(grey.convert("L"))
    has_transparency = turned.has_transparency_data
    return turned.convert("RGBA" if has_transparency else "RGB")


def _encode_within(picture: Image, max_bytes: int | None, *, is_lossless: bool) -> SmallerImage | None:
    if is_lossless:
        result = _encode(picture, "PNG")
        if max_bytes is None or len(result) <= max_bytes:
            return SmallerImage(result, "image/png")
    flat = _on_white(picture)
    for quality in _JPEG_QUALITIES:
        result = _encode(flat, "JPEG", quality=quality)
        if max_bytes is None or len(result) <= max_bytes:
            return SmallerImage(result, "image/jpeg")
    return None


def _encode(picture: Image, file_format: str, **options: int) -> bytes:
    output = BytesIO()
    picture.save(output, file_format, **options)
    data = output.getvalue()
    assert image_type(data) is not None  # noqa: S101 - of a file that Pillow has just written
    return data


def _on_white(picture: Image) -> Image:
    from PIL import Image

    if picture.mode != "RGBA":
        return picture
    white = Image.new("RGB", picture.size, (255, 255, 255))
    white.paste(picture, mask=picture.getchannel("A"))
    return white
