"""An anchor that is a file, or a folder with a file for each Job: JSON lines, which are only ever appended."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import BinaryIO

from perstack.core.ids import check_job_id
from perstack.core.owners import Owner
from perstack.core.receipts import MOST_BYTES, Record, read_record
from perstack.dataclass import dataclass
from perstack.errors import UsageError
from perstack.ports.daemon_thread import in_daemon_thread
from perstack.ports.durable import sync

_MOST_READ = 256 << 20
"""A file of more bytes is not read."""

_END = ".jsonl"


@dataclass(frozen=True, slots=True)
class FileAnchor:
    """A place in a file system that whoever writes the logs can at most append to."""

    path: str

    @property
    def name(self) -> str:
        """Its path."""
        return f"file:{self.path}"

    async def send(self, job_id: str, record: bytes) -> None:
        """Append it; it survives power loss when this returns. Raises OSError."""
        await in_daemon_thread(lambda: self._append(job_id, record), "anchor")

    async def records(self, owner: Owner) -> tuple[list[Record], int]:
        """The records of a Job, a task or a series, in the order they came, and how many lines are none. Nothing if
        there is no file yet.

        Raises OSError.
        """
        return await in_daemon_thread(lambda: _read(self.file_of(owner.id), owner).of(owner), "anchor")

    async def contents(self) -> FileContents | FolderContents:
        """All that it has: of a file as it is now, of a folder read when it is asked for. Raises OSError."""
        if self._is_folder():
            return FolderContents(self)
        return await in_daemon_thread(lambda: FileContents(_read(Path(self.path))), "anchor")

    def _is_folder(self) -> bool:
        return self.path.endswith("/") or Path(self.path).is_dir()

    def file_of(self, job_id: str) -> Path:
        """Where the records of one are."""
        return Path(self.path) / f"{job_id}{_END}" if self._is_folder() else Path(self.path)

    def _append(self, job_id: str, record: bytes) -> None:
        path = self.file_of(job_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        # O_NONBLOCK: a pipe that nobody reads is refused, and not waited for
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            _check_file(fd)
            # a newline first too: what is there may end with half a line, of a write that failed
            data = b"\n%b\n" % record if os.fstat(fd).st_size else b"%b\n" % record
            while data:
                data = data[os.write(fd, data) :]
            sync(fd)
        finally:
            os.close(fd)


@dataclass(slots=True)
class _Lines:
    """The lines of a file that are records, as they are written: read, they take many times the memory."""

    of_owner: dict[Owner, list[bytes]] = field(default_factory=dict[Owner, list[bytes]])
    unread: int = 0
    """How many lines are not records."""

    def of(self, owner: Owner) -> tuple[list[Record], int]:
        """The records of one, and how many lines are none."""
        return [read_record(line) for line in self.of_owner.get(owner, ())], self.unread


@dataclass(frozen=True, slots=True)
class FileContents:
    """What was in a file."""

    lines: _Lines

    async def records(self, owner: Owner) -> tuple[list[Record], int]:
        """The records of one, and how many lines are none."""
        return await in_daemon_thread(lambda: self.lines.of(owner), "anchor")

    async def owners(self) -> frozenset[Owner]:
        """All that it had records of."""
        return frozenset(self.lines.of_owner)


@dataclass(frozen=True, slots=True)
class FolderContents:
    """What is in a folder. A file is read for its records; for the owners alone it is not read again."""

    anchor: FileAnchor
    _seen: dict[Path, frozenset[Owner]] = field(default_factory=dict[Path, frozenset[Owner]])

    async def records(self, owner: Owner) -> tuple[list[Record], int]:
        """The records of one, and how many lines of that file are none. Raises OSError."""
        lines = await in_daemon_thread(lambda: self._read(self.anchor.file_of(owner.id)), "anchor")
        return lines.of(owner)

    async def owners(self) -> frozenset[Owner]:
        """All that there are records of. Raises OSError."""
        return await in_daemon_thread(self._owners, "anchor")

    def _owners(self) -> frozenset[Owner]:
        folder = Path(self.anchor.path)
        for path in sorted(folder.glob(f"*{_END}")) if folder.exists() else ():
            if path not in self._seen:
                self._read(path)
        return frozenset[Owner]().union(*self._seen.values())

    def _read(self, path: Path) -> _Lines:
        lines = _read(path)
        # in a folder the records of each are in a file of its own: others that stand there were put there
        self._seen[path] = frozenset(owner for owner in lines.of_owner if self.anchor.file_of(owner.id) == path)
        return lines


def _read(path: Path, only: Owner | None = None) -> _Lines:
    """The records in a file, of one or of all; none if there is no such file. Raises OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return _Lines()
    found = _Lines()
    with os.fdopen(fd, "rb") as file:
        _check_file(fd)
        if os.fstat(fd).st_size > _MOST_READ:
            raise OSError(errno.EFBIG, f"it has more than {_MOST_READ:,} bytes: name a folder, for a file a Job")
        for line in _lines(file):
            try:
                owner = read_record(line).owner
                check_job_id(owner.id)
            except (ValueError, UsageError):
                found.unread += 1
                continue
            if only in (None, owner):
                found.of_owner.setdefault(owner, []).append(line)
    return found


def _check_file(fd: int) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines that are not empty; one that is too long comes in pieces."""
    while line := file.readline(MOST_BYTES + 1):
        if line.strip():
            yield line.strip()
