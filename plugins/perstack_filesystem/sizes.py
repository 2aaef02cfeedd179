"""How many bytes each Job takes, by what they are."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from perstack.ports.storage import JobSize
from perstack_filesystem.folders import Folder, explained

_KINDS = {"blobs": "blobs", "checkpoints": "checkpoints"}


def size_of_job(jobs: Folder, job_id: str) -> JobSize:
    """The files in a Job's folder; links are not followed. One that is removed meanwhile has none."""
    found = {"logs": 0, "blobs": 0, "checkpoints": 0, "caches": 0}
    for path, size in _files(jobs, job_id):
        top, _, rest = path.partition("/")
        is_log = top == "runs" and not rest.endswith("/run-setting.json")
        found["logs" if is_log else _KINDS.get(top, "caches")] += size
    return JobSize(**found)


def size_of_all(root: Path) -> int:
    """All files of a state directory, and below."""
    folder = Folder.top(root)
    if folder is None:
        return 0
    with folder:
        return sum(size for _, size in _files(folder, ".", once=True))


def _files(folder: Folder, name: str, *, once: bool = False) -> Iterable[tuple[str, int]]:
    """With `once` a file that has several names only by one of them."""
    seen: set[tuple[int, int]] = set()
    try:
        for path, _, names, fd in os.fwalk(name, dir_fd=folder.fd, follow_symlinks=False):
            below = os.path.relpath(path, name)
            for one in names:
                try:
                    found = os.stat(one, dir_fd=fd, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if once and found.st_nlink > 1:
                    number = (found.st_dev, found.st_ino)
                    if number in seen:
                        continue
                    seen.add(number)
                yield (one if below == "." else f"{below}/{one}"), found.st_size
    except FileNotFoundError:
        return
    except OSError as error:
        raise explained(error, folder.path / name) from error
