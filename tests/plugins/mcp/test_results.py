"""What a server answers, as the model is given it."""

from __future__ import annotations

import json
import time
from base64 import b64decode

import pytest
from hosts import wait_for
from mcp_bed import Bed, blob_parts, words

from perstack.core.messages.messages import BlobPart, TextPart
from perstack.ports.skill import ToolResult

PNG = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")


async def _answer(bed: Bed, name: str) -> ToolResult:
    async with bed.session(bed.misbehaving(timeout=20_000)) as session:
        await session.tools()
        return await bed.call(session, name)


def test_every_kind_of_content_becomes_text_or_a_blob(bed: Bed) -> None:
    parts = wait_for(_answer(bed, "mixed")).contents
    kinds = [part.text if isinstance(part, TextPart) else part.mime_type for part in parts]
    assert kinds == [
        "words",
        "image/png",
        "audio/wav",
        "[image/png: the server sent data that is not base64]",
        "[resource a: file:///a (the a)]",
        "[resource file:///t]\ninside",
        "application/pdf",
        '{"n": 1}',
    ]
    blobs = [part for part in parts if isinstance(part, BlobPart)]
    assert [bed.blobs.kept[blob.sha256] for blob in blobs] == [PNG, b"bytes", b"%PDF-bytes"]
    assert blobs[-1].name == "file:///b"


def test_structured_output_that_only_wraps_the_text_is_not_said_twice(bed: Bed) -> None:
    assert words(wait_for(_answer(bed, "wrapped"))) == "the text"


def test_what_the_server_calls_an_error_is_one(bed: Bed) -> None:
    result = wait_for(_answer(bed, "wrong"))
    assert result.is_error
    assert words(result) == "it did not work"


def test_twenty_megabytes_go_to_a_blob_and_the_model_gets_head_and_tail_in_good_time(bed: Bed) -> None:
    began = time.process_time()  # of this process alone, whatever else the machine does
    text = words(wait_for(_answer(bed, "huge")))
    assert time.process_time() - began < 10
    assert len(text) < 31_000
    assert text.endswith("end")
    (name,) = bed.blobs.kept
    assert f"readTextFile, path blob:{name}" in text
    assert len(bed.blobs.kept[name]) == 20_000_003


def test_the_key_of_a_call_reaches_the_server(bed: Bed) -> None:
    assert json.loads(words(wait_for(_answer(bed, "meta"))))["perstack/callId"] == "run-1-call"


@pytest.mark.parametrize(("name", "effect"), [("echo", "readOnly"), ("set", "idempotent"), ("die", "sideEffect")])
def test_annotations_say_what_a_repetition_would_do(bed: Bed, name: str, effect: str) -> None:
    async def run() -> dict[str, str]:
        async with bed.session(bed.misbehaving(timeout=20_000)) as session:
            return {spec.name: spec.effect for spec in (await session.tools()).specs}

    assert wait_for(run())[name] == effect


def test_no_blob_is_made_of_a_short_text(bed: Bed) -> None:
    result = wait_for(_answer(bed, "echo"))
    assert not blob_parts(result)
    assert not bed.blobs.kept


def test_what_a_server_logs_is_shown_with_its_level(bed: Bed) -> None:
    wait_for(_answer(bed, "logs"))
    assert [line for line in bed.shown if line.startswith("[")] == ["[warning] it is late", '[info] {"at": 9}']
