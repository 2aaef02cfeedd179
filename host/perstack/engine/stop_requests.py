"""Asking another process to stop what it drives: a request beside the Jobs, which it looks for.

A request names the holder of the lease, so that one which came too late stops nobody else.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from perstack.errors import Conflict, NotFound, StorageError
from perstack.ports.storage import Storage

_LOOKS_EACH = 0.5
"""Seconds between two looks of who drives a Job."""
_PATIENCE = 30.0
"""Seconds that are waited for it to stop: one look, and cleaning up."""
_WAITS_EACH = 0.1


class StopRequests:
    """The requests in one storage."""

    def __init__(self, storage: Storage, space: str = "stops", driven: Storage | None = None) -> None:
        """They are kept in that space; `driven` has the leases of what they ask to stop, if that is no Job."""
        self._space = storage.space(space)
        self._driven = storage if driven is None else driven

    async def stop(self, job_id: str, holder: str) -> None:
        """Ask, and wait until that holder drives the Job no more.

        Raises Conflict if it still does after half a minute; the request is withdrawn then. Raises StorageError.
        """
        space = self._space
        with suppress(Conflict):
            await space.create_job(job_id)
        try:
            await space.put_summary(job_id, holder.encode())
            async with asyncio.timeout(_PATIENCE):
                while await self._is_driven(job_id, holder):  # noqa: ASYNC110 - no event comes from another process
                    await asyncio.sleep(_WAITS_EACH)
        except TimeoutError as error:
            raise Conflict(
                f"Job {job_id} was asked to stop, and {holder} has not stopped it: try again, or end that process"
            ) from error
        finally:
            with suppress(Conflict, NotFound):  # another process that asks may be quicker
                await space.delete_job(job_id)

    async def asked(self, job_id: str, holder: str) -> None:
        """Returns when this holder is asked to stop the Job."""
        space = self._space
        while True:
            await asyncio.sleep(_LOOKS_EACH)
            with suppress(StorageError):  # what cannot be looked at now can be in a moment
                if await space.has_job(job_id) and await space.summary(job_id) == holder.encode():
                    return

    async def _is_driven(self, job_id: str, holder: str) -> bool:
        info = await self._driven.lease_info(job_id)
        return info is not None and info.holder == holder
