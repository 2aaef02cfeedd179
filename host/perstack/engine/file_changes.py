"""What became of files from one tree of a Job to another: each with its lines, as far as that can be compared."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from perstack.core.line_diff import Effort
from perstack.core.snapshots.difference import Change
from perstack.core.snapshots.file_diff import EFFORT, FileDiff, compared_bytes, file_diff
from perstack.core.snapshots.tree import Entry, File
from perstack.engine.snapshots.trees import Trees
from perstack.errors import NotFound

_MOST_READ = 512 << 20
"""Bytes of all files of one diff: those that come after are named, and not compared."""
_AT_ONCE = 256 << 10
"""Bytes: what is larger is compared in a thread."""


async def file_diffs(trees: Trees, changes: Sequence[Change]) -> tuple[FileDiff, ...]:
    """Each change with its lines. What is not kept any more is named, and not compared. Raises StorageError."""
    effort, left, found = Effort(EFFORT), _MOST_READ, list[FileDiff]()
    for change in changes:
        sizes = [compared_bytes(entry) for entry in (change.old, change.new)]
        size = sum(each or 0 for each in sizes)
        old = new = None
        if None not in sizes and size <= left and change.kind != "mode":
            left -= size
            old, new = await _content(trees, change.old), await _content(trees, change.new)
        if size > _AT_ONCE:
            found.append(await asyncio.to_thread(file_diff, change, old, new, effort))
        else:
            found.append(file_diff(change, old, new, effort))
    return tuple(found)


async def _content(trees: Trees, entry: Entry | None) -> bytes | None:
    if not isinstance(entry, File):
        return None
    try:
        return await trees.content(entry.digest)
    except NotFound:
        return None
