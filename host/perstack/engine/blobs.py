"""The blobs of one Job, as skills and providers see them."""

from __future__ import annotations

from perstack.ports.storage import Storage


class JobBlobs:
    """Puts and gets the bytes that messages refer to."""

    def __init__(self, storage: Storage, job_id: str) -> None:
        self._storage = storage
        self._job_id = job_id

    async def put(self, data: bytes) -> str:
        """Keep bytes; returns their sha256 in hex."""
        return await self._storage.put_blob(self._job_id, data)

    async def get(self, sha256: str) -> bytes:
        """Raises NotFound."""
        return await self._storage.blob(self._job_id, sha256)
