"""Which Jobs there are, and when each was written last."""

from __future__ import annotations

import os

from perstack.ports.paging import is_id
from perstack_filesystem.folders import Folder, explained


def job_names(jobs: Folder) -> list[str]:
    """The ids of the Jobs that have a folder."""
    return [entry.name for entry in jobs.entries() if is_id(entry.name) and entry.is_dir(follow_symlinks=False)]


def jobs_with_times(jobs: Folder, summary: str) -> list[tuple[int, str]]:
    """Each Job with the time of its summary, or else of its folder, in ns; logs are not looked at."""
    try:
        return [
            (_changed(jobs, entry.name, summary), entry.name)
            for entry in jobs.entries()
            if is_id(entry.name) and entry.is_dir(follow_symlinks=False)
        ]
    except OSError as error:
        raise explained(error, jobs.path) from error


def _changed(jobs: Folder, name: str, summary: str) -> int:
    for path in (f"{name}/{summary}", name):
        try:
            return os.stat(path, dir_fd=jobs.fd, follow_symlinks=False).st_mtime_ns
        except FileNotFoundError:
            continue
    return 0
