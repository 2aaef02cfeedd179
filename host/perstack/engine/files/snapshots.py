"""What a Run's log says of a snapshot: taken now, and compared with the one before it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from perstack.core.runs.stamp import Stamps
from perstack.core.runs.state import Run
from perstack.core.snapshots.difference import Change, counts_of
from perstack.core.snapshots.events import RecordSnapshot, SnapshotPolicy
from perstack.core.snapshots.lines import changed_lines
from perstack.core.snapshots.tree import Entry, File, LeftOut
from perstack.engine.snapshots.taking import CannotTake, Recorder
from perstack.engine.snapshots.trees import Trees
from perstack.errors import PerstackError
from perstack.ports.storage import Storage

_MOST_FILES = 500
_MOST_BYTES = 16 << 20
"""Beyond so many changed files, or bytes of them, lines are not counted."""


class Snapshots:
    """Those of one Job. All its Runs work in one workspace, and share what is known of it."""

    def __init__(self, storage: Storage, job_id: str, workspace: Path, keep_off: Sequence[Path]) -> None:
        self._trees = Trees(storage, job_id)
        self._new_recorder = partial(Recorder, storage, job_id, workspace, tuple(keep_off))
        self._recorders: dict[int, Recorder] = {}

    async def record(self, run: Run, stamp: Stamps) -> RecordSnapshot:
        """The fact of one more snapshot; its blobs are on disk. Raises StorageError.

        A workspace that cannot be recorded is a fact as well.
        """
        policy = run.start.snapshots or SnapshotPolicy()
        recorder = self._recorders.get(policy.max_file_size)
        if recorder is None:
            recorder = self._recorders[policy.max_file_size] = self._new_recorder(policy)
        try:
            taken = await recorder.take()
        except CannotTake as error:
            return RecordSnapshot(**stamp(), base=run.snapshot, problem=str(error))
        changes = await self._changes(run.snapshot, taken.tree)
        lines = None if changes is None else await self._lines(changes)
        counts = None if changes is None else counts_of(changes)
        return RecordSnapshot(
            **stamp(),
            tree=taken.tree,
            base=run.snapshot,
            files=taken.files,
            added=counts and counts.added,
            removed=counts and counts.removed,
            changed=counts and counts.changed,
            lines_added=lines and lines[0],
            lines_removed=lines and lines[1],
            left_out=taken.left_out,
            left_out_count=taken.left_out_count,
        )

    async def _changes(self, base: str | None, tree: str) -> tuple[Change, ...] | None:
        """None: there is nothing to compare with, or not any more, which `verify` says."""
        if base is None or base == tree:
            return None if base is None else ()
        try:
            return await self._trees.changes(base, tree)
        except PerstackError:
            return None

    async def _lines(self, changes: Sequence[Change]) -> tuple[int, int] | None:
        """Lines of text files; of links and of what is no text there are none. None: too much, or not there."""
        counted = [one for one in changes if one.kind != "mode" and not isinstance(one.old or one.new, LeftOut)]
        sizes = [entry.size for one in counted for entry in (one.old, one.new) if isinstance(entry, File)]
        if len(counted) > _MOST_FILES or sum(sizes) > _MOST_BYTES:
            return None
        try:
            pairs = [(await self._text(one.old), await self._text(one.new)) for one in counted]
        except PerstackError:
            return None
        return await asyncio.to_thread(_counted, pairs) if pairs else (0, 0)

    async def _text(self, entry: Entry | None) -> bytes:
        return await self._trees.content(entry.digest) if isinstance(entry, File) else b""


def _counted(pairs: Sequence[tuple[bytes, bytes]]) -> tuple[int, int]:
    found = [changed_lines(old, new) or (0, 0) for old, new in pairs]
    return sum(added for added, _ in found), sum(removed for _, removed in found)
