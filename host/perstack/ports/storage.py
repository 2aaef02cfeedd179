"""The storage port: a log, blobs, a lease and a cache, and what they promise.

`perstack.testing.storage_contract` is the suite that every storage passes in full: what is asked of `Storage`, and of
each further ability that it has. The promises:

1. `append` is all or nothing; a stale `expected_seq` raises Conflict. That is also the fence: of two drivers on one
   Run the second loses at its first write. One that is cancelled has been done, or never will be, when its caller
   hears of it.
2. When `append` returns, the records survive power loss.
3. `read` is ordered and gapless. A torn tail after a crash (a partial line, or an append of several whose last is
   missing) is ignored and repaired by the next append, never an error. Damage anywhere else raises Damaged, which
   names the file and the place; everything before it stays readable (`limit`).
4. Bytes come back unchanged. Records are lines sealed by `core.chain`; storages use it to find the end of an append
   and damage, and know nothing else of them.
5. Summaries, checkpoints and entries are caches: losing them loses nothing. They need not be synced.

Ids reach a storage checked (`core.ids`); one that builds paths of them still goes through directory handles or an
equal guard. All methods may raise StorageError. A call that may take long, because of a lock or a slow medium, does not
keep the event loop from other work meanwhile (`ports.uninterrupted` is for those that write).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from perstack.core.base import JsonObject
from perstack.core.chain import Head
from perstack.dataclass import dataclass


class RunRef(NamedTuple):
    """Names one log."""

    job_id: str
    run_id: str


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """Who drives a Job now: words for a person, such as `pid 4711 on host`."""

    holder: str


@dataclass(frozen=True, slots=True)
class Page:
    """Some ids, and the cursor that continues after them; None at the end."""

    ids: tuple[str, ...]
    next: str | None = None


class Logs(Protocol):
    """The truth: a log for each Run of a Job (promises 1 to 4)."""

    async def create_job(self, job_id: str) -> None:
        """Make an empty Job. Raises Conflict if the id exists."""
        ...

    async def has_job(self, job_id: str) -> bool: ...

    async def jobs(self, *, limit: int = 100, after: str | None = None) -> Page:
        """Job ids, the one whose summary was written last first, without reading logs."""
        ...

    async def runs(self, job_id: str, *, limit: int = 1000, after: str | None = None) -> Page:
        """Ids of the Runs that have a log, by their number. Raises NotFound for an unknown Job."""
        ...

    async def append(self, run: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        """Add records after the first `expected_seq`. `expected_seq=0` begins a log. Raises Conflict."""
        ...

    async def read(self, run: RunRef, after: int = 0, limit: int | None = None) -> list[bytes]:
        """The records after place `after`, at most `limit`. An unknown Run has none. Raises Damaged."""
        ...

    async def delete_job(self, job_id: str, *, expected: tuple[RunRef, int] | None = None) -> None:
        """Remove a Job and all that belongs to it. Raises NotFound, and Conflict while it is driven.

        With `expected` only if that log has so many records at that moment: Conflict otherwise.
        """
        ...


class Blobs(Protocol):
    """What events refer to by its sha256."""

    async def put_blob(self, job_id: str, data: bytes) -> str:
        """Keep bytes, once; returns their sha256 in hex. Synced before it returns."""
        ...

    async def blob(self, job_id: str, sha256: str) -> bytes:
        """Raises NotFound."""
        ...


class Leases(Protocol):
    """Who drives a Job."""

    def lease(self, job_id: str, holder: str) -> AbstractAsyncContextManager[None]:
        """The right to drive a Job. Raises Conflict, naming the holder, if another has it.

        It is free the moment its holder's process dies.
        """
        ...

    async def lease_info(self, job_id: str) -> LeaseInfo | None:
        """Who holds the lease now; None if nobody does."""
        ...


class Cache(Protocol):
    """What lists are made of (promise 5)."""

    async def put_summary(self, job_id: str, summary: bytes) -> None:
        """Replace job.json."""
        ...

    async def summary(self, job_id: str) -> bytes | None:
        """job.json; None if there is none (or it was lost)."""
        ...

    async def put_entry(
        self, job_id: str, seq: int, entry: bytes, *, synced: bool = False, expected: tuple[RunRef, Head] | None = None
    ) -> None:
        """Replace what `entries` has of a Job: a line of JSON, or nothing, which tells a reader to look at its log.

        `seq` is the place in its log that the entry tells of: one of an earlier place is ignored, and with `expected`
        one that comes when that log has no record of this place and hash: who puts it means a Job that was removed, and
        made again since, under the same id. With `synced` it survives power loss when this returns.
        """
        ...

    async def entries(self) -> Mapping[str, bytes]:
        """Of every Job what was put last, or nothing (b"") if nothing was, or if it was lost. Quick for thousands."""
        ...

    async def entry(self, job_id: str) -> tuple[int, bytes] | None:
        """The place that the entry of one Job tells of, and the entry; None if none was put, or if it was lost.

        That of a Job which somebody removed behind the storage's back may still be there.
        """
        ...


class Storage(Logs, Blobs, Leases, Cache, Protocol):
    """Keeps Jobs. One object serves one process; several processes may use one store.

    This is all that the host needs. What a storage can do besides is in the protocols that follow; the host looks for
    each, and does without where it is not there.
    """

    @property
    def location(self) -> str:
        """For people: the directory, file or address where the state is."""
        ...

    def space(self, name: str) -> Storage:
        """Another set of Jobs in the same store, which none of the others sees; the same object for the same name.

        It keeps all these promises, and is closed with this one. `name` is of a few lower case letters, and not `jobs`.
        """
        ...

    async def close(self) -> None: ...


@runtime_checkable
class KeepsCopies(Protocol):
    """What a storage can do besides that keeps, for people and tools, what the logs have too: the setting of each Run,
    and its checkpoints. They are caches (promise 5)."""

    async def put_run_setting(self, run: RunRef, setting: bytes) -> None:
        """Replace run-setting.json."""
        ...

    async def run_setting(self, run: RunRef) -> bytes | None:
        """run-setting.json; None if there is none (or it was lost)."""
        ...

    async def put_checkpoint(self, job_id: str, checkpoint_id: str, data: bytes) -> None: ...

    async def checkpoint(self, job_id: str, checkpoint_id: str) -> bytes | None: ...

    async def checkpoints(self, job_id: str, *, limit: int = 1000, after: str | None = None) -> Page:
        """Ids of the checkpoints that were put, in the order of their ids' Run and place."""
        ...


@runtime_checkable
class CheckpointFiles(KeepsCopies, Protocol):
    """One whose checkpoints are files."""

    def checkpoint_path(self, job_id: str, checkpoint_id: str) -> Path:
        """Where a checkpoint's file is or would be."""
        ...


@runtime_checkable
class ReadsSummaries(Protocol):
    """What a storage can do besides that reads thousands of job.json in one go."""

    async def summaries(self) -> Mapping[str, bytes]:
        """Of every Job its job.json, or nothing (b"") if there is none."""
        ...


@runtime_checkable
class ReadsEnds(Protocol):
    """What a storage can do besides that gets at the end of a long log without reading what is before it."""

    async def end(self, run: RunRef, count: int) -> list[bytes]:
        """The last records, at most so many, as they stand: for a first look, as nothing of them is checked. None of an
        unknown Run."""
        ...


@runtime_checkable
class FindsLostJobs(Protocol):
    """What a storage can do besides that keeps entries apart from Jobs: see that somebody removed a Job behind its
    back."""

    async def lost_jobs(self) -> tuple[str, ...]:
        """The ids that have an entry and no Job, and were not deleted by `delete_job`."""
        ...


@runtime_checkable
class Redacts(Protocol):
    """What a storage can do besides that lets the content of a record be taken out."""

    async def redact(self, run: RunRef, seq: int, record: bytes) -> None:
        """Put `record` in the place of the one at `seq`, in one moment; it survives power loss when this returns.

        Raises NotFound if there is no such record, and Conflict unless `core.chain.is_redaction_of` says that the new
        one may stand for it.
        """
        ...


@runtime_checkable
class Erases(Protocol):
    """What a storage can do besides that takes bytes away for good, whoever looks for them beneath it."""

    async def blobs(self, job_id: str) -> tuple[str, ...]:
        """The sha256 in hex of every blob of a Job, in no order. Raises NotFound for an unknown Job."""
        ...

    async def remove_blob(self, job_id: str, sha256: str) -> None:
        """The Job has no such blob from now on, and survives power loss without it; nothing, if it had none."""
        ...

    async def erase_traces(self, job_id: str) -> None:
        """Remove what is left on this medium of the bytes of a Job that were replaced or removed: unused pages, a
        write-ahead log, files of a write that was cut short. Its lease is held.

        Raises StorageError where another process keeps it from that; the same call again does the rest.
        """
        ...


@runtime_checkable
class SharesBlobs(Protocol):
    """What a storage can do besides that keeps many blobs at once, and the same bytes once for all its Jobs.

    Each Job has its own blobs all the same: to remove one, or a Job, takes nothing from another.
    """

    async def put_blobs(self, job_id: str, blobs: Sequence[bytes]) -> tuple[str, ...]:
        """Keep all of them, or none that is not whole; returns their sha256 in hex. Synced before it returns.

        Raises NotFound for an unknown Job.
        """
        ...


class JobSize(NamedTuple):
    """How many bytes a Job takes."""

    logs: int = 0
    blobs: int = 0
    checkpoints: int = 0
    caches: int = 0
    """Its summary, the settings of its Runs, and its entry."""

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)


@runtime_checkable
class Measures(Protocol):
    """What a storage can do besides that knows how much room what it keeps takes."""

    async def sizes(self, job_ids: Sequence[str] | None = None) -> Mapping[str, JobSize]:
        """Of these Jobs, or of all, how many bytes each takes; nothing of one that there is not."""
        ...

    async def size(self) -> int:
        """How many bytes the whole store takes where it is, with all its spaces, and with what is of no Job."""
        ...


@runtime_checkable
class LocalStorage(Storage, Protocol):
    """A storage that keeps files on this machine."""

    @property
    def places(self) -> tuple[Path, ...]:
        """The files and folders that it keeps, absolute, whether they are there yet or not: tools keep off them."""
        ...

    def is_there(self) -> bool:
        """Whether anything has been kept. Makes nothing."""
        ...

    @property
    def programs(self) -> Path:
        """A folder, one of these places or in one, in which the programs are recorded that run now. It need not be
        there."""
        ...


class Watch(Protocol):
    """Tells when to look at a Job again."""

    async def wait(self, seconds: float) -> None:
        """Returns when something may have been written since the last wait, and at the latest after so many seconds."""
        ...


@runtime_checkable
class Announces(Protocol):
    """What a storage can do besides that hears at once what other processes write. A notice may be lost: who waits
    looks now and then all the same."""

    def watch(self, job_id: str) -> AbstractAsyncContextManager[Watch]:
        """Listens from when it is entered: for what is appended to the Job, and for its lease being given up."""
        ...


@dataclass(frozen=True, slots=True)
class StorageCheck:
    """One thing that a storage needs of what it keeps its Jobs in."""

    about: str
    """A word or two: `server`, `rights`."""
    is_there: bool
    text: str
    """What was found, with the place, and nothing secret."""
    remedy: str = ""


@runtime_checkable
class ChecksItself(Protocol):
    """What a storage can do besides that is kept by a server."""

    async def checks(self) -> Sequence[StorageCheck]:
        """Whether what it needs is there. Makes no Job; what cannot be reached is a check that says so, no error."""
        ...


class StorageFactory(Protocol):
    """What a storage plugin registers."""

    @property
    def scheme(self) -> str:
        """The word before the colon in `storage = "scheme:location"`."""
        ...

    def open(self, location: str, workspace: Path) -> Storage:
        """A storage for what follows the colon; relative paths are seen from `workspace`, whose state it is: the folder
        of perstack.toml, or the one that one stands in.
        """
        ...


@runtime_checkable
class TakesSetting(StorageFactory, Protocol):
    """One whose storages have settings besides their address: `[storageSetting]`."""

    def open_set(self, location: str, workspace: Path, setting: JsonObject) -> Storage:
        """As `open`, with these. Raises UsageError for one that there is not."""
        ...


@runtime_checkable
class SendsCredentials(StorageFactory, Protocol):
    """One whose storages send what variables of the process's environment hold to the address that they are given."""

    @property
    def credentials(self) -> Sequence[str]:
        """The names of these variables."""
        ...
