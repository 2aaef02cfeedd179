"""The storage port: a log, blobs, a lease and a cache, and what they promise.

A storage plugin registers a `StorageFactory`, which opens a `Storage`. Both are base classes: a storage implements the
abstract methods, and may override the others, whose defaults say what a storage without that ability does.
`perstack.testing.storage_contract` is the test suite that every storage passes. The promises:

1. `append` is all or nothing; a stale `expected_seq` raises Conflict. This is also the fence: of two drivers of one Run
   the second fails at its first write. When a cancelled append returns to its caller, it either has happened or never
   will.
2. When `append` returns, the records survive power loss.
3. `read` is ordered and gapless. A torn tail after a crash (a partial line, or an append of several records whose last
   is missing) is ignored and repaired by the next append, never an error. Damage anywhere else raises Damaged, which
   names the file and the place; everything before it stays readable (`limit`).
4. Bytes are returned unchanged. Records are lines sealed by `core.base.chain`; storages use the seal to find the end of
   an append and damage, and interpret nothing else.
5. Summaries, checkpoints and entries are caches: losing them loses no data. They need not be synced.

The host validates ids (`core.base.ids`) before a storage sees them; a storage that builds paths from them must still
use directory handles or an equal guard. All methods may raise StorageError, and those that write to an unknown Job
raise NotFound. A call that may take long, because of a lock or a slow medium, must not block the event loop (writers:
`system.concurrency.run_to_end`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from perstack.core.base.chain import Head
from perstack.core.base.records import JsonObject
from perstack.dataclass import dataclass
from perstack.errors import Damaged

if TYPE_CHECKING:
    from perstack.ports.formats import JobFormat

_MAX_UPLOADS = 8  # concurrent uploads to a storage that stores blobs one by one
_PAGE_SIZE = 1000  # Jobs per page when a storage without a faster way reads all summaries
_POLL_INTERVAL_S = 0.1  # seconds between two wake-ups of a storage that does not notice other processes' writes


class RunRef(NamedTuple):
    """Identifies the log of one Run."""

    job_id: str
    run_id: str


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """The process that drives a Job now. `holder` is text for people, such as `pid 4711 on host`."""

    holder: str


@dataclass(frozen=True, slots=True)
class Page:
    """A page of ids. `next` is the cursor for the following page; None on the last one."""

    ids: tuple[str, ...]
    next: str | None = None


class JobSize(NamedTuple):
    """Storage size of a Job in bytes."""

    logs: int = 0
    blobs: int = 0
    checkpoints: int = 0
    caches: int = 0  # summary, Run settings and entry

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return sum(self)


@dataclass(frozen=True, slots=True)
class LocalState:
    """The folder or file on this machine that holds all logs of a storage; it may not exist yet."""

    path: Path
    is_file: bool = False
    companions: tuple[Path, ...] = ()  # files that the storage reads together with the file

    @property
    def mark(self) -> Path:
        """Path of the host's proof of who made the state: in the folder, or next to the file."""
        return self.path.with_name(f"{self.path.name}-{MARK_NAME}") if self.is_file else self.path / MARK_NAME

    @property
    def log_marks(self) -> Path:
        """Path of the folder with the host's proofs of who began each log: in the folder, or next to the file."""
        return self.path.with_name(f"{self.path.name}-origins") if self.is_file else self.path / ".origins"


MARK_NAME = "origin.json"


@dataclass(frozen=True, slots=True)
class StorageCheck:
    """Result of checking one requirement of a storage."""

    about: str  # subject in a word or two: `server`, `rights`
    is_there: bool  # True if the requirement is met
    text: str  # finding and place, without secrets
    remedy: str = ""


class Watch:
    """A subscription to changes of a Job. This one polls."""

    async def wait(self, seconds: float) -> None:
        """Return when something may have been written since the last wait, at the latest after `seconds`."""
        import asyncio  # this module is imported at every start, by the hooks

        await asyncio.sleep(min(seconds, _POLL_INTERVAL_S))


class Storage(ABC):
    """A store of Jobs. One object serves one process; several processes may use one store."""

    @property
    @abstractmethod
    def location(self) -> str:
        """The store's directory, file or address, for people."""

    @abstractmethod
    def space(self, name: str) -> Storage:
        """Return a separate set of Jobs in this store; one object per name.

        No set has the Jobs of another. Each keeps all promises of a storage, and is closed with this one. `name` is a
        few lower-case letters, but not `jobs`.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release files and connections."""

    # Logs: one per Run of a Job (promises 1 to 4).

    @abstractmethod
    async def create_job(self, job_id: str) -> None:
        """Create an empty Job. Raises Conflict if the id exists."""

    @abstractmethod
    async def has_job(self, job_id: str) -> bool:
        """Return whether the Job exists."""

    @abstractmethod
    async def jobs(self, *, limit: int = 100, after: str | None = None) -> Page:
        """Return Job ids, most recently written summary first, without reading logs."""

    @abstractmethod
    async def runs(self, job_id: str, *, limit: int = 1000, after: str | None = None) -> Page:
        """Return the ids of the Runs that have a log, in order of number. Raises NotFound for an unknown Job."""

    @abstractmethod
    async def append(self, ref: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        """Append records to a log that has `expected_seq` records; 0 begins a log.

        Raises Conflict if the log has another length or the records do not continue it, NotFound for an unknown Job,
        and StorageError for records that were not sealed together.
        """

    def append_now(self, ref: RunRef, expected_seq: int, records: Sequence[bytes], *, synced: bool = True) -> bool:
        """Append without waiting, as `append` does; do nothing and return False if that could take a millisecond.

        Without `synced`, records survive the end of this process at once, power loss after the next append or sync.
        """
        return False

    def sync_now(self, ref: RunRef) -> None:
        """Sync the records of `append_now`, so that they survive power loss. Raises StorageError."""
        raise NotImplementedError

    @abstractmethod
    async def read(self, ref: RunRef, after: int = 0, limit: int | None = None) -> list[bytes]:
        """Return the records after number `after`, at most `limit`; none for an unknown Run. Raises Damaged."""

    async def end(self, ref: RunRef, count: int) -> list[bytes]:
        """Return the last records, at most `count`, for a preview, perhaps unchecked; none for an unknown Run."""
        try:
            records = await self.read(ref)
        except Damaged as damage:
            records = await self.read(ref, limit=damage.readable)
        return records[max(0, len(records) - count) :]

    @abstractmethod
    async def redact(self, ref: RunRef, seq: int, record: bytes) -> None:
        """Replace the record at `seq` atomically by `record`. It survives power loss when this returns.

        Raises NotFound if there is no such record, and Conflict unless `core.base.chain.is_redaction_of` accepts the
        replacement.
        """

    @abstractmethod
    async def delete_job(self, job_id: str, *, expected: tuple[RunRef, int] | None = None) -> None:
        """Delete a Job with everything that belongs to it. Raises NotFound, and Conflict while it is driven.

        With `expected`, raises Conflict unless that log has exactly this number of records at that moment.
        """

    @abstractmethod
    async def erase_traces(self, job_id: str) -> None:
        """Erase remains of a Job's replaced or removed bytes from the medium.

        Examples are unused pages, a write-ahead log and files of an interrupted write. The caller holds the Job's
        lease. Raises StorageError if another process prevents it; calling it again completes the work.
        """

    # Blobs: binary contents that events refer to by SHA-256. Each Job owns its blobs, even if equal bytes of several
    # Jobs are stored once: removing a blob or a Job takes nothing from another Job.

    @abstractmethod
    async def put_blob(self, job_id: str, data: bytes) -> str:
        """Store bytes once, synced, and return their hex sha256. Raises NotFound for an unknown Job."""

    async def put_blobs(self, job_id: str, blobs: Sequence[bytes]) -> tuple[str, ...]:
        """Store blobs, synced, and return their hex sha256 in order. None is stored in part. Raises NotFound."""
        import asyncio

        names: list[str] = []
        for first in range(0, len(blobs), _MAX_UPLOADS):
            names += await asyncio.gather(
                *(self.put_blob(job_id, data) for data in blobs[first : first + _MAX_UPLOADS])
            )
        return tuple(names)

    @abstractmethod
    async def blob(self, job_id: str, sha256: str) -> bytes:
        """Return the bytes of a blob. Raises NotFound."""

    @abstractmethod
    async def blobs(self, job_id: str) -> tuple[str, ...]:
        """Return the hex sha256 of every blob of a Job, in no particular order. Raises NotFound for an unknown Job."""

    @abstractmethod
    async def remove_blob(self, job_id: str, sha256: str) -> None:
        """Remove a blob from a Job, surviving power loss. Do nothing if the Job does not have it."""

    # Leases: the exclusive right of one process to drive a Job.

    @abstractmethod
    def lease(self, job_id: str, holder: str) -> AbstractAsyncContextManager[None]:
        """Hold the lease of a Job during the block. Raises Conflict, naming the holder, if another has it.

        Raises NotFound for an unknown Job. The lease is free as soon as its holder's process dies.
        """

    @abstractmethod
    async def lease_info(self, job_id: str) -> LeaseInfo | None:
        """Return the current holder of the lease, or None."""

    def watch(self, job_id: str) -> AbstractAsyncContextManager[Watch]:
        """Subscribe to a Job during the block: to appended records, and to the release of its lease.

        A notification may be lost, so waiting code must also poll from time to time.
        """
        return nullcontext(Watch())

    # Caches for lists of Jobs (promise 5).

    @abstractmethod
    async def put_summary(self, job_id: str, summary: bytes) -> None:
        """Replace job.json. Raises NotFound for an unknown Job."""

    @abstractmethod
    async def summary(self, job_id: str) -> bytes | None:
        """Return job.json, or None if there is none or it was lost."""

    async def summaries(self) -> Mapping[str, bytes]:
        """Return job.json of every Job; b"" for a Job without one."""
        result: dict[str, bytes] = {}
        page = await self.jobs(limit=_PAGE_SIZE)
        while True:
            for job_id in page.ids:
                result[job_id] = await self.summary(job_id) or b""
            if page.next is None:
                return result
            page = await self.jobs(limit=_PAGE_SIZE, after=page.next)

    @abstractmethod
    async def put_entry(
        self, job_id: str, seq: int, entry: bytes, *, synced: bool = False, expected: tuple[RunRef, Head] | None = None
    ) -> None:
        """Replace the Job's entry in `entries`: a line of JSON, or b"", which makes readers read the log.

        `seq` is the place in the Job's log that the entry describes. An entry for an earlier place than the stored one
        is ignored. With `expected`, the entry is ignored unless that log has a record with this place and hash:
        otherwise the caller means a deleted Job whose id has been used again. With `synced` the entry survives power
        loss when this returns. Raises NotFound for an unknown Job.
        """

    @abstractmethod
    async def entries(self) -> Mapping[str, bytes]:
        """Return the last entry of every Job; b"" if none was put or it was lost. Must be fast with many Jobs."""

    @abstractmethod
    async def entry(self, job_id: str) -> tuple[int, bytes] | None:
        """Return one Job's entry with its place in the log, or None; the Job itself may be gone."""

    async def lost_jobs(self) -> tuple[str, ...]:
        """Return the ids of Jobs that still have an entry but were removed without `delete_job`."""
        return ()

    # Copies of log data for people and tools, Run settings and checkpoints: caches too (promise 5). A storage that
    # keeps them sets `keeps_copies` and overrides the five methods.

    keeps_copies: bool = False

    async def put_run_setting(self, ref: RunRef, setting: bytes) -> None:
        """Replace run-setting.json. Raises NotFound for an unknown Job."""
        return

    async def run_setting(self, ref: RunRef) -> bytes | None:
        """Return run-setting.json, or None if there is none or it was lost."""
        return None

    async def put_checkpoint(self, job_id: str, checkpoint_id: str, data: bytes) -> None:
        """Store a checkpoint. Raises NotFound for an unknown Job."""
        return

    async def checkpoint(self, job_id: str, checkpoint_id: str) -> bytes | None:
        """Return a checkpoint, or None if there is none or it was lost."""
        return None

    async def checkpoints(self, job_id: str, *, limit: int = 1000, after: str | None = None) -> Page:
        """Return the ids of stored checkpoints, ordered by the Run and the place in their ids. Raises NotFound."""
        return Page(())

    def checkpoint_path(self, job_id: str, checkpoint_id: str) -> Path | None:
        """Return the path of a checkpoint's file, which may not exist; None if checkpoints are not files."""
        return None

    # Sizes and checks.

    @abstractmethod
    async def sizes(self, job_ids: Sequence[str] | None = None) -> Mapping[str, JobSize]:
        """Return the size of these Jobs, or of all Jobs if None. Unknown Jobs are left out."""

    @abstractmethod
    async def size(self) -> int:
        """Return the size of the whole store in bytes, including all its spaces and data that belongs to no Job."""

    async def checks(self) -> Sequence[StorageCheck]:
        """Check a server's requirements without creating a Job; an unreachable one is a failed check."""
        return ()

    # Local files. Tools must not touch them.

    @property
    def local_state(self) -> LocalState | None:
        """The folder or file that holds everything; None for a server, whose address its user agrees to.

        The host acts on a folder or file only if it can prove that its user's installation made it.
        """
        return None

    async def require_own(self, job_id: str) -> None:
        """Raise NotAgreed unless this user's installation began all logs of a Job. Only the host overrides this.

        Called by code that acts on a Job before it writes to it or leases it.
        """
        return

    def as_evidence(self) -> Storage:
        """Return this storage in a form whose reads write nothing to its folder or file, not even a cache.

        The host reads state of unknown origin through it. A storage with a `local_state` overrides it if its reads
        may write.
        """
        return self

    @property
    def places(self) -> tuple[Path, ...]:
        """Absolute paths of the files and folders that the storage uses on this machine; they may not exist yet."""
        return ()

    @property
    def programs(self) -> Path | None:
        """Folder in which running programs are recorded: one of `places` or inside one. It may not exist."""
        return None

    # Jobs of other programs, in a storage that shows them (`StorageFactory.open` with formats).

    async def unsealed_runs(self, job_id: str) -> Mapping[str, str]:
        """Return the name of the program that wrote the Run, by the ids of Runs that only another program wrote.

        Their hash chain is computed while reading, so edits of their files cannot be detected. Raises NotFound for an
        unknown Job.
        """
        return {}

    async def foreign_checkpoint(self, checkpoint_id: str, job_id: str | None = None) -> tuple[str, str] | None:
        """Return the Job id of another program's checkpoint and this host's id for the latter; None if unknown.

        Without `job_id`, find the Job that has the checkpoint's file.
        """
        return None


class StorageFactory(ABC):
    """Factory of storages, registered by a plugin."""

    scheme: str  # the part before the colon in `storage = "scheme:location"`
    has_settings: bool = False  # True if the storages have settings in addition to their address: `[storageSetting]`

    @abstractmethod
    def open(
        self, location: str, workspace: Path, *, setting: JsonObject | None = None, formats: Sequence[JobFormat] = ()
    ) -> Storage:
        """Return a storage for the part after the colon. Raises UsageError if it or a setting is invalid.

        Relative paths start at `workspace`: the folder of perstack.toml, or the current directory. A storage whose
        folders may contain Jobs that another program wrote in one of `formats` shows them too; the first format that
        can read a folder is used.
        """
