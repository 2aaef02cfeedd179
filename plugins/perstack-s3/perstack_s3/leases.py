"""Leases: an object that its holder rewrites every few seconds, each time only if it is unchanged.

A release frees the lease at once; after EXPIRY_S seconds without a heartbeat, by the server's clock, it is lost. Each
new holder has a greater fence number, which is written into every append. A process that takes a lease from a silent
holder first fences the logs (`S3Storage`), to stop a write that the old holder was about to make.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import datetime

from perstack.dataclass import dataclass
from perstack.errors import Conflict, StorageError
from perstack.ports.storage import LeaseInfo
from perstack.support.storage import already_driven
from perstack.system.concurrency import shield_until_done
from perstack_s3.layout import Layout, LeaseState, read
from perstack_s3.objects import Objects, ReadObject

EXPIRY_S = 10.0  # seconds; the server's times are whole seconds, so a dead holder blocks others for at most 11

_HEARTBEAT_INTERVAL_S = 2.5
# seconds after its last renewal in which a lease is certainly still ours, without asking the server
_SURE_FOR_S = 7.0

_RELEASE_TIMEOUT_S = 3.0  # seconds of retries for a release; if it fails, the lease expires

_CLOCK = "clock"
_MAX_ATTEMPTS = 5
_MAX_HOLDER_CHARS = 1000


def elapsed() -> float:
    """Return seconds of a clock that runs during system sleep, where the system has one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass(slots=True)
class S3Lease:
    """A lease of this process."""

    fence: int
    nonce: str
    holder: str
    tag: str
    renewed: float
    is_lost: bool = False
    is_fenced: bool = True  # True if no earlier holder can write any more

    @property
    def is_sure(self) -> bool:
        """True if the lease is certainly still ours, without asking the server."""
        return not self.is_lost and elapsed() - self.renewed < _SURE_FOR_S

    def bytes(self, holder: str | None = None) -> bytes:
        """Return the object's bytes, which differ each time."""
        holder_text = self.holder if holder is None else holder
        random_text = secrets.token_hex(8)
        state = LeaseState(
            holder=holder_text[:_MAX_HOLDER_CHARS],
            fence=self.fence,
            nonce=self.nonce,
            beat=random_text,
            unfenced=not self.is_fenced,
        )
        return state.to_bytes()

    def is_in(self, state: LeaseState) -> bool:
        """Return whether the stored state is that of this lease."""
        return (state.fence, state.nonce) == (self.fence, self.nonce)


class S3Leases:
    """The leases of one namespace."""

    def __init__(self, objects: Objects, layout: Layout) -> None:
        self._objects = objects
        self._layout = layout
        self._held_leases: dict[str, S3Lease] = {}
        self._clock: tuple[float, float] | None = None

    def held_lease(self, job_id: str) -> S3Lease | None:
        """Return this process's lease on a Job; None without one."""
        return self._held_leases.get(job_id)

    async def info(self, job_id: str) -> LeaseInfo | None:
        """Return the current holder; None if the lease is free or expired."""
        lease_object = await self._objects.get(self._lease_key(job_id))
        if lease_object is None:
            return None
        holder = _parse_state(lease_object).holder
        is_held = bool(holder) and not (
            await self._check_expired(lease_object, use_cached_clock=True) and await self._check_expired(lease_object)
        )
        return LeaseInfo(holder) if is_held else None

    async def is_still(self, job_id: str, lease: S3Lease) -> bool:
        """Ask the server whether a lease that may be lost is still ours."""
        lease_object = await self._objects.get(self._lease_key(job_id))
        return lease_object is not None and not lease.is_lost and lease.is_in(_parse_state(lease_object))

    @asynccontextmanager
    async def hold(self, job_id: str, holder: str) -> AsyncGenerator[S3Lease]:
        """Hold the lease. Raises Conflict, naming the holder."""
        try:
            lease = await shield_until_done(self._acquire(job_id, holder))
        except asyncio.CancelledError:
            if (acquired_lease := self._held_leases.pop(job_id, None)) is not None:
                await shield_until_done(self._release(job_id, acquired_lease))
            raise
        heartbeat_task = asyncio.create_task(self._send_heartbeats(job_id, lease))
        try:
            yield lease
        finally:
            heartbeat_task.cancel()
            with suppress(asyncio.CancelledError):
                await heartbeat_task
            self._held_leases.pop(job_id, None)
            await shield_until_done(self._release(job_id, lease))

    async def forget(self, job_id: str) -> None:
        """Remove the lease object of a deleted Job."""
        await self._objects.remove([self._lease_key(job_id)])

    async def _acquire(self, job_id: str, holder: str) -> S3Lease:
        lease = await self._acquire_object(job_id, holder)
        self._held_leases[job_id] = lease
        return lease

    async def _acquire_object(self, job_id: str, holder: str) -> S3Lease:
        """Create or replace the lease object, with the next fence. Raises Conflict if another process holds it."""
        key = self._lease_key(job_id)
        for _ in range(_MAX_ATTEMPTS):
            now = elapsed()
            lease_object = await self._objects.get(key)
            if lease_object is None:
                lease = S3Lease(1, secrets.token_hex(8), holder, "", now)
                tag = await self._objects.create(key, lease.bytes())
            else:
                state = _parse_state(lease_object)
                if state.holder and not await self._check_expired(lease_object):
                    raise already_driven(job_id, state.holder)
                lease = S3Lease(state.fence + 1, secrets.token_hex(8), holder, "", now)
                lease.is_fenced = not state.holder and not state.unfenced
                tag = await self._objects.replace(key, lease.bytes(), lease_object.tag)
            if tag is not None:
                lease.tag = tag
                return lease
        raise Conflict(f"Job {job_id} is being leased by other processes: try again")

    async def _send_heartbeats(self, job_id: str, lease: S3Lease) -> None:
        """Rewrite the lease object every few seconds until it is lost."""
        while not lease.is_lost:
            await asyncio.sleep(_HEARTBEAT_INTERVAL_S)
            now = elapsed()
            with suppress(StorageError):  # the next heartbeat may succeed; appends check the lease too
                tag = await self._objects.replace(self._lease_key(job_id), lease.bytes(), lease.tag, retry_s=0)
                if tag is not None:
                    lease.tag, lease.renewed = tag, now
                    continue
                # A heartbeat whose answer was lost may have changed the object.
                lease_object = await self._objects.get(self._lease_key(job_id), retry_s=0)
                if lease_object is not None and lease.is_in(_parse_state(lease_object)):
                    lease.tag = lease_object.tag
                else:
                    lease.is_lost = True

    async def _release(self, job_id: str, lease: S3Lease) -> None:
        with suppress(StorageError):  # the lease expires
            key = self._lease_key(job_id)
            if (
                lease.is_lost
                or await self._objects.replace(key, lease.bytes(""), lease.tag, retry_s=_RELEASE_TIMEOUT_S) is not None
            ):
                return
            # A cancelled heartbeat may still have changed the object.
            lease_object = await self._objects.get(key, retry_s=_RELEASE_TIMEOUT_S)
            if lease_object is not None and lease.is_in(_parse_state(lease_object)):
                await self._objects.replace(key, lease.bytes(""), lease_object.tag, retry_s=_RELEASE_TIMEOUT_S)

    async def _check_expired(self, lease_object: ReadObject, *, use_cached_clock: bool = False) -> bool:
        """Return whether a lease has expired, after asking the server for its time."""
        return await self._server_time(use_cached=use_cached_clock) - _to_seconds(lease_object.written) >= EXPIRY_S

    async def _server_time(self, *, use_cached: bool) -> float:
        """Return the server's time in seconds since 1970: the modification time of an object written just now."""
        if use_cached and self._clock is not None:
            server_time, at = self._clock
            return server_time + elapsed() - at
        try:
            at = elapsed()
            await self._objects.put(_CLOCK, secrets.token_hex(8).encode())
            probe = await self._objects.head(_CLOCK)
        except StorageError:
            # A reader without write permission judges leases by this machine's clock; taking a lease needs a write
            # anyway.
            return time.time()
        if probe is None:
            raise StorageError(f"{self._objects.place}: a new object is missing: does another program remove objects?")
        self._clock = (_to_seconds(probe.written), at)
        return self._clock[0]

    def _lease_key(self, job_id: str) -> str:
        return self._layout.of_job("leases", job_id)


def _to_seconds(moment: datetime) -> float:
    return moment.timestamp()


def _parse_state(lease_object: ReadObject) -> LeaseState:
    return read(LeaseState, lease_object.data) or LeaseState(
        holder="a process whose lease cannot be read", fence=0, nonce=""
    )
