"""Job folders that hold Runs which another program wrote, seen as logs of ours.

They are only read. When one of their Runs goes on here, its log is written beside them, and counts from then on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import field

from perstack.core.chain import EMPTY_LOG, seal
from perstack.core.events import StoredEvent
from perstack.dataclass import dataclass
from perstack.ports.formats import ForeignJob, JobFormat
from perstack_filesystem.folders import Folder

_MOST_JOBS = 8


@dataclass(frozen=True, slots=True)
class SealedJob:
    """A Job of another program, with its events as sealed records."""

    job: ForeignJob = field(default_factory=ForeignJob)
    writer: str = ""
    """The program, for people."""
    logs: dict[str, list[bytes]] = field(default_factory=dict[str, list[bytes]])


Stamp = tuple[tuple[str, int], ...]

_NOTHING = SealedJob()


class ForeignJobs:
    """What other programs wrote, read once for as long as it stays as it is."""

    def __init__(self, formats: Sequence[JobFormat] = ()) -> None:
        self.formats = formats
        self._jobs: OrderedDict[str, tuple[Stamp, SealedJob]] = OrderedDict()

    def of(self, job_id: str, runs: Folder) -> SealedJob:
        """The Job whose folder of Runs this is; empty if nothing in it is of a format that is known."""
        stamp = _stamp_of(job_id, runs) if self.formats else ()
        if not stamp:
            return _NOTHING
        known = self._jobs.get(job_id)
        if known is None or known[0] != stamp:
            known = self._jobs[job_id] = (stamp, self._read(job_id, runs, [name for name, _ in stamp]))
            while len(self._jobs) > _MOST_JOBS:
                self._jobs.popitem(last=False)
        return known[1]

    def _read(self, job_id: str, runs: Folder, names: Sequence[str]) -> SealedJob:
        for one in self.formats:
            job = one.read(job_id, runs, names)
            if job.logs:
                return SealedJob(job, one.writer, {run_id: _sealed(log) for run_id, log in job.logs.items()})
        return _NOTHING


def _stamp_of(job_id: str, runs: Folder) -> Stamp:
    """The folders in it that cannot be ours, with their times; they change when more is written there."""
    return tuple(
        sorted(
            (entry.name, entry.stat(follow_symlinks=False).st_mtime_ns)
            for entry in runs.entries()
            if not entry.name.startswith(job_id) and entry.is_dir(follow_symlinks=False)
        )
    )


def _sealed(log: Sequence[StoredEvent]) -> list[bytes]:
    head = EMPTY_LOG
    records: list[bytes] = []
    for event in log:
        lines, head = seal(head, [event.to_json()])
        records += lines
    return records
