"""What a person attaches reaches each wire format that takes it, byte for byte, and is refused where it cannot."""

from __future__ import annotations

import json
import os
import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hosts import wait_for
from pictures import picture
from provider_capabilities import pdf
from provider_suite import WIRES, host_in
from wire import Said, Wire

from perstack.errors import UsageError
from perstack.testing.fake_endpoint import FakeEndpoint, ReceivedRequest
from perstack.toolkit import Blob

every_wire = pytest.mark.parametrize("wire", WIRES, ids=str)

IMAGES = {
    "image/png": picture("PNG"),
    "image/jpeg": picture("JPEG"),
    "image/webp": picture("WEBP"),
    "image/gif": picture("GIF"),
}
PDF = b"%PDF-1.7\n"


def texts_in(value: Any) -> Iterator[str]:
    """Every text of a JSON value."""
    match value:
        case str():
            yield value
        case dict():
            for inner in value.values():
                yield from texts_in(inner)
        case list():
            for inner in value:
                yield from texts_in(inner)


def bytes_in(asked: ReceivedRequest) -> Iterator[bytes]:
    """What a request has in base64, alone or in a `data:` address."""
    for text in texts_in(json.loads(asked.body)):
        try:
            yield b64decode(text.rpartition("base64,")[2], validate=True)
        except (NotBase64, ValueError):
            continue


def sent(wire: Wire, folder: Path, *attachments: Blob) -> list[ReceivedRequest]:
    """The requests of a Run with these."""

    async def scenario() -> list[ReceivedRequest]:
        async with FakeEndpoint(wire.reply(Said("ok"))) as endpoint, host_in(folder, wire, endpoint.url) as host:
            try:
                job = await host.run("a", "What is this?", attachments=attachments)
                assert job.status == "completed"
                assert (await host.audit.verify(job.id)).ok
                assert (await host.audit.replay(job.id)).ok
            except UsageError:
                assert (await host.jobs.list()).jobs == ()
                assert endpoint.asked == []
                raise
            return list(endpoint.asked)

    return wait_for(scenario(), 60)


@every_wire
def test_an_image_reaches_the_endpoint_byte_for_byte(wire: Wire, tmp_path: Path) -> None:
    data = IMAGES["image/png"] + os.urandom(100_000)
    (asked,) = sent(wire, tmp_path, Blob(data, name="shot.png"))
    assert data in set(bytes_in(asked))
    assert "What is this?" in set(texts_in(json.loads(asked.body)))


@every_wire
@pytest.mark.parametrize("kind", [*IMAGES, "application/pdf"])
def test_what_is_not_sent_as_it_is_is_refused_and_names_the_model(wire: Wire, kind: str, tmp_path: Path) -> None:
    given = Blob(IMAGES.get(kind, PDF) + os.urandom(1_000), name="given")
    if wire.provider("http://localhost:1").takes(wire.model, kind):
        (asked,) = sent(wire, tmp_path, given)
        assert given.data in set(bytes_in(asked))
        assert kind != "application/pdf" or pdf(wire) == "yes"
        return
    words = f"given cannot be attached: the model {wire.model} of provider {wire.factory.name} takes no {kind}"
    with pytest.raises(UsageError, match=re.escape(words)):
        sent(wire, tmp_path, given)
    assert kind in ("image/gif", "application/pdf")
    assert kind != "application/pdf" or pdf(wire) == "as a line of text"


@every_wire
def test_a_text_is_sent_with_its_name(wire: Wire, tmp_path: Path) -> None:
    (asked,) = sent(wire, tmp_path, Blob("Grüße".encode(), name="notes.txt"))
    assert "Attached file notes.txt:\\nGrüße" in json.dumps(json.loads(asked.body), ensure_ascii=False)


def test_a_setting_that_turns_images_off_refuses_them(tmp_path: Path) -> None:
    from dataclasses import replace

    from wire_openai import COMPATIBLE

    wire = replace(COMPATIBLE, setting={**COMPATIBLE.setting, "images": False})
    with pytest.raises(UsageError, match="takes no image/png"):
        sent(wire, tmp_path, Blob(IMAGES["image/png"], name="shot.png"))


def test_the_embedded_model_takes_no_images() -> None:
    from perstack_local.provider import LocalProvider

    assert not LocalProvider.takes(object.__new__(LocalProvider), "any", "image/png")
