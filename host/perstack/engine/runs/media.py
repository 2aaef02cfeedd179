"""Images and documents of a Run: repair what tools return, and fit what is sent to the limits of an endpoint.

Two places, because two things are known at different times. A result is repaired when it arrives: its type is the one
that its bytes have, and an image that nobody can read becomes a line of text, so that the history has no such image.
What an endpoint takes is known when a request is sent, and may change from one to the next with the model. So a medium
that does not fit is left in the history, and what is sent in its place is recorded by `adaptRequest`: a smaller image,
stored as a blob of its own, since another version of Pillow would make other bytes; or a line of text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from perstack.core.runs.media import PDF, readable_medium
from perstack.core.runs.messages import BlobPart, ResultContent, TextPart
from perstack.errors import NotFound
from perstack.ports.provider import BlobReader
from perstack.ports.skill import ToolResult
from perstack.system.user import notice

# Results of tools.


async def with_readable_media(result: ToolResult, read: BlobReader, tool_name: str) -> ToolResult:
    """Return a tool's result with the true types of its media, and a text for each image that nobody can read."""
    if not any(isinstance(part, BlobPart) for part in result.contents):
        return result
    contents = [await _readable(part, read) if isinstance(part, BlobPart) else part for part in result.contents]
    for change in _changes(result.contents, contents):
        notice(f"{tool_name}: {change}")
    return replace(result, contents=tuple(contents))


async def _readable(part: BlobPart, read: BlobReader) -> ResultContent:
    try:
        data = await read(part.sha256)
    except NotFound:
        return part
    if len(data) > _THREAD_FROM_BYTES:
        return await asyncio.to_thread(readable_medium, part, data)
    return readable_medium(part, data)


_THREAD_FROM_BYTES = 1 << 20
_MAX_NOTICE_CHARS = 200


def _changes(before: Iterable[ResultContent], after: Iterable[ResultContent]) -> Iterable[str]:
    """Yield what a person must know about repaired media."""
    for old, new in zip(before, after, strict=True):
        if old is new or not isinstance(old, BlobPart):
            continue
        if isinstance(new, TextPart):
            yield new.text[:_MAX_NOTICE_CHARS] if new.text.startswith("[") else "an SVG image is sent as its text"
        elif old.mime_type.lower() != new.mime_type:
            yield f"what it calls {old.mime_type} is {new.mime_type}, and is sent as that"
