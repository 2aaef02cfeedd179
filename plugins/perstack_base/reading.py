"""Text by lines, from files of any size.

Lines are counted from 0 and `to` is not included, as in Perstack: `to` of a whole file is the number of its newlines
and one.
"""

from __future__ import annotations

import io
import os
import stat
from typing import BinaryIO

from perstack.core.base import JsonObject
from perstack.core.protected import is_git_link
from perstack.dataclass import dataclass
from perstack.errors import SkillError
from perstack_base.arguments import text, whole
from perstack_base.workspace import ResolvedPath, Workspace

MOST_BYTES = 100_000
"""Of text that one call returns: some 25,000 tokens."""

MOST_COUNTED = 64 << 20
"""Bytes in which lines are counted: some tenths of a second."""

_PIECE = 1 << 16
_FOR_SNIFFING = 8192


@dataclass(slots=True)
class Lines:
    """Some lines of a text."""

    content: bytes
    start: int
    end: int
    total: int | None
    """None: there are more than were counted."""
    cut: bool = False
    """The line `start` alone is more than may be returned, and is not whole."""


def read_text_file(workspace: Workspace, args: JsonObject) -> JsonObject:
    """`readTextFile` on a file of the workspace."""
    with workspace.place(text(args, "path")) as place, open_regular(place) as file:
        if b"\0" in file.read(_FOR_SNIFFING):
            message = f"{place.shown} is not a text file; use readImageFile or readPdfFile if it is one, or exec"
            raise SkillError(message)
        file.seek(0)
        return _result(place.shown, file, args, os.fstat(file.fileno()).st_size)


def read_blob(name: str, data: bytes, args: JsonObject) -> JsonObject:
    """`readTextFile` on bytes that an earlier result left out."""
    return _result(name, io.BytesIO(data), args, len(data))


def open_regular(place: ResolvedPath, flags: int = os.O_RDONLY) -> BinaryIO:
    """An ordinary file, open. Pipes, devices and sockets are refused before they could block or do anything."""
    if place.found is None:
        raise SkillError(f"{place.shown} does not exist; listDirectory shows what does")
    _refuse_special(place, place.found)
    safe = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    handle = os.open(place.name, flags | safe, dir_fd=place.directory)
    try:
        opened = os.fstat(handle)
        _refuse_special(place, opened)
        place.check_opened(opened)
        if flags != os.O_RDONLY:
            refuse_git_link(place)
        return os.fdopen(handle, "rb" if flags == os.O_RDONLY else "ab", buffering=_PIECE)
    except SkillError:
        os.close(handle)
        raise


def read_lines(file: BinaryIO, start: int, end: int | None, most: int = MOST_BYTES) -> Lines:
    """The lines from `start` up to `end`, or as many of them as `most` bytes hold; memory is bounded by `most`."""
    kept: list[bytes] = []
    size = 0
    line = 0
    stop: int | None = None
    counted = 0
    while counted < MOST_COUNTED and (piece := file.readline(_PIECE)):
        counted += len(piece)
        wanted = line >= start and (end is None or line < end)
        if wanted and stop is None:
            kept.append(piece)
            size += len(piece)
            if size > most:
                stop = line
        line += piece.endswith(b"\n")
    total = line + 1 if counted < MOST_COUNTED or not file.read(1) else None
    content = b"".join(kept)
    if stop is None and total is None:
        return _up_to_where_counting_ended(content, start, line if end is None else min(end, line))
    if stop is None:
        last = line + 1 if end is None else min(end, line + 1)
        return Lines(content, min(start, last), last, total)
    whole_lines = content.rfind(b"\n", 0, most) + 1
    if whole_lines:
        content = content[:whole_lines]
        return Lines(content, start, start + content.count(b"\n"), total)
    return Lines(content[:most], start, start + 1, total, cut=True)


def _up_to_where_counting_ended(content: bytes, start: int, end: int) -> Lines:
    if end <= start:
        most = f"{MOST_COUNTED >> 20} MiB"
        raise SkillError(f"line {start} is not in the first {most}, which is as far as this tool reads; use exec sed")
    return Lines(content[: content.rfind(b"\n") + 1], start, end, None)


def _result(name: str, file: BinaryIO, args: JsonObject, size: int) -> JsonObject:
    end = whole(args, "to")
    lines = read_lines(file, whole(args, "from") or 0, end)
    content = lines.content
    if (lines.total is None or lines.end < lines.total) and end is not None and lines.end == end:
        content = content.removesuffix(b"\n")
    shown = content.decode("utf-8", "replace")
    result: JsonObject = {"path": name, "content": shown, "from": lines.start, "to": lines.end}
    notices = _notices(lines, whole(args, "from") or 0, end, size)
    if shown.count("\ufffd") > content.count("\ufffd".encode()) and not lines.cut:
        notices.append("Some bytes are not UTF-8 and are shown as \ufffd.")
    if notices:
        result["notice"] = " ".join(notices)
    return result


def _notices(lines: Lines, start: int, end: int | None, size: int) -> list[str]:
    if lines.total is None:
        how_long = f"The file has {size} bytes, and its lines were not all counted."
        if lines.cut:
            return [f"Line {lines.start} is too long to show whole; exec can cut it. {how_long}"]
        if end is not None and lines.end >= end:
            return [how_long]
        return [f"Too long for one call: continue with from={lines.end}. {how_long}"]
    if start >= lines.total:
        return [f"There are only {lines.total} lines."]
    if lines.cut:
        return [f"Line {lines.start} is too long to show whole; exec can cut it. There are {lines.total} lines."]
    if lines.end < min(end if end is not None else lines.total, lines.total):
        return [f"Too long for one call: continue with from={lines.end}. There are {lines.total} lines."]
    return []


def refuse_git_link(place: ResolvedPath) -> None:
    """Raises SkillError before a file is written that git would take for the place of a repository."""
    if is_git_link(place.name):
        raise SkillError(f"{place.shown} says where git finds its hooks, and is off limits to tools; use another path")


def _refuse_special(place: ResolvedPath, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise SkillError(f"{place.shown} is a directory; use listDirectory")
    if not stat.S_ISREG(status.st_mode):
        raise SkillError(f"{place.shown} is not an ordinary file but a pipe, device or socket; use another path")
