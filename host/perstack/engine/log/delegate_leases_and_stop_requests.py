"""Leases of delegates that are driven apart from their Job, requests to stop, and programs left running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from perstack.core.base.ids import job_of_run
from perstack.engine.log.event_log import job_ids
from perstack.errors import Conflict, NotFound, StorageError
from perstack.ports.storage import Storage
from perstack.system.process_guard import GUARD, end_orphaned_programs

# Programs of a storage's Jobs, running now or left running by an earlier process.


@asynccontextmanager
async def end_leftover_programs(storage: Storage) -> AsyncGenerator[None]:
    """End the programs that a killed process left running here, then run the block under one process guard."""
    if storage.programs is not None:
        await end_orphaned_programs(storage.programs)
    with GUARD.keep_running():
        yield


# Requests to stop a Job or delegate that another process drives, in a space of the storage. Each driver polls for them.
#
# A request names the holder of the lease, so that a late request does not stop the next holder.

_POLL_INTERVAL_S = 0.5  # seconds between two polls of a driver
_STOP_TIMEOUT_S = 30.0  # seconds to wait for the driver to stop: one poll, and cleaning up
_STOP_CHECK_INTERVAL_S = 0.1  # seconds between two checks of the requester


class StopRequests:
    """Requests to stop in one storage."""

    def __init__(self, storage: Storage, space: str = "stops", driven_storage: Storage | None = None) -> None:
        """Keep requests in this space. `driven_storage` is the space of the leases to stop; None for Jobs."""
        self._space = storage.space(space)
        self._driven = storage if driven_storage is None else driven_storage

    async def stop(self, job_id: str, holder: str) -> None:
        """Request a stop, and wait until that holder does not drive the Job any more.

        Raises Conflict, and withdraws the request, if the holder still drives the Job after `_STOP_TIMEOUT_S`. Raises
        StorageError.
        """
        space = self._space
        with suppress(Conflict):
            await space.create_job(job_id)
        try:
            await space.put_summary(job_id, holder.encode())
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                while await self._is_driven(job_id, holder):  # noqa: ASYNC110 - no event comes from another process
                    await asyncio.sleep(_STOP_CHECK_INTERVAL_S)
        except TimeoutError as error:
            raise Conflict(
                f"Job {job_id} was asked to stop, and {holder} has not stopped it: try again, or end that process"
            ) from error
        finally:
            with suppress(Conflict, NotFound):  # another process may have withdrawn it already
                await space.delete_job(job_id)

    async def wait_for_stop_request(self, job_id: str, holder: str) -> None:
        """Wait until this holder is requested to stop the Job."""
        space = self._space
        while True:
            await asyncio.sleep(_POLL_INTERVAL_S)
            with suppress(StorageError):  # retry at the next poll
                if await space.has_job(job_id) and await space.summary(job_id) == holder.encode():
                    return

    async def _is_driven(self, job_id: str, holder: str) -> bool:
        info = await self._driven.lease_info(job_id)
        return info is not None and info.holder == holder


_LEASE_SPACE = "delegates"
_STOP_SPACE = "delegatestops"


class DelegateLeases:
    """Leases of delegates in one storage. They guard no log: each append names the end that it expects."""

    def __init__(self, storage: Storage) -> None:
        self._space = storage.space(_LEASE_SPACE)
        self._requests = StopRequests(storage, _STOP_SPACE, self._space)

    @asynccontextmanager
    async def lease(self, run_id: str, holder: str) -> AsyncGenerator[None]:
        """Hold the lease of a Run. Raises Conflict, naming the holder, if another has it."""
        with suppress(Conflict):
            await self._space.create_job(run_id)
        async with self._space.lease(run_id, holder):
            yield

    async def holder(self, run_id: str) -> str | None:
        """Return the holder of a Run's lease; None without one."""
        with suppress(NotFound):
            info = await self._space.lease_info(run_id)
            return None if info is None else info.holder
        return None

    async def driven_delegates(self, job_id: str | None = None) -> tuple[str, ...]:
        """Return the delegates, of all Jobs or of one, that are driven now. Raises StorageError."""
        delegates = await self._leased_run_ids(job_id)
        return tuple([run_id for run_id in delegates if await self.holder(run_id) is not None])

    @asynccontextmanager
    async def lease_all_idle(self, job_id: str, holder: str, extra_run_ids: Iterable[str] = ()) -> AsyncGenerator[None]:
        """Hold the leases of a Job's delegates and of `extra_run_ids`. Raises Conflict, naming the holder of one."""
        delegates = await self._leased_run_ids(job_id)
        new_run_ids = [run_id for run_id in extra_run_ids if run_id not in delegates]
        async with AsyncExitStack() as stack:
            for run_id in new_run_ids:
                stack.push_async_callback(self.forget, run_id)
            for run_id in (*delegates, *new_run_ids):
                await stack.enter_async_context(self.lease(run_id, holder))
            yield

    async def wait_for_stop_request(self, run_id: str, holder: str) -> None:
        """Wait until this holder is requested to stop the Run."""
        await self._requests.wait_for_stop_request(run_id, holder)

    async def stop(self, run_id: str) -> None:
        """Ask the holder of a Run's lease to stop the Run, and wait until it has. Raises Conflict if it does not."""
        holder = await self.holder(run_id)
        if holder is not None:
            await self._requests.stop(run_id, holder)

    async def forget(self, run_id: str) -> None:
        """Delete the lease of an ended Run. A lease that is held is deleted by its holder."""
        with suppress(Conflict, NotFound, StorageError):
            await self._space.delete_job(run_id)

    async def forget_job(self, job_id: str) -> None:
        """Request drivers of a deleted Job's delegates to stop, and delete the leases."""
        with suppress(StorageError):
            await asyncio.gather(*(self._stop_and_forget(run_id) for run_id in await self._leased_run_ids(job_id)))

    async def _leased_run_ids(self, job_id: str | None) -> list[str]:
        all_ids = await job_ids(self._space)
        return [run_id for run_id in all_ids if job_id is None or job_of_run(run_id) == job_id]

    async def _stop_and_forget(self, run_id: str) -> None:
        with suppress(Conflict):
            await self.stop(run_id)
        await self.forget(run_id)
