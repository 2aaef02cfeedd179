"""A storage that crashes at a chosen append, for tests of the code that drives it.

for point in crash_points(appends):
    storage = CrashingStorage(real, point)
    with pytest.raises(Crash):
        drive(storage)
    drive(real)    # continues from what is stored
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal

from typing_extensions import override

from perstack.core.base.chain import Head
from perstack.dataclass import dataclass
from perstack.ports.storage import JobSize, LeaseInfo, Page, RunRef, Storage


class Crash(BaseException):
    """The simulated death of the process. A BaseException, so that no `except Exception` catches it."""


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """Before or after the n-th append, counted from 1 over all Runs."""

    moment: Literal["before", "after"]
    append: int


def crash_points(appends: int) -> list[CrashPoint]:
    """Return every point at which driving with this number of appends can crash."""
    return [CrashPoint(moment, n) for n in range(1, appends + 1) for moment in ("before", "after")]


class CrashingStorage(Storage):
    """A wrapper that passes calls to another storage and raises Crash at `point` and at each append after it."""

    def __init__(self, storage: Storage, point: CrashPoint | None = None) -> None:
        """Wrap a storage; without a point it never crashes."""
        self.storage = storage
        self.keeps_copies = storage.keeps_copies
        self.point = point
        self.appends = 0  # number of append calls so far

    def _reached(self, moment: Literal["before", "after"]) -> bool:
        point = self.point
        if point is None:
            return False
        # after a crash nothing more is written, by any task
        return self.appends > point.append or (self.appends == point.append and moment == point.moment)

    @override
    async def append(self, ref: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        self.appends += 1
        if self._reached("before"):
            raise Crash(f"before append {self.appends}, to {ref.run_id}")
        await self.storage.append(ref, expected_seq, records)
        if self._reached("after"):
            raise Crash(f"after append {self.appends}, to {ref.run_id}")

    @override
    def append_now(self, ref: RunRef, expected_seq: int, records: Sequence[bytes], *, synced: bool = True) -> bool:
        if type(self).append is not CrashingStorage.append:
            return False  # call `append`, so that a subclass's `append` sees every append
        self.appends += 1
        if self._reached("before"):
            raise Crash(f"before append {self.appends}, to {ref.run_id}")
        if not self.storage.append_now(ref, expected_seq, records, synced=synced):
            self.appends -= 1
            return False
        if self._reached("after"):
            raise Crash(f"after append {self.appends}, to {ref.run_id}")
        return True

    @override
    def sync_now(self, ref: RunRef) -> None:
        if self._reached("after"):
            raise Crash(f"before a sync of {ref.run_id}")
        self.storage.sync_now(ref)

    @property
    @override
    def location(self) -> str:
        return self.storage.location

    @override
    def space(self, name: str) -> Storage:
        return self.storage.space(name)

    @override
    async def create_job(self, job_id: str) -> None:
        await self.storage.create_job(job_id)

    @override
    async def has_job(self, job_id: str) -> bool:
        return await self.storage.has_job(job_id)

    @override
    async def jobs(self, *, limit: int = 100, after: str | None = None) -> Page:
        return await self.storage.jobs(limit=limit, after=after)

    @override
    async def runs(self, job_id: str, *, limit: int = 1000, after: str | None = None) -> Page:
        return await self.storage.runs(job_id, limit=limit, after=after)

    @override
    async def read(self, ref: RunRef, after: int = 0, limit: int | None = None) -> list[bytes]:
        return await self.storage.read(ref, after, limit)

    @override
    async def redact(self, ref: RunRef, seq: int, record: bytes) -> None:
        if self._reached("after"):
            raise Crash(f"before a redaction in {ref.run_id}")
        await self.storage.redact(ref, seq, record)

    @override
    async def put_summary(self, job_id: str, summary: bytes) -> None:
        await self.storage.put_summary(job_id, summary)

    @override
    async def summary(self, job_id: str) -> bytes | None:
        return await self.storage.summary(job_id)

    @override
    async def put_entry(
        self, job_id: str, seq: int, entry: bytes, *, synced: bool = False, expected: tuple[RunRef, Head] | None = None
    ) -> None:
        await self.storage.put_entry(job_id, seq, entry, synced=synced, expected=expected)

    @override
    async def entries(self) -> Mapping[str, bytes]:
        return await self.storage.entries()

    @override
    async def entry(self, job_id: str) -> tuple[int, bytes] | None:
        return await self.storage.entry(job_id)

    @override
    async def put_run_setting(self, ref: RunRef, setting: bytes) -> None:
        await self.storage.put_run_setting(ref, setting)

    @override
    async def run_setting(self, ref: RunRef) -> bytes | None:
        return await self.storage.run_setting(ref)

    @override
    async def put_checkpoint(self, job_id: str, checkpoint_id: str, data: bytes) -> None:
        await self.storage.put_checkpoint(job_id, checkpoint_id, data)

    @override
    async def checkpoint(self, job_id: str, checkpoint_id: str) -> bytes | None:
        return await self.storage.checkpoint(job_id, checkpoint_id)

    @override
    async def checkpoints(self, job_id: str, *, limit: int = 1000, after: str | None = None) -> Page:
        return await self.storage.checkpoints(job_id, limit=limit, after=after)

    @override
    async def put_blob(self, job_id: str, data: bytes) -> str:
        return await self.storage.put_blob(job_id, data)

    @override
    async def blob(self, job_id: str, sha256: str) -> bytes:
        return await self.storage.blob(job_id, sha256)

    @override
    async def blobs(self, job_id: str) -> tuple[str, ...]:
        return await self.storage.blobs(job_id)

    @override
    async def remove_blob(self, job_id: str, sha256: str) -> None:
        await self.storage.remove_blob(job_id, sha256)

    @override
    async def erase_traces(self, job_id: str) -> None:
        await self.storage.erase_traces(job_id)

    @override
    async def sizes(self, job_ids: Sequence[str] | None = None) -> Mapping[str, JobSize]:
        return await self.storage.sizes(job_ids)

    @override
    async def size(self) -> int:
        return await self.storage.size()

    @override
    def lease(self, job_id: str, holder: str) -> AbstractAsyncContextManager[None]:
        return self.storage.lease(job_id, holder)

    @override
    async def lease_info(self, job_id: str) -> LeaseInfo | None:
        return await self.storage.lease_info(job_id)

    @override
    async def delete_job(self, job_id: str, *, expected: tuple[RunRef, int] | None = None) -> None:
        await self.storage.delete_job(job_id, expected=expected)

    @override
    async def close(self) -> None:
        await self.storage.close()
