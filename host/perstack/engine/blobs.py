"""The blobs of one Job, as skills and providers see them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from perstack.ports.storage import SharesBlobs, Storage

_AT_ONCE = 8
"""So many blobs are under way to a storage that takes them one by one."""


async def keep_blobs(storage: Storage, job_id: str, blobs: Sequence[bytes]) -> None:
    """Keep many bytes for a Job; all of them are on disk when this returns. Raises StorageError and NotFound."""
    if isinstance(storage, SharesBlobs):
        await storage.put_blobs(job_id, blobs)
        return
    for first in range(0, len(blobs), _AT_ONCE):
        await asyncio.gather(*(storage.put_blob(job_id, data) for data in blobs[first : first + _AT_ONCE]))


class JobBlobs:
    """Puts and gets the bytes that messages refer to."""

    def __init__(self, storage: Storage, job_id: str) -> None:
        self._storage = storage
        self._job_id = job_id
        self._kept: set[str] = set()
        self._keeping = asyncio.Lock()

    async def put(self, data: bytes) -> str:
        """Keep bytes; returns their sha256 in hex."""
        return await self._storage.put_blob(self._job_id, data)

    async def keep(self, sha256: str, data: bytes) -> None:
        """Keep bytes under their sha256, which is known; again, also at the same time, costs nothing."""
        if sha256 in self._kept:
            return
        async with self._keeping:
            if sha256 not in self._kept:
                await self._storage.put_blob(self._job_id, data)
                self._kept.add(sha256)

    async def get(self, sha256: str) -> bytes:
        """Raises NotFound."""
        return await self._storage.blob(self._job_id, sha256)
