"""A storage in memory for tests. It implements exactly what `ports.storage` requires: a starting point for your own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from hashlib import sha256 as new_sha256
from pathlib import Path

from typing_extensions import override

from perstack.core.base.chain import EMPTY_LOG, Head
from perstack.core.base.ids import check_id, check_job_id
from perstack.core.base.records import JsonObject
from perstack.dataclass import dataclass
from perstack.ports.formats import JobFormat
from perstack.ports.storage import JobSize, LeaseInfo, Page, RunRef, Storage, StorageFactory
from perstack.support.storage import (
    already_driven,
    check_redaction,
    check_space,
    checked_blob,
    ends_at,
    head_after,
    job_exists,
    newest_first,
    no_job,
    page_of,
    run_order,
    stale_writer,
    verify_rows,
)


@dataclass
class InMemoryJob:
    """The state of one Job."""

    written: int  # write time of the summary, as a counter
    summary: bytes | None = None
    logs: dict[str, list[bytes]] = field(default_factory=dict[str, list[bytes]])
    heads: dict[str, Head] = field(default_factory=dict[str, Head])
    blobs: dict[str, bytes] = field(default_factory=dict[str, bytes])
    entry: tuple[int, bytes] = (0, b"")


@dataclass
class InMemoryStore:
    """State shared by several storages. A test that reopens makes a new InMemoryStorage on it."""

    jobs: dict[str, InMemoryJob] = field(default_factory=dict[str, InMemoryJob])
    leases: dict[str, str] = field(default_factory=dict[str, str])
    spaces: dict[str, InMemoryStore] = field(default_factory=dict[str, "InMemoryStore"])
    clock: int = 0


class InMemoryStorages(StorageFactory):
    """Factory for `storage = "memory:name"`: one store per name, for the lifetime of this object."""

    scheme = "memory"

    def __init__(self) -> None:
        """Start without stores."""
        self.stores: dict[str, InMemoryStore] = {}

    @override
    def open(
        self, location: str, workspace: Path, *, setting: JsonObject | None = None, formats: Sequence[JobFormat] = ()
    ) -> Storage:
        return InMemoryStorage(self.stores.setdefault(location, InMemoryStore()), location)


class InMemoryStorage(Storage):
    """One process's view of an InMemoryStore."""

    def __init__(self, store: InMemoryStore | None = None, name: str = "") -> None:
        """Use the given store, or a new one."""
        self.store = InMemoryStore() if store is None else store
        self._name = name
        self._spaces: dict[str, InMemoryStorage] = {}

    @property
    @override
    def location(self) -> str:
        return f"memory:{self._name}"

    @override
    def space(self, name: str) -> Storage:
        if name not in self._spaces:
            store = self.store.spaces.setdefault(check_space(name), InMemoryStore())
            self._spaces[name] = InMemoryStorage(store, f"{self._name}/{name}")
        return self._spaces[name]

    @override
    async def create_job(self, job_id: str) -> None:
        if check_job_id(job_id) in self.store.jobs:
            raise job_exists(job_id)
        self.store.jobs[job_id] = InMemoryJob(self._tick())

    @override
    async def has_job(self, job_id: str) -> bool:
        return check_job_id(job_id) in self.store.jobs

    @override
    async def jobs(self, *, limit: int = 100, after: str | None = None) -> Page:
        return newest_first(
            ((in_memory_job.written, name) for name, in_memory_job in self.store.jobs.items()), limit, after
        )

    @override
    async def runs(self, job_id: str, *, limit: int = 1000, after: str | None = None) -> Page:
        return page_of(self._job(job_id).logs, run_order, limit, after)

    @override
    async def append(self, ref: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        check_id(ref.run_id, "run")
        in_memory_job = self._job(ref.job_id)
        log = in_memory_job.logs.get(ref.run_id, [])
        if len(log) != expected_seq:
            raise stale_writer(ref.run_id, expected_seq, len(log))
        head = head_after(in_memory_job.heads.get(ref.run_id, EMPTY_LOG), records, ref.run_id)
        if records:
            in_memory_job.heads[ref.run_id] = head
            in_memory_job.logs[ref.run_id] = [*log, *records]

    @override
    async def read(self, ref: RunRef, after: int = 0, limit: int | None = None) -> list[bytes]:
        in_memory_job = self.store.jobs.get(check_job_id(ref.job_id))
        log = [] if in_memory_job is None else in_memory_job.logs.get(check_id(ref.run_id, "run"), [])
        records = log[: None if limit is None else after + limit]
        return verify_rows(list(enumerate(records, 1)), 0, f"{self.location}, run {ref.run_id}", "the record")[after:]

    @override
    async def redact(self, ref: RunRef, seq: int, record: bytes) -> None:
        log = self._job(ref.job_id).logs.get(ref.run_id, [])
        check_redaction(log, seq, record, ref.run_id)
        self._job(ref.job_id).logs[ref.run_id] = [*log[: seq - 1], record, *log[seq:]]

    @override
    async def put_summary(self, job_id: str, summary: bytes) -> None:
        in_memory_job = self._job(job_id)
        in_memory_job.summary, in_memory_job.written = summary, self._tick()

    @override
    async def summary(self, job_id: str) -> bytes | None:
        in_memory_job = self.store.jobs.get(check_job_id(job_id))
        return None if in_memory_job is None else in_memory_job.summary

    @override
    async def put_entry(
        self, job_id: str, seq: int, entry: bytes, *, synced: bool = False, expected: tuple[RunRef, Head] | None = None
    ) -> None:
        in_memory_job = self._job(job_id)
        if expected is not None:
            ref, head = expected
            log = in_memory_job.logs.get(ref.run_id, [])
            if len(log) < head.seq or not ends_at(log[head.seq - 1], head):
                return
        if seq >= in_memory_job.entry[0]:
            in_memory_job.entry = (seq, entry)

    @override
    async def entries(self) -> Mapping[str, bytes]:
        return {name: in_memory_job.entry[1] for name, in_memory_job in self.store.jobs.items()}

    @override
    async def entry(self, job_id: str) -> tuple[int, bytes] | None:
        in_memory_job = self.store.jobs.get(check_job_id(job_id))
        return None if in_memory_job is None or not in_memory_job.entry[0] else in_memory_job.entry

    @override
    async def put_blob(self, job_id: str, data: bytes) -> str:
        name = new_sha256(data).hexdigest()
        copies = (
            in_memory_job.blobs[name] for in_memory_job in self.store.jobs.values() if name in in_memory_job.blobs
        )
        self._job(job_id).blobs[name] = next(copies, data)
        return name

    @override
    async def blob(self, job_id: str, sha256: str) -> bytes:
        in_memory_job = self.store.jobs.get(check_job_id(job_id))
        data = None if in_memory_job is None else in_memory_job.blobs.get(check_id(sha256, "blob"))
        return checked_blob(data, job_id, sha256, self.location, "it")

    @override
    async def sizes(self, job_ids: Sequence[str] | None = None) -> Mapping[str, JobSize]:
        ids = self.store.jobs if job_ids is None else [job_id for job_id in job_ids if job_id in self.store.jobs]
        return {job_id: _size_of(self.store.jobs[job_id]) for job_id in ids}

    @override
    async def size(self) -> int:
        return _size_of_all(self.store)

    @override
    async def blobs(self, job_id: str) -> tuple[str, ...]:
        return tuple(self._job(job_id).blobs)

    @override
    async def remove_blob(self, job_id: str, sha256: str) -> None:
        self._job(job_id).blobs.pop(check_id(sha256, "blob"), None)

    @override
    async def erase_traces(self, job_id: str) -> None:
        self._job(job_id)

    @asynccontextmanager
    @override
    async def lease(self, job_id: str, holder: str) -> AsyncGenerator[None]:
        self._job(job_id)
        if job_id in self.store.leases:
            current_holder = self.store.leases[job_id]
            raise already_driven(job_id, current_holder)
        self.store.leases[job_id] = holder
        try:
            yield
        finally:
            del self.store.leases[job_id]

    @override
    async def lease_info(self, job_id: str) -> LeaseInfo | None:
        holder = self.store.leases.get(check_job_id(job_id))
        return None if holder is None else LeaseInfo(holder)

    @override
    async def delete_job(self, job_id: str, *, expected: tuple[RunRef, int] | None = None) -> None:
        async with self.lease(job_id, "the deletion of it"):
            if expected is not None:
                ref, seq = expected
                length = len(self._job(job_id).logs.get(ref.run_id, []))
                if length != seq:
                    raise stale_writer(ref.run_id, seq, length)
            del self.store.jobs[job_id]

    @override
    async def close(self) -> None:
        pass  # nothing to close

    def _job(self, job_id: str) -> InMemoryJob:
        in_memory_job = self.store.jobs.get(check_job_id(job_id))
        if in_memory_job is None:
            raise no_job(job_id, self.location)
        return in_memory_job

    def _tick(self) -> int:
        self.store.clock += 1
        return self.store.clock


def _size_of(in_memory_job: InMemoryJob) -> JobSize:
    logs = sum(len(line) for log in in_memory_job.logs.values() for line in log)
    return JobSize(
        logs,
        sum(map(len, in_memory_job.blobs.values())),
        0,
        len(in_memory_job.summary or b"") + len(in_memory_job.entry[1]),
    )


def _size_of_all(store: InMemoryStore) -> int:
    sizes = [_size_of(in_memory_job) for in_memory_job in store.jobs.values()]
    blobs = {id(data): len(data) for in_memory_job in store.jobs.values() for data in in_memory_job.blobs.values()}
    own_bytes = sum(size.total - size.blobs for size in sizes) + sum(blobs.values())
    return own_bytes + sum(map(_size_of_all, store.spaces.values()))
