"""Records that an anchor has not taken yet, kept beside the Jobs: one log for each Job, task and series, in spaces of
their own.

A record is here before it is sent, and until it has arrived, so that no crash and no failing anchor loses it. One
that is expected has an empty log here: if who drives it is killed before there is a record, a later process makes it.
"""

from __future__ import annotations

from contextlib import suppress

from perstack.core.chain import open_line
from perstack.core.owners import OwnerKind
from perstack.engine.logs.kept import log_of
from perstack.engine.logs.lines import add_payload
from perstack.errors import Conflict, NotFound
from perstack.ports.storage import Storage

_SPACES: dict[OwnerKind, str] = {
    "job": "heads",
    "task": "headsoftasks",
    "iterations": "headsofseries",
    "schedule": "headsofschedules",
}
_TRIES = 5
_MOST_JOBS = 1000


class PendingHeads:
    """What waits to be sent. Several processes may add, send and remove at once; none loses what another added."""

    def __init__(self, storage: Storage, kind: OwnerKind) -> None:
        self._space = storage.space(_SPACES[kind])

    async def expect(self, job_id: str) -> None:
        """There is going to be a record. Raises StorageError."""
        with suppress(Conflict):
            await self._space.create_job(job_id)

    async def add(self, job_id: str, record: bytes) -> None:
        """Keep a record, which is a JSON object; it survives power loss when this returns. Raises StorageError."""
        ref = log_of(job_id)
        for attempt in range(_TRIES):
            try:
                await self.expect(job_id)
                await add_payload(self._space, ref, record)
            except (Conflict, NotFound):  # another process added to it, or removed it, at the same moment
                if attempt == _TRIES - 1:
                    raise
            else:
                return

    async def of(self, job_id: str) -> list[bytes]:
        """The records of one, the oldest first. Raises StorageError."""
        return [open_line(line).payload for line in await self._space.read(log_of(job_id))]

    async def jobs(self) -> tuple[str, ...]:
        """Those that have any, or are expected to, at most a thousand."""
        return (await self._space.jobs(limit=_MOST_JOBS)).ids

    async def has(self, job_id: str) -> bool:
        """Whether there are any, or are expected."""
        return await self._space.has_job(job_id)

    async def remove(self, job_id: str, count: int) -> None:
        """Forget the records of one, if there are still just so many. Raises StorageError."""
        expected = (log_of(job_id), count) if count else None
        with suppress(Conflict, NotFound):
            await self._space.delete_job(job_id, expected=expected)
