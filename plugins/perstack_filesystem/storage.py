"""Storage port implemented with plain files, so that every Job can be read, copied and repaired with ordinary tools.

{root}/jobs/{jobId}/job.json                       summary (cache); its modification time orders the Jobs
{root}/jobs/{jobId}/lease                          flock held by the process that drives the Job
{root}/jobs/{jobId}/checkpoints/{checkpointId}.json
{root}/jobs/{jobId}/runs/{runId}/run-setting.json
{root}/jobs/{jobId}/runs/{runId}/events.jsonl      the log; all other files of a Run derive from it
{root}/jobs/{jobId}/blobs/{sha256}
{root}/.blobs/{ab}/{sha256}                        blobs that Jobs share, as hard links
{root}/jobs/entries.jsonl                          index entry of each Job (cache); created when needed
{root}/.programs/{mark}                            running program and its owner
{root}/origin.json                                 the host's proof that this installation made the state
{root}/.origins/{space}.{jobId}                    the host's proofs that it began each log

Another namespace has its own directory instead of `jobs`.

Every path is opened through directory handles without following links (`directories`). Logs are verified and appended
to by `log_file`, under an exclusive flock and fsynced; a new log file is created complete and renamed into place. Slow
disks are detected by `LatencyMonitor`; then writes move to threads so that the event loop is not blocked.

Change together: this layout and docs; the rules for torn tails in `log_file` and promise 3 of `ports.storage`; deletion
here (rename first, then remove) and the pool rules in `blobs`; the summary's modification time and the order of
`jobs()`. `perstack.testing.storage_contract` checks the promises.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from hashlib import sha256 as new_sha256
from pathlib import Path
from threading import Lock

from typing_extensions import override

from perstack.core.base.chain import EMPTY_LOG, Head, open_line
from perstack.core.base.ids import check_id, check_job_id
from perstack.errors import NotFound, StorageError
from perstack.ports.formats import JobFormat
from perstack.ports.storage import JobSize, LeaseInfo, LocalState, Page, RunRef, Storage
from perstack.support.storage import (
    check_redaction,
    check_space,
    checkpoint_order,
    ends_at,
    head_after,
    is_id,
    job_exists,
    newest_first,
    no_job,
    page_of,
    run_order,
    stale_writer,
)
from perstack.system.concurrency import LatencyMonitor, shield_until_done
from perstack.system.files import hold_file_lock, lock_holder
from perstack_filesystem.blobs import BlobFolders, remove_unfinished
from perstack_filesystem.directories import OpenDirectory, OpenFolders, check_removable, explain, read_below
from perstack_filesystem.entry_index import EntryIndex, entry_names, put_entry, read_entries, remove_entry
from perstack_filesystem.imported_jobs import ForeignJobs
from perstack_filesystem.log_file import LogFile


def job_names(jobs_folder: OpenDirectory) -> list[str]:
    """Return the ids of the Jobs that have a directory."""
    return [entry.name for entry in jobs_folder.entries() if is_id(entry.name) and entry.is_dir(follow_symlinks=False)]


def jobs_with_times(jobs_folder: OpenDirectory, summary: str) -> list[tuple[int, str]]:
    """Return each Job with the modification time of its summary, else of its directory, in ns. Reads no logs."""
    try:
        return [
            (_modified_ns(jobs_folder, entry.name, summary), entry.name)
            for entry in jobs_folder.entries()
            if is_id(entry.name) and entry.is_dir(follow_symlinks=False)
        ]
    except OSError as error:
        raise explain(error, jobs_folder.path) from error


def _modified_ns(jobs_folder: OpenDirectory, name: str, summary: str) -> int:
    for path in (f"{name}/{summary}", name):
        try:
            return os.stat(path, dir_fd=jobs_folder.fd, follow_symlinks=False).st_mtime_ns
        except FileNotFoundError:
            continue
    return 0


_KINDS = {"blobs": "blobs", "checkpoints": "checkpoints"}


def size_of_job(jobs_folder: OpenDirectory, job_id: str) -> JobSize:
    """Return the size of a Job's files without following links. Files that vanish during this count 0."""
    sizes = {"logs": 0, "blobs": 0, "checkpoints": 0, "caches": 0}
    for path, size in _list_files(jobs_folder, job_id):
        top, _, rest = path.partition("/")
        is_log = top == "runs" and not rest.endswith("/run-setting.json")
        sizes["logs" if is_log else _KINDS.get(top, "caches")] += size
    return JobSize(**sizes)


def size_of_all(root: Path) -> int:
    """Return the size of all files below a state directory."""
    folder = OpenDirectory.top(root)
    if folder is None:
        return 0
    with folder:
        return sum(size for _, size in _list_files(folder, ".", count_links_once=True))


def _list_files(folder: OpenDirectory, name: str, *, count_links_once: bool = False) -> Iterable[tuple[str, int]]:
    """Yield relative paths and sizes. With `count_links_once`, a file with several hard links counts once."""
    seen: set[tuple[int, int]] = set()
    try:
        for path, _, names, fd in os.fwalk(name, dir_fd=folder.fd, follow_symlinks=False):
            folder_path = os.path.relpath(path, name)
            for file in names:
                try:
                    status = os.stat(file, dir_fd=fd, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if count_links_once and status.st_nlink > 1:
                    number = (status.st_dev, status.st_ino)
                    if number in seen:
                        continue
                    seen.add(number)
                yield (file if folder_path == "." else f"{folder_path}/{file}"), status.st_size
    except FileNotFoundError:
        return
    except OSError as error:
        raise explain(error, folder.path / name) from error


_LOG = "events.jsonl"
_SUMMARY = "job.json"
_LEASE = "lease"
_DELETED_PREFIX = ".deleted."
_MAX_BYTES_AT_ONCE = 1 << 20  # bytes of a log that may be verified without a thread: some 10 ms
_MAX_OPEN_LOGS = 100


class FilesystemStorage(BlobFolders, Storage):
    """Jobs as directories, including Jobs that other programs wrote in one of `formats`. Processes may share a root."""

    keeps_copies = True

    def __init__(
        self,
        root: Path,
        space: str = "jobs",
        formats: Sequence[JobFormat] = (),
        folders: OpenFolders | None = None,
        *,
        is_evidence: bool = False,
    ) -> None:
        """Open nothing yet; `folders` is the directory cache of another namespace of this root.

        With `is_evidence` reading rewrites no index.
        """
        super().__init__(root, space, folders)
        self._spaces: dict[str, FilesystemStorage] = {}
        self._logs: OrderedDict[RunRef, LogFile] = OrderedDict()
        self._foreign = ForeignJobs(formats)
        self._entries = EntryIndex()
        self._is_evidence = is_evidence
        self._turn = Lock()
        self._pace = LatencyMonitor()

    @property
    @override
    def location(self) -> str:
        return str(self._root)

    @property
    @override
    def places(self) -> tuple[Path, ...]:
        return (self._root.absolute(),)

    @property
    @override
    def local_state(self) -> LocalState:
        return LocalState(self._root.absolute())

    @override
    def as_evidence(self) -> Storage:
        return FilesystemStorage(self._root, self._space, self._foreign.formats, is_evidence=True)

    @property
    @override
    def programs(self) -> Path:
        return self._root / ".programs"

    @override
    def space(self, name: str) -> Storage:
        if name not in self._spaces:
            self._spaces[name] = FilesystemStorage(
                self._root, check_space(name), self._foreign.formats, self._folders, is_evidence=self._is_evidence
            )
        return self._spaces[name]

    @override
    async def create_job(self, job_id: str) -> None:
        check_job_id(job_id)
        with ExitStack() as opened:
            if not opened.enter_context(self._folders.make_space(self._space)).add(job_id):
                raise job_exists(job_id)
            self._require_job(opened, job_id).add("runs")

    @override
    async def has_job(self, job_id: str) -> bool:
        with ExitStack() as opened:
            return self._find(opened, job_id) is not None

    @override
    async def jobs(self, *, limit: int = 100, after: str | None = None) -> Page:
        with ExitStack() as opened:
            jobs_folder = self._find_jobs(opened)
            return (
                Page(()) if jobs_folder is None else newest_first(jobs_with_times(jobs_folder, _SUMMARY), limit, after)
            )

    @override
    async def runs(self, job_id: str, *, limit: int = 1000, after: str | None = None) -> Page:
        with ExitStack() as opened:
            runs = self._find(opened, job_id, "runs")
            if runs is None:
                self._require_job(opened, job_id)
                return Page(())
            ids = [entry.name for entry in runs.entries() if entry.is_dir(follow_symlinks=False)]
            with_log = {run_id for run_id in ids if runs.stat(f"{run_id}/{_LOG}") is not None}
            return page_of(with_log.union(self._foreign.of(job_id, runs).logs), run_order, limit, after)

    @override
    async def unsealed_runs(self, job_id: str) -> Mapping[str, str]:
        with ExitStack() as opened:
            runs = self._find(opened, job_id, "runs")
            if runs is None:
                self._require_job(opened, job_id)
                return {}
            foreign = self._foreign.of(job_id, runs)
            return {run_id: foreign.writer for run_id in foreign.logs if runs.stat(f"{run_id}/{_LOG}") is None}

    @override
    async def append(self, ref: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        if not records:
            return
        if self._pace.is_slow:
            await shield_until_done(asyncio.to_thread(self._append, ref, expected_seq, records))
        else:
            self._append(ref, expected_seq, records)

    @override
    def append_now(self, ref: RunRef, expected_seq: int, records: Sequence[bytes], *, synced: bool = True) -> bool:
        if self._pace.is_slow:
            return False
        if records:
            self._append(ref, expected_seq, records, synced=synced)
        return True

    @override
    def sync_now(self, ref: RunRef) -> None:
        log = self._begin_use(ref)
        if log is None:
            raise self._removed_error(ref)
        began = time.perf_counter()
        try:
            log.sync()
        finally:
            self._end_use(log)
            self._pace.add(time.perf_counter() - began)

    def _append(self, ref: RunRef, expected_seq: int, records: Sequence[bytes], *, synced: bool = True) -> None:
        """Append to the log, creating it if this is the Run's first append."""
        began = time.perf_counter()
        log = self._begin_use(ref)
        if log is None:
            if self._create_log(ref, expected_seq, records):
                return
            log = self._begin_use(ref)
        if log is None:
            raise self._removed_error(ref)
        try:
            log.append(expected_seq, records, synced=synced)
        finally:
            self._end_use(log)
            if synced:
                self._pace.add(time.perf_counter() - began)

    def _removed_error(self, ref: RunRef) -> StorageError:
        return StorageError(f"{self._log_path(ref)}: it was removed while it was being written")

    @override
    async def read(self, ref: RunRef, after: int = 0, limit: int | None = None) -> list[bytes]:
        log = self._begin_use(ref)
        if log is not None:
            try:
                if log.unverified_bytes(after) > _MAX_BYTES_AT_ONCE:
                    return await shield_until_done(asyncio.to_thread(log.read, after, limit))
                return log.read(after, limit)
            finally:
                self._end_use(log)
        return self._foreign_log(ref)[after : None if limit is None else after + limit]

    @override
    async def end(self, ref: RunRef, count: int) -> list[bytes]:
        log = self._begin_use(ref)
        if log is not None:
            try:
                return log.end(count)
            finally:
                self._end_use(log)
        return self._foreign_log(ref)[-count:]

    @override
    async def redact(self, ref: RunRef, seq: int, record: bytes) -> None:
        await shield_until_done(asyncio.to_thread(self._redact, ref, seq, record))

    def _redact(self, ref: RunRef, seq: int, record: bytes) -> None:
        """Replace the log file by one without the record. Raises NotFound, StorageError and Conflict."""
        log = self._begin_use(ref)
        if log is None:
            raise NotFound(f"{self._log_path(ref)}: there is no such log")
        try:
            with log.locked() as records, ExitStack() as opened:
                check_redaction(records, seq, record, str(self._log_path(ref)))
                folder = self._find(opened, ref.job_id, "runs", ref.run_id)
                if folder is None:
                    raise self._removed_error(ref)
                # Create a new file: a process that has the old one open notices the deletion and opens this one.
                folder.replace(_LOG, b"\n".join((*records[: seq - 1], record, *records[seq:], b"")), sync=True)
                folder.sync()
        finally:
            self._end_use(log)

    @override
    async def put_summary(self, job_id: str, summary: bytes) -> None:
        with ExitStack() as opened:
            self._require_job(opened, job_id).replace(_SUMMARY, summary, sync=False, modified_ns=time.time_ns())

    @override
    async def summary(self, job_id: str) -> bytes | None:
        with ExitStack() as opened:
            job_folder = self._find(opened, job_id)
            return None if job_folder is None else job_folder.read(_SUMMARY)

    @override
    async def summaries(self) -> Mapping[str, bytes]:
        return await asyncio.to_thread(self._summaries)

    def _summaries(self) -> dict[str, bytes]:
        summaries: dict[str, bytes] = {}
        with ExitStack() as opened:
            jobs_folder = self._find_jobs(opened)
            if jobs_folder is None:
                return summaries
            for name in job_names(jobs_folder):
                summaries[name] = b""
                with suppress(StorageError):  # an unreadable summary must not hide the others
                    summaries[name] = read_below(jobs_folder, name, _SUMMARY) or b""
        return summaries

    @override
    async def put_entry(
        self, job_id: str, seq: int, entry: bytes, *, synced: bool = False, expected: tuple[RunRef, Head] | None = None
    ) -> None:
        check_job_id(job_id)
        jobs_folder = self._folders.find(self._space)
        if jobs_folder is None:
            raise no_job(job_id, self._root)
        with jobs_folder:
            put_entry(jobs_folder, job_id, seq, entry, synced=synced, is_wanted=lambda: self._has_record(expected))

    def _has_record(self, expected: tuple[RunRef, Head] | None) -> bool:
        if expected is None:
            return True
        ref, head = expected
        with ExitStack() as opened:
            # Open it by name: a cached log may belong to a Job that is being removed.
            folder = self._find(opened, ref.job_id, "runs", ref.run_id)
            log = None if folder is None else folder.read(_LOG)
        return log is not None and any(ends_at(line, head) for line in reversed(log.splitlines()))

    @override
    async def entries(self) -> Mapping[str, bytes]:
        with ExitStack() as opened:
            jobs_folder = self._find_jobs(opened)
            return (
                {}
                if jobs_folder is None
                else read_entries(jobs_folder, job_names(jobs_folder), may_rewrite=not self._is_evidence)
            )

    @override
    async def entry(self, job_id: str) -> tuple[int, bytes] | None:
        check_job_id(job_id)
        jobs_folder = self._folders.find(self._space)
        if jobs_folder is None:
            return None
        with jobs_folder:
            return self._entries.find(jobs_folder, job_id)

    @override
    async def lost_jobs(self) -> tuple[str, ...]:
        with ExitStack() as opened:
            jobs_folder = self._find_jobs(opened)
            lost = (
                ()
                if jobs_folder is None
                else {*filter(is_id, entry_names(jobs_folder))}.difference(job_names(jobs_folder))
            )
            return tuple(sorted(lost))

    @override
    async def put_run_setting(self, ref: RunRef, setting: bytes) -> None:
        check_id(ref.run_id, "run")
        with ExitStack() as opened:
            runs = self._make_subfolder(opened, ref.job_id, "runs")
            opened.enter_context(runs.make(ref.run_id)).replace("run-setting.json", setting, sync=False)

    @override
    async def run_setting(self, ref: RunRef) -> bytes | None:
        check_id(ref.run_id, "run")
        with ExitStack() as opened:
            folder = self._find(opened, ref.job_id, "runs", ref.run_id)
            return None if folder is None else folder.read("run-setting.json")

    @override
    async def put_checkpoint(self, job_id: str, checkpoint_id: str, data: bytes) -> None:
        check_id(checkpoint_id, "checkpoint")
        with ExitStack() as opened:
            self._make_subfolder(opened, job_id, "checkpoints").replace(f"{checkpoint_id}.json", data, sync=False)

    @override
    async def checkpoint(self, job_id: str, checkpoint_id: str) -> bytes | None:
        check_id(checkpoint_id, "checkpoint")
        with ExitStack() as opened:
            folder = self._find(opened, job_id, "checkpoints")
            return None if folder is None else folder.read(f"{checkpoint_id}.json")

    @override
    async def checkpoints(self, job_id: str, *, limit: int = 1000, after: str | None = None) -> Page:
        with ExitStack() as opened:
            self._require_job(opened, job_id)
            folder = self._find(opened, job_id, "checkpoints")
            if folder is None:
                return Page(())
            names = [entry.name for entry in folder.entries() if entry.name.endswith(".json")]
            # Skip ids of other forms, written by other programs: these checkpoints are derived from events, like lost
            # ones.
            ids = [name[:-5] for name in names if name.startswith(job_id)]
            return page_of(ids, checkpoint_order, limit, after)

    @override
    def checkpoint_path(self, job_id: str, checkpoint_id: str) -> Path:
        check_id(checkpoint_id, "checkpoint")
        return self._root / self._space / check_job_id(job_id) / "checkpoints" / f"{checkpoint_id}.json"

    @override
    async def blob(self, job_id: str, sha256: str) -> bytes:
        check_id(sha256, "blob")
        with ExitStack() as opened:
            folder = self._find(opened, job_id, "blobs")
            data = None if folder is None else folder.read(sha256)
            runs = None if data is not None else self._find(opened, job_id, "runs")
            if runs is not None:
                data = self._foreign.of(job_id, runs).foreign_job.blobs.get(sha256)
        if data is None:
            raise NotFound(f"Job {job_id} has no blob {sha256}")
        if new_sha256(data).hexdigest() != sha256:
            raise StorageError(f"{self._root}/{self._space}/{job_id}/blobs/{sha256}: damaged; restore it from a copy")
        return data

    async def sizes(self, job_ids: Sequence[str] | None = None) -> Mapping[str, JobSize]:
        """Return the sizes without index entries, whose file belongs to all Jobs."""
        with ExitStack() as opened:
            jobs_folder = self._find_jobs(opened)
            if jobs_folder is None:
                return {}
            existing = dict.fromkeys(await asyncio.to_thread(job_names, jobs_folder))
            ids = [*existing] if job_ids is None else [job_id for job_id in job_ids if job_id in existing]
            return await asyncio.to_thread(lambda: {job_id: size_of_job(jobs_folder, job_id) for job_id in ids})

    @override
    async def size(self) -> int:
        return await asyncio.to_thread(size_of_all, self._root)

    async def erase_traces(self, job_id: str) -> None:
        """Remove temporary files that interrupted writes of this Job left."""
        with ExitStack() as opened:
            await asyncio.to_thread(remove_unfinished, self._require_job(opened, job_id))

    @override
    @asynccontextmanager
    async def lease(self, job_id: str, holder: str) -> AsyncGenerator[None]:
        async with hold_file_lock(lambda: self._open_lease(job_id), holder, job_id):
            yield

    @override
    async def lease_info(self, job_id: str) -> LeaseInfo | None:
        with ExitStack() as opened:
            job_folder = self._find(opened, job_id)
            fd = None if job_folder is None else job_folder.open(_LEASE, os.O_RDONLY)
            if fd is None:
                return None
            opened.callback(os.close, fd)
            holder = lock_holder(fd)
            return None if holder is None else LeaseInfo(holder)

    @override
    async def delete_job(self, job_id: str, *, expected: tuple[RunRef, int] | None = None) -> None:
        async with self.lease(job_id, f"the deletion of it (pid {os.getpid()})"):
            with ExitStack() as opened:
                jobs_folder = self._find_jobs(opened)
                if jobs_folder is None:
                    raise no_job(job_id, self._root)
                if expected is not None:
                    opened.enter_context(self._locked_at(*expected))
                # before the rename, so that an error leaves the Job complete
                check_removable(self._require_job(opened, job_id))
                # The rename removes the Job atomically; a crash during the removal of its files leaves nothing that
                # looks like a Job.
                deleted_name = f"{_DELETED_PREFIX}{job_id}.{time.time_ns()}"
                with remove_entry(jobs_folder, job_id):
                    jobs_folder.rename(job_id, deleted_name)
                jobs_folder.sync()
                try:
                    self._remove_files(jobs_folder, deleted_name)
                except StorageError:
                    # Files that could not be removed must stay listed as a Job, so that a person finds them.
                    jobs_folder.rename(deleted_name, job_id)
                    raise
                for entry in jobs_folder.entries():
                    if entry.name.startswith(_DELETED_PREFIX):  # remove what an interrupted deletion left
                        with suppress(StorageError):
                            self._remove_files(jobs_folder, entry.name)
        with self._turn:
            for ref in [ref for ref in self._logs if ref.job_id == job_id]:
                self._logs.pop(ref).retire()

    def _remove_files(self, jobs_folder: OpenDirectory, doomed: str) -> None:
        job_folder = jobs_folder.find(doomed)
        if job_folder is not None:
            with job_folder, suppress(StorageError):  # a link instead of the blobs directory is removed with the Job
                self._free_blobs(job_folder)
        try:
            shutil.rmtree(doomed, dir_fd=jobs_folder.fd)  # removes a link, pipe or socket itself, not what it leads to
        except OSError as error:
            raise explain(error, jobs_folder.path / (error.filename or doomed)) from error

    @override
    async def close(self) -> None:
        self._entries.close()
        with self._turn:
            while self._logs:
                self._logs.popitem()[1].retire()
        for space in self._spaces.values():
            await space.close()
        self._folders.close()

    def _log_path(self, ref: RunRef) -> Path:
        return self._root / self._space / ref.job_id / "runs" / ref.run_id / _LOG

    def _begin_use(self, ref: RunRef) -> LogFile | None:
        with self._turn:
            log = self._open_log(ref)
            if log is not None:
                log.enter()
            return log

    def _end_use(self, log: LogFile) -> None:
        with self._turn:
            log.leave()

    def _open_log(self, ref: RunRef) -> LogFile | None:
        """Return the Run's log, open; None if it has none."""
        log = self._logs.get(ref)
        if log is not None and not log.is_deleted:
            self._logs.move_to_end(ref)
            return log
        if log is not None:
            self._logs.pop(ref).retire()
        check_id(ref.run_id, "run")
        with ExitStack() as opened:
            folder = self._find(opened, ref.job_id, "runs", ref.run_id)
            fd = None if folder is None else folder.open_log(_LOG)
        if fd is None:
            return None
        return self._cache_log(ref, LogFile(fd, self._log_path(ref)))

    def _cache_log(self, ref: RunRef, log: LogFile) -> LogFile:
        self._logs[ref] = log
        unused = [run for run, other in self._logs.items() if not other.is_used and other is not log]
        for ref in unused[: max(0, len(self._logs) - _MAX_OPEN_LOGS)]:
            self._logs.pop(ref).retire()
        return log

    def _create_log(self, ref: RunRef, expected_seq: int, records: Sequence[bytes]) -> bool:
        """Create a log, beginning with another program's events. Return False if another process created it."""
        path = str(self._log_path(ref))
        with ExitStack() as opened:
            runs = self._make_subfolder(opened, ref.job_id, "runs")
            with self._turn:
                imported = self._foreign.of(ref.job_id, runs).logs.get(ref.run_id, [])
            if len(imported) != expected_seq:
                raise stale_writer(path, expected_seq, len(imported))
            head = Head(len(imported), open_line(imported[-1]).hash) if imported else EMPTY_LOG
            head_after(head, records, path)
            folder = opened.enter_context(runs.make(ref.run_id))
            folder.lock()
            if folder.stat(_LOG) is not None:
                return False
            folder.replace(_LOG, b"\n".join((*imported, *records, b"")), sync=True)
            folder.sync()
        return True

    @contextmanager
    def _locked_at(self, ref: RunRef, expected_seq: int) -> Generator[None]:
        log = self._begin_use(ref)
        if log is None:
            raise stale_writer(str(self._log_path(ref)), expected_seq, 0)
        try:
            with log.locked_at(expected_seq):
                yield
        finally:
            self._end_use(log)

    @override
    async def foreign_checkpoint(self, checkpoint_id: str, job_id: str | None = None) -> tuple[str, str] | None:
        file = f"checkpoints/{check_id(checkpoint_id, 'checkpoint')}.json"
        with ExitStack() as opened:
            jobs_folder = self._find_jobs(opened)
            if jobs_folder is None:
                return None
            for name in job_names(jobs_folder) if job_id is None else (job_id,):
                # Skip Jobs without that file: otherwise this would read every Job that other programs wrote.
                if job_id is None and jobs_folder.stat(f"{name}/{file}") is None:
                    continue
                runs = self._find(opened, name, "runs")
                place = (
                    None if runs is None else self._foreign.of(name, runs).foreign_job.checkpoints.get(checkpoint_id)
                )
                if place is not None:
                    return name, place
        return None

    def _foreign_log(self, ref: RunRef) -> list[bytes]:
        with ExitStack() as opened:
            runs = self._find(opened, ref.job_id, "runs")
            return [] if runs is None else self._foreign.of(ref.job_id, runs).logs.get(ref.run_id, [])

    def _open_lease(self, job_id: str) -> int:
        with ExitStack() as opened:
            fd = self._require_job(opened, job_id).open(_LEASE, os.O_RDWR | os.O_CREAT)
        if fd is None:
            raise NotFound(f"Job {job_id} was deleted")
        return fd
