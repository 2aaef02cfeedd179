"""A storage that crashes at the append of your choice, for tests of what drives it.

for point in crash_points(appends):
    storage = CrashingStorage(real, point)
    with pytest.raises(Crash):
        drive(storage)
    drive(real)    # goes on from what is stored
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal

from perstack.core.chain import Head
from perstack.dataclass import dataclass
from perstack.ports.storage import KeepsCopies, LeaseInfo, Page, Redacts, RunRef, Storage


class Crash(BaseException):
    """Stands for the death of the process: no `except Exception` may catch it."""


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """Before or after the n-th append, counted from 1 over all Runs."""

    moment: Literal["before", "after"]
    append: int


def crash_points(appends: int) -> list[CrashPoint]:
    """Every place where a drive of so many appends can crash."""
    return [CrashPoint(moment, n) for n in range(1, appends + 1) for moment in ("before", "after")]


class CrashingStorage:
    """Passes everything on to another storage, and raises Crash at one point; from then on every append does."""

    def __init__(self, storage: Storage, point: CrashPoint | None = None) -> None:
        self.storage = storage
        self.point = point
        self.appends = 0
        """How many appends were asked for."""

    def _reached(self, moment: Literal["before", "after"]) -> bool:
        point = self.point
        if point is None:
            return False
        # a dead process writes nothing more, whichever of its tasks tries
        return self.appends > point.append or (self.appends == point.append and moment == point.moment)

    async def append(self, run: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        """Append, or crash."""
        self.appends += 1
        if self._reached("before"):
            raise Crash(f"before append {self.appends}, to {run.run_id}")
        await self.storage.append(run, expected_seq, records)
        if self._reached("after"):
            raise Crash(f"after append {self.appends}, to {run.run_id}")

    @property
    def location(self) -> str:
        """That of the other storage."""
        return self.storage.location

    def space(self, name: str) -> Storage:
        """That of the other storage, which does not crash."""
        return self.storage.space(name)

    async def create_job(self, job_id: str) -> None:
        """Passed on."""
        await self.storage.create_job(job_id)

    async def has_job(self, job_id: str) -> bool:
        """Passed on."""
        return await self.storage.has_job(job_id)

    async def jobs(self, *, limit: int = 100, after: str | None = None) -> Page:
        """Passed on."""
        return await self.storage.jobs(limit=limit, after=after)

    async def runs(self, job_id: str, *, limit: int = 1000, after: str | None = None) -> Page:
        """Passed on."""
        return await self.storage.runs(job_id, limit=limit, after=after)

    async def read(self, run: RunRef, after: int = 0, limit: int | None = None) -> list[bytes]:
        """Passed on."""
        return await self.storage.read(run, after, limit)

    async def redact(self, run: RunRef, seq: int, record: bytes) -> None:
        """Passed on, unless it has crashed before."""
        if self._reached("after") or not isinstance(self.storage, Redacts):
            raise Crash(f"before a redaction in {run.run_id}")
        await self.storage.redact(run, seq, record)

    async def put_summary(self, job_id: str, summary: bytes) -> None:
        """Passed on."""
        await self.storage.put_summary(job_id, summary)

    async def summary(self, job_id: str) -> bytes | None:
        """Passed on."""
        return await self.storage.summary(job_id)

    async def put_entry(
        self, job_id: str, seq: int, entry: bytes, *, synced: bool = False, expected: tuple[RunRef, Head] | None = None
    ) -> None:
        """Passed on."""
        await self.storage.put_entry(job_id, seq, entry, synced=synced, expected=expected)

    async def entries(self) -> Mapping[str, bytes]:
        """Passed on."""
        return await self.storage.entries()

    async def entry(self, job_id: str) -> tuple[int, bytes] | None:
        """Passed on."""
        return await self.storage.entry(job_id)

    async def put_run_setting(self, run: RunRef, setting: bytes) -> None:
        """Passed on to a storage that keeps copies; lost otherwise, as a cache may be."""
        if isinstance(self.storage, KeepsCopies):
            await self.storage.put_run_setting(run, setting)

    async def run_setting(self, run: RunRef) -> bytes | None:
        """Passed on."""
        return await self.storage.run_setting(run) if isinstance(self.storage, KeepsCopies) else None

    async def put_checkpoint(self, job_id: str, checkpoint_id: str, data: bytes) -> None:
        """Passed on to a storage that keeps copies; lost otherwise."""
        if isinstance(self.storage, KeepsCopies):
            await self.storage.put_checkpoint(job_id, checkpoint_id, data)

    async def checkpoint(self, job_id: str, checkpoint_id: str) -> bytes | None:
        """Passed on."""
        return await self.storage.checkpoint(job_id, checkpoint_id) if isinstance(self.storage, KeepsCopies) else None

    async def checkpoints(self, job_id: str, *, limit: int = 1000, after: str | None = None) -> Page:
        """Passed on."""
        if not isinstance(self.storage, KeepsCopies):
            return Page(())
        return await self.storage.checkpoints(job_id, limit=limit, after=after)

    async def put_blob(self, job_id: str, data: bytes) -> str:
        """Passed on."""
        return await self.storage.put_blob(job_id, data)

    async def blob(self, job_id: str, sha256: str) -> bytes:
        """Passed on."""
        return await self.storage.blob(job_id, sha256)

    def lease(self, job_id: str, holder: str) -> AbstractAsyncContextManager[None]:
        """Passed on."""
        return self.storage.lease(job_id, holder)

    async def lease_info(self, job_id: str) -> LeaseInfo | None:
        """Passed on."""
        return await self.storage.lease_info(job_id)

    async def delete_job(self, job_id: str, *, expected: tuple[RunRef, int] | None = None) -> None:
        """Passed on."""
        await self.storage.delete_job(job_id, expected=expected)

    async def close(self) -> None:
        """Passed on."""
        await self.storage.close()
