"""Images and documents: what their headers tell, and which of them an endpoint takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pictures import ENCRYPTED_PDF, PDF, animation, picture

from perstack.core.messages.media import MediaLimits
from perstack.core.messages.messages import BlobPart, TextPart
from perstack.media.file_headers import MediaFacts, declared_type, defect_of, facts_of, media_type, with_true_type
from perstack.media.limits import SentMedium, find_excess_bytes, find_excess_count, find_problem

_HEADS = (
    picture()[:40], picture("JPEG")[:200], picture("GIF"), picture("WEBP"), picture("BMP")[:60], picture("TIFF")[:60],
    picture("AVIF")[:40], b"<svg", PDF, b"%PDF-1.7 /Linearized 1 /N 9", b"\0\0\0\x18ftypheic", animation()[:60],
)  # fmt: skip


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (picture("PNG"), "image/png"),
        (picture("JPEG"), "image/jpeg"),
        (picture("GIF"), "image/gif"),
        (picture("WEBP"), "image/webp"),
        (picture("TIFF"), "image/tiff"),
        (picture("BMP"), "image/bmp"),
        (picture("AVIF", (16, 16)), "image/avif"),
        (picture("ICO", (16, 16)), "image/x-icon"),
        (picture("JPEG2000", (16, 16)), "image/jp2"),
        (b"\xef\xbb\xbf\n<?xml version='1.0'?><svg/>", "image/svg+xml"),
        (b"<html><body>404</body></html>", None),
        (b"BM is no bitmap", None),
        (PDF, "application/pdf"),
        (b"", None),
    ],
)
def test_the_bytes_tell_the_type(data: bytes, kind: str | None) -> None:
    assert media_type(data) == kind


@given(
    st.sampled_from(_HEADS),
    st.binary(max_size=80),
    st.integers(0, 60),
    st.sampled_from(["image/png", "text/plain", "x"]),
)
def test_any_bytes_are_judged_without_an_error(head: bytes, tail: bytes, cut: int, declared: str) -> None:
    for data in (head + tail, head[:cut] + tail, head[: len(head) - cut]):
        kind = media_type(data)
        facts = facts_of(kind or declared, data)
        assert facts.sides is None or min(facts.sides) > 0
        assert defect_of(data) is None or kind is not None
        part = BlobPart(sha256="a", mime_type=declared, size=len(data))
        found = with_true_type(part, data)
        assert isinstance(found, TextPart) or found.sha256 == "a"
        if isinstance(found, BlobPart):
            assert with_true_type(found, data) == found, "a repaired medium needs no repair"


@pytest.mark.parametrize(
    ("spelling", "kind"),
    [("image/jpg", "image/jpeg"), (" IMAGE/PNG ", "image/png"), ("image/webp; a=b", "image/webp"), ("x", "x")],
)
def test_a_declared_type_has_one_spelling(spelling: str, kind: str) -> None:
    assert declared_type(spelling) == kind


def test_headers_tell_animations_pages_and_encryption() -> None:
    assert facts_of("image/gif", animation()).is_animated
    assert facts_of("image/webp", animation("WEBP")).is_animated
    assert not facts_of("image/gif", picture("GIF")).is_animated
    assert facts_of("application/pdf", ENCRYPTED_PDF).is_encrypted
    assert not facts_of("application/pdf", PDF).is_encrypted
    assert facts_of("application/pdf", PDF).pages == 1
    assert facts_of("application/pdf", b"%PDF-1.5 <</Linearized 1/L 9/H [1 2]/O 3/E 4/N 125/T 6>>").pages == 125
    assert facts_of("image/jpeg", picture("JPEG", mode="CMYK")).oddity == "its colours are for print (CMYK)"
    assert facts_of("image/png", picture()[:-12]).oddity == "its end is missing"


def _medium(number: int, size: int, kind: str = "image/png", pages: int = 0) -> SentMedium:
    part = BlobPart(sha256=str(number), mime_type=kind, size=size)
    return SentMedium(part.sha256, part, MediaFacts(kind, size, pages=pages))


_media = st.lists(
    st.tuples(st.integers(0, 3_000_000), st.sampled_from(["image/png", "application/pdf"]), st.integers(0, 40)),
    max_size=40,
).map(lambda items: [_medium(number, *item) for number, item in enumerate(items)])


@given(_media)
def test_what_is_left_of_a_request_is_within_the_limits_and_is_the_newest(media: list[SentMedium]) -> None:
    limits = MediaLimits(max_images=10, max_pdfs=5, max_pdf_pages=100, max_request_bytes=20_000_000)
    left_out = find_excess_count(media, limits)
    media = [medium for medium in media if medium.name not in left_out]
    images = [medium for medium in media if medium.is_image]
    pdfs = [medium for medium in media if not medium.is_image]
    assert len(images) <= 10
    assert len(pdfs) <= 5
    assert sum(medium.facts.pages for medium in pdfs) <= 100
    assert find_excess_count(media, limits) == {}, "nothing is left out twice"
    omitted = find_excess_bytes(media, limits, 100_000)
    media = [medium for medium in media if medium.facts.base64_size <= 20_000_000 - (1 << 20) - 100_000]
    kept = [medium for medium in media if medium.name not in omitted]
    assert sum(medium.facts.base64_size for medium in kept) + 100_000 <= 20_000_000
    assert kept == media[len(media) - len(kept) :]


def test_a_medium_that_fits_alone_is_never_left_out_for_the_older_ones() -> None:
    limits = MediaLimits(max_request_bytes=20_000_000)
    media = [_medium(1, 9_000_000), _medium(2, 9_000_000), _medium(3, 13_000_000)]
    assert set(find_excess_bytes(media, limits, 0)) == {"1", "2"}
    assert set(find_excess_bytes([*media, _medium(4, 30_000_000)], limits, 0)) == {"1", "2", "4"}


def test_the_side_that_an_image_may_have_depends_on_how_many_there_are() -> None:
    limits = MediaLimits(max_side_pixels=8_000, many_images=20, max_side_pixels_of_many=2_000)
    facts = MediaFacts("image/png", 9, (5_000, 10))
    assert find_problem(facts, limits, 20) is None
    assert find_problem(facts, limits, 21) == "it has 5,000 × 10 pixels, and the endpoint takes 2,000 a side"
