"""Snapshots of one workspace for one Job, taken one after the other; what has been read once is known the next time."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from functools import partial
from pathlib import Path

from perstack.core.snapshots.events import SnapshotPolicy
from perstack.engine.blobs import keep_blobs
from perstack.engine.snapshots.walking import Batch, CannotTake, Taken, Walker
from perstack.ports.storage import Erases, Storage
from perstack.ports.uninterrupted import uninterrupted


class Recorder:
    """Takes snapshots. Several may be asked for at a time: one waits for the other."""

    def __init__(
        self, storage: Storage, job_id: str, workspace: Path, keep_off: Iterable[Path], policy: SnapshotPolicy
    ) -> None:
        self._storage = storage
        self._job_id = job_id
        self._new_walker = partial(Walker, workspace, tuple(keep_off), policy)
        self._walker: Walker | None = None
        self._kept: set[str] | None = None
        self._turn = asyncio.Lock()

    async def take(self) -> Taken:
        """The workspace as it is now; its blobs are on disk when this returns. Raises CannotTake and StorageError.

        The files are read in threads, and nothing else waits for that.
        """
        async with self._turn:
            # what a walk knows holds when its blobs were kept: after one that was cut short there is another
            walker, self._walker = self._walker or self._new_walker(), None
            walk = walker.walk()
            try:
                while not isinstance(found := await uninterrupted(asyncio.to_thread(_next, walk)), Taken):
                    await self._keep(found)
            finally:
                walk.close()
            self._walker = walker
            return found

    async def _keep(self, batch: Batch) -> None:
        if not batch:
            return
        if self._kept is None:  # what an earlier process has kept need not be kept again
            self._kept = {*await self._storage.blobs(self._job_id)} if isinstance(self._storage, Erases) else set()
        blobs = {digest: data for digest, data in batch if digest not in self._kept}
        await keep_blobs(self._storage, self._job_id, tuple(blobs.values()))
        self._kept.update(blobs)


def _next(walk: Generator[Batch, None, Taken]) -> Batch | Taken:
    try:
        return next(walk)
    except StopIteration as end:
        found: Taken = end.value
        return found


__all__ = ["CannotTake", "Recorder", "Taken"]
