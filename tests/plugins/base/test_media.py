"""Images and PDFs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)
FORMATS = {
    "image/png": PNG,
    "image/jpeg": b"\xff\xd8\xff\xe0" + bytes(64),
    "image/gif": b"GIF89a" + bytes(64),
    "image/webp": b"RIFF\x40\0\0\0WEBP" + bytes(64),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_an_image_is_known_by_its_bytes_whatever_its_name(tools: Any, workspace: Path, kind: str) -> None:
    (workspace / "picture.txt").write_bytes(FORMATS[kind])
    seen = tools("readImageFile", "picture.txt")
    assert seen.json == {"path": "picture.txt", "mimeType": kind, "size": len(FORMATS[kind])}
    assert (seen.blob.mime_type, seen.blob.size, seen.blob.name) == (kind, len(FORMATS[kind]), "picture.txt")
    assert tools.blobs.kept[seen.blob.sha256] == FORMATS[kind]


def test_a_pdf_becomes_a_blob(tools: Any, workspace: Path) -> None:
    data = b"%PDF-1.7\n" + bytes(1_000_000)
    (workspace / "a.pdf").write_bytes(data)
    seen = tools("readPdfFile", "a.pdf")
    assert seen.blob.mime_type == "application/pdf"
    assert seen.blob.sha256 == hashlib.sha256(data).hexdigest()


def test_a_file_that_only_bears_the_name_is_refused(tools: Any, workspace: Path) -> None:
    (workspace / "a.png").write_text("<svg/>")
    (workspace / "a.pdf").write_bytes(PNG)
    (workspace / "empty.png").touch()
    assert "not a PNG, JPEG, GIF or WebP image" in tools("readImageFile", "a.png").error
    assert "not a PNG" in tools("readImageFile", "empty.png").error
    assert "not a PDF" in tools("readPdfFile", "a.pdf").error


def test_a_file_that_is_too_big_is_refused_with_both_sizes(tools: Any, workspace: Path) -> None:
    with (workspace / "big.png").open("wb") as file:
        file.write(PNG)
        file.truncate(16 * 1024 * 1024)
    complaint = tools("readImageFile", "big.png").error
    assert "16777216" in complaint
    assert "15728640" in complaint


def test_a_missing_image_is_an_error(tools: Any) -> None:
    assert "does not exist" in tools("readImageFile", "a.png").error
