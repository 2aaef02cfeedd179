"""The journal of a rewind: its steps, on disk before the first one, so that the next process can complete it.

It says what is done to files, so it is in the user's state directory, which no repository and no program of an Expert
can write. Each path in it is a `StoredPath`, and is opened without following links.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from perstack.core.base.records import Record, falsy
from perstack.core.files.file_names import StagingName, StoredPath
from perstack.errors import StorageError
from perstack.system.files import (
    FILE_MODE,
    FOLDER,
    FOLDER_MODE,
    REAL_FOLDER,
    FileTooLarge,
    open_for_reading,
    open_regular,
    read_rest,
    sync,
    sync_directory,
)

# Paths relative to an open handle of the workspace. No link is followed: programs may put one there at any time.


def open_root(workspace: Path) -> int:
    """Open the workspace's folder, whose own path may contain links. Raises OSError."""
    return os.open(workspace, FOLDER)


@contextmanager
def parent_of(root: int, path: bytes) -> Generator[tuple[int, bytes]]:
    """Open the folder that contains a path, following no link, and yield it with the last name of the path.

    Raises OSError: FileNotFoundError if a folder above is missing, and ENOTDIR if a link or file is in its place.
    """
    *parents, name = path.split(b"/")
    handle = os.dup(root)
    try:
        for part in parents:
            inner = os.open(part, REAL_FOLDER, dir_fd=handle)
            os.close(handle)
            handle = inner
        yield handle, name
    finally:
        os.close(handle)


def make_folder(handle: int, name: bytes) -> bool:
    """Make a folder; return False if something of that name exists. Raises OSError."""
    try:
        os.mkdir(name, dir_fd=handle)
    except FileExistsError:
        return False
    return True


def status_at(handle: int, name: bytes) -> os.stat_result | None:
    """Return the status of a path without following a link; None if nothing is there. Raises OSError."""
    try:
        return os.stat(name, dir_fd=handle, follow_symlinks=False)
    except FileNotFoundError:
        return None


def read_file(handle: int, name: bytes, max_bytes: int) -> bytes | None:
    """Return the content of a regular file; None if it has more than `max_bytes` bytes. Raises OSError."""
    try:
        with open_for_reading(name, handle) as file:
            return read_rest(file, max_bytes)
    except FileTooLarge:
        return None


def write_file(handle: int, name: bytes, data: bytes, mode: int) -> None:
    """Create a file, which survives power loss when this returns. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags, 0o600, dir_fd=handle)
    try:
        remaining = memoryview(data)
        while remaining:
            remaining = remaining[os.write(fd, remaining) :]
        os.fchmod(fd, mode)
        sync(fd)
    finally:
        os.close(fd)


_MAX_JOURNAL_BYTES = 1 << 30


class Step(Record):
    """One change of a path in the workspace."""

    act: Literal["remove", "rmdir", "mkdir", "put"]
    path: StoredPath  # path as spelled in trees
    number: int  # number of the files in the staging folder: `new-7` will be put in place, `old-7` was there before
    replaces: bool = Field(default=False, exclude_if=falsy)  # True if a file or link was at the path before
    digest: str = Field(default="", exclude_if=falsy)  # digest of the file to put in place; empty for a link
    mode: int = 0  # permissions of a folder that is removed


class Rewound(Record):
    """The content of the event that records a completed rewind."""

    job_id: str
    run_id: str
    start: str  # id of the `startRewind` event
    files: int
    kept: int = 0


class Journal(Record):
    """A rewind of one workspace, and its progress."""

    workspace: str
    storage: str  # location of the state of the Job that is rewound
    staging: StagingName
    phase: Literal["clearing", "forward", "back"]
    """`clearing`: only the staging folder is left to remove. `forward`: steps are made. `back`: steps are undone."""
    is_made: bool = Field(default=False, exclude_if=falsy)  # True if the files are restored and that is recorded
    steps: tuple[Step, ...] = ()
    rewound: Rewound | None = None


class JournalFile:
    """The journal file of one workspace."""

    def __init__(self, path: Path, workspace: Path) -> None:
        self.path = path
        self.folder = path.parent
        self._new_path = path.with_suffix(".new")
        self.workspace = workspace

    def read(self) -> Journal | None:
        """Return the journal; None without one. Raises StorageError."""
        try:
            with open_for_reading(self.path) as file:
                journal = Journal.model_validate_json(read_rest(file, _MAX_JOURNAL_BYTES))
        except FileNotFoundError:
            return None
        except FileTooLarge:
            raise StorageError(f"{self.path}: no rewind writes a journal this large; remove it") from None
        except (OSError, ValidationError) as error:
            reason = "is not the journal of a rewind" if isinstance(error, ValidationError) else error.strerror
            raise StorageError(
                f"{self.path}: {reason}: a rewind may have been cut short; check the files, and remove this"
            ) from error
        if journal.workspace != str(self.workspace):
            raise StorageError(f"{self.path}: it is the journal of a rewind of {journal.workspace}; remove it")
        return journal

    def write(self, journal: Journal) -> None:
        """Replace the journal; it survives power loss when this returns. Raises OSError."""
        if not self.folder.is_dir():
            self.folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
            sync_directory(self.folder.parent)
        # a fixed name, because only the lock holder writes it: a file left by a killed process is overwritten
        handle = open_regular(self._new_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
        try:
            remaining = memoryview(journal.to_json())
            while remaining:
                remaining = remaining[os.write(handle, remaining) :]
            sync(handle)
        finally:
            os.close(handle)
        self._new_path.replace(self.path)
        sync_directory(self.folder)

    def remove(self) -> None:
        """Remove the journal at the end of a rewind. Raises OSError."""
        for path in (self.path, self._new_path):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # it has the journal of another workspace
            self.folder.rmdir()
