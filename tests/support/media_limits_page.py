"""The table of limits for images and documents in docs/providers.md, printed from the rows of `media_limits`.

`python tests/support/media_limits_page.py` writes it.
"""

from __future__ import annotations

from pathlib import Path

from perstack.core.runs.media_limits import COMMON_IMAGE_TYPES, MediaLimits
from perstack.support.http.media_limits import ROWS, VendorLimits

PAGE = Path(__file__).parents[2] / "docs" / "providers.md"
_HEAD, _TAIL = "<!-- media limits -->\n", "<!-- end of media limits -->\n"
_COLUMNS = ("provider", "types of images", "an image", "a PDF", "a request", "source")


def table() -> str:
    """Return the table."""
    rest = ["any other", _types(MediaLimits()), "", "", "", "common to all formats"]
    return "\n".join([_line(_COLUMNS), _line(["---"] * len(_COLUMNS)), *map(_row, ROWS), _line(rest), ""])


def _row(row: VendorLimits) -> str:
    limits = row.limits
    names = ", ".join(f"`{name}`" for name in sorted(row.providers))
    models = f" (models: `{row.models}`)" if row.models else ""
    return _line([names + models, _types(limits), _image(limits), _pdf(limits), _request(limits), row.source])


def _types(limits: MediaLimits) -> str:
    names = sorted(kind.removeprefix("image/").upper().replace("WEBP", "WebP") for kind in limits.image_types)
    assert limits.image_types <= COMMON_IMAGE_TYPES | {"image/heic"}
    return ", ".join(names) + ("" if limits.takes_animations else "; no animations")


def _image(limits: MediaLimits) -> str:
    return _joined(
        (limits.max_image_base64_bytes, "{:,} bytes in base64"),
        (limits.max_side_pixels, "{:,} pixels a side"),
        (limits.max_side_pixels_of_many, f"{{:,}} a side with more than {limits.many_images} images"),
        (limits.max_pixels, "{:,} pixels"),
    )


def _pdf(limits: MediaLimits) -> str:
    return _joined((limits.max_pdf_bytes, "{:,} bytes"), (not limits.takes_encrypted_pdfs, "not encrypted"))


def _request(limits: MediaLimits) -> str:
    return _joined(
        (limits.max_request_bytes, "{:,} bytes"),
        (limits.max_images, "{:,} images"),
        (limits.max_pdfs, "{:,} PDFs"),
        (limits.max_pdf_pages, "{:,} pages of PDFs"),
    )


def _joined(*limits: tuple[int | None, str]) -> str:
    return ", ".join(words.format(value) for value, words in limits if value)


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def write() -> None:
    """Write the table into its page."""
    before, rest = PAGE.read_text().split(_HEAD)
    PAGE.write_text(before + _HEAD + table() + _TAIL + rest.split(_TAIL)[1])


def printed() -> str:
    """Return the table as it stands on the page."""
    return PAGE.read_text().split(_HEAD)[1].split(_TAIL)[0]


if __name__ == "__main__":
    write()
