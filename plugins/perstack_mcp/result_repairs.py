"""Repairs of tool results that deviate slightly from the schema. Pure functions.

The tool has done its work, and the model needs its text, so a result is never refused for its form. Each readable part
stays in its place; a part that is not a block of the protocol becomes a text with its JSON. A failed result stays
failed. Notes name each repair by its place in the result.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mcp_types import AudioContent, EmbeddedResource, ImageContent, ResourceLink, TextContent
from pydantic import BaseModel, JsonValue, ValidationError

from perstack.core.base.records import JsonObject
from perstack.core.messages.media import PDF
from perstack_mcp.message_repairs import Note, kind_at, kind_of, unwrapped_result

if TYPE_CHECKING:
    IsValid = Callable[[JsonObject], bool]

_MAX_NOTES = 20
_MAX_BLOCKS = 2_000  # maximum blocks that are repaired separately
_MAX_DEPTH = 3  # maximum depth of nested lists of blocks
_NAME_CHARS = 60  # maximum characters of a server's word in a note


def repaired_result(result: JsonObject, is_valid: IsValid, *, is_stateless: bool) -> tuple[JsonObject, Sequence[str]]:
    """Return a tool's result in the form that the SDK accepts, and notes on its repairs.

    `is_valid` checks a whole result. In stateless revisions structured content may be any value, and `resultType` is
    required.
    """
    notes: list[str] = []
    original = _wrap_result(unwrapped_result(result), notes.append)
    repaired = {key: value for key, value in original.items() if key in _KEPT}
    blocks = list(_repair_content(original, notes.append))
    _repair_flag(original, repaired, notes.append)
    structured = original.get("structuredContent")
    if structured is None:
        repaired.pop("structuredContent", None)
    elif not isinstance(structured, dict) and not is_stateless:
        notes.append(f"structuredContent is {kind_of(structured)}")
        repaired["structuredContent"] = {"result": structured}  # wrap it as servers wrap a value that is not an object
    if not isinstance(original.get("_meta", {}), dict):
        if original["_meta"] is not None:
            notes.append(f"_meta is {kind_of(original['_meta'])}")
        repaired.pop("_meta", None)
    if is_stateless and not isinstance(original.get("resultType"), str):
        notes.append(f"resultType is {kind_at(original, 'resultType')}")
        repaired["resultType"] = "complete"
    repaired["content"] = list[JsonValue](blocks)
    if not is_valid(repaired):
        minimal: JsonObject = {**repaired, "structuredContent": {}}
        blocks = [block if is_valid({**minimal, "content": [block]}) else _to_text_block(block) for block in blocks]
        repaired["content"] = list[JsonValue](blocks)
    return repaired, notes[:_MAX_NOTES]


def is_plain(result: JsonObject) -> bool:
    """Return whether a result needs no repair: the SDK reads it as it was meant."""
    content, flag = result.get("content"), result.get("isError")
    if not isinstance(content, list) or not (flag is None or isinstance(flag, bool)) or "is_error" in result:
        return False
    if len(content) > _MAX_BLOCKS:
        return False  # too many blocks: the SDK would validate each as every kind of block
    return all(
        isinstance(block, dict) and str(block.get("type")) in _MODELS and not _is_data_address(block)
        for block in content
    )


def _is_data_address(block: JsonObject) -> bool:
    data = block.get("data")
    return isinstance(data, str) and data.startswith("data:")


_KEPT = ("content", "structuredContent", "isError", "_meta", "resultType")
_FRESHNESS = ("ttlMs", "cacheScope")


def _wrap_result(value: JsonValue, note: Note) -> JsonObject:
    if isinstance(value, dict):
        return value
    note(f"the result is {kind_of(value)}")
    return {"content": value if isinstance(value, list) else [value]}


def _repair_flag(original: JsonObject, repaired: JsonObject, note: Note) -> None:
    key = "isError" if original.get("isError") is not None or "is_error" not in original else "is_error"
    value = original.get(key)
    if key == "is_error" and value is not None:
        note("isError is missing, is_error is used")
    elif value is not None and not isinstance(value, bool):
        note(f"isError is {kind_of(value)}")
    repaired["isError"] = _is_true(value)


def _is_true(value: JsonValue) -> bool:
    """Return whether a flag is set. Any word but a clear no sets it: a failure must not look like a success."""
    if isinstance(value, str):
        return value.strip().casefold() not in ("", "false", "no", "0", "none", "null", "off")
    return bool(value)


# Repair of content blocks.


def _repair_content(result: JsonObject, note: Note) -> Iterator[JsonObject]:
    content = result.get("content")
    if isinstance(content, list):
        yield from _repair_blocks(content, "content", note, _MAX_DEPTH)
        return
    note(f"content is {kind_at(result, 'content')}")
    if content is not None:
        yield from _repair_block(content, "content", lambda _: None, _MAX_DEPTH)
    elif result.get("structuredContent") is None:
        rest = {key: value for key, value in result.items() if key not in (*_KEPT, *_FRESHNESS, "is_error")}
        if rest:
            yield from _repair_block(rest, "content", lambda _: None, _MAX_DEPTH)


def _repair_blocks(blocks: Sequence[JsonValue], place: str, note: Note, depth: int) -> Iterator[JsonObject]:
    for number, block in enumerate(blocks[:_MAX_BLOCKS]):
        yield from _repair_block(block, f"{place}.{number}", note, depth)
    if len(blocks) > _MAX_BLOCKS:
        note(f"{place} has more than {_MAX_BLOCKS} blocks: the rest became one text")
        yield _to_text_block(list(blocks[_MAX_BLOCKS:]))


def _repair_block(value: JsonValue, place: str, note: Note, depth: int) -> Iterator[JsonObject]:
    if isinstance(value, dict):
        decoded = _convert_block(value, place, note)
        if decoded is not None:
            yield _drop_invalid_extras(decoded, place, note)
        return
    note(f"{place} is {kind_of(value)}")
    if isinstance(value, list) and depth > 1:
        yield from _repair_blocks(value, place, note, depth - 1)
    elif value is not None:
        yield _to_text_block(value)


def _convert_block(block: JsonObject, place: str, note: Note) -> JsonObject | None:
    """Return a block as one of the protocol's types; None for a block without content."""
    kind = block.get("type")
    name = kind.strip().casefold() if isinstance(kind, str) else _guess_type(block)
    repair = _REPAIRS.get(_SYNONYMS.get(name, name))
    if not isinstance(kind, str):
        note(f"{place}.type is {kind_at(block, 'type')}")
    elif repair is None or kind != _SYNONYMS.get(name, name):
        note(f"{place}.type is {kind[:_NAME_CHARS]!r}")
    return _to_text_block(block) if repair is None else repair(block, place, note)


def _guess_type(block: JsonObject) -> str:
    """Return the type of a block without a valid one, from its fields."""
    if isinstance(block.get("text"), str):
        return "text"
    kind = _find_media_type(block)
    return kind.partition("/")[0] if isinstance(block.get("data"), str) and kind else ""


_SYNONYMS = {"output_text": "text", "input_text": "text", "embedded_resource": "resource", "input_image": "image"}


def _convert_text(block: JsonObject, place: str, note: Note) -> JsonObject | None:
    text = block.get("text")
    if isinstance(text, str):
        return {**block, "type": "text"}
    note(f"{place}.text is {kind_at(block, 'text')}")
    if text is None:
        rest = {key: value for key, value in block.items() if key not in ("type", "text", "annotations", "_meta")}
        if not rest:
            return None
        text = next(iter(rest.values())) if len(rest) == 1 else rest
    return _to_text_block(text)


def _convert_media(block: JsonObject, place: str, note: Note) -> JsonObject:
    """Return an image or audio block, with its data and type found where servers put them; else a text block."""
    data, kind = block.get("data"), _find_media_type(block)
    if not isinstance(data, str):
        note(f"{place}.data is {kind_at(block, 'data')}")
        source = block.get("source")
        data = source.get("data") if isinstance(source, dict) else None
        kind = kind or (_find_media_type(source) if isinstance(source, dict) else "")
        if not isinstance(data, str):
            return _to_text_block(block)
    address = _DATA_ADDRESS.match(data)
    if address is not None:
        note(f"{place}.data is a data: address")
        data, kind = data[address.end() :], kind or address[1]
    elif not isinstance(block.get("mimeType"), str):
        note(f"{place}.mimeType is {kind_at(block, 'mimeType')}")
    annotations: JsonObject = {key: block[key] for key in ("annotations", "_meta") if key in block}
    kind = kind or _sniff_media_type(data) or _UNTYPED
    return {"type": "audio" if kind.startswith("audio/") else "image", "data": data, "mimeType": kind, **annotations}


_UNTYPED = "application/octet-stream"
_DATA_ADDRESS = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w=.+-]+)*;base64,")
_MEDIA_TYPE_KEYS = ("mimeType", "mime_type", "mimetype", "mediaType", "media_type", "contentType")

_SIGNATURES = (
    (b"\x89PNG", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"RIFF", "image/webp"),
    (b"%PDF", PDF),
    (b"ID3", "audio/mpeg"),
    (b"OggS", "audio/ogg"),
)


def _find_media_type(block: JsonObject) -> str:
    return next((value for key in _MEDIA_TYPE_KEYS if isinstance(value := block.get(key), str) and value), "")


def _sniff_media_type(data: str) -> str:
    try:
        head = b64decode(data[:16])
    except ValueError:
        return ""
    return next((kind for signature, kind in _SIGNATURES if head.startswith(signature)), "")


def _convert_link(block: JsonObject, place: str, note: Note) -> JsonObject:
    uri, name = block.get("uri"), block.get("name")
    if not isinstance(uri, str):
        note(f"{place}.uri is {kind_at(block, 'uri')}")
        return _to_text_block(block)
    if not isinstance(name, str):
        note(f"{place}.name is {kind_at(block, 'name')}")
    return {**block, "type": "resource_link", "name": name if isinstance(name, str) else uri}


def _convert_resource(block: JsonObject, place: str, note: Note) -> JsonObject:
    """Return an embedded resource block with a valid resource; else a text block."""
    resource = block.get("resource")
    if not isinstance(resource, dict):
        note(f"{place}.resource is {kind_at(block, 'resource')}")
        resource = {key: value for key, value in block.items() if key not in ("type", "annotations", "_meta")}
    text, blob = resource.get("text"), resource.get("blob")
    if not isinstance(text, str) and not isinstance(blob, str):
        note(f"{place}.resource has no text and no blob")
        return _to_text_block(block)
    if not isinstance(resource.get("uri"), str):
        note(f"{place}.resource.uri is {kind_at(resource, 'uri')}")
        resource = {**resource, "uri": "unknown:"}
    if not isinstance(resource.get("mimeType", ""), str | None):
        note(f"{place}.resource.mimeType is {kind_of(resource['mimeType'])}")
        resource = {key: value for key, value in resource.items() if key != "mimeType"}
    present: JsonObject = {key: value for key, value in resource.items() if value is not None}
    return {**block, "type": "resource", "resource": present}


_REPAIRS: Mapping[str, Callable[[JsonObject, str, Note], JsonObject | None]] = {
    "text": _convert_text,
    "image": _convert_media,
    "audio": _convert_media,
    "resource_link": _convert_link,
    "resource": _convert_resource,
}

_MODELS: Mapping[str, type[BaseModel]] = {
    "text": TextContent,
    "image": ImageContent,
    "audio": AudioContent,
    "resource_link": ResourceLink,
    "resource": EmbeddedResource,
}


def _drop_invalid_extras(block: JsonObject, place: str, note: Note) -> JsonObject:
    """Return a block without its invalid optional parts; its required parts are already valid."""
    try:
        _MODELS[str(block["type"])].model_validate(block, by_name=False)
    except ValidationError as error:
        wrong = {str(problem["loc"][0]) for problem in error.errors(include_url=False, include_input=False)}
        for key in sorted(wrong):
            note(f"{place}.{key} is invalid")
        return {key: value for key, value in block.items() if key not in wrong}
    return block


def _to_text_block(value: JsonValue) -> JsonObject:
    return {"type": "text", "text": value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}
