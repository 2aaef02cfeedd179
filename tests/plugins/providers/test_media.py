"""Images and documents at an endpoint with Anthropic's rules, written from its documentation and not from the code."""

from __future__ import annotations

import asyncio
import json
import sys
from base64 import b64decode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hosts import Seen, expert, project_of
from pictures import (
    ENCRYPTED_PDF,
    PDF,
    SHOWING,
    MediaSkill,
    animation,
    as_image,
    media_in,
    noise,
    picture,
    rotated_jpeg,
    texts_in,
)
from wire import Said
from wire_anthropic import ANTHROPIC

from perstack.core.definitions.settings import Overrides, ProviderSetting
from perstack.core.jobs.job import Job
from perstack.core.messages.media import image_type
from perstack.host import Host
from perstack.media import smaller_images
from perstack.testing.fake_endpoint import FakeEndpoint, PreparedReply, ReceivedRequest

_SHOW = Said(calls=(("c1", "x"),), tool="show")
_DONE = Said("all done")
_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")


def _blocks(body: Any) -> list[tuple[str, Any, bool]]:
    """Return the path of each image and document, its block, and whether it is in a failed result."""
    found = []
    for turn, message in enumerate(body["messages"]):
        for number, block in enumerate(message["content"]):
            inner = block.get("content", []) if block["type"] == "tool_result" else []
            places = [(f"messages.{turn}.content.{number}", block, False)]
            places += [
                (f"messages.{turn}.content.{number}.tool_result.content.{place}", one, bool(block.get("is_error")))
                for place, one in enumerate(inner)
            ]
            found += [place for place in places if place[1]["type"] in ("image", "document")]
    return found


def refusal_of_anthropic(body: Any) -> str | None:
    """Return the API's words for the first medium that it refuses."""
    media = _blocks(body)
    images_sent = [block for _, block, _ in media if block["type"] == "image"]
    if len(json.dumps(body)) > 32_000_000:
        return "Request exceeds the maximum size"
    for path, block, is_failed in media:
        source = block["source"]
        data = b64decode(source["data"], validate=True)
        at = f"{path}.{block['type']}.source.base64"
        if is_failed:
            return f"{path}: all content must be type `text` if `is_error` is true"
        if block["type"] == "document":
            if b"/Encrypt" in data:
                return f"{at}: The PDF specified is password protected."
            continue
        if source["media_type"] not in _TYPES:
            return f"{at}.media_type: Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'"
        if len(source["data"]) > 5 * 1024 * 1024:
            return f"{at}: image exceeds 5 MB maximum: {len(source['data'])} bytes > 5242880 bytes"
        if image_type(data) != source["media_type"]:
            return f"{at}: Image does not match the provided media type {source['media_type']}"
        try:
            picture_sent = as_image(data)
        except (OSError, SyntaxError):
            return f"{at}: Could not process image"
        if picture_sent.mode == "CMYK":
            return f"{at}: Could not process image"
        most = 2_000 if len(images_sent) > 20 else 8_000
        if max(picture_sent.size) > most:
            return f"{at}: At least one of the image dimensions exceed max allowed size: {most} pixels"
    return None


class Scene:
    """An Expert whose tool returns media, at an endpoint with the rules."""

    def __init__(self, folder: Path, *calls: Sequence[tuple[str, bytes]], is_error: bool = False) -> None:
        self.folder = folder
        self.showing = MediaSkill(*calls, is_error=is_error)
        self.seen = Seen()
        self.refusals: list[str] = []
        self.bodies: list[Any] = []
        self.calls = len(calls)

    def run(self, attachments: Sequence[bytes] = (), *, enforced: bool = True, job_id: str | None = None) -> Job:
        """Run a query; with the id of a Job, as its next one, in a new process's view of it."""
        return asyncio.run(self._drive(attachments, enforced, job_id))

    async def _drive(self, attachments: Sequence[bytes], enforced: bool, job_id: str | None) -> Job:
        def choose(request: ReceivedRequest) -> PreparedReply:
            body = json.loads(request.body)
            words = refusal_of_anthropic(body) if enforced else None
            if words is not None:
                self.refusals.append(words)
                return ANTHROPIC.error_reply(400, words)
            self.bodies.append(body)
            return ANTHROPIC.reply(_SHOW if len(self.bodies) <= self.calls else _DONE)

        async with asyncio.timeout(120), FakeEndpoint(choose=choose) as endpoint:
            config = ANTHROPIC.config(endpoint.url)
            setting = ProviderSetting(provider_name="anthropic", setting=config.setting)
            one = expert("a").model_copy(update={"skills": (SHOWING,)})
            project = project_of(one).model_copy(update={"model": ANTHROPIC.model, "provider": setting})
            overrides = Overrides(open=True)
            plugins = [self.showing]
            async with Host(
                project, workspace=self.folder, env=config.env, overrides=overrides, plugins=plugins
            ) as host:
                files = list(attachments)
                if job_id is None:
                    job = await host.run("a", "look", on_event=self.seen, attachments=files)
                else:
                    job = await host.continue_job("a", "more", job_id=job_id, on_event=self.seen, attachments=files)
                assert (await host.audit.replay(job.id)).findings == ()
                return job

    @property
    def sent(self) -> list[bytes]:
        """The images and documents of the last request."""
        return media_in(self.bodies[-1])

    @property
    def texts(self) -> str:
        return "\n".join(text for text in texts_in(self.bodies[-1]) if len(text) < 1_000)


@pytest.mark.parametrize(
    ("kind", "data_of", "size"),
    [
        ("image/png", lambda: picture("PNG", (9_000, 20)), (2_000, 4)),
        ("image/png", lambda: picture("PNG", (20_000, 10)), (2_000, 1)),
        ("image/png", lambda: picture("PNG", (9_000, 100), "1"), (2_000, 22)),
        ("image/png", lambda: picture("PNG", (8_500, 100), "I;16"), (2_000, 23)),
        ("image/png", noise, (1_600, 1_200)),
        ("image/png", lambda: noise("PNG", (2_400, 1_600)), (2_000, 1_333)),
        ("image/jpeg", lambda: noise("JPEG", (4_000, 3_000), quality=95), (2_000, 1_500)),
        ("image/jpeg", lambda: picture("JPEG", (300, 200), "CMYK"), (300, 200)),
        ("image/jpeg", lambda: rotated_jpeg((9_000, 90)), (20, 2_000)),
        ("image/tiff", lambda: picture("TIFF", (30, 20)), (30, 20)),
        ("image/bmp", lambda: picture("BMP", (30, 20)), (30, 20)),
        ("image/avif", lambda: picture("AVIF", (32, 20)), (32, 20)),
        ("image/x-icon", lambda: picture("ICO", (32, 32)), (32, 32)),
        ("image/png", lambda: picture("PNG", (30, 20))[:-12], (30, 20)),
        ("image/webp", lambda: picture("WEBP", (9_000, 20)), (2_000, 4)),
    ],
    ids=["wide", "strip", "1 bit", "16 bits", "noise", "large", "photo", "CMYK", "turned", "TIFF", "BMP", "AVIF", "ICO",
         "without its end", "WebP"],
)  # fmt: skip
def test_an_image_that_is_refused_as_it_is_is_sent_so_that_it_is_taken(
    tmp_path: Path, kind: str, data_of: Callable[[], bytes], size: tuple[int, int]
) -> None:
    scene = Scene(tmp_path, [(kind, data_of())])
    job = scene.run()
    assert (job.status, scene.refusals) == ("completed", [])
    assert [as_image(one).size for one in scene.sent] == [size]
    (event,) = scene.seen.of("adaptRequest")
    assert event.error is None
    assert event.adaptations[0].blob.name == "1.bin"


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("image/png", picture("PNG", (8_000, 20))),
        ("image/gif", animation()),
        ("image/webp", animation("WEBP")),
        ("image/jpeg", rotated_jpeg((40, 20))),
        ("application/pdf", PDF),
    ],
)
def test_a_medium_that_is_taken_is_sent_as_it_is(tmp_path: Path, kind: str, data: bytes) -> None:
    scene = Scene(tmp_path, [(kind, data)])
    assert (scene.run().status, scene.sent, scene.seen.of("adaptRequest")) == ("completed", [data], [])


@pytest.mark.parametrize(("kind", "data"), [
    ("image/jpg", picture("JPEG")), ("IMAGE/PNG", picture("PNG")), ("image/png", picture("GIF")),
    ("application/octet-stream", picture("WEBP")), ("image/png; charset=binary", picture("PNG")),
])  # fmt: skip
def test_the_bytes_tell_the_type(tmp_path: Path, kind: str, data: bytes) -> None:
    scene = Scene(tmp_path, [(kind, data)])
    assert (scene.run().status, scene.refusals, scene.sent) == ("completed", [], [data])


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        ("image/png", b"", "[image 1.bin could not be read: it is empty]"),
        ("image/png", b"<html>404 Not Found</html>", "could not be read: it is a text: <html>404 Not Found</html>]"),
        ("image/png", b"\x89PNG\r\n\x1a\n" + bytes(300), "could not be read: its header is damaged]"),
        ("image/heic", bytes(300), "could not be read: its bytes are in no known format]"),
        ("application/pdf", bytes(300), "[document 1.bin could not be read"),
        ("image/svg+xml", b"<svg xmlns='x'><text>Quarterly</text></svg>", "<text>Quarterly</text>"),
        ("image/png", picture("PNG", (12_000, 12_000), "1"), "more than the 120,000,000 pixels"),
        ("image/tiff", picture("TIFF", (300, 200))[:2_000], "it cannot be decoded"),
        ("image/heic", b"\0\0\0\x18ftypheic" + bytes(300), "its format cannot be decoded here"),
        ("application/pdf", ENCRYPTED_PDF, "[document 1.bin left out: it is encrypted"),
        ("application/pdf", PDF + b"/Type/Page " * 700, "it has 701 pages, and the endpoint takes 600"),
    ],
)  # fmt: skip
def test_what_nobody_can_see_is_told_as_text(tmp_path: Path, kind: str, data: bytes, words: str) -> None:
    scene = Scene(tmp_path, [(kind, data)])
    job = scene.run()
    assert (job.status, scene.refusals, scene.sent) == ("completed", [], [])
    assert words in scene.texts


def test_the_endpoint_decides_about_a_truncated_image(tmp_path: Path) -> None:
    scene = Scene(tmp_path, [("image/png", noise("PNG", (400, 300))[:90_000])])
    assert (scene.run().status, len(scene.refusals), scene.sent) == ("completed", 1, [])
    assert "[image 1.bin removed: the API could not process this image (Could not process image)." in scene.texts


def test_an_image_of_a_failed_call_follows_the_results(tmp_path: Path) -> None:
    data = picture()
    scene = Scene(tmp_path, [("image/png", data), ("application/pdf", PDF)], is_error=True)
    assert (scene.run().status, scene.refusals, scene.sent) == ("completed", [], [data, PDF])
    assert "Returned with the failed result of show:" in scene.texts


def test_the_images_of_a_request_with_many_fit_the_limit_for_many_and_are_not_changed_again(tmp_path: Path) -> None:
    large = [("image/png", picture("PNG", (2_100 + number, 30))) for number in range(25)]
    scene = Scene(tmp_path, large[:12], large[12:], [("image/png", picture())])
    assert (scene.run().status, scene.refusals) == ("completed", [])
    assert max(max(as_image(one).size) for one in scene.sent) == 2_000
    assert [len(event.adaptations) for event in scene.seen.of("adaptRequest")] == [25]
    assert len(media_in(scene.bodies[1])) == 12
    assert as_image(media_in(scene.bodies[1])[0]).size == (2_100, 30), "twelve images are not many"


def test_a_request_with_more_images_than_the_limit_leaves_out_the_oldest_with_room_to_spare(tmp_path: Path) -> None:
    def images_of(start: int) -> list[tuple[str, bytes]]:
        return [("image/png", picture("PNG", (start + number, 9))) for number in range(60)]

    scene = Scene(tmp_path, images_of(100), images_of(200), [("image/png", picture("PNG", (5, 5)))])
    assert (scene.run().status, scene.refusals) == ("completed", [])
    assert [len(media_in(body)) for body in scene.bodies] == [0, 60, 75, 76]
    assert "the endpoint takes no request with more than 100 images; read it again if it is needed" in scene.texts


def test_a_request_is_kept_within_the_bytes_that_the_endpoint_takes(tmp_path: Path) -> None:
    def photo(number: int) -> bytes:
        return noise("JPEG", (1_800, 1_400 + number), quality=93)

    photos = [[("image/jpeg", photo(number)) for number in range(start, start + 6)] for start in (0, 6, 12)]
    assert sum(len(data) for call in photos for _, data in call) > 32_000_000
    scene = Scene(tmp_path, *photos)
    assert (scene.run().status, scene.refusals) == ("completed", [])
    assert scene.sent[-1] == photos[-1][-1][1], "the newest is still there"


def test_an_attachment_of_nearly_16_mb_is_made_smaller(tmp_path: Path) -> None:
    data = noise("PNG", (2_600, 1_900))
    assert 14_000_000 < len(data) < 15 << 20
    scene = Scene(tmp_path)
    assert (scene.run([data]).status, scene.refusals) == ("completed", [])
    assert [as_image(one).size for one in scene.sent] == [(2_000, 1_461)]


def test_without_pillow_a_job_goes_on_with_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    scene = Scene(tmp_path, [("image/png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x27\x10\0\0\0\x0a" + bytes(40))])
    job = scene.run(enforced=False)
    assert (job.status, scene.sent) == ("completed", [])
    assert "needs Pillow, which is not installed (pip install pillow)" in scene.texts


def test_an_image_that_takes_too_long_is_told_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perstack.media.fitting._DECODING_TIMEOUT_S", 0)
    scene = Scene(tmp_path, [("image/png", picture("PNG", (9_000, 20)))])
    assert (scene.run().status, scene.sent) == ("completed", [])
    assert "making it smaller takes longer than 0 s" in scene.texts


def test_a_changed_image_is_told_in_the_line_of_its_event_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Scene(tmp_path, [("image/png", picture("PNG", (9_000, 20))), ("application/pdf", ENCRYPTED_PDF)])
    assert scene.run().status == "completed"
    (event,) = scene.seen.of("adaptRequest")
    assert event.words.startswith("with the image 1.bin as ")
    assert "of image/png: it has 9,000 × 20 pixels, and the endpoint takes 8,000 a side, with the text" in event.words
    assert "[document 2.bin left out: it is encrypted" in event.words
    assert "1.bin" not in capsys.readouterr().err


def test_later_requests_and_the_replay_have_the_smaller_image_that_was_recorded(tmp_path: Path) -> None:
    scene = Scene(tmp_path, [("image/png", picture("PNG", (9_000, 20)))], [("image/png", picture())])
    assert scene.run().status == "completed"
    small = media_in(scene.bodies[1])
    assert media_in(scene.bodies[2])[:1] == small
    assert len(scene.seen.of("adaptRequest")) == 1


def test_a_medium_that_was_refused_once_is_not_sent_again_by_a_later_process(tmp_path: Path) -> None:
    broken = noise("JPEG", (300, 200))
    broken = broken[:200] + bytes(len(broken) - 202) + broken[-2:]  # its header and its end are whole
    scene = Scene(tmp_path, [("image/png", picture("PNG", (7, 7))), ("image/jpeg", broken)])
    job = scene.run()
    assert job.status == "completed"
    assert len(scene.refusals) == 1
    scene.refusals.clear()
    assert scene.run(job_id=job.id).status == "completed"
    assert (scene.refusals, scene.sent) == ([], [picture("PNG", (7, 7))])
    assert "[image 2.bin removed: the API could not process this image (Could not process image)." in scene.texts


def test_a_format_whose_decoder_starts_programs_is_not_decoded() -> None:
    with pytest.raises(smaller_images.UnreadableImage, match="format cannot be decoded here"):
        smaller_images.smaller_image(
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", max_side=8, max_pixels=None, max_bytes=None
        )
