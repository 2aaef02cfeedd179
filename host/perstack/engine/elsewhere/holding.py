"""Who drives a delegate's Run that is not driven with its Job: it has a lease of its own, beside those of Jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from perstack.core.ids import job_of_run
from perstack.engine.pages import every_id
from perstack.engine.stop_requests import StopRequests
from perstack.errors import Conflict, NotFound, StorageError
from perstack.ports.storage import Storage

_SPACE = "delegates"
_STOPS = "delegatestops"


class Holders:
    """The leases of delegates in one storage. What guards the log of such a Run is its end, which an append names."""

    def __init__(self, storage: Storage) -> None:
        self._space = storage.space(_SPACE)
        self._requests = StopRequests(storage, _STOPS, self._space)

    @asynccontextmanager
    async def held(self, run_id: str, holder: str) -> AsyncGenerator[None]:
        """The right to drive the Run. Raises Conflict, naming the holder, if another has it."""
        with suppress(Conflict):
            await self._space.create_job(run_id)
        async with self._space.lease(run_id, holder):
            yield

    async def holder(self, run_id: str) -> str | None:
        """Who drives it now; None if nobody does."""
        with suppress(NotFound):
            info = await self._space.lease_info(run_id)
            return None if info is None else info.holder
        return None

    async def asked(self, run_id: str, holder: str) -> None:
        """Returns when this holder is asked to stop the Run."""
        await self._requests.asked(run_id, holder)

    async def stop(self, run_id: str) -> None:
        """Ask who drives the Run to stop it, and wait for that. Raises Conflict if it does not."""
        holder = await self.holder(run_id)
        if holder is not None:
            await self._requests.stop(run_id, holder)

    async def forget(self, run_id: str) -> None:
        """The Run has ended: nothing is kept of its lease. One that is held yet is forgotten by its holder."""
        with suppress(Conflict, NotFound, StorageError):
            await self._space.delete_job(run_id)

    async def forget_job(self, job_id: str) -> None:
        """The Job is gone: who drives a delegate of it is asked to stop, and nothing is kept of their leases.

        What cannot be reached now finds by itself that there is no such Job any more.
        """
        with suppress(StorageError):
            known = await every_id(lambda after: self._space.jobs(after=after))
            await asyncio.gather(*(self._end(run_id) for run_id in known if job_of_run(run_id) == job_id))

    async def _end(self, run_id: str) -> None:
        with suppress(Conflict):
            await self.stop(run_id)
        await self.forget(run_id)
