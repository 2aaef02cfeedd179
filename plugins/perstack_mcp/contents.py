"""A server's result as the model is given it."""

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

from perstack.core.messages import BlobPart, ResultContent, TextPart
from perstack.core.shortening import head_and_tail
from perstack.ports.skill import BlobStore, ToolResult

SHOWN = 30_000
"""Characters of text that the model sees at once."""

_UNTYPED = "application/octet-stream"


async def result_of(result: CallToolResult, blobs: BlobStore) -> ToolResult:
    """All parts of a result; bytes and long texts go to the Job's blobs."""
    parts = [await _part(block, blobs) for block in result.content]
    structured: JsonValue = result.structured_content
    if structured is not None and not _is_shown(structured, result.content):
        parts.append(TextPart(text=json.dumps(structured, ensure_ascii=False)))
    return ToolResult(await _shortened(parts, blobs), bool(result.is_error))


async def _part(block: ContentBlock, blobs: BlobStore) -> ResultContent:
    match block:
        case TextContent():
            return TextPart(text=block.text)
        case ImageContent() | AudioContent():
            return await _blob(block.data, block.mime_type, None, blobs)
        case ResourceLink():
            about = ", ".join(part for part in (block.mime_type, block.description) if part)
            return TextPart(text=f"[resource {block.name}: {block.uri}{f' ({about})' if about else ''}]")
        case EmbeddedResource():
            return await _embedded(block, blobs)


async def _embedded(block: EmbeddedResource, blobs: BlobStore) -> ResultContent:
    resource = block.resource
    if isinstance(resource, BlobResourceContents):
        return await _blob(resource.blob, resource.mime_type or _UNTYPED, str(resource.uri), blobs)
    return TextPart(text=f"[resource {resource.uri}]\n{resource.text}")


async def _blob(data: str, mime_type: str, name: str | None, blobs: BlobStore) -> ResultContent:
    try:
        content = b64decode(data, validate=True)
    except ValueError:
        return TextPart(text=f"[{mime_type}: the server sent it in what is not base64]")
    return BlobPart(sha256=await blobs.put(content), mime_type=mime_type, size=len(content), name=name)


def _is_shown(structured: JsonValue, content: Sequence[ContentBlock]) -> bool:
    """Whether a text says the same, as servers are asked to do for clients that know no structured output."""
    same = [structured]
    if isinstance(structured, dict) and len(structured) == 1:
        # how servers wrap what is not an object: {"result": …}, {"content": …}
        same += structured.values()
    return any(isinstance(block, TextContent) and _says_one_of(block.text, same) for block in content)


def _says_one_of(text: str, values: Sequence[JsonValue]) -> bool:
    if text in values:
        return True
    try:
        return json.loads(text) in values
    except (ValueError, RecursionError):
        return False


async def _shortened(parts: Sequence[ResultContent], blobs: BlobStore) -> tuple[ResultContent, ...]:
    """The same parts, of which the longest texts are cut until all of them together are short enough."""
    lengths = sorted(len(part.text) for part in parts if isinstance(part, TextPart))
    share = SHOWN
    for place, length in enumerate(lengths):
        # what the short ones leave is shared by the rest
        share = max((SHOWN - sum(lengths[:place])) // (len(lengths) - place), 0)
        if length > share:
            break
    else:
        return tuple(parts)
    return tuple([await _cut(part, share, blobs) for part in parts])


async def _cut(part: ResultContent, share: int, blobs: BlobStore) -> ResultContent:
    if not isinstance(part, TextPart) or len(part.text) <= share:
        return part
    whole = await blobs.put(part.text.encode("utf-8", "replace"))
    return TextPart(text=head_and_tail(part.text, share, whole))
