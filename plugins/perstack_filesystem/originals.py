"""Which Jobs hold runs that the original Perstack wrote. Light: what reads them is imported when there is one."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from perstack_filesystem.folders import Folder

_MOST_ORIGINALS = 8


@dataclass(frozen=True, slots=True)
class OriginalJob:
    """A Job in our form: sealed records by our Run ids, and the files that stood in its messages."""

    logs: dict[str, list[bytes]] = field(default_factory=dict[str, list[bytes]])
    blobs: dict[str, bytes] = field(default_factory=dict[str, bytes])
    checkpoints: dict[str, str] = field(default_factory=dict[str, str])
    """Our ids of checkpoints, by the original's."""


Stamp = tuple[tuple[str, int], ...]

_NOTHING = OriginalJob()


def stamp_of(job_id: str, runs: Folder) -> Stamp:
    """The folders in it that can only be the original's, with their times; they change when it writes more."""
    return tuple(
        sorted(
            (entry.name, entry.stat(follow_symlinks=False).st_mtime_ns)
            for entry in runs.entries()
            if not entry.name.startswith(job_id) and entry.is_dir(follow_symlinks=False)
        )
    )


class Originals:
    """What the original Perstack wrote, read once for as long as it stays as it is."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, tuple[Stamp, OriginalJob]] = OrderedDict()

    def of(self, job_id: str, runs: Folder) -> OriginalJob:
        """The Job whose folder of Runs this is; empty if nothing in it is the original's."""
        stamp = stamp_of(job_id, runs)
        if not stamp:
            return _NOTHING
        known = self._jobs.get(job_id)
        if known is None or known[0] != stamp:
            from perstack_filesystem.original import read_original

            known = self._jobs[job_id] = (stamp, read_original(job_id, runs, stamp))
            while len(self._jobs) > _MOST_ORIGINALS:
                self._jobs.popitem(last=False)
        return known[1]
