"""Take snapshots of a workspace and make the `recordSnapshot` event, with counts compared to the previous snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Sequence
from functools import partial
from pathlib import Path

from perstack.core.definitions.project import SnapshotPolicy
from perstack.core.runs.events.files import RecordSnapshot
from perstack.core.runs.facts import Stamps
from perstack.core.runs.state import Run
from perstack.errors import PerstackError
from perstack.ports.storage import Storage
from perstack.snapshots.stored_trees import Trees
from perstack.snapshots.tree_diff import Change, changed_lines, counts_of
from perstack.snapshots.trees import Entry, File, SkippedEntry
from perstack.snapshots.workspace_walk import Batch, SnapshotUnavailable, Walker, WorkspaceTree
from perstack.system.concurrency import shield_until_done

_MAX_COUNTED_FILES = 500
_MAX_COUNTED_BYTES = 16 << 20  # above this many changed files, or bytes in them, lines are not counted


class WorkspaceSnapshots:
    """The snapshots of one Job, taken one at a time. Unchanged files are not read again."""

    def __init__(self, storage: Storage, job_id: str, workspace: Path, excluded: Iterable[Path]) -> None:
        """Create without reading the workspace; what is in `excluded` is never recorded."""
        self._storage = storage
        self._job_id = job_id
        self._trees = Trees(storage, job_id)
        self._new_walker = partial(Walker, workspace, tuple(excluded))
        self._walkers: dict[int, Walker] = {}
        """The walker for each maximum file size: Runs that began under other settings may have another."""
        self._stored: set[str] | None = None  # digests of the blobs in the storage; None until the first is stored
        self._lock = asyncio.Lock()

    async def record(self, run: Run, stamp: Stamps) -> RecordSnapshot:
        """Take a snapshot and return its event, also if the workspace cannot be recorded. Raises StorageError."""
        try:
            tree = await self.take(run.start.snapshots or SnapshotPolicy())
        except SnapshotUnavailable as error:
            return RecordSnapshot(**stamp(), base=run.snapshot, problem=str(error))
        changes = await self._changes_since(run.snapshot, tree.tree)
        lines = None if changes is None else await self._count_changed_lines(changes)
        counts = None if changes is None else counts_of(changes)
        return RecordSnapshot(
            **stamp(),
            tree=tree.tree,
            base=run.snapshot,
            files=tree.files,
            added=counts and counts.added,
            removed=counts and counts.removed,
            changed=counts and counts.changed,
            lines_added=lines and lines[0],
            lines_removed=lines and lines[1],
            left_out=tree.left_out,
            left_out_count=tree.left_out_count,
        )

    async def take(self, snapshot_policy: SnapshotPolicy) -> WorkspaceTree:
        """Record the workspace as it is now; its blobs are on disk when this returns.

        Raises SnapshotUnavailable and StorageError.
        """
        async with self._lock:
            # a walker's knowledge is valid only if all blobs of its walk were stored: after an error start a new one
            walker = self._walkers.pop(snapshot_policy.max_file_size, None) or self._new_walker(snapshot_policy)
            walk = walker.walk()
            try:
                while not isinstance(
                    item := await shield_until_done(asyncio.to_thread(_next_batch, walk)), WorkspaceTree
                ):
                    await self._store_blobs(item)
            finally:
                walk.close()
            self._walkers[snapshot_policy.max_file_size] = walker
            return item

    async def _store_blobs(self, batch: Batch) -> None:
        if not batch:
            return
        if self._stored is None:  # skip blobs that an earlier process has stored
            self._stored = {*await self._storage.blobs(self._job_id)}
        blobs = {digest: data for digest, data in batch if digest not in self._stored}
        await self._storage.put_blobs(self._job_id, tuple(blobs.values()))
        self._stored.update(blobs)

    async def _changes_since(self, base: str | None, tree: str) -> tuple[Change, ...] | None:
        """Return the changes since `base`; None if there is none, or `verify` would report it as unreadable."""
        if base is None or base == tree:
            return None if base is None else ()
        try:
            return await self._trees.changes(base, tree)
        except PerstackError:
            return None

    async def _count_changed_lines(self, changes: Sequence[Change]) -> tuple[int, int] | None:
        """Return the added and removed lines of text files; None if there are too many files, or one cannot be read."""
        edits = [c for c in changes if c.kind != "mode" and not isinstance(c.old or c.new, SkippedEntry)]
        sizes = [entry.size for change in edits for entry in (change.old, change.new) if isinstance(entry, File)]
        if len(edits) > _MAX_COUNTED_FILES or sum(sizes) > _MAX_COUNTED_BYTES:
            return None
        try:
            pairs = [(await self._read_text(change.old), await self._read_text(change.new)) for change in edits]
        except PerstackError:
            return None
        return await asyncio.to_thread(_count_lines, pairs) if pairs else (0, 0)

    async def _read_text(self, entry: Entry | None) -> bytes:
        return await self._trees.content(entry.digest) if isinstance(entry, File) else b""


def _next_batch(walk: Generator[Batch, None, WorkspaceTree]) -> Batch | WorkspaceTree:
    try:
        return next(walk)
    except StopIteration as end:
        tree: WorkspaceTree = end.value
        return tree


def _count_lines(pairs: Sequence[tuple[bytes, bytes]]) -> tuple[int, int]:
    counts = [changed_lines(old, new) or (0, 0) for old, new in pairs]
    return sum(added for added, _ in counts), sum(removed for _, removed in counts)
