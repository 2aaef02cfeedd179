"""The storage: which file is what.

{root}/jobs/{jobId}/job.json                       summary, a cache; its time orders the Jobs
{root}/jobs/{jobId}/lease                          locked by who drives the Job
{root}/jobs/{jobId}/checkpoints/{checkpointId}.json
{root}/jobs/{jobId}/runs/{runId}/run-setting.json
{root}/jobs/{jobId}/runs/{runId}/events.jsonl      the truth
{root}/jobs/{jobId}/blobs/{sha256}
{root}/.blobs/{ab}/{sha256}                        what Jobs share: the same file by another name
{root}/jobs/entries.jsonl                          what lists tell of each Job, a cache; made when it is needed
{root}/.programs/{mark}                            a program that runs now, and whose it is

Another space has its own folder in place of `jobs`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from hashlib import sha256 as new_sha256
from pathlib import Path
from threading import Lock

from perstack.core.chain import EMPTY_LOG, Head, open_line
from perstack.core.ids import check_id, check_job_id
from perstack.errors import Conflict, NotFound, StorageError
from perstack.ports.appending import check_redaction, ends_at, head_after, stale
from perstack.ports.formats import JobFormat
from perstack.ports.leases import hold, holder_of
from perstack.ports.pace import Pace
from perstack.ports.paging import check_space, checkpoint_order, is_id, newest_first, page_of, run_order
from perstack.ports.storage import JobSize, LeaseInfo, Page, RunRef, Storage
from perstack.ports.uninterrupted import uninterrupted
from perstack_filesystem.blobs import BlobFolders
from perstack_filesystem.contents import remove_unfinished
from perstack_filesystem.entries import EntryIndex, entry_names, forgotten, put_entry, read_entries
from perstack_filesystem.folders import Folder, explained, read_below
from perstack_filesystem.foreign import ForeignJobs
from perstack_filesystem.handles import OpenFolders
from perstack_filesystem.listing import job_names, jobs_with_times
from perstack_filesystem.log import Log
from perstack_filesystem.sizes import size_of_all, size_of_job

_LOG = "events.jsonl"
_SUMMARY = "job.json"
_LEASE = "lease"
_SPACES = ("jobs", "tasks", "iterations", "schedules")
"""Those that the host uses."""
_DOOMED = ".deleted."
_MOST_OPEN_LOGS = 100


class FilesystemStorage(BlobFolders):
    """Keeps Jobs as folders. Several processes may use one directory at a time.

    Those that other programs wrote in one of `formats` are shown as well, and continued beside what is there.
    """

    def __init__(
        self,
        root: Path,
        space: str = "jobs",
        formats: Sequence[JobFormat] = (),
        folders: OpenFolders | None = None,
    ) -> None:
        super().__init__(root, space, folders)
        self._spaces: dict[str, FilesystemStorage] = {}
        self._logs: OrderedDict[RunRef, Log] = OrderedDict()
        self._foreign = ForeignJobs(formats)
        self._entries = EntryIndex()
        self._turn = Lock()
        self._pace = Pace()

    @property
    def location(self) -> str:
        """The state directory."""
        return str(self._root)

    @property
    def places(self) -> tuple[Path, ...]:
        """The state directory."""
        return (self._root.absolute(),)

    def is_there(self) -> bool:
        """Whether a Job, or anything else, has been kept."""
        return any((self._root / space).is_dir() and any((self._root / space).iterdir()) for space in _SPACES)

    @property
    def programs(self) -> Path:
        """Where the programs are recorded that run now."""
        return self._root / ".programs"

    def space(self, name: str) -> Storage:
        """Another set of Jobs, in a folder of that name beside `jobs`."""
        if name not in self._spaces:
            self._spaces[name] = FilesystemStorage(self._root, check_space(name), self._foreign.formats, self._folders)
        return self._spaces[name]

    async def create_job(self, job_id: str) -> None:
        """Make an empty Job. Raises Conflict if the id exists."""
        check_job_id(job_id)
        with ExitStack() as opened:
            if not opened.enter_context(self._folders.make_space(self._space)).add(job_id):
                raise Conflict(f"job {job_id} exists already: choose another id, or continue it")
            self._job(opened, job_id).add("runs")

    async def has_job(self, job_id: str) -> bool:
        """Whether there is a Job of that id."""
        with ExitStack() as opened:
            return self._find(opened, job_id) is not None

    async def jobs(self, *, limit: int = 100, after: str | None = None) -> Page:
        """Job ids, the one whose summary was written last first. One without a summary stands at its folder's time."""
        with ExitStack() as opened:
            jobs = self._jobs(opened)
            return Page(()) if jobs is None else newest_first(jobs_with_times(jobs, _SUMMARY), limit, after)

    async def runs(self, job_id: str, *, limit: int = 1000, after: str | None = None) -> Page:
        """Ids of the Runs that have a log, by their number. Raises NotFound for an unknown Job."""
        with ExitStack() as opened:
            runs = self._find(opened, job_id, "runs")
            if runs is None:
                self._job(opened, job_id)
                return Page(())
            ids = [entry.name for entry in runs.entries() if entry.is_dir(follow_symlinks=False)]
            with_log = {run_id for run_id in ids if runs.stat(f"{run_id}/{_LOG}") is not None}
            return page_of(with_log.union(self._foreign.of(job_id, runs).logs), run_order, limit, after)

    async def unsealed_runs(self, job_id: str) -> Mapping[str, str]:
        """The Runs that another program wrote and nobody went on with, and which program."""
        with ExitStack() as opened:
            runs = self._find(opened, job_id, "runs")
            if runs is None:
                self._job(opened, job_id)
                return {}
            foreign = self._foreign.of(job_id, runs)
            return {run_id: foreign.writer for run_id in foreign.logs if runs.stat(f"{run_id}/{_LOG}") is None}

    async def append(self, run: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        """Add records after the first `expected_seq`; they survive power loss when this returns. Raises Conflict."""
        if not records:
            return
        if self._pace.is_slow:
            await uninterrupted(asyncio.to_thread(self._append, run, expected_seq, records))
        else:
            self._append(run, expected_seq, records)

    def _append(self, run: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        with self._pace.measured():
            log = self._use(run)
            if log is None and self._begin(run, expected_seq, records):
                return
            log = log or self._use(run)
            if log is None:
                raise StorageError(f"{self._log_path(run)}: it was removed while it was written to")
            try:
                log.append(expected_seq, records)
            finally:
                self._leave(log)

    async def read(self, run: RunRef, after: int = 0, limit: int | None = None) -> list[bytes]:
        """The records after place `after`, at most `limit`. An unknown Run has none. Raises Damaged."""
        log = self._use(run)
        if log is not None:
            try:
                return log.read(after, limit)
            finally:
                self._leave(log)
        return self._foreign_log(run)[after : None if limit is None else after + limit]

    async def end(self, run: RunRef, count: int) -> list[bytes]:
        """The last records, unchecked."""
        log = self._use(run)
        if log is not None:
            try:
                return log.end(count)
            finally:
                self._leave(log)
        return self._foreign_log(run)[-count:]

    async def redact(self, run: RunRef, seq: int, record: bytes) -> None:
        """Put a record without content in the place of one. Raises NotFound and Conflict."""
        await uninterrupted(asyncio.to_thread(self._redact, run, seq, record))

    def _redact(self, run: RunRef, seq: int, record: bytes) -> None:
        log = self._use(run)
        if log is None:
            raise NotFound(f"{self._log_path(run)}: there is no such log of this host's own")
        try:
            with log.staying() as records, ExitStack() as opened:
                check_redaction(records, seq, record, str(self._log_path(run)))
                folder = self._find(opened, run.job_id, "runs", run.run_id)
                if folder is None:
                    raise StorageError(f"{self._log_path(run)}: it was removed while it was written to")
                # a new file: whoever has the old one open finds that it is deleted, and opens this one
                folder.replace(_LOG, b"\n".join((*records[: seq - 1], record, *records[seq:], b"")), sync=True)
                folder.sync()
        finally:
            self._leave(log)

    async def put_summary(self, job_id: str, summary: bytes) -> None:
        """Replace job.json."""
        with ExitStack() as opened:
            self._job(opened, job_id).replace(_SUMMARY, summary, sync=False, modified_ns=time.time_ns())

    async def summary(self, job_id: str) -> bytes | None:
        """job.json; None if there is none."""
        with ExitStack() as opened:
            job = self._find(opened, job_id)
            return None if job is None else job.read(_SUMMARY)

    async def summaries(self) -> Mapping[str, bytes]:
        """Every job.json."""
        return await asyncio.to_thread(self._summaries)

    def _summaries(self) -> dict[str, bytes]:
        with ExitStack() as opened:
            jobs = self._jobs(opened)
            return {} if jobs is None else {name: read_below(jobs, name, _SUMMARY) or b"" for name in job_names(jobs)}

    async def put_entry(
        self, job_id: str, seq: int, entry: bytes, *, synced: bool = False, expected: tuple[RunRef, Head] | None = None
    ) -> None:
        """Replace a Job's entry, unless it is of a later place, or the log is not the expected one."""
        check_job_id(job_id)
        jobs = self._folders.find(self._space)
        if jobs is None:
            raise NotFound(f"there is no Job {job_id} in {self._root}")
        with jobs:
            put_entry(jobs, job_id, seq, entry, synced=synced, is_wanted=lambda: self._has_record(expected))

    def _has_record(self, expected: tuple[RunRef, Head] | None) -> bool:
        if expected is None:
            return True
        run, head = expected
        with ExitStack() as opened:
            # by its name: a log that is open may be that of a Job which is being removed
            folder = self._find(opened, run.job_id, "runs", run.run_id)
            log = None if folder is None else folder.read(_LOG)
        return log is not None and any(ends_at(line, head) for line in reversed(log.splitlines()))

    async def entries(self) -> Mapping[str, bytes]:
        """The entry of every Job."""
        with ExitStack() as opened:
            jobs = self._jobs(opened)
            return {} if jobs is None else read_entries(jobs, job_names(jobs))

    async def entry(self, job_id: str) -> tuple[int, bytes] | None:
        """The entry of one Job, and the place that it tells of."""
        check_job_id(job_id)
        jobs = self._folders.find(self._space)
        if jobs is None:
            return None
        with jobs:
            return self._entries.find(jobs, job_id)

    async def lost_jobs(self) -> tuple[str, ...]:
        """The ids that have an entry and no folder."""
        with ExitStack() as opened:
            jobs = self._jobs(opened)
            lost = () if jobs is None else {*filter(is_id, entry_names(jobs))}.difference(job_names(jobs))
            return tuple(sorted(lost))

    async def put_run_setting(self, run: RunRef, setting: bytes) -> None:
        """Replace run-setting.json."""
        check_id(run.run_id, "run")
        with ExitStack() as opened:
            runs = self._made(opened, run.job_id, "runs")
            opened.enter_context(runs.make(run.run_id)).replace("run-setting.json", setting, sync=False)

    async def run_setting(self, run: RunRef) -> bytes | None:
        """run-setting.json; None if there is none."""
        check_id(run.run_id, "run")
        with ExitStack() as opened:
            folder = self._find(opened, run.job_id, "runs", run.run_id)
            return None if folder is None else folder.read("run-setting.json")

    async def put_checkpoint(self, job_id: str, checkpoint_id: str, data: bytes) -> None:
        """Replace a checkpoint's file."""
        check_id(checkpoint_id, "checkpoint")
        with ExitStack() as opened:
            self._made(opened, job_id, "checkpoints").replace(f"{checkpoint_id}.json", data, sync=False)

    async def checkpoint(self, job_id: str, checkpoint_id: str) -> bytes | None:
        """What was put under that id; None if nothing was, or it was lost."""
        check_id(checkpoint_id, "checkpoint")
        with ExitStack() as opened:
            folder = self._find(opened, job_id, "checkpoints")
            return None if folder is None else folder.read(f"{checkpoint_id}.json")

    async def checkpoints(self, job_id: str, *, limit: int = 1000, after: str | None = None) -> Page:
        """Ids of the checkpoints that were put, in the order of their ids' Run and place."""
        with ExitStack() as opened:
            self._job(opened, job_id)
            folder = self._find(opened, job_id, "checkpoints")
            if folder is None:
                return Page(())
            names = [entry.name for entry in folder.entries() if entry.name.endswith(".json")]
            # those of other programs are of other shapes, and are derived from events like any that was lost
            ids = [name[:-5] for name in names if name.startswith(job_id)]
            return page_of(ids, checkpoint_order, limit, after)

    def checkpoint_path(self, job_id: str, checkpoint_id: str) -> Path:
        """Where a checkpoint's file is or would be."""
        check_id(checkpoint_id, "checkpoint")
        return self._root / self._space / check_job_id(job_id) / "checkpoints" / f"{checkpoint_id}.json"

    async def blob(self, job_id: str, sha256: str) -> bytes:
        """Raises NotFound, and StorageError if the file's content is not what its name says."""
        check_id(sha256, "blob")
        with ExitStack() as opened:
            folder = self._find(opened, job_id, "blobs")
            data = None if folder is None else folder.read(sha256)
            runs = None if data is not None else self._find(opened, job_id, "runs")
            if runs is not None:
                data = self._foreign.of(job_id, runs).job.blobs.get(sha256)
        if data is None:
            raise NotFound(f"job {job_id} has no blob {sha256}")
        if new_sha256(data).hexdigest() != sha256:
            raise StorageError(f"{self._root}/{self._space}/{job_id}/blobs/{sha256}: damaged; put it back from a copy")
        return data

    async def sizes(self, job_ids: Sequence[str] | None = None) -> Mapping[str, JobSize]:
        """How many bytes each Job's files have; its entry is in a file of all Jobs."""
        with ExitStack() as opened:
            jobs = self._jobs(opened)
            if jobs is None:
                return {}
            there = dict.fromkeys(await asyncio.to_thread(job_names, jobs))
            wanted = [*there] if job_ids is None else [one for one in job_ids if one in there]
            return await asyncio.to_thread(lambda: {one: size_of_job(jobs, one) for one in wanted})

    async def size(self) -> int:
        """Every file below the state directory."""
        return await asyncio.to_thread(size_of_all, self._root)

    async def erase_traces(self, job_id: str) -> None:
        """Remove what writes of this Job have left that were cut short."""
        with ExitStack() as opened:
            await asyncio.to_thread(remove_unfinished, self._job(opened, job_id))

    @asynccontextmanager
    async def lease(self, job_id: str, holder: str) -> AsyncGenerator[None]:
        """The right to drive a Job, free the moment its holder dies. Raises Conflict, naming the holder."""
        async with hold(lambda: self._open_lease(job_id), holder, job_id):
            yield

    async def lease_info(self, job_id: str) -> LeaseInfo | None:
        """Who holds the lease now; None if nobody does."""
        with ExitStack() as opened:
            job = self._find(opened, job_id)
            fd = None if job is None else job.open(_LEASE, os.O_RDONLY)
            if fd is None:
                return None
            opened.callback(os.close, fd)
            holder = holder_of(fd)
            return None if holder is None else LeaseInfo(holder)

    async def delete_job(self, job_id: str, *, expected: tuple[RunRef, int] | None = None) -> None:
        """Remove a Job. Raises NotFound, and Conflict while it is driven or if its log is not as expected."""
        async with self.lease(job_id, f"the deletion of it (pid {os.getpid()})"):
            with ExitStack() as opened:
                jobs = self._jobs(opened)
                if jobs is None:
                    raise NotFound(f"there is no Job {job_id} in {self._root}")
                if expected is not None:
                    opened.enter_context(self._staying_at(*expected))
                # the Job is gone in one moment; a crash while its files go leaves nothing that looks like one
                doomed = f"{_DOOMED}{job_id}.{time.time_ns()}"
                with forgotten(jobs, job_id):
                    try:
                        os.rename(job_id, doomed, src_dir_fd=jobs.fd, dst_dir_fd=jobs.fd)
                    except OSError as error:
                        raise explained(error, jobs.path / job_id) from error
                jobs.sync()
                # also what an earlier deletion left when it was cut short
                for entry in jobs.entries():
                    if entry.name.startswith(_DOOMED):
                        self._free(jobs, entry.name)
                        shutil.rmtree(entry.name, ignore_errors=True, dir_fd=jobs.fd)
        with self._turn:
            for run in [run for run in self._logs if run.job_id == job_id]:
                self._logs.pop(run).retire()

    def _free(self, jobs: Folder, doomed: str) -> None:
        job = jobs.find(doomed)
        if job is not None:
            with job:
                self._free_blobs(job)

    async def close(self) -> None:
        """Close the open files."""
        self._entries.close()
        with self._turn:
            while self._logs:
                self._logs.popitem()[1].retire()
        for space in self._spaces.values():
            await space.close()
        self._folders.close()

    def _log_path(self, run: RunRef) -> Path:
        return self._root / self._space / run.job_id / "runs" / run.run_id / _LOG

    def _use(self, run: RunRef) -> Log | None:
        """The log, which stays open until `_leave`; None if there is none."""
        with self._turn:
            log = self._log(run)
            if log is not None:
                log.enter()
            return log

    def _leave(self, log: Log) -> None:
        with self._turn:
            log.leave()

    def _log(self, run: RunRef) -> Log | None:
        """The log, from the open ones if it is among them; None if there is none."""
        log = self._logs.get(run)
        if log is not None and not log.is_deleted:
            self._logs.move_to_end(run)
            return log
        if log is not None:
            self._logs.pop(run).retire()
        check_id(run.run_id, "run")
        with ExitStack() as opened:
            folder = self._find(opened, run.job_id, "runs", run.run_id)
            fd = None if folder is None else folder.open_log(_LOG)
        if fd is None:
            return None
        return self._keep(run, Log(fd, self._log_path(run)))

    def _keep(self, run: RunRef, log: Log) -> Log:
        self._logs[run] = log
        unused = [run for run, one in self._logs.items() if not one.is_used and one is not log]
        for run in unused[: max(0, len(self._logs) - _MOST_OPEN_LOGS)]:
            self._logs.pop(run).retire()
        return log

    def _begin(self, run: RunRef, expected_seq: int, records: Sequence[bytes]) -> bool:
        """Make a log with its first records in it; False if another process has made it meanwhile.

        The log of a Run that another program began starts with what that wrote.
        """
        path = str(self._log_path(run))
        with ExitStack() as opened:
            runs = self._made(opened, run.job_id, "runs")
            with self._turn:
                earlier = self._foreign.of(run.job_id, runs).logs.get(run.run_id, [])
            if len(earlier) != expected_seq:
                raise stale(path, expected_seq, len(earlier))
            head = Head(len(earlier), open_line(earlier[-1]).hash) if earlier else EMPTY_LOG
            head_after(head, records, path)
            folder = opened.enter_context(runs.make(run.run_id))
            folder.lock()
            if folder.stat(_LOG) is not None:
                return False
            folder.replace(_LOG, b"\n".join((*earlier, *records, b"")), sync=True)
            folder.sync()
        return True

    @contextmanager
    def _staying_at(self, run: RunRef, expected_seq: int) -> Generator[None]:
        """Nobody writes to a log of so many records meanwhile. Raises Conflict if it has others."""
        log = self._use(run)
        if log is None:
            raise stale(str(self._log_path(run)), expected_seq, 0)
        try:
            with log.staying_at(expected_seq):
                yield
        finally:
            self._leave(log)

    async def foreign_checkpoint(self, job_id: str, checkpoint_id: str) -> str | None:
        """Our id of a checkpoint that another program wrote; None if the Job has none of that id."""
        with ExitStack() as opened:
            runs = self._find(opened, job_id, "runs")
            return None if runs is None else self._foreign.of(job_id, runs).job.checkpoints.get(checkpoint_id)

    def _foreign_log(self, run: RunRef) -> list[bytes]:
        with ExitStack() as opened:
            runs = self._find(opened, run.job_id, "runs")
            return [] if runs is None else self._foreign.of(run.job_id, runs).logs.get(run.run_id, [])

    def _open_lease(self, job_id: str) -> int:
        with ExitStack() as opened:
            fd = self._job(opened, job_id).open(_LEASE, os.O_RDWR | os.O_CREAT)
        if fd is None:
            raise NotFound(f"job {job_id} was deleted")
        return fd
