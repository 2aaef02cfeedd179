"""The table of limits for images and documents in docs/providers.md, printed from the rows of `media_limits`.

`python tests/support/media_limits_page.py` writes it.
"""

from __future__ import annotations

from docs_tables import PrintedTable, lines

from perstack.core.messages.media import COMMON_IMAGE_TYPES, MediaLimits
from perstack.http_providers.media_limits import ROWS, VendorLimits

_COLUMNS = ("provider", "types of images", "an image", "a PDF", "a request", "source")


def table() -> str:
    """Return the table."""
    rest = ["any other", _types_text(MediaLimits()), "", "", "", "common to all formats"]
    return "\n".join([*lines(_COLUMNS, [*map(_table_row, ROWS), rest]), ""])


def _table_row(row: VendorLimits) -> list[str]:
    limits = row.media_limits
    names = ", ".join(f"`{name}`" for name in sorted(row.providers))
    models = f" (models: `{row.models}`)" if row.models else ""
    return [
        names + models,
        _types_text(limits),
        _image_text(limits),
        _pdf_text(limits),
        _request_text(limits),
        row.source,
    ]


def _types_text(limits: MediaLimits) -> str:
    names = sorted(kind.removeprefix("image/").upper().replace("WEBP", "WebP") for kind in limits.image_types)
    assert limits.image_types <= COMMON_IMAGE_TYPES | {"image/heic"}
    return ", ".join(names) + ("" if limits.takes_animations else "; no animations")


def _image_text(limits: MediaLimits) -> str:
    return _join_limits(
        (limits.max_image_base64_bytes, "{:,} bytes in base64"),
        (limits.max_side_pixels, "{:,} pixels a side"),
        (limits.max_side_pixels_of_many, f"{{:,}} a side with more than {limits.many_images} images"),
        (limits.max_pixels, "{:,} pixels"),
    )


def _pdf_text(limits: MediaLimits) -> str:
    return _join_limits((limits.max_pdf_bytes, "{:,} bytes"), (not limits.takes_encrypted_pdfs, "not encrypted"))


def _request_text(limits: MediaLimits) -> str:
    return _join_limits(
        (limits.max_request_bytes, "{:,} bytes"),
        (limits.max_images, "{:,} images"),
        (limits.max_pdfs, "{:,} PDFs"),
        (limits.max_pdf_pages, "{:,} pages of PDFs"),
    )


def _join_limits(*limits: tuple[int | None, str]) -> str:
    return ", ".join(words.format(value) for value, words in limits if value)


PRINTED = PrintedTable("media limits", table)

if __name__ == "__main__":
    PRINTED.write()
