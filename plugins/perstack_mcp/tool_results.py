"""Results of tools as the model gets them: parts of the protocol converted, long texts cut to `MAX_SHOWN_CHARS`."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Sequence

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
)
from pydantic import JsonValue

from perstack.core.base.text import head_and_tail
from perstack.core.messages.messages import BlobPart, ResultContent, TextPart
from perstack.ports.skill import BlobStore, ToolResult

MAX_SHOWN_CHARS = 30_000  # maximum characters of text that the model sees at once
_UNTYPED = "application/octet-stream"


async def result_of(result: CallToolResult, blobs: BlobStore) -> ToolResult:
    """Convert a result for the model; bytes and long texts become blobs of the Job."""
    parts = [await _convert_block(block, blobs) for block in result.content]
    structured: JsonValue = result.structured_content
    if structured is not None and not _repeats_output(structured, result.content):
        parts.append(TextPart(text=json.dumps(structured, ensure_ascii=False)))
    return ToolResult(await _shorten(parts, blobs), bool(result.is_error))


async def _convert_block(block: ContentBlock, blobs: BlobStore) -> ResultContent:
    match block:
        case TextContent():
            return TextPart(text=block.text)
        case ImageContent() | AudioContent():
            return await _store_blob(block.data, block.mime_type, None, blobs)
        case ResourceLink():
            about = ", ".join(part for part in (block.mime_type, block.description) if part)
            return TextPart(text=f"[resource {block.name}: {block.uri}{f' ({about})' if about else ''}]")
        case EmbeddedResource():
            return await _convert_embedded(block, blobs)


async def _convert_embedded(block: EmbeddedResource, blobs: BlobStore) -> ResultContent:
    resource = block.resource
    if isinstance(resource, BlobResourceContents):
        return await _store_blob(resource.blob, resource.mime_type or _UNTYPED, str(resource.uri), blobs)
    return TextPart(text=f"[resource {resource.uri}]\n{resource.text}")


async def _store_blob(data: str, mime_type: str, name: str | None, blobs: BlobStore) -> ResultContent:
    content = _decode_base64(data)
    if content is None:
        return TextPart(text=f"[{mime_type}: the server sent data that is not base64]")
    return BlobPart(sha256=await blobs.put(content), mime_type=mime_type, size=len(content), name=name)


def _decode_base64(data: str) -> bytes | None:
    """Return the bytes of base64, even with line breaks, in the URL alphabet, or without padding; None if invalid."""
    try:
        return b64decode(data, validate=True)
    except ValueError:
        plain = "".join(data.split()).rstrip("=").translate(_URL_ALPHABET)
    try:
        return b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except ValueError:
        return None


_URL_ALPHABET = str.maketrans("-_", "+/")


def _repeats_output(structured: JsonValue, content: Sequence[ContentBlock]) -> bool:
    """Return whether one of the texts repeats the structured output, as servers do for older clients."""
    same = [structured]
    if isinstance(structured, dict) and len(structured) == 1:
        # how servers wrap a value that is not an object: {"result": …}, {"content": …}
        same += structured.values()
    return any(isinstance(block, TextContent) and _contains_value(block.text, same) for block in content)


def _contains_value(text: str, values: Sequence[JsonValue]) -> bool:
    if text in values:
        return True
    try:
        return json.loads(text) in values
    except (ValueError, RecursionError):
        return False


async def _shorten(parts: Sequence[ResultContent], blobs: BlobStore) -> tuple[ResultContent, ...]:
    lengths = sorted(len(part.text) for part in parts if isinstance(part, TextPart))
    share = MAX_SHOWN_CHARS
    for place, length in enumerate(lengths):
        # room that short texts leave is shared among the longer texts
        share = max((MAX_SHOWN_CHARS - sum(lengths[:place])) // (len(lengths) - place), 0)
        if length > share:
            break
    else:
        return tuple(parts)
    return tuple([await _cut_part(part, share, blobs) for part in parts])


async def _cut_part(part: ResultContent, share: int, blobs: BlobStore) -> ResultContent:
    if not isinstance(part, TextPart) or len(part.text) <= share:
        return part
    whole = await blobs.put(part.text.encode("utf-8", "replace"))
    return TextPart(text=head_and_tail(part.text, share, whole))
