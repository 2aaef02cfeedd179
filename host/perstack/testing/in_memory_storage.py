"""A storage in memory, for tests, with exactly what `ports.storage` requires: a starting point of your own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from hashlib import sha256 as new_sha256
from pathlib import Path

from perstack.core.base.chain import EMPTY_LOG, Head
from perstack.core.base.ids import check_id, check_job_id
from perstack.core.base.records import JsonObject
from perstack.dataclass import dataclass
from perstack.ports.formats import JobFormat
from perstack.ports.storage import JobSize, LeaseInfo, Page, RunRef, Storage, StorageFactory
from perstack.support.storage import (
    check_redaction,
    check_space,
    checked_blob,
    ends_at,
    head_after,
    is_driven,
    job_exists,
    newest_first,
    no_job,
    page_of,
    run_order,
    stale,
    verified,
)


@dataclass
class InMemoryJob:
    """State of one Job."""

    written: int  # write time of the summary, as a count
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

    def open(
        self, location: str, workspace: Path, *, setting: JsonObject | None = None, formats: Sequence[JobFormat] = ()
    ) -> Storage:
        """Return a storage on the store of that name."""
        return InMemoryStorage(self.stores.setdefault(location, InMemoryStore()), location)


class InMemoryStorage(Storage):
    """One process's view of an InMemoryStore."""

    def __init__(self, store: InMemoryStore | None = None, name: str = "") -> None:
        """Use the given store, or a new one."""
        self.store = InMemoryStore() if store is None else store
        self._name = name
        self._spaces: dict[str, InMemoryStorage] = {}

    @property
    def location(self) -> str:
        """The name of the store."""
        return f"memory:{self._name}"

    def space(self, name: str) -> Storage:
        """Return a separate set of Jobs in this store."""
        if name not in self._spaces:
            store = self.store.spaces.setdefault(check_space(name), InMemoryStore())
            self._spaces[name] = InMemoryStorage(store, f"{self._name}/{name}")
        return self._spaces[name]

    async def create_job(self, job_id: str) -> None:
        """Create an empty Job. Raises Conflict if the id exists."""
        if check_job_id(job_id) in self.store.jobs:
            raise job_exists(job_id)
        self.store.jobs[job_id] = InMemoryJob(self._tick())

    async def has_job(self, job_id: str) -> bool:
        """Return whether the Job exists."""
        return check_job_id(job_id) in self.store.jobs

    async def jobs(self, *, limit: int = 100, after: str | None = None) -> Page:
        """Return Job ids, most recently written summary first."""
        return newest_first(((job.written, name) for name, job in self.store.jobs.items()), limit, after)

    async def runs(self, job_id: str, *, limit: int = 1000, after: str | None = None) -> Page:
        """Return the ids of the Runs that have a log, by their number."""
        return page_of(self._job(job_id).logs, run_order, limit, after)

    async def append(self, run: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        """Append records after the first `expected_seq`. Raises Conflict."""
        check_id(run.run_id, "run")
        job = self._job(run.job_id)
        log = job.logs.get(run.run_id, [])
        if len(log) != expected_seq:
            raise stale(run.run_id, expected_seq, len(log))
        head = head_after(job.heads.get(run.run_id, EMPTY_LOG), records, run.run_id)
        if records:
            job.heads[run.run_id] = head
            job.logs[run.run_id] = [*log, *records]

    async def read(self, run: RunRef, after: int = 0, limit: int | None = None) -> list[bytes]:
        """Return at most `limit` records after place `after`. Raises Damaged."""
        job = self.store.jobs.get(check_job_id(run.job_id))
        log = [] if job is None else job.logs.get(check_id(run.run_id, "run"), [])
        wanted = log[: None if limit is None else after + limit]
        return verified(list(enumerate(wanted, 1)), 0, f"{self.location}, run {run.run_id}", "the record")[after:]

    async def redact(self, run: RunRef, seq: int, record: bytes) -> None:
        """Replace a record by one without content. Raises NotFound and Conflict."""
        log = self._job(run.job_id).logs.get(run.run_id, [])
        check_redaction(log, seq, record, run.run_id)
        self._job(run.job_id).logs[run.run_id] = [*log[: seq - 1], record, *log[seq:]]

    async def put_summary(self, job_id: str, summary: bytes) -> None:
        """Replace the Job's summary."""
        job = self._job(job_id)
        job.summary, job.written = summary, self._tick()

    async def summary(self, job_id: str) -> bytes | None:
        """Return the summary, or None."""
        job = self.store.jobs.get(check_job_id(job_id))
        return None if job is None else job.summary

    async def put_entry(
        self, job_id: str, seq: int, entry: bytes, *, synced: bool = False, expected: tuple[RunRef, Head] | None = None
    ) -> None:
        """Replace the Job's entry unless it describes a later place, or the log is not the expected one."""
        job = self._job(job_id)
        if expected is not None:
            run, head = expected
            log = job.logs.get(run.run_id, [])
            if len(log) < head.seq or not ends_at(log[head.seq - 1], head):
                return
        if seq >= job.entry[0]:
            job.entry = (seq, entry)

    async def entries(self) -> Mapping[str, bytes]:
        """Return the entry of every Job."""
        return {name: job.entry[1] for name, job in self.store.jobs.items()}

    async def entry(self, job_id: str) -> tuple[int, bytes] | None:
        """Return the entry of one Job with the place that it describes, or None."""
        job = self.store.jobs.get(check_job_id(job_id))
        return None if job is None or not job.entry[0] else job.entry

    async def put_blob(self, job_id: str, data: bytes) -> str:
        """Store bytes once and return their hex sha256."""
        name = new_sha256(data).hexdigest()
        others = (job.blobs[name] for job in self.store.jobs.values() if name in job.blobs)
        self._job(job_id).blobs[name] = next(others, data)
        return name

    async def blob(self, job_id: str, sha256: str) -> bytes:
        """Return the bytes of a blob. Raises NotFound."""
        job = self.store.jobs.get(check_job_id(job_id))
        data = None if job is None else job.blobs.get(check_id(sha256, "blob"))
        return checked_blob(data, job_id, sha256, self.location, "it")

    async def sizes(self, job_ids: Sequence[str] | None = None) -> Mapping[str, JobSize]:
        """Return the size of each Job in bytes."""
        wanted = self.store.jobs if job_ids is None else [one for one in job_ids if one in self.store.jobs]
        return {one: _size_of(self.store.jobs[one]) for one in wanted}

    async def size(self) -> int:
        """Return the size of the store in bytes, including its other spaces."""
        return _size_of_all(self.store)

    async def blobs(self, job_id: str) -> tuple[str, ...]:
        """Return the hex sha256 of the Job's blobs."""
        return tuple(self._job(job_id).blobs)

    async def remove_blob(self, job_id: str, sha256: str) -> None:
        """Remove a blob if it exists."""
        self._job(job_id).blobs.pop(check_id(sha256, "blob"), None)

    async def erase_traces(self, job_id: str) -> None:
        """Do nothing for an existing Job: memory keeps no traces. Raises NotFound."""
        self._job(job_id)

    @asynccontextmanager
    async def lease(self, job_id: str, holder: str) -> AsyncGenerator[None]:
        """Hold the Job's lease during the block. Raises Conflict, naming the holder."""
        self._job(job_id)
        if job_id in self.store.leases:
            held = self.store.leases[job_id]
            raise is_driven(job_id, held)
        self.store.leases[job_id] = holder
        try:
            yield
        finally:
            del self.store.leases[job_id]

    async def lease_info(self, job_id: str) -> LeaseInfo | None:
        """Return the current holder of the lease, or None."""
        holder = self.store.leases.get(check_job_id(job_id))
        return None if holder is None else LeaseInfo(holder)

    async def delete_job(self, job_id: str, *, expected: tuple[RunRef, int] | None = None) -> None:
        """Delete a Job. Raises NotFound, and Conflict while it is driven or if its log has another length."""
        async with self.lease(job_id, "the deletion of it"):
            if expected is not None:
                run, seq = expected
                found = len(self._job(job_id).logs.get(run.run_id, []))
                if found != seq:
                    raise stale(run.run_id, seq, found)
            del self.store.jobs[job_id]

    async def close(self) -> None:
        """Do nothing: nothing is open."""

    def _job(self, job_id: str) -> InMemoryJob:
        job = self.store.jobs.get(check_job_id(job_id))
        if job is None:
            raise no_job(job_id, self.location)
        return job

    def _tick(self) -> int:
        self.store.clock += 1
        return self.store.clock


def _size_of(job: InMemoryJob) -> JobSize:
    logs = sum(len(line) for log in job.logs.values() for line in log)
    return JobSize(logs, sum(map(len, job.blobs.values())), 0, len(job.summary or b"") + len(job.entry[1]))


def _size_of_all(store: InMemoryStore) -> int:
    sizes = [_size_of(job) for job in store.jobs.values()]
    blobs = {id(data): len(data) for job in store.jobs.values() for data in job.blobs.values()}
    own = sum(size.total - size.blobs for size in sizes) + sum(blobs.values())
    return own + sum(map(_size_of_all, store.spaces.values()))
