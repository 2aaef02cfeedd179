"""Snapshots of one workspace for one Job, taken one after the other; what has been read once is known the next time."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from functools import partial
from pathlib import Path

from perstack.core.snapshots.events import SnapshotPolicy
from perstack.engine.snapshots.walking import Batch, CannotTake, Taken, Walker
from perstack.ports.storage import SharesBlobs, Storage
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
        self._kept: set[str] = set()
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
        blobs = {digest: data for digest, data in batch if digest not in self._kept}
        if not blobs:
            return
        if isinstance(self._storage, SharesBlobs):
            await self._storage.put_blobs(self._job_id, tuple(blobs.values()))
        else:
            for data in blobs.values():
                await self._storage.put_blob(self._job_id, data)
        self._kept.update(blobs)


def _next(walk: Generator[Batch, None, Taken]) -> Batch | Taken:
    try:
        return next(walk)
    except StopIteration as end:
        found: Taken = end.value
        return found


__all__ = ["CannotTake", "Recorder", "Taken"]
