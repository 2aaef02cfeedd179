"""State of unknown origin: it can be read, and nothing can act on it.

What a state folder contains decides what a resumed Job, a due task or a series runs. So the host acts only on state
with a valid mark (`perstack.config.state_marks`), and this module is the one place that sees to it: `guard_state` wraps
every storage that a Host, or the tasks without a Host, open. The wrapper is left out for marked state and servers.

Until the state is this user's, the wrapper

- reads through `Storage.as_evidence`, which writes nothing to the state, not even a cache;
- drops caches, which readers write too (promise 5 of the port);
- refuses everything else that writes, leases included, by NotAgreed, which has the page to agree to. State that does
  not exist yet is marked at that moment.

Code that acts before it writes or leases anything calls `require_own_state` first. A new method of the port has to be
overridden here: a test compares the two.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from pathlib import Path

from typing_extensions import override

from perstack.config.project import ProjectPlace, is_state_named
from perstack.config.state_marks import StateMark
from perstack.core.base.chain import Head
from perstack.errors import NotAgreed, StorageError
from perstack.next_steps import Trust
from perstack.ports.storage import JobSize, LeaseInfo, LocalState, Page, RunRef, Storage, StorageCheck, Watch


def guard_state(storage: Storage, place: ProjectPlace, named: str | None = None) -> Storage:
    """Return the storage, wrapped unless the state is this user's or on a server. `named`: its address, if given."""
    state = storage.local_state
    if state is None or isinstance(storage, UnmarkedStorage):
        return storage
    mark = StateMark(state)
    is_agreed = is_state_named(state.path, place.state_root) or is_state_named(state.path, place.folder)
    if is_agreed and not mark.is_absent():
        return storage
    with suppress(StorageError):  # of a key that cannot be used: the state can be read, and what acts reports it
        if mark.is_valid():
            return storage
    return UnmarkedStorage(storage, StateGate(storage, mark, named, is_agreed=is_agreed))


async def require_own_state(storage: Storage) -> None:
    """Raise NotAgreed unless the state may be acted upon. For code that acts before it writes anything."""
    if isinstance(storage, UnmarkedStorage):
        await storage.gate.require()


class StateGate:
    """Decides whether a storage's state may be acted upon: opened once, for all its spaces."""

    def __init__(self, storage: Storage, mark: StateMark, named: str | None = None, *, is_agreed: bool = False) -> None:
        """Start closed. `is_agreed`: PERSTACK_TRUST names the state, so a key that cannot be kept is no obstacle."""
        self.is_open = False
        self.mark = mark
        self._is_agreed = is_agreed
        self._storage = storage
        self._named = named

    async def require(self) -> None:
        """Mark state that does not exist yet. Raises NotAgreed for any other without a valid mark, and StorageError."""
        if self.is_open:
            return
        with suppress(StorageError) if self._is_agreed else nullcontext():
            self.is_open = self.mark.claim()
        self.is_open = self.is_open or self._is_agreed
        if not self.is_open:
            from perstack.engine.context.waiting_work import waiting_work  # only refusals and `perstack trust` need it

            raise NotAgreed(
                f"{self._storage.location}: your installation did not make this state, so it is only shown",
                page=await waiting_work(self._storage.as_evidence()),
                agree=self.mark.agree,
                next_steps=(Trust(is_state=True, storage=self._named),),
            )


class UnmarkedStorage(Storage):
    """A storage that can only be read until its state is this user's. See the module."""

    def __init__(self, storage: Storage, gate: StateGate, evidence: Storage | None = None) -> None:
        """Wrap a storage or a space of it; `evidence` reads that space."""
        self.gate = gate
        self.keeps_copies = storage.keeps_copies
        self._whole = storage
        # nothing to protect before the state exists; and what appears there meanwhile is refused by the gate. An empty
        # file of a database is read as evidence too: its storage would write to it when it opens it
        self._evidence = evidence or (storage if gate.mark.is_missing() else storage.as_evidence())
        self._spaces: dict[str, UnmarkedStorage] = {}

    @property
    def _reader(self) -> Storage:
        return self._whole if self.gate.is_open else self._evidence

    async def _writer(self) -> Storage:
        await self.gate.require()
        return self._whole

    @property
    @override
    def location(self) -> str:
        return self._whole.location

    @override
    def space(self, name: str) -> Storage:
        if name not in self._spaces:
            self._spaces[name] = UnmarkedStorage(self._whole.space(name), self.gate, self._evidence.space(name))
        return self._spaces[name]

    @override
    async def close(self) -> None:
        await self._whole.close()
        if self._evidence is not self._whole:
            await self._evidence.close()

    # Writing.

    @override
    async def create_job(self, job_id: str) -> None:
        await (await self._writer()).create_job(job_id)

    @override
    async def append(self, run: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        storage = self._whole if self.gate.is_open else await self._writer()  # each step appends twice
        await storage.append(run, expected_seq, records)

    @override
    def append_now(self, run: RunRef, expected_seq: int, records: Sequence[bytes], *, synced: bool = True) -> bool:
        return self.gate.is_open and self._whole.append_now(run, expected_seq, records, synced=synced)

    @override
    def sync_now(self, run: RunRef) -> None:
        if self.gate.is_open:
            self._whole.sync_now(run)

    @override
    async def redact(self, run: RunRef, seq: int, record: bytes) -> None:
        await (await self._writer()).redact(run, seq, record)

    @override
    async def delete_job(self, job_id: str, *, expected: tuple[RunRef, int] | None = None) -> None:
        await (await self._writer()).delete_job(job_id, expected=expected)

    @override
    async def erase_traces(self, job_id: str) -> None:
        await (await self._writer()).erase_traces(job_id)

    @override
    async def put_blob(self, job_id: str, data: bytes) -> str:
        return await (await self._writer()).put_blob(job_id, data)

    @override
    async def put_blobs(self, job_id: str, blobs: Sequence[bytes]) -> tuple[str, ...]:
        return await (await self._writer()).put_blobs(job_id, blobs)

    @override
    async def remove_blob(self, job_id: str, sha256: str) -> None:
        await (await self._writer()).remove_blob(job_id, sha256)

    @override
    @asynccontextmanager
    async def lease(self, job_id: str, holder: str) -> AsyncGenerator[None]:
        async with (await self._writer()).lease(job_id, holder):
            yield

    # Caches.

    @override
    async def put_summary(self, job_id: str, summary: bytes) -> None:
        if self.gate.is_open:
            await self._whole.put_summary(job_id, summary)

    @override
    async def put_entry(
        self, job_id: str, seq: int, entry: bytes, *, synced: bool = False, expected: tuple[RunRef, Head] | None = None
    ) -> None:
        if self.gate.is_open:
            await self._whole.put_entry(job_id, seq, entry, synced=synced, expected=expected)

    @override
    async def put_run_setting(self, run: RunRef, setting: bytes) -> None:
        if self.gate.is_open:
            await self._whole.put_run_setting(run, setting)

    @override
    async def put_checkpoint(self, job_id: str, checkpoint_id: str, data: bytes) -> None:
        if self.gate.is_open:
            await self._whole.put_checkpoint(job_id, checkpoint_id, data)

    # Reading.

    @override
    async def has_job(self, job_id: str) -> bool:
        return await self._reader.has_job(job_id)

    @override
    async def jobs(self, *, limit: int = 100, after: str | None = None) -> Page:
        return await self._reader.jobs(limit=limit, after=after)

    @override
    async def runs(self, job_id: str, *, limit: int = 1000, after: str | None = None) -> Page:
        return await self._reader.runs(job_id, limit=limit, after=after)

    @override
    async def read(self, run: RunRef, after: int = 0, limit: int | None = None) -> list[bytes]:
        return await self._reader.read(run, after, limit)

    @override
    async def end(self, run: RunRef, count: int) -> list[bytes]:
        return await self._reader.end(run, count)

    @override
    async def blob(self, job_id: str, sha256: str) -> bytes:
        return await self._reader.blob(job_id, sha256)

    @override
    async def blobs(self, job_id: str) -> tuple[str, ...]:
        return await self._reader.blobs(job_id)

    @override
    async def lease_info(self, job_id: str) -> LeaseInfo | None:
        return await self._reader.lease_info(job_id)

    @override
    def watch(self, job_id: str) -> AbstractAsyncContextManager[Watch]:
        return self._reader.watch(job_id)

    @override
    async def summary(self, job_id: str) -> bytes | None:
        return await self._reader.summary(job_id)

    @override
    async def summaries(self) -> Mapping[str, bytes]:
        return await self._reader.summaries()

    @override
    async def entries(self) -> Mapping[str, bytes]:
        return await self._reader.entries()

    @override
    async def entry(self, job_id: str) -> tuple[int, bytes] | None:
        return await self._reader.entry(job_id)

    @override
    async def lost_jobs(self) -> tuple[str, ...]:
        return await self._reader.lost_jobs()

    @override
    async def run_setting(self, run: RunRef) -> bytes | None:
        return await self._reader.run_setting(run)

    @override
    async def checkpoint(self, job_id: str, checkpoint_id: str) -> bytes | None:
        return await self._reader.checkpoint(job_id, checkpoint_id)

    @override
    async def checkpoints(self, job_id: str, *, limit: int = 1000, after: str | None = None) -> Page:
        return await self._reader.checkpoints(job_id, limit=limit, after=after)

    @override
    def checkpoint_path(self, job_id: str, checkpoint_id: str) -> Path | None:
        return self._reader.checkpoint_path(job_id, checkpoint_id)

    @override
    async def sizes(self, job_ids: Sequence[str] | None = None) -> Mapping[str, JobSize]:
        return await self._reader.sizes(job_ids)

    @override
    async def size(self) -> int:
        return await self._reader.size()

    @override
    async def checks(self) -> Sequence[StorageCheck]:
        return await self._reader.checks()

    @property
    @override
    def local_state(self) -> LocalState | None:
        return self._whole.local_state

    @override
    def as_evidence(self) -> Storage:
        return self._whole.as_evidence()

    @property
    @override
    def places(self) -> tuple[Path, ...]:
        return self._whole.places

    @property
    @override
    def programs(self) -> Path | None:
        return self._whole.programs if self.gate.is_open else None

    @override
    async def unsealed_runs(self, job_id: str) -> Mapping[str, str]:
        return await self._reader.unsealed_runs(job_id)

    @override
    async def foreign_checkpoint(self, checkpoint_id: str, job_id: str | None = None) -> tuple[str, str] | None:
        return await self._reader.foreign_checkpoint(checkpoint_id, job_id)
