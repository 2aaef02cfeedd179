"""Copy, check and measure storages. A copy that was cut short is continued from the logs themselves."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Literal

from perstack.core.base.chain import is_redaction_of, open_line
from perstack.core.base.ids import Owner, OwnerKind, number_of_run
from perstack.core.base.records import read_json
from perstack.dataclass import dataclass
from perstack.engine.log.delegate_leases_and_stop_requests import DelegateLeases
from perstack.engine.log.event_log import job_ids, run_ids
from perstack.engine.log.run_log import checkpoint_ids
from perstack.engine.log.storage_access import OWNER_KINDS, space_of
from perstack.errors import Conflict, NotFound, PerstackError, StorageError, UsageError
from perstack.ports.storage import (
    JobSize,
    RunRef,
    Storage,
    StorageCheck,
)
from perstack.posted_texts.mailboxes import Mailboxes
from perstack.state_guard.guarded_state import require_own_state
from perstack.system.user import this_process

# Disk usage.


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Disk usage of a storage, in bytes."""

    owners: tuple[tuple[Owner, JobSize], ...]  # Jobs, tasks, series and schedules, the largest first
    storage: int  # total of the storage, including what belongs to no owner

    @property
    def total(self) -> JobSize:
        """The sum over all listed owners."""
        sizes = [size for _, size in self.owners]
        return JobSize(*(sum(column) for column in zip(*sizes, strict=True))) if sizes else JobSize()


async def disk_usage(storage: Storage, ids: Sequence[str] = ()) -> DiskUsage:
    """Return the disk usage of these ids, or of all. Raises NotFound."""
    owner_sizes: list[tuple[Owner, JobSize]] = []
    for kind in OWNER_KINDS:
        space = space_of(storage, kind)
        sizes = await space.sizes(ids or None)
        owner_sizes += [(Owner(kind, owner_id), size) for owner_id, size in sizes.items()]
    missing = [owner_id for owner_id in ids if owner_id not in {owner.id for owner, _ in owner_sizes}]
    if missing:
        raise NotFound(f"there is no Job, task or series {', '.join(missing)} in {storage.location}")
    owner_sizes.sort(key=lambda item: (-item[1].total, item[0]))
    return DiskUsage(tuple(owner_sizes), await storage.size())


# Checks that the storage implements; without any, only whether it can be read.


async def storage_checks(storage: Storage) -> Sequence[StorageCheck]:
    """Return the results of the storage's checks; without any, whether it can be used. Changes nothing permanently."""
    if checks := await storage.checks():
        return checks
    try:
        await storage.jobs(limit=1)
    except StorageError as error:
        return (StorageCheck("state", False, error.message),)
    results = [StorageCheck("state", True, storage.location)]
    for place in storage.places[:1]:
        folder = _nearest_existing_folder(place)
        if os.access(folder, os.W_OK):
            results.append(StorageCheck("rights", True, "this user may write there"))
        else:
            results.append(
                StorageCheck("rights", False, f"this user may not write to {folder}", f"chown or chmod {folder}")
            )
    return tuple(results)


def _nearest_existing_folder(path: Path) -> Path:
    return next(ancestor for ancestor in (path, *path.parents) if ancestor.exists())


_RECORDS_PER_READ = 500
_MAX_BLOBS_IN_MEMORY = 50
"""Maximum blobs in memory. There may be more records than `_RECORDS_PER_READ`, because an append is not split."""


@dataclass(frozen=True, slots=True)
class CopyResult:
    """The result of copying one Job, task, series or schedule."""

    owner: Owner
    state: Literal["copied", "continued", "there", "left"]
    """`copied`: all is new; `continued`: some data was missing; `there`: nothing was missing; `left`: see `problem`."""
    records: int = 0
    blobs: int = 0
    problem: str = ""


async def copy_storage(
    source_storage: Storage, target_storage: Storage, ids: Sequence[str] = (), since: int | None = None
) -> AsyncGenerator[CopyResult]:
    """Copy everything, or these ids, or what has an event since `since` (milliseconds since 1970), the oldest first.

    Raises NotFound for an unknown id, UsageError if source and target are one storage, and NotAgreed: a copy would make
    state of unknown origin the user's own.
    """
    if source_storage.location == target_storage.location:
        raise UsageError(f"{source_storage.location} would be copied to itself: name another storage to copy to")
    owners = [
        owner
        for kind in OWNER_KINDS
        for owner in await _list_owners(source_storage, kind)
        if not ids or owner.id in ids
    ]
    missing = sorted(set(ids) - {owner.id for owner in owners})
    if missing:
        raise NotFound(f"there is no Job, task or series {', '.join(missing)} in {source_storage.location}")
    for storage in (source_storage, target_storage):
        await require_own_state(storage)
    for owner in owners:
        copying = _OwnerCopy(space_of(source_storage, owner.kind), space_of(target_storage, owner.kind), owner)
        if since is None or await copying.last_event() >= since:
            yield await copying.run()


async def _list_owners(storage: Storage, kind: OwnerKind) -> list[Owner]:
    return [Owner(kind, owner_id) for owner_id in reversed(await job_ids(space_of(storage, kind)))]


class _OwnerCopy:
    """One copy of an owner's blobs, logs and caches. Existing records in the target are compared, not replaced."""

    def __init__(self, source_storage: Storage, target_storage: Storage, owner: Owner) -> None:
        self._source_storage = source_storage
        self._target_storage = target_storage
        self._owner = owner
        self._records = 0
        self._blobs = 0

    async def run(self) -> CopyResult:
        try:
            await self._check_not_foreign()
            async with AsyncExitStack() as stack:
                await self._lease_source(stack)
                is_new = not await self._target_storage.has_job(self._owner.id)
                if is_new:
                    await self._target_storage.create_job(self._owner.id)
                await stack.enter_async_context(self._target_storage.lease(self._owner.id, this_process()))
                await self._check_no_delegate_driven(self._target_storage)
                await self._copy()
        except (StorageError, UsageError) as error:
            return CopyResult(self._owner, "left", self._records, self._blobs, str(error))
        copied_count = self._records or self._blobs
        return CopyResult(
            self._owner, "copied" if is_new else "continued" if copied_count else "there", self._records, self._blobs
        )

    async def last_event(self) -> int:
        """Return the time of the latest event, in milliseconds since 1970; 0 if no log can be read."""
        latest = 0
        for run_id in await run_ids(self._source_storage, self._owner.id):
            try:
                records = await self._source_storage.read(RunRef(self._owner.id, run_id))
            except PerstackError:
                continue
            latest = max(latest, _event_time(records[-1]) if records else 0)
        return latest

    async def _check_not_foreign(self) -> None:
        if foreign := await self._source_storage.unsealed_runs(self._owner.id):
            raise UsageError(f"{next(iter(foreign.values()))} wrote it: run it once with perstack, and copy it then")

    async def _lease_source(self, stack: AsyncExitStack) -> None:
        try:
            await stack.enter_async_context(self._source_storage.lease(self._owner.id, this_process()))
        except Conflict:
            raise
        except StorageError:
            # A read-only storage grants no lease: a driver can be seen, but not kept out.
            if (info := await self._source_storage.lease_info(self._owner.id)) is not None:
                raise Conflict(f"it is being driven by {info.holder}: copy it when it has ended") from None
        await self._check_no_delegate_driven(self._source_storage)

    async def _check_no_delegate_driven(self, storage: Storage) -> None:
        delegate_ids = (
            await DelegateLeases(storage).driven_delegates(self._owner.id) if self._owner.kind == "job" else ()
        )
        if delegate_ids:
            problem = f"{delegate_ids[0]}, one of its delegates, is being driven by another worker"
            raise Conflict(f"{problem}: copy it when it has ended")

    async def _copy(self) -> None:
        owner_id = self._owner.id
        await self._copy_blobs()
        # Delegates are copied before their parent Runs, so that a copy that is cut short refers to nothing missing.
        runs = sorted(await run_ids(self._source_storage, owner_id), key=number_of_run, reverse=True)
        for run_id in runs:
            await self._copy_log(RunRef(owner_id, run_id))
        if self._owner.kind == "job":
            await Mailboxes(self._source_storage).copy_job(owner_id, Mailboxes(self._target_storage))
        await self._copy_caches(runs)

    async def _copy_blobs(self) -> None:
        existing = set(await self._target_storage.blobs(self._owner.id))
        missing = [name for name in await self._source_storage.blobs(self._owner.id) if name not in existing]
        for start in range(0, len(missing), _MAX_BLOBS_IN_MEMORY):
            names = missing[start : start + _MAX_BLOBS_IN_MEMORY]
            await self._target_storage.put_blobs(
                self._owner.id, [await self._source_storage.blob(self._owner.id, name) for name in names]
            )
            self._blobs += len(names)

    async def _copy_log(self, ref: RunRef) -> None:
        seq = 0
        while target_records := await self._target_storage.read(ref, seq, _RECORDS_PER_READ):
            source_records = await self._source_storage.read(ref, seq, len(target_records))
            for number, (old, new) in enumerate(zip(target_records, source_records, strict=False), seq + 1):
                if old != new:
                    await self._copy_redaction(ref, number, old, new)
            seq += len(target_records)
            if len(source_records) < len(target_records):
                raise self._diverged(ref, seq - len(target_records) + len(source_records))
        while True:
            records = await self._source_storage.read(ref, seq, _RECORDS_PER_READ)
            if not records:
                return
            appends = _split_into_appends(records)
            if not appends:  # a single append has more records than `_RECORDS_PER_READ`
                records = await self._source_storage.read(ref, seq, open_line(records[0]).batch)
                appends = [records]
            for append in appends:
                await self._target_storage.append(ref, seq, append)
                seq += len(append)
                self._records += len(append)

    async def _copy_redaction(self, ref: RunRef, seq: int, old: bytes, new: bytes) -> None:
        if not is_redaction_of(old, new):
            raise self._diverged(ref, seq - 1)
        await self._target_storage.redact(ref, seq, new)
        self._records += 1

    def _diverged(self, ref: RunRef, seq: int) -> Conflict:
        return Conflict(
            f"{self._target_storage.location}, run {ref.run_id}: other records follow record {seq}: it was continued"
            " there, or belongs to another Job; nothing there was changed"
        )

    async def _copy_caches(self, runs: Sequence[str]) -> None:
        owner_id = self._owner.id
        source, target = self._source_storage, self._target_storage
        entry = await source.entry(owner_id)
        if entry is not None:
            await target.put_entry(owner_id, entry[0], entry[1], synced=True)
        if source.keeps_copies and target.keeps_copies:
            for run_id in runs:
                if (setting := await source.run_setting(RunRef(owner_id, run_id))) is not None:
                    await target.put_run_setting(RunRef(owner_id, run_id), setting)
            for checkpoint in await checkpoint_ids(source, owner_id):
                if (data := await source.checkpoint(owner_id, checkpoint)) is not None:
                    await target.put_checkpoint(owner_id, checkpoint, data)
        summary = await source.summary(owner_id)
        if summary is not None and (self._records or await target.summary(owner_id) is None):
            await target.put_summary(owner_id, summary)


def _split_into_appends(records: Sequence[bytes]) -> list[list[bytes]]:
    """Return the records by append, without the last append if it is incomplete."""
    appends: list[list[bytes]] = []
    start = 0
    while start < len(records):
        length = open_line(records[start]).batch
        if start + length > len(records):
            break
        appends.append(list(records[start : start + length]))
        start += length
    return appends


def _event_time(record: bytes) -> int:
    try:
        event = read_json(open_line(record).payload)
    except ValueError:
        return 0
    timestamp = event.get("timestamp") if isinstance(event, dict) else None
    return timestamp if isinstance(timestamp, int) else 0


# Operations of a Host on its storage.


class StorageAdmin:
    """Administration of one storage: copy it, check it, measure it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def copy_to(
        self, target_storage: Storage, ids: Sequence[str] = (), since: int | None = None
    ) -> AsyncGenerator[CopyResult]:
        """Copy Jobs, tasks and series unchanged to another storage, and yield each copy; existing copies are continued.

        Selects by `ids` or `since` (milliseconds since 1970). Raises NotFound, NotAgreed, UsageError for itself.
        """
        async with aclosing(copy_storage(self._storage, target_storage, ids, since)) as results:
            async for result in results:
                yield result

    async def check(self) -> Sequence[StorageCheck]:
        """Check that the storage can be reached and has what it needs. Creates no Job, and returns failures."""
        return await storage_checks(self._storage)

    async def disk_usage(self, ids: Sequence[str] = ()) -> DiskUsage:
        """Measure the bytes of all owners, or `ids`, largest first. Raises NotFound, UsageError if unsupported."""
        return await disk_usage(self._storage, ids)
