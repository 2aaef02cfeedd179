"""Who drives a delegate's Run that is not driven with its Job: it has a lease of its own, beside those of Jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

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

    async def driven(self, job_id: str | None = None) -> tuple[str, ...]:
        """The Runs of all Jobs, or of one, that somebody drives now. Raises StorageError."""
        known = await self._known(job_id)
        return tuple([run_id for run_id in known if await self.holder(run_id) is not None])

    @asynccontextmanager
    async def none_driven(self, job_id: str, holder: str, also: Iterable[str] = ()) -> AsyncGenerator[None]:
        """Nobody drives a delegate of the Job meanwhile that has been driven before, or is one of `also`. Raises
        Conflict, naming the holder, if somebody does."""
        known = await self._known(job_id)
        new = [run_id for run_id in also if run_id not in known]
        async with AsyncExitStack() as stack:
            for run_id in new:
                stack.push_async_callback(self.forget, run_id)
            for run_id in (*known, *new):
                await stack.enter_async_context(self.held(run_id, holder))
            yield

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
            await asyncio.gather(*(self._end(run_id) for run_id in await self._known(job_id)))

    async def _known(self, job_id: str | None) -> list[str]:
        every = await every_id(lambda after: self._space.jobs(after=after))
        return [run_id for run_id in every if job_id is None or job_of_run(run_id) == job_id]

    async def _end(self, run_id: str) -> None:
        with suppress(Conflict):
            await self.stop(run_id)
        await self.forget(run_id)
