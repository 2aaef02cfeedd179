"""Job directories with Runs that another program wrote, presented as sealed logs.

They are read only. When one of these Runs is continued here, its log is written next to them and replaces them from
then on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from perstack.core.base.chain import EMPTY_LOG, seal
from perstack.dataclass import dataclass
from perstack.errors import StorageError
from perstack.ports.formats import ForeignJob, JobFormat
from perstack_filesystem.directories import OpenDirectory

if TYPE_CHECKING:
    from perstack.core.runs.events import StoredEvent

_MAX_JOBS = 8


@dataclass(frozen=True, slots=True)
class SealedJob:
    """A Job of another program, with its events as sealed records."""

    foreign_job: ForeignJob = field(default_factory=ForeignJob)
    writer: str = ""  # name of the program, for messages
    logs: dict[str, list[bytes]] = field(default_factory=dict[str, list[bytes]])


Stamp = tuple[tuple[str, int], ...]

_NO_JOB = SealedJob()


class ForeignJobs:
    """A cache of Jobs that other programs wrote. A Job is read again when its files change."""

    def __init__(self, formats: Sequence[JobFormat] = ()) -> None:
        """Read nothing yet; `formats` are tried in order."""
        self.formats = formats
        self._jobs: OrderedDict[str, tuple[Stamp, SealedJob]] = OrderedDict()

    def of(self, job_id: str, runs: OpenDirectory) -> SealedJob:
        """Return the Job in this `runs` directory; empty if no known format matches."""
        stamp = _change_stamp(job_id, runs) if self.formats else ()
        if not stamp:
            return _NO_JOB
        cached = self._jobs.get(job_id)
        if cached is None or cached[0] != stamp:
            cached = self._jobs[job_id] = (stamp, self._read_job(job_id, runs, [name for name, _ in stamp]))
            while len(self._jobs) > _MAX_JOBS:
                self._jobs.popitem(last=False)
        return cached[1]

    def _read_job(self, job_id: str, runs: OpenDirectory, names: Sequence[str]) -> SealedJob:
        for job_format in self.formats:
            try:
                foreign_job = job_format.read(job_id, runs, names)
                logs = {run_id: _seal_events(log) for run_id, log in foreign_job.logs.items()}
            except (ValueError, LookupError, ArithmeticError) as error:
                writer = job_format.writer
                raise StorageError(f"{runs.path}: not a valid Job of {writer} ({error})") from error
            if logs:
                return SealedJob(foreign_job, job_format.writer, logs)
        return _NO_JOB


def _change_stamp(job_id: str, runs: OpenDirectory) -> Stamp:
    """Return the other program's subdirectories and their modification times, which change when it writes more."""
    return tuple(
        sorted(
            (entry.name, entry.stat(follow_symlinks=False).st_mtime_ns)
            for entry in runs.entries()
            if not entry.name.startswith(job_id) and entry.is_dir(follow_symlinks=False)
        )
    )


def _seal_events(log: Sequence[StoredEvent]) -> list[bytes]:
    head = EMPTY_LOG
    records: list[bytes] = []
    for event in log:
        lines, head = seal(head, [event.to_json()])
        records += lines
    return records
