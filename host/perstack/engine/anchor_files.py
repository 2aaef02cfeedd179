"""An anchor that is a file, or a folder with a file for each Job: JSON lines, which are only ever appended."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from perstack.core.receipts import MOST_BYTES, Record, read_record
from perstack.ports.daemon_thread import in_daemon_thread

_MOST_READ = 256 << 20
"""A file of more bytes is not read."""


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

    async def records(self, job_id: str) -> tuple[list[Record], int]:
        """The records of a Job, in the order they came, and how many lines are none. Nothing if there is no file yet.

        Raises OSError.
        """
        return await in_daemon_thread(lambda: self._read(job_id), "anchor")

    def _file(self, job_id: str) -> Path:
        path = Path(self.path)
        return path / f"{job_id}.jsonl" if self.path.endswith("/") or path.is_dir() else path

    def _append(self, job_id: str, record: bytes) -> None:
        path = self._file(job_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        # O_NONBLOCK: a pipe that nobody reads is refused, and not waited for
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            _check_file(fd)
            # a newline first too: what is there may end with half a line, of a write that failed
            data = b"\n%b\n" % record if os.fstat(fd).st_size else b"%b\n" % record
            while data:
                data = data[os.write(fd, data) :]
            os.fsync(fd)
        finally:
            os.close(fd)

    def _read(self, job_id: str) -> tuple[list[Record], int]:
        try:
            fd = os.open(self._file(job_id), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return [], 0
        found: list[Record] = []
        unread = 0
        with os.fdopen(fd, "rb") as file:
            _check_file(fd)
            if os.fstat(fd).st_size > _MOST_READ:
                raise OSError(errno.EFBIG, f"it has more than {_MOST_READ:,} bytes: name a folder, for a file a Job")
            for line in _lines(file):
                try:
                    record = read_record(line)
                except ValueError:
                    unread += 1
                    continue
                if record.statement.predicate.job_id == job_id:
                    found.append(record)
        return found, unread


def _check_file(fd: int) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines that are not empty; one that is too long comes in pieces."""
    while line := file.readline(MOST_BYTES + 1):
        if line.strip():
            yield line.strip()
