"""Reading tools: text by lines from files of any size, images and PDFs.

As in Perstack, lines count from 0 and `to` is exclusive: for a whole file `to` is its number of newlines plus one.
"""

from __future__ import annotations

import asyncio
import io
import os
import stat
from collections.abc import Callable
from typing import BinaryIO

from perstack.core.base.records import JsonObject
from perstack.core.files.file_names import is_git_head
from perstack.core.messages.media import image_type, pdf_type
from perstack.core.messages.messages import BlobPart, TextPart
from perstack.dataclass import dataclass
from perstack.errors import SkillError
from perstack.ports.skill import ToolCall, ToolResult
from perstack_base.tools import compact, integer, text
from perstack_base.workspace import OpenWorkspace, ResolvedPath

MAX_READ_BYTES = 100_000  # maximum bytes of text per call, about 25,000 tokens

MAX_COUNTED_BYTES = 64 << 20  # maximum bytes in which lines are counted, which takes some tenths of a second

_CHUNK_BYTES = 1 << 16
_SNIFFED_BYTES = 8192


@dataclass(slots=True)
class LineRange:
    """Range of lines of a text."""

    content: bytes
    start: int
    end: int
    total: int | None  # number of lines; None if there are more than were counted
    cut: bool = False  # True if the line `start` was too long and was cut


def read_text_file(workspace: OpenWorkspace, args: JsonObject) -> JsonObject:
    """Run `readTextFile` on a file of the workspace."""
    with workspace.place(text(args, "path")) as place, open_regular(place) as file:
        if b"\0" in file.read(_SNIFFED_BYTES):
            message = f"{place.display_path} is not a text file; use readImageFile or readPdfFile if it is one, or exec"
            raise SkillError(message)
        file.seek(0)
        return _create_result(place.display_path, file, args, os.fstat(file.fileno()).st_size)


def read_blob(name: str, data: bytes, args: JsonObject) -> JsonObject:
    """Run `readTextFile` on a blob that an earlier result refers to."""
    return _create_result(name, io.BytesIO(data), args, len(data))


def open_regular(path: ResolvedPath, flags: int = os.O_RDONLY) -> BinaryIO:
    """Open a regular file. Opening a pipe, device or socket could block, so it is refused. Raises SkillError."""
    if path.checked_status is None:
        raise SkillError(f"{path.display_path} does not exist; listDirectory shows what does")
    _refuse_special(path, path.checked_status)
    safe = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    handle = os.open(path.name, flags | safe, dir_fd=path.directory)
    try:
        status = os.fstat(handle)
        _refuse_special(path, status)
        path.check_opened(status)
        return os.fdopen(handle, "rb" if flags == os.O_RDONLY else "ab", buffering=_CHUNK_BYTES)
    except SkillError:
        os.close(handle)
        raise


def read_lines(file: BinaryIO, start: int, end: int | None, max_bytes: int = MAX_READ_BYTES) -> LineRange:
    """Return the lines from `start` to `end` (exclusive), as many as fit into `max_bytes`, which also bounds memory."""
    chunks: list[bytes] = []
    size = 0
    line = 0
    stop: int | None = None
    counted = 0
    while counted < MAX_COUNTED_BYTES and (chunk := file.readline(_CHUNK_BYTES)):
        counted += len(chunk)
        is_in_range = line >= start and (end is None or line < end)
        if is_in_range and stop is None:
            chunks.append(chunk)
            size += len(chunk)
            if size > max_bytes:
                stop = line
        line += chunk.endswith(b"\n")
    total = line + 1 if counted < MAX_COUNTED_BYTES or not file.read(1) else None
    content = b"".join(chunks)
    if stop is None and total is None:
        return _count_lines(content, start, line if end is None else min(end, line))
    if stop is None:
        last = line + 1 if end is None else min(end, line + 1)
        return LineRange(content, min(start, last), last, total)
    whole_lines = content.rfind(b"\n", 0, max_bytes) + 1
    if whole_lines:
        content = content[:whole_lines]
        return LineRange(content, start, start + content.count(b"\n"), total)
    return LineRange(content[:max_bytes], start, start + 1, total, cut=True)


def _count_lines(content: bytes, start: int, end: int) -> LineRange:
    if end <= start:
        limit = f"{MAX_COUNTED_BYTES >> 20} MiB"
        raise SkillError(f"line {start} is beyond the first {limit}, where this tool stops; use exec sed")
    return LineRange(content[: content.rfind(b"\n") + 1], start, end, None)


def _create_result(name: str, file: BinaryIO, args: JsonObject, size: int) -> JsonObject:
    """Return the requested lines, with notices about what is missing."""
    end = integer(args, "to")
    lines = read_lines(file, integer(args, "from") or 0, end)
    content = lines.content
    if (lines.total is None or lines.end < lines.total) and end is not None and lines.end == end:
        content = content.removesuffix(b"\n")
    display_path = content.decode("utf-8", "replace")
    result: JsonObject = {"path": name, "content": display_path, "from": lines.start, "to": lines.end}
    notices = _describe_omissions(lines, integer(args, "from") or 0, end, size)
    if display_path.count("\ufffd") > content.count("\ufffd".encode()) and not lines.cut:
        notices.append("Some bytes are not UTF-8 and are shown as \ufffd.")
    if notices:
        result["notice"] = " ".join(notices)
    return result


def _describe_omissions(lines: LineRange, start: int, end: int | None, size: int) -> list[str]:
    """Describe which lines the result lacks, and how to read them."""
    if lines.total is None:
        size_note = f"The file has {size} bytes, and its lines were not all counted."
        if lines.cut:
            return [f"Line {lines.start} is too long to show completely; exec can cut it. {size_note}"]
        if end is not None and lines.end >= end:
            return [size_note]
        return [f"Too long for one call: continue with from={lines.end}. {size_note}"]
    if start >= lines.total:
        return [f"There are only {lines.total} lines."]
    if lines.cut:
        return [f"Line {lines.start} is too long to show completely; exec can cut it. There are {lines.total} lines."]
    if lines.end < min(end if end is not None else lines.total, lines.total):
        return [f"Too long for one call: continue with from={lines.end}. There are {lines.total} lines."]
    return []


def refuse_git_head(path: ResolvedPath) -> None:
    """Raise SkillError for creating a `HEAD` that would make its directory a git repository."""
    is_opened = path.workspace.is_opened(path.parts)
    if is_git_head(path.name) and path.status() is None and not is_opened:
        raise SkillError(
            f"{path.display_path} makes a folder a git repository, and is off limits to tools; use another name"
        )


def _refuse_special(path: ResolvedPath, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise SkillError(f"{path.display_path} is a directory; use listDirectory")
    if not stat.S_ISREG(status.st_mode):
        raise SkillError(f"{path.display_path} is not a regular file but a pipe, device or socket; use another path")


_MEGABYTE = 1024 * 1024
_THREAD_FROM_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file that a reading tool accepts: its name, maximum bytes, and a function that finds its MIME type."""

    label: str
    max_bytes: int
    sniff: Callable[[bytes], str | None]


IMAGE = FileKind("PNG, JPEG, GIF or WebP image", 15 * _MEGABYTE, image_type)
PDF = FileKind("PDF", 30 * _MEGABYTE, pdf_type)


async def read_medium(workspace: OpenWorkspace, tool_call: ToolCall, file_kind: FileKind) -> ToolResult:
    """Run `readImageFile` or `readPdfFile`: store the file as a blob of the Job."""
    with workspace.place(text(tool_call.args, "path")) as place, open_regular(place) as file:
        size = os.fstat(file.fileno()).st_size
        if size > file_kind.max_bytes:
            excess = f"{size} bytes, more than the {file_kind.max_bytes} allowed"
            message = f"{place.display_path} has {excess}; make it smaller with exec"
            raise SkillError(message)
        read = file.read
        limit = file_kind.max_bytes + 1
        data = await asyncio.to_thread(read, limit) if size > _THREAD_FROM_BYTES else read(limit)
        mime_type = file_kind.sniff(data)
        if mime_type is None:
            raise SkillError(f"{place.display_path} is not a {file_kind.label}; use another tool for this file")
        description = compact({"path": place.display_path, "mimeType": mime_type, "size": len(data)})
    blob = BlobPart(
        sha256=await tool_call.blobs.put(data), mime_type=mime_type, size=len(data), name=place.display_path
    )
    return ToolResult((TextPart(text=description), blob))
