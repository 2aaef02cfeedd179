"""Storage port implemented as objects below a prefix of a bucket, with conditional writes as the only lock.

`layout` lists the objects. A Job exists while its marker does; the marker names the Job's incarnation, which is part of
the keys of logs and blobs. So a Job deleted and created again under the same id never sees old objects.

An append is an object created only if absent (`log`). Leases expire by time (`leases`), so a silent holder may wake up
and write: the next holder fences every log and rewrites the list of Runs before it continues (`_fence_logs`). Writes
check the lease with the server when it may be lost. An append made without a lease, or with one that may be lost, is
confirmed afterwards (`_confirm_append`).

A deletion records itself in `deleting/`, removes the marker, and then everything else; an interrupted one is finished
by `erase_traces`. Checkpoints and Run settings are not stored: they are caches.

Change together: keys and formats in `layout` with its `_VERSION`; the order of writes in `_fence_logs` with
`_list_run` and `S3Log.append`; new kinds of objects with `finish_deletion` and `sizes`.
`perstack.testing.storage_contract` checks the port's promises.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256 as new_sha256

from typing_extensions import override

from perstack.core.base.chain import Head
from perstack.core.base.ids import check_id, check_job_id
from perstack.errors import Conflict, NotFound, StorageError
from perstack.ports.storage import JobSize, LeaseInfo, Page, RunRef, Storage, StorageCheck
from perstack.support.storage import check_space, checked_blob, ends_at, is_id, job_exists, no_job, page_of, run_order
from perstack.system.concurrency import shield_until_done
from perstack_s3.layout import EntryHeader, Layout, Marker, RunList, check_version, checks_of, read
from perstack_s3.leases import S3Lease, S3Leases
from perstack_s3.listing import ObjectCache, S3Watch, WriteOrder, add_stamp, entry_bytes, read_entry, split_stamp
from perstack_s3.log import S3Log
from perstack_s3.objects import Listed, Objects, gather_limited

_MAX_KEYS_PER_DELETE = 1000


async def finish_deletion(objects: Objects, layout: Layout, job_id: str, incarnation: str) -> None:
    """Remove everything of an incarnation except its marker, then the record of the deletion."""
    marker = await objects.head(layout.of_job("markers", job_id))
    if marker is None:  # if the id has been reused, the caches belong to the new Job
        await objects.remove([layout.of_job(kind, job_id) for kind in ("entries", "summaries")])
    for kind in ("logs", "blobs"):
        prefix = layout.of_incarnation(kind, job_id, incarnation)
        keys = [entry.key for entry in await objects.list(prefix)]
        for start in range(0, len(keys), _MAX_KEYS_PER_DELETE):
            await objects.remove(keys[start : start + _MAX_KEYS_PER_DELETE])
    await objects.remove([layout.deleting(job_id, incarnation)])


async def finish_deletions(objects: Objects, layout: Layout) -> None:
    """Finish interrupted deletions."""
    prefix = layout.prefix_of("deleting")
    unfinished = [entry.key.removeprefix(prefix) for entry in await objects.list(prefix)]
    for name in unfinished:
        job_id, _, incarnation = name.rpartition(".")
        await finish_deletion(objects, layout, job_id, incarnation)


_MAX_ATTEMPTS = 20  # maximum attempts of a write for which other processes compete


class S3Storage(Storage):
    """Jobs in a bucket. Processes on many machines may use it at once."""

    def __init__(self, objects: Objects, space: str = "jobs") -> None:
        self._objects = objects
        self._layout = Layout(space)
        self._leases = S3Leases(objects, self._layout)
        self._entries = ObjectCache(objects, self._layout, "entries")
        self._summaries = ObjectCache(objects, self._layout, "summaries")
        self._order = WriteOrder(objects)
        self._logs: dict[tuple[RunRef, str], S3Log] = {}
        # incarnation by Job, with the nonce of the lease under which it was read
        self._incarnations: dict[str, tuple[str, str]] = {}
        self._last_incarnations: dict[str, str] = {}
        self._spaces: dict[str, S3Storage] = {}

    @property
    @override
    def location(self) -> str:
        return str(self._objects.place)

    @override
    def space(self, name: str) -> Storage:
        if name not in self._spaces:
            self._spaces[name] = S3Storage(self._objects, check_space(name))
        return self._spaces[name]

    @override
    async def create_job(self, job_id: str) -> None:
        await self._check_for_writing()
        marker = Marker(incarnation=secrets.token_hex(8), made=time.time_ns())
        if await self._objects.create(self._layout.of_job("markers", job_id), marker.to_bytes()) is None:
            raise job_exists(job_id)

    @override
    async def has_job(self, job_id: str) -> bool:
        return await self._read_incarnation(job_id) is not None

    @override
    async def jobs(self, *, limit: int = 100, after: str | None = None) -> Page:
        markers, summaries = await asyncio.gather(self._list_by_job("markers"), self._list_by_job("summaries"))
        return await self._order.page(markers, summaries, limit, after)

    @override
    async def runs(self, job_id: str, *, limit: int = 1000, after: str | None = None) -> Page:
        incarnation = await self._require_incarnation(job_id)
        names = [name for name in (await self._read_run_list(job_id, incarnation))[0] if is_id(name)]
        logs = [self._log_for(RunRef(job_id, name), incarnation) for name in names]
        have_records = await gather_limited(log.has_records() for log in logs)
        return page_of(
            (name for name, has_begun in zip(names, have_records, strict=True) if has_begun), run_order, limit, after
        )

    @override
    async def append(self, ref: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        if records:
            check_id(ref.run_id, "run")
            await self._check_for_writing()
            await shield_until_done(self._append(ref, expected_seq, records))

    @override
    async def read(self, ref: RunRef, after: int = 0, limit: int | None = None) -> list[bytes]:
        check_id(ref.run_id, "run")
        incarnation = await self._read_incarnation(ref.job_id)
        return [] if incarnation is None else await self._log_for(ref, incarnation).read(after, limit)

    @override
    async def end(self, ref: RunRef, count: int) -> list[bytes]:
        check_id(ref.run_id, "run")
        incarnation = await self._read_incarnation(ref.job_id)
        return [] if incarnation is None else await self._log_for(ref, incarnation).last(count)

    @override
    async def redact(self, ref: RunRef, seq: int, record: bytes) -> None:
        check_id(ref.run_id, "run")
        await self._require_kept_lease(ref.job_id)
        await shield_until_done(self._log_for(ref, await self._require_incarnation(ref.job_id)).redact(seq, record))

    @override
    async def put_summary(self, job_id: str, summary: bytes) -> None:
        await self._require_incarnation(job_id)
        await self._require_kept_lease(job_id)
        await self._objects.put(self._layout.of_job("summaries", job_id), add_stamp(time.time_ns(), summary))

    @override
    async def summary(self, job_id: str) -> bytes | None:
        key = self._layout.of_job("summaries", job_id)
        summary_object, is_there = await asyncio.gather(self._objects.get(key), self.has_job(job_id))
        return None if summary_object is None or not is_there else split_stamp(summary_object.data)[1]

    @override
    async def summaries(self) -> Mapping[str, bytes]:
        markers, summaries = await asyncio.gather(self._list_by_job("markers"), self._summaries.all())
        return {name: split_stamp(summaries[name])[1] if name in summaries else b"" for name in markers}

    @override
    async def put_entry(
        self, job_id: str, seq: int, entry: bytes, *, synced: bool = False, expected: tuple[RunRef, Head] | None = None
    ) -> None:
        if expected is not None and not await self._has_record(*expected):
            return
        await self._require_kept_lease(job_id)
        key, nonce = self._layout.of_job("entries", job_id), secrets.token_hex(8)
        for _ in range(_MAX_ATTEMPTS):
            entry_object = await self._objects.get(key)
            header = None if entry_object is None else read_entry(entry_object.data)[0]
            incarnation = self._last_incarnations.get(job_id, "")
            if header is None or header.of != incarnation:
                incarnation = await self._require_incarnation(job_id)
            if header is not None and header.of == incarnation and header.seq > seq:
                return
            data = entry_bytes(EntryHeader(of=incarnation, seq=seq, nonce=nonce), entry)
            if entry_object is None:
                new_tag = await self._objects.create(key, data)
            else:
                new_tag = await self._objects.replace(key, data, entry_object.tag)
            if new_tag is not None:
                return
        raise StorageError(f"{self.location}: the entry of Job {job_id} is being written by other processes: try again")

    @override
    async def entries(self) -> Mapping[str, bytes]:
        markers, entries = await asyncio.gather(self._list_by_job("markers"), self._entries.all())
        return {name: read_entry(entries[name])[1] if name in entries else b"" for name in markers}

    @override
    async def entry(self, job_id: str) -> tuple[int, bytes] | None:
        entry_object = await self._objects.get(self._layout.of_job("entries", job_id))
        if entry_object is None:
            return None
        header, entry = read_entry(entry_object.data)
        incarnation = await self._read_incarnation(job_id)
        return (header.seq, entry) if header.seq and incarnation in (None, header.of) else None

    @override
    async def lost_jobs(self) -> tuple[str, ...]:
        entries, markers = await self._list_by_job("entries"), await self._list_by_job("markers")
        deleting = {name.rpartition(".")[0] for name in await self._list_by_job("deleting")}
        return tuple(sorted(set(entries) - set(markers) - deleting))

    @override
    async def put_blob(self, job_id: str, data: bytes) -> str:
        await self._require_kept_lease(job_id)
        name = new_sha256(data).hexdigest()
        key = self._layout.blob(job_id, await self._require_incarnation(job_id), name)
        if await self._objects.create(key, data) is None:
            await self._objects.put(key, data)  # the stored bytes do not match the name
        return name

    @override
    async def blob(self, job_id: str, sha256: str) -> bytes:
        check_id(sha256, "blob")
        blob_object = await self._objects.get(
            self._layout.blob(job_id, await self._require_incarnation(job_id), sha256)
        )
        return checked_blob(None if blob_object is None else blob_object.data, job_id, sha256, self.location, "it")

    @override
    async def blobs(self, job_id: str) -> tuple[str, ...]:
        prefix = self._layout.of_incarnation("blobs", job_id, await self._require_incarnation(job_id))
        return tuple([entry.key.removeprefix(prefix) for entry in await self._objects.list(prefix)])

    @override
    async def remove_blob(self, job_id: str, sha256: str) -> None:
        await self._objects.remove([self._layout.blob(job_id, await self._require_incarnation(job_id), sha256)])

    async def erase_traces(self, job_id: str) -> None:
        """Finish interrupted deletions. Old versions are left to the bucket's own rules."""
        await self._require_incarnation(job_id)
        await finish_deletions(self._objects, self._layout)

    @override
    async def sizes(self, job_ids: Sequence[str] | None = None) -> Mapping[str, JobSize]:
        markers = await self._list_by_job("markers")
        ids = list(markers) if job_ids is None else [job_id for job_id in job_ids if job_id in markers]
        caches = [await self._list_by_job("summaries"), await self._list_by_job("entries")]
        log_bytes = await gather_limited(self._size_of_objects("logs", job_id) for job_id in ids)
        blob_bytes = await gather_limited(self._size_of_objects("blobs", job_id) for job_id in ids)
        cache_bytes = [sum(kind[job_id].size for kind in caches if job_id in kind) for job_id in ids]
        sizes = map(JobSize, log_bytes, blob_bytes, (0 for _ in ids), cache_bytes)
        return dict(zip(ids, sizes, strict=True))

    @override
    async def size(self) -> int:
        return sum([entry.size for entry in await self._objects.list("")])

    @override
    async def checks(self) -> Sequence[StorageCheck]:
        return await checks_of(self._objects)

    @asynccontextmanager
    async def lease(self, job_id: str, holder: str) -> AsyncGenerator[None]:
        """Hold a Job's lease, which is free 11 seconds after its holder died."""
        await self._check_for_writing()
        await self._require_incarnation(job_id)
        async with self._leases.hold(job_id, holder) as held_lease:
            incarnation = await self._require_incarnation(job_id)
            if not held_lease.is_fenced:
                await shield_until_done(self._fence_logs(job_id, incarnation, held_lease))
            yield

    @override
    async def lease_info(self, job_id: str) -> LeaseInfo | None:
        check_job_id(job_id)
        return await self._leases.info(job_id)

    @asynccontextmanager
    async def watch(self, job_id: str) -> AsyncGenerator[S3Watch]:
        """Poll the Job's summary, about three requests a second."""
        watch = S3Watch(self._objects, self._layout.of_job("summaries", job_id))
        await watch.check_for_change()
        yield watch

    @override
    async def delete_job(self, job_id: str, *, expected: tuple[RunRef, int] | None = None) -> None:
        async with self.lease(job_id, "the deletion of it"):
            incarnation = await self._require_incarnation(job_id)
            if expected is not None:
                ref, seq = expected
                await self._log_for(ref, incarnation).put_end(seq)
            await shield_until_done(self._delete_incarnation(job_id, incarnation))
        await self._leases.forget(job_id)

    async def close(self) -> None:
        """End the idle threads; connections close by themselves."""
        self._objects.close()

    async def _delete_incarnation(self, job_id: str, incarnation: str) -> None:
        await self._objects.create(self._layout.deleting(job_id, incarnation), secrets.token_hex(8).encode())
        await self._objects.remove([self._layout.of_job("markers", job_id)])
        await finish_deletion(self._objects, self._layout, job_id, incarnation)
        self._logs = {key: log for key, log in self._logs.items() if key[1] != incarnation}

    async def _require_kept_lease(self, job_id: str) -> S3Lease | None:
        held_lease = self._leases.held_lease(job_id)
        if held_lease is not None and not held_lease.is_sure and not await self._leases.is_still(job_id, held_lease):
            raise Conflict(f"Job {job_id}: the lease was lost: another process may be driving it")
        return held_lease

    async def _fence_logs(self, job_id: str, incarnation: str, lease: S3Lease) -> None:
        """Occupy the next append's number in every log, so that a silent former holder cannot append any more."""
        await self._list_run(job_id, incarnation)
        names, _ = await self._read_run_list(job_id, incarnation)
        await gather_limited(
            self._log_for(RunRef(job_id, name), incarnation).put_fence(lease.fence) for name in names if is_id(name)
        )
        lease.is_fenced = True

    async def _append(self, ref: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        """Append to the Job's current incarnation, which another process may have replaced meanwhile."""
        held_lease = await self._require_kept_lease(ref.job_id)
        # Without a lease the marker is checked after the append, since only that check is reliable.
        incarnation = (
            self._last_incarnations.get(ref.job_id) if held_lease is None else None
        ) or await self._require_incarnation(ref.job_id)
        try:
            await self._append_to(incarnation, ref, expected_seq, records, held_lease)
        except (Conflict, NotFound):
            if held_lease is not None or await self._read_marker(ref.job_id) in (None, incarnation):
                raise
            # The Job has been created again under its id since this process looked.
            await self._append_to(await self._require_incarnation(ref.job_id), ref, expected_seq, records, held_lease)

    async def _append_to(
        self, incarnation: str, ref: RunRef, expected_seq: int, records: Sequence[bytes], lease: S3Lease | None
    ) -> None:
        log = self._log_for(ref, incarnation)
        if expected_seq == 0:
            await self._list_run(ref.job_id, incarnation, ref.run_id)
        number = await log.append(expected_seq, records, 0 if lease is None else lease.fence)
        if lease is None or not lease.is_sure:
            await self._confirm_append(ref, incarnation, log, number)
        await log.merge(number)

    async def _confirm_append(self, ref: RunRef, incarnation: str, log: S3Log, number: int) -> None:
        """Check that an append made without a lease, or with one that may be lost, counts; remove it otherwise.

        It counts if its Job still exists and its number is not in a merged object: then it came before the log was
        fenced, and the process that fenced the log has read it. Raises NotFound or Conflict.
        """
        marker, is_merged = await asyncio.gather(self._read_marker(ref.job_id), log.is_merged(number))
        if marker == incarnation and not is_merged:
            return
        await log.take_back(number)
        if marker != incarnation:
            raise NotFound(f"Job {ref.job_id} was deleted")
        raise Conflict(f"{log.place}: another process has written to this Run")

    async def _list_run(self, job_id: str, incarnation: str, run_id: str | None = None) -> None:
        """Add a Run to the list before its first record. Without `run_id` only change the tag of the list."""
        key = self._layout.runs(job_id, incarnation)
        for _ in range(_MAX_ATTEMPTS):
            names, tag = await self._read_run_list(job_id, incarnation)
            await self._require_kept_lease(job_id)  # after reading: a new holder cannot have rewritten the list yet
            if run_id in names:
                return
            runs = names if run_id is None else (*names, run_id)
            data = RunList(runs=runs, nonce=secrets.token_hex(8)).to_bytes()
            new_tag = await (self._objects.create(key, data) if tag is None else self._objects.replace(key, data, tag))
            if new_tag is not None:
                return
        raise StorageError(f"{self.location}: too many processes begin a Run of Job {job_id} at once: try again")

    async def _read_run_list(self, job_id: str, incarnation: str) -> tuple[tuple[str, ...], str | None]:
        list_object = await self._objects.get(self._layout.runs(job_id, incarnation))
        if list_object is None:
            return (), None
        run_list = read(RunList, list_object.data)
        if run_list is None:
            raise StorageError(
                f"{self.location}: the list of Runs of Job {job_id} is damaged: restore the object from a"
                " backup or an earlier version of it"
            )
        return run_list.runs, list_object.tag

    async def _has_record(self, ref: RunRef, head: Head) -> bool:
        records = await self.read(ref, head.seq - 1, 1)
        return bool(records) and ends_at(records[0], head)

    def _log_for(self, ref: RunRef, incarnation: str) -> S3Log:
        key = (ref, incarnation)
        if key not in self._logs:
            self._logs[key] = S3Log(self._objects, self._layout, ref, incarnation)
        return self._logs[key]

    async def _read_incarnation(self, job_id: str) -> str | None:
        """Return a Job's current incarnation; None if it does not exist. Cached while this process drives the Job."""
        held_lease = self._leases.held_lease(check_job_id(job_id))
        cached = self._incarnations.get(job_id)
        if held_lease is not None and cached is not None and cached[0] == held_lease.nonce and held_lease.is_sure:
            return cached[1]
        incarnation = await self._read_marker(job_id)
        if held_lease is not None and incarnation is not None:
            self._incarnations[job_id] = (held_lease.nonce, incarnation)
        return incarnation

    async def _read_marker(self, job_id: str) -> str | None:
        await self._check_version()
        marker_object = await self._objects.get(self._layout.of_job("markers", job_id))
        if marker_object is None:
            self._last_incarnations.pop(job_id, None)
            return None
        marker = read(Marker, marker_object.data)
        if marker is None:
            raise StorageError(f"{self.location}: the marker of Job {job_id} is damaged: restore it")
        self._last_incarnations[job_id] = marker.incarnation
        return marker.incarnation

    async def _require_incarnation(self, job_id: str) -> str:
        incarnation = await self._read_incarnation(job_id)
        if incarnation is None:
            raise no_job(job_id, self.location)
        return incarnation

    async def _list_by_job(self, kind: str) -> dict[str, Listed]:
        await self._check_version()
        prefix = self._layout.prefix_of(kind)
        return {entry.key.removeprefix(prefix): entry for entry in await self._objects.list(prefix)}

    async def _size_of_objects(self, kind: str, job_id: str) -> int:
        prefix = f"{self._layout.prefix_of(kind)}{check_job_id(job_id)}/"
        return sum([entry.size for entry in await self._objects.list(prefix)])

    async def _check_version(self) -> None:
        await check_version(self._objects, is_for_writing=False)

    async def _check_for_writing(self) -> None:
        await check_version(self._objects, is_for_writing=True)
