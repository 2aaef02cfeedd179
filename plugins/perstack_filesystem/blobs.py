"""The blobs of Jobs: a file for each in the Job's own folder, which several Jobs may share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from hashlib import sha256 as new_sha256

from perstack.core.ids import check_id
from perstack.ports.uninterrupted import uninterrupted
from perstack_filesystem.contents import blob_names
from perstack_filesystem.folders import Folder
from perstack_filesystem.job_folders import JobFolders
from perstack_filesystem.pool import free, keep_all


class BlobFolders(JobFolders):
    """Keeps and removes them."""

    async def put_blob(self, job_id: str, data: bytes) -> str:
        """Keep bytes, once; returns their sha256 in hex. Synced before it returns."""
        name = new_sha256(data).hexdigest()
        with ExitStack() as opened:
            blobs = self._made(opened, job_id, "blobs")
            if blobs.read(name) != data:
                blobs.replace(name, data, sync=True)
            blobs.sync()
        return name

    async def put_blobs(self, job_id: str, blobs: Sequence[bytes]) -> tuple[str, ...]:
        """Keep many bytes, each content once for all Jobs; returns their names. Synced before it returns."""
        return await uninterrupted(asyncio.to_thread(self._put_blobs, job_id, blobs))

    def _put_blobs(self, job_id: str, blobs: Sequence[bytes]) -> tuple[str, ...]:
        names = tuple(new_sha256(data).hexdigest() for data in blobs)
        with ExitStack() as opened:
            keep_all(self._root, self._made(opened, job_id, "blobs"), dict(zip(names, blobs, strict=True)))
        return names

    async def blobs(self, job_id: str) -> tuple[str, ...]:
        """The names of a Job's blobs."""
        with ExitStack() as opened:
            self._job(opened, job_id)
            folder = self._find(opened, job_id, "blobs")
            return () if folder is None else blob_names(folder)

    async def remove_blob(self, job_id: str, sha256: str) -> None:
        """Remove a blob, if it is there."""
        with ExitStack() as opened:
            folder = self._find(opened, job_id, "blobs")
            if folder is not None:
                free(self._root, folder, (check_id(sha256, "blob"),))
                if folder.remove(sha256):
                    folder.sync()

    def _free_blobs(self, job: Folder) -> None:
        """What only a Job has that is about to go is kept for no other."""
        blobs = job.find("blobs")
        if blobs is not None:
            with blobs:
                free(self._root, blobs, blob_names(blobs))
