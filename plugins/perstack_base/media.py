"""Images and PDFs as results of tools."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from perstack.core.media import image_type, pdf_type
from perstack.core.messages import BlobPart, TextPart
from perstack.dataclass import dataclass
from perstack.errors import SkillError
from perstack.ports.skill import ToolCall, ToolResult
from perstack_base.answers import compact
from perstack_base.arguments import text
from perstack_base.reading import open_regular
from perstack_base.workspace import Workspace

_MEGABYTE = 1024 * 1024
_BIG = 256 * 1024


@dataclass(frozen=True, slots=True)
class Medium:
    """What a reading tool takes."""

    what: str
    most: int
    sniff: Callable[[bytes], str | None]


IMAGE = Medium("PNG, JPEG, GIF or WebP image", 15 * _MEGABYTE, image_type)
PDF = Medium("PDF", 30 * _MEGABYTE, pdf_type)


async def read_medium(workspace: Workspace, call: ToolCall, medium: Medium) -> ToolResult:
    """`readImageFile` and `readPdfFile`: the file as a blob of the Job."""
    with workspace.place(text(call.args, "path")) as place, open_regular(place) as file:
        size = os.fstat(file.fileno()).st_size
        if size > medium.most:
            message = f"{place.shown} has {size} bytes, more than the {medium.most} allowed; make it smaller with exec"
            raise SkillError(message)
        read = file.read
        data = await asyncio.to_thread(read, medium.most + 1) if size > _BIG else read(medium.most + 1)
        kind = medium.sniff(data)
        if kind is None:
            raise SkillError(f"{place.shown} is not a {medium.what}; use another tool for this file")
        about = compact({"path": place.shown, "mimeType": kind, "size": len(data)})
    blob = BlobPart(sha256=await call.blobs.put(data), mime_type=kind, size=len(data), name=place.shown)
    return ToolResult((TextPart(text=about), blob))
