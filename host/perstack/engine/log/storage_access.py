"""Helpers over storages: blobs of a Job, job.json, spaces of each kind of owner, pending records, the name."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from perstack.core.base.chain import Head, open_line
from perstack.core.base.ids import OwnerKind, run_id_of
from perstack.core.base.records import Record
from perstack.core.jobs.summary import JobSummary
from perstack.dataclass import dataclass
from perstack.engine.log.event_log import add_payload, job_ids
from perstack.errors import Conflict, NotFound
from perstack.ports.storage import RunRef, Storage

# Blobs of one Job, as skills and providers see them.


class JobBlobs:
    """The blobs that the messages of one Job refer to."""

    def __init__(self, storage: Storage, job_id: str) -> None:
        self._storage = storage
        self._job_id = job_id
        self._stored: set[str] = set()
        self._store_lock = asyncio.Lock()

    async def put(self, data: bytes) -> str:
        """Store bytes and return their SHA-256 in hex."""
        return await self._storage.put_blob(self._job_id, data)

    async def keep(self, sha256: str, data: bytes) -> None:
        """Store bytes under their known SHA-256. Repeated and concurrent calls store them once."""
        if sha256 in self._stored:
            return
        async with self._store_lock:
            if sha256 not in self._stored:
                await self._storage.put_blob(self._job_id, data)
                self._stored.add(sha256)

    async def get(self, sha256: str) -> bytes:
        """Return the bytes of a blob. Raises NotFound."""
        return await self._storage.blob(self._job_id, sha256)


M = TypeVar("M", bound=Record)


def log_of(owner_id: str) -> RunRef:
    """Return the only log of a task or a series."""
    return RunRef(owner_id, run_id_of(owner_id, 1))


async def read_summary(storage: Storage, owner_id: str, model: type[M]) -> M | None:
    """Return the stored job.json; None if it is missing or unreadable. Raises StorageError."""
    data = await storage.summary(owner_id)
    with suppress(ValidationError):
        return None if data is None else model.model_validate_json(data)
    return None


def heads_in_summary(summary: bytes | None) -> list[tuple[str, Head]]:
    """Return the ends of a Job's logs that job.json contains."""
    with suppress(ValidationError):
        runs = () if summary is None else JobSummary.model_validate_json(summary).runs
        return [
            (run_summary.id, Head(run_summary.head_seq, run_summary.head_hash))
            for run_summary in runs
            if run_summary.head_seq
        ]
    return []


# Kinds of owners of logs: their spaces in a storage, and their names in messages.


@dataclass(frozen=True, slots=True)
class OwnerKindInfo:
    """Storage spaces and names of one kind of owner."""

    space: str  # space of the logs; empty for Jobs, which are in the storage itself
    outbox: str  # space of the records that an anchor has not accepted yet
    singular: str
    plural: str
    none: str  # text between "there" and "yet" in the message that none exists


OWNER_KINDS: Mapping[OwnerKind, OwnerKindInfo] = {
    "job": OwnerKindInfo("", "heads", "Job", "Jobs", "is no Job"),
    "task": OwnerKindInfo("tasks", "headsoftasks", "task", "tasks", "is no task"),
    "iterations": OwnerKindInfo(
        "iterations", "headsofseries", "series of iterations", "series of iterations", "are no iterations"
    ),
    "schedule": OwnerKindInfo("schedules", "headsofschedules", "schedule", "schedules", "is no schedule"),
}


def space_of(storage: Storage, kind: OwnerKind) -> Storage:
    space = OWNER_KINDS[kind].space
    return storage.space(space) if space else storage


MAILBOX_SPACES = ("mailboxes", "delegatemailboxes")  # texts that wait for Coordinators, by Job, and for delegates


# Records that wait for a reader: one log for each owner, in a separate space.

_MAX_ATTEMPTS = 5
_MAX_OWNERS = 1000


class PendingRecords:
    """The records in a space. Several processes may add, read and remove at once."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def expect(self, owner_id: str) -> None:
        """Create an empty log for a record that will be added. Raises StorageError."""
        with suppress(Conflict):
            await self._storage.create_job(owner_id)

    async def add(self, owner_id: str, record: bytes) -> None:
        """Store a record, a JSON object; it survives power loss when this returns. Raises StorageError."""
        for attempt in range(_MAX_ATTEMPTS):
            try:
                await self.expect(owner_id)
                await add_payload(self._storage, log_of(owner_id), record)
            except (Conflict, NotFound):  # another process added a record, or removed the log, meanwhile
                if attempt == _MAX_ATTEMPTS - 1:
                    raise
            else:
                return

    async def records(self, owner_id: str) -> list[bytes]:
        """Return the records of an owner, oldest first. Raises StorageError."""
        return [open_line(line).payload for line in await self._storage.read(log_of(owner_id))]

    async def own_records(self, owner_id: str) -> list[bytes]:
        """Return the records of an owner, oldest first. Raises NotAgreed for another user's logs, StorageError."""
        await self._storage.require_own(owner_id)
        return await self.records(owner_id)

    async def jobs(self) -> tuple[str, ...]:
        """Return the ids of owners with records or empty logs, at most a thousand."""
        return (await self._storage.jobs(limit=_MAX_OWNERS)).ids

    async def owners(self) -> list[str]:
        """Return the ids of all owners with records or empty logs."""
        return await job_ids(self._storage)

    async def has(self, owner_id: str) -> bool:
        """Return whether an owner has records or an empty log."""
        return await self._storage.has_job(owner_id)

    async def remove(self, owner_id: str, count: int) -> None:
        """Delete the records of an owner, unless their number is no longer `count`. Raises StorageError."""
        expected = (log_of(owner_id), count) if count else None
        with suppress(Conflict, NotFound):
            await self._storage.delete_job(owner_id, expected=expected)

    async def forget(self, owner_id: str) -> None:
        """Delete all records of an owner. Raises StorageError."""
        with suppress(Conflict, NotFound):  # another process may be removing them
            await self._storage.delete_job(owner_id)


# The name of a storage, independent of its address: an order contains it to identify the storage of its Job.
#
# It is created with the first order and stored in a space of the storage. A copy made Job by Job has another
# name; a backup of the whole storage keeps it.

_IDENTITY_SPACE = "identity"
_IDENTITY_LOG = log_of("storage")


class _StorageName(BaseModel, defer_build=True):
    name: str


async def read_storage_name(storage: Storage) -> str | None:
    """Return the storage's name; None if it has none yet. Raises StorageError."""
    try:
        lines = await storage.space(_IDENTITY_SPACE).read(_IDENTITY_LOG, limit=1)
        return _StorageName.model_validate_json(open_line(lines[0]).payload).name if lines else None
    except (NotFound, ValidationError):
        return None


async def ensure_storage_name(storage: Storage) -> str | None:
    """Return the storage's name; create it if there is none. The first of two writers wins. Raises StorageError."""
    if (name := await read_storage_name(storage)) is not None:
        return name
    space = storage.space(_IDENTITY_SPACE)
    with suppress(Conflict):
        await space.create_job(_IDENTITY_LOG.job_id)
    with suppress(Conflict):
        await add_payload(space, _IDENTITY_LOG, _StorageName(name=secrets.token_hex(16)).model_dump_json().encode())
    return await read_storage_name(storage)
