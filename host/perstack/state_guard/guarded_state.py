"""State of unknown origin: it can be read, and nothing can act on it.

The host acts only on state with a valid mark (`state_marks`), and in it only on logs that have a mark too
(`log_marks`). `guard_state` wraps every storage that a Host, or the tasks without a Host, open. The wrapper is left out
for servers, and for state without a mark that PERSTACK_TRUST names.

Until the state is this user's, the wrapper

- reads through `Storage.as_evidence`, which writes nothing to the state, not even a cache;
- drops caches, which readers write too (promise 5 of the port);
- refuses everything else that writes, leases included, by NotAgreed, which has the page to agree to. State that does
  not exist yet is marked at that moment.

In the user's own state, it marks each log that begins, and refuses to lease an owner with an unmarked log, to append to
an unmarked log, and to redact it. Such an owner can be deleted. A log is checked when its owner is leased, and at each
append without a lease: its file may be replaced while this process runs.

Code that acts before it writes or leases anything calls `require_own_state` or `Storage.require_own` first. A new
method of the port has to be overridden here: a test compares the two.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from pathlib import Path

from typing_extensions import override

from perstack.config.project_place import ProjectPlace, is_state_named
from perstack.core.base.chain import Head, SealedBatch, open_line
from perstack.core.base.ids import Owner, OwnerKind, job_of_run
from perstack.core.definitions.project import Project
from perstack.engine.context.connections import open_state
from perstack.engine.plugins.registry import Plugins
from perstack.errors import Damaged, NotAgreed, NotFound, StorageError
from perstack.next_steps import Trust
from perstack.ports.storage import JobSize, LeaseInfo, LocalState, Page, RunRef, Storage, StorageCheck, Watch
from perstack.state_guard.log_marks import LogMarks
from perstack.state_guard.state_marks import StateMark
from perstack.trust.agreements import Agreement

Describe = Callable[[Storage, Collection[Owner] | None], Awaitable[list[str]]]
"""Returns the page that a person sees before agreeing: the work that waits in a state, or for these owners in it."""


def guard_state(storage: Storage, place: ProjectPlace, describe: Describe, address: str | None = None) -> Storage:
    """Return the storage, wrapped unless it is on a server. `address`: its address, if given."""
    state = storage.local_state
    if state is None or isinstance(storage, GuardedStorage):
        return storage
    mark = StateMark(state)
    is_agreed = is_state_named(state.path, place.state_root) or is_state_named(state.path, place.folder)
    is_open = False
    with suppress(StorageError):  # an unusable key: the state can be read, and code that acts on it reports the error
        is_open = mark.validate()
    if is_agreed and not is_open and not mark.is_absent():
        return storage
    return GuardedStorage(storage, StateGate(storage, mark, describe, address, is_agreed=is_agreed, is_open=is_open))


def open_own_state(
    plugins: Plugins,
    project: Project,
    place: ProjectPlace,
    address: str | None,
    env: Mapping[str, str],
    describe: Describe,
    agreement: Agreement | None = None,
) -> Storage:
    """Open the storage of a project as `open_state` does; state that this installation did not make is only read.

    `agreement` None: the agreements that `perstack trust` has stored.
    """
    state = open_state(plugins, project, place, address, env, agreement or Agreement(project))
    return guard_state(state, place, describe, address)


async def require_own_state(storage: Storage) -> None:
    """Raise NotAgreed unless the state may be acted upon. For code that acts before it writes anything."""
    if isinstance(storage, GuardedStorage):
        await storage.gate.require()


async def unmarked_owners(storage: Storage) -> list[Owner]:
    """Return the owners in marked state with a log that the user's installation did not begin."""
    from perstack.engine.log.event_log import job_ids
    from perstack.engine.log.storage_access import MAILBOX_SPACES, OWNER_KINDS, space_of

    spaces: list[tuple[OwnerKind, Storage]] = [(kind, space_of(storage, kind)) for kind in OWNER_KINDS]
    spaces.extend(("job", storage.space(name)) for name in MAILBOX_SPACES)
    owners = [
        space.owner(kind, owner_id)
        for kind, space in spaces
        if isinstance(space, GuardedStorage)
        for owner_id in await job_ids(space)
        if await space.unmarked(owner_id)
    ]
    return list(dict.fromkeys(owners))


class StateGate:
    """Decides whether a storage's state may be acted upon: opened once, for all its spaces."""

    def __init__(
        self,
        storage: Storage,
        mark: StateMark,
        describe: Describe,
        named: str | None = None,
        *,
        is_agreed: bool = False,
        is_open: bool = False,
    ) -> None:
        """Start open if the mark is valid.

        `is_agreed`: PERSTACK_TRUST names the state, so an unusable key is ignored.
        """
        self.is_open = is_open
        self.mark = mark
        self.is_agreed = is_agreed
        self._storage = storage
        self._named = named
        self._describe = describe

    async def require(self) -> None:
        """Mark state that does not exist yet. Raises NotAgreed for any other without a valid mark, and StorageError."""
        if not self.is_open:
            with suppress(StorageError) if self.is_agreed else nullcontext():
                self.is_open = self.mark.claim()
            self.is_open = self.is_open or self.is_agreed
        if not self.is_open:
            raise await self.refusal("this state", self.mark.agree)
        await self._mark_earlier_logs()

    def marks(self, space: str) -> LogMarks | None:
        """Return the marks of the logs in a space; None for state without a mark, which PERSTACK_TRUST names."""
        with suppress(StorageError) if self.is_agreed else nullcontext():
            return LogMarks(self.mark.state, space, self.mark.log_key())
        return None

    async def refusal(self, what: str, agree: Callable[[], None], owners: Collection[Owner] | None = None) -> NotAgreed:
        """Return the error for state, or for these owners in it, that the user's installation did not make."""
        return NotAgreed(
            f"{self._storage.location}: your installation did not make {what}, so it is only shown",
            page=await self._describe(self._storage.as_evidence(), owners),
            agree=agree,
            next_steps=(Trust(is_state=True, storage=self._named),),
        )

    async def _mark_earlier_logs(self) -> None:
        """Mark all logs of state whose mark covers them: of an earlier version, or agreed to since."""
        if not self.mark.covers_each_log:
            with suppress(StorageError) if self.is_agreed else nullcontext():
                await mark_logs(self._storage, self.mark)


async def mark_logs(storage: Storage, mark: StateMark) -> None:
    """Mark all logs of state with a valid mark. Raises StorageError."""
    from perstack.engine.log.event_log import job_ids
    from perstack.engine.log.storage_access import MAILBOX_SPACES, OWNER_KINDS

    key = mark.log_key()
    names = [name for kind in OWNER_KINDS.values() for name in (kind.space, kind.outbox)]
    for name in (*names, *MAILBOX_SPACES):
        space = storage.space(name) if name else storage
        marks = LogMarks(mark.state, name or _JOBS, key)
        for owner_id in await job_ids(space):
            with suppress(StorageError):  # an unreadable one, which nothing drives
                marks.add(owner_id, await _first_hashes(space, owner_id))
    mark.confirm_logs()


_JOBS = "jobs"  # name of the space that the storage itself is
_MAX_HEADS = 1000


async def _first_hashes(storage: Storage, owner_id: str) -> dict[str, str]:
    """Return the hash of the first record of each log, without logs that have no readable record: nothing drives these.

    Raises NotFound and StorageError.
    """
    hashes: dict[str, str] = {}
    after: str | None = None
    while True:
        page = await storage.runs(owner_id, after=after)
        for run_id in page.ids:
            with suppress(Damaged):
                lines = await storage.read(RunRef(owner_id, run_id), limit=1)
                if lines:
                    hashes[run_id] = open_line(lines[0]).hash
        if page.next is None:
            return hashes
        after = page.next


class GuardedStorage(Storage):
    """A storage that can only be read until its state, and each log in it, is this user's. See the module."""

    def __init__(
        self, storage: Storage, gate: StateGate, evidence_storage: Storage | None = None, space: str = _JOBS
    ) -> None:
        """Wrap a storage or a space of it; `evidence_storage` reads that space."""
        self.gate = gate
        self._space = space
        self._leased: set[str] = set()
        self._heads: dict[RunRef, Head] = {}  # ends of logs that were checked and then appended to without a lease
        self.keeps_copies = storage.keeps_copies
        self._storage = storage
        # nothing to protect before the state exists; and what appears there meanwhile is refused by the gate. An empty
        # file of a database is read as evidence too: its storage would write to it when it opens it
        is_readable = gate.is_open or gate.mark.is_missing()
        self._evidence = evidence_storage or (storage if is_readable else storage.as_evidence())
        self._spaces: dict[str, GuardedStorage] = {}

    @property
    def _reader(self) -> Storage:
        return self._storage if self.gate.is_open else self._evidence

    async def _writer(self) -> Storage:
        await self.gate.require()
        return self._storage

    async def unmarked(self, owner_id: str) -> dict[str, str]:
        """Return the Runs of an owner whose logs this user's installation did not begin, with their first hashes.

        Writes nothing. Empty if the state's mark covers all logs.
        """
        if not self.gate.mark.covers_each_log:
            return {}
        with suppress(NotFound):
            return self._unmarked(owner_id, await _first_hashes(self._storage, owner_id))
        return {}

    def owner(self, kind: OwnerKind, log_id: str) -> Owner:
        """Return the owner of the logs with this id in the space; a delegate's mailbox is its Job's."""
        from perstack.engine.log.storage_access import MAILBOX_SPACES

        return Owner(kind, job_of_run(log_id) if self._space == MAILBOX_SPACES[1] else log_id)

    @override
    async def require_own(self, job_id: str) -> None:
        await self.gate.require()
        unmarked = {} if self.gate.is_agreed else await self.unmarked(job_id)
        if unmarked:
            raise await self._refusal(job_id, unmarked)

    async def _require_own_log(self, ref: RunRef) -> None:
        if ref.job_id in self._leased or self.gate.is_agreed:
            return
        lines = await self._storage.read(ref, limit=1)
        unmarked = self._unmarked(ref.job_id, {ref.run_id: open_line(lines[0]).hash}) if lines else {}
        if unmarked:
            raise await self._refusal(ref.job_id, unmarked)

    def _unmarked(self, owner_id: str, first_hashes: Mapping[str, str]) -> dict[str, str]:
        marks = self.gate.marks(self._space)
        runs = () if marks is None else marks.unmarked(owner_id, first_hashes)
        return {run_id: first_hashes[run_id] for run_id in runs}

    async def _refusal(self, owner_id: str, unmarked: Mapping[str, str]) -> NotAgreed:
        from perstack.engine.log.storage_access import MAILBOX_SPACES, OWNER_KINDS

        kind: OwnerKind = "job"
        for candidate, info in OWNER_KINDS.items():
            if self._space in (info.space, info.outbox):
                kind = candidate
        owner = self.owner(kind, owner_id)
        posted = "texts posted to " if self._space in MAILBOX_SPACES else ""
        name = f"{posted}{OWNER_KINDS[owner.kind].singular} {owner.id}"

        def agree() -> None:
            if (marks := self.gate.marks(self._space)) is not None:
                marks.add(owner_id, unmarked)

        return await self.gate.refusal(name, agree, (owner,))

    def _mark_new(self, ref: RunRef, records: Sequence[bytes]) -> None:
        if records and (marks := self.gate.marks(self._space)) is not None:
            with suppress(StorageError) if self.gate.is_agreed else nullcontext():
                marks.add(ref.job_id, {ref.run_id: open_line(records[0]).hash})

    @property
    @override
    def location(self) -> str:
        return self._storage.location

    @override
    def space(self, name: str) -> Storage:
        if name not in self._spaces:
            self._spaces[name] = GuardedStorage(self._storage.space(name), self.gate, self._evidence.space(name), name)
        return self._spaces[name]

    @override
    async def close(self) -> None:
        await self._storage.close()
        if self._evidence is not self._storage:
            await self._evidence.close()

    # Writing.

    @override
    async def create_job(self, job_id: str) -> None:
        await (await self._writer()).create_job(job_id)

    @override
    async def append(self, ref: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        # each step appends twice
        storage = self._storage if self.gate.is_open and self.gate.mark.covers_each_log else await self._writer()
        if not expected_seq:
            self._mark_new(ref, records)
        elif not self._is_checked(ref, records):
            await self._require_own_log(ref)
        await storage.append(ref, expected_seq, records)
        self._note_head(ref, records)

    @override
    def append_now(self, ref: RunRef, expected_seq: int, records: Sequence[bytes], *, synced: bool = True) -> bool:
        # everything else is checked or marked first, by `append`
        if not (self.gate.is_open and expected_seq and self._is_checked(ref, records)):
            return False
        is_done = self._storage.append_now(ref, expected_seq, records, synced=synced)
        if is_done:
            self._note_head(ref, records)
        return is_done

    def _is_checked(self, ref: RunRef, records: Sequence[bytes]) -> bool:
        """Return whether records need no check: a storage refuses them unless they continue a checked log."""
        if self.gate.is_agreed or ref.job_id in self._leased:
            return True
        return isinstance(records, SealedBatch) and records.previous_head == self._heads.get(ref)

    def _note_head(self, ref: RunRef, records: Sequence[bytes]) -> None:
        if isinstance(records, SealedBatch) and ref.job_id not in self._leased:
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            self._heads[ref] = records.next_head

    @override
    def sync_now(self, ref: RunRef) -> None:
        if self.gate.is_open:
            self._storage.sync_now(ref)

    @override
    async def redact(self, ref: RunRef, seq: int, record: bytes) -> None:
        storage = await self._writer()
        await self._require_own_log(ref)
        await storage.redact(ref, seq, record)

    @override
    async def delete_job(self, job_id: str, *, expected: tuple[RunRef, int] | None = None) -> None:
        await (await self._writer()).delete_job(job_id, expected=expected)
        if (marks := self.gate.marks(self._space)) is not None:
            marks.forget(job_id)

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
            await self.require_own(job_id)
            self._leased.add(job_id)
            try:
                yield
            finally:
                self._leased.discard(job_id)

    # Caches.

    @override
    async def put_summary(self, job_id: str, summary: bytes) -> None:
        if self.gate.is_open:
            await self._storage.put_summary(job_id, summary)

    @override
    async def put_entry(
        self, job_id: str, seq: int, entry: bytes, *, synced: bool = False, expected: tuple[RunRef, Head] | None = None
    ) -> None:
        if self.gate.is_open:
            await self._storage.put_entry(job_id, seq, entry, synced=synced, expected=expected)

    @override
    async def put_run_setting(self, ref: RunRef, setting: bytes) -> None:
        if self.gate.is_open:
            await self._storage.put_run_setting(ref, setting)

    @override
    async def put_checkpoint(self, job_id: str, checkpoint_id: str, data: bytes) -> None:
        if self.gate.is_open:
            await self._storage.put_checkpoint(job_id, checkpoint_id, data)

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
    async def read(self, ref: RunRef, after: int = 0, limit: int | None = None) -> list[bytes]:
        return await self._reader.read(ref, after, limit)

    @override
    async def end(self, ref: RunRef, count: int) -> list[bytes]:
        return await self._reader.end(ref, count)

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
    async def run_setting(self, ref: RunRef) -> bytes | None:
        return await self._reader.run_setting(ref)

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
        return self._storage.local_state

    @override
    def as_evidence(self) -> Storage:
        return self._storage.as_evidence()

    @property
    @override
    def places(self) -> tuple[Path, ...]:
        return self._storage.places

    @property
    @override
    def programs(self) -> Path | None:
        return self._storage.programs if self.gate.is_open else None

    @override
    async def unsealed_runs(self, job_id: str) -> Mapping[str, str]:
        return await self._reader.unsealed_runs(job_id)

    @override
    async def foreign_checkpoint(self, checkpoint_id: str, job_id: str | None = None) -> tuple[str, str] | None:
        return await self._reader.foreign_checkpoint(checkpoint_id, job_id)
