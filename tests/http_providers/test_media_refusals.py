"""Which image or document a refusal is about, in the wordings of the vendors."""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256
from typing import Any

import pytest

from perstack.core.base.records import JsonObject
from perstack.core.messages.adaptations import Adaptation
from perstack.core.messages.messages import (
    BlobPart,
    ExpertMessage,
    History,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from perstack.errors import ProviderError
from perstack.http_providers.media_refusals import named_media
from perstack.ports.provider import GenerationRequest

OLD, NEW, DOCUMENT = b"old image", b"new image", b"%PDF-document"


def _part(data: bytes) -> BlobPart:
    kind = "application/pdf" if data is DOCUMENT else "image/png"
    return BlobPart(sha256=sha256(data).hexdigest(), mime_type=kind, size=len(data))


NAMES = {_part(data).sha256: data for data in (OLD, NEW, DOCUMENT)}
HISTORY = History(
    [
        UserMessage(contents=(_part(OLD),)),
        ExpertMessage(contents=(ToolCallPart(tool_call_id="1", tool_name="x"),)),
        ToolMessage(
            contents=(ToolResultPart(tool_call_id="1", tool_name="x", contents=(_part(NEW), _part(DOCUMENT))),)
        ),
    ]
)


def _data(data: bytes) -> str:
    return b64encode(data).decode()


def _url(data: bytes) -> str:
    return f"data:image/png;base64,{_data(data)}"


def _source(data: bytes) -> JsonObject:
    kind = "document" if data is DOCUMENT else "image"
    return {"type": kind, "source": {"type": "base64", "data": _data(data)}}


MESSAGES: JsonObject = {
    "messages": [
        {"role": "user", "content": [_source(OLD)]},
        {"role": "assistant", "content": []},
        {"role": "user", "content": [{"type": "tool_result", "content": [_source(NEW), _source(DOCUMENT)]}]},
    ]
}
RESPONSES: JsonObject = {
    "input": [
        {"role": "user", "content": [{"type": "input_image", "image_url": _url(OLD)}]},
        {"type": "function_call"},
        {
            "type": "function_call_output",
            "output": [
                {"type": "input_image", "image_url": _url(NEW)},
                {"type": "input_file", "file_data": f"data:application/pdf;base64,{_data(DOCUMENT)}"},
            ],
        },
    ]
}
GEMINI: JsonObject = {
    "contents": [
        {"parts": [{"inlineData": {"data": _data(OLD)}}]},
        {"parts": []},
        {"parts": [{"functionResponse": {"parts": [{"inlineData": {"data": _data(NEW)}}]}}]},
    ]
}


def _named(
    body: JsonObject, message: str, status: int = 400, *, known: tuple[Adaptation, ...] = (), **rest: Any
) -> list[bytes]:
    request = GenerationRequest("m", "", HISTORY, (), _no_blob, adaptations=known)
    error = ProviderError(message, name=rest.pop("name", "BadRequest"), status_code=status, **rest)
    return [NAMES[item.name] for item in named_media(request, error, body)]


async def _no_blob(sha256: str) -> bytes:
    raise AssertionError("nothing is read")


@pytest.mark.parametrize(
    ("body", "message", "media"),
    [
        (MESSAGES, "messages.0.content.0.image.source.base64: Could not process image", [OLD]),
        (MESSAGES, "messages.2.content.0.tool_result.content.0.image.source.base64: image exceeds 5 MB maximum", [NEW]),
        (
            MESSAGES,
            "messages.2.content.0.tool_result.content.1.pdf.source.base64.data: A maximum of 100 PDF pages",
            [DOCUMENT],
        ),
        (MESSAGES, "Could not process image", [NEW]),
        (MESSAGES, "The PDF specified is password protected.", [DOCUMENT]),
        (MESSAGES, "The model returned the following errors: messages.0.content.0.image.source: image is empty", [OLD]),
        (MESSAGES, "messages: too many images: at most 1 images", [OLD]),
        (MESSAGES, "This model does not support image input", [OLD, NEW]),
        (MESSAGES, "messages.2.content.0.cache_control: Extra inputs are not permitted", []),
        (MESSAGES, "tools.0.custom.input_schema: JSON schema is invalid", []),
        (RESPONSES, "Invalid 'input[0].content[0].image_url'. Expected a base64-encoded data URL", [OLD]),
        (RESPONSES, "Invalid 'input[2].output[1].file_data'. Expected a base64-encoded data URL", [DOCUMENT]),
        (RESPONSES, "The image data you provided does not represent a valid image.", [NEW]),
        (
            GEMINI,
            "Invalid value at 'contents[0].parts[0].inline_data.data' (TYPE_BYTES), Base64 decoding failed",
            [OLD],
        ),
        (GEMINI, "Unable to process input image. Please retry or report", [NEW]),
        (GEMINI, "Request contains an invalid argument.", [NEW, DOCUMENT]),
    ],
)
def test_the_medium_is_found_by_its_path_or_its_kind(body: JsonObject, message: str, media: list[bytes]) -> None:
    assert _named(body, message) == media


def test_a_place_in_a_field_of_the_answer_counts_too() -> None:
    answer = json.dumps({"error": {"param": "input[0].content[0].image_url", "code": "invalid_image"}})
    assert _named(RESPONSES, "You uploaded an unsupported image.", answer=answer) == [OLD]


def test_three_refusals_without_a_path_are_the_most_that_a_bad_image_causes() -> None:
    def text_for(data: bytes) -> Adaptation:
        text = "[image removed: the API could not process this image (x).]"
        return Adaptation(part="media", form="replaced", name=_part(data).sha256, text=text)

    assert _named(MESSAGES, "Could not process image") == [NEW]
    assert _named(MESSAGES, "Could not process image", known=(text_for(NEW),)) == [OLD]
    assert _named(MESSAGES, "Could not process image", known=(text_for(NEW), text_for(OLD))) == []


@pytest.mark.parametrize(
    ("earlier", "message", "names"),
    [
        ("this model does not support images", "This model does not support image input", ["image"]),
        ("the image format tiff is not supported", "This model does not support image input", [OLD, NEW]),
        ("Could not process image", "This model does not support image input", [OLD, NEW]),
        ("this model does not support images", "Image type image/heic is not supported", [OLD, NEW]),
    ],
)
def test_images_are_left_out_for_good_only_if_the_model_is_said_to_see_none(
    earlier: str, message: str, names: list[Any]
) -> None:
    known = tuple(
        Adaptation(part="media", form="replaced", name=name, text=f"[image removed: the API says so ({earlier}).]")
        for name in ("a", "b")
    )
    request = GenerationRequest("m", "", HISTORY, (), _no_blob, adaptations=known)
    found = named_media(request, ProviderError(message, status_code=400), MESSAGES)
    assert [NAMES.get(item.name, item.name) for item in found] == names


def test_what_is_too_long_is_shortened_and_loses_no_image() -> None:
    assert _named(MESSAGES, "prompt is too long: 300000 tokens", name="ContextOverflow") == []
    assert _named(MESSAGES, "the images exceed the context", name="ContextOverflow") == []


def test_the_reason_is_the_vendors_without_its_path() -> None:
    message = "messages.0.content.0.image.source.base64: Could not process image"
    request = GenerationRequest("m", "", HISTORY, (), _no_blob)
    (item,) = named_media(request, ProviderError(message, status_code=400), MESSAGES)
    assert item.text == (
        "[image removed: the API could not process this image (Could not process image). The file may be unsupported or"
        " corrupt; do not retry reading it.]"
    )
