"""One Run's log: an open file, and what is known of its content."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from perstack.errors import Conflict, Damaged
from perstack.ports.appending import head_after, stale
from perstack.ports.durable import sync_data
from perstack_filesystem.folders import explained, write_all
from perstack_filesystem.scan import Scan

_END = 1 << 17
_LONGEST_END = 1 << 25
"""Bytes of a file that are looked at for its last lines: at first, and at most."""


class Log:
    """An open events.jsonl. Appending costs what is appended, however long the log is."""

    def __init__(self, fd: int, path: Path) -> None:
        self._users = 0
        self._is_retired = False
        self._fd = fd
        opened = os.fstat(fd)
        self._number = (opened.st_dev, opened.st_ino)
        self._path = path
        self._scan = Scan()
        self._turn = Lock()
        self._is_read_only = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY

    @property
    def is_deleted(self) -> bool:
        """Whether the file has lost its name since it was opened, with that of a folder above it too."""
        try:
            now = self._path.lstat()
        except OSError:
            return True  # whoever opens it anew says why
        return (now.st_dev, now.st_ino) != self._number

    @property
    def is_used(self) -> bool:
        """Whether somebody is at work on it, maybe in a thread."""
        return self._users > 0

    def enter(self) -> None:
        """Begin to work on it: until `leave` it stays open. Not for several threads at once, nor the next two."""
        self._users += 1

    def leave(self) -> None:
        """The end of that."""
        self._users -= 1
        self._close_if_unused()

    def retire(self) -> None:
        """Close the file as soon as nobody is at work on it: its number may be another file's from then on."""
        self._is_retired = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._is_retired and not self._users:
            os.close(self._fd)

    def read(self, after: int, limit: int | None) -> list[bytes]:
        """The records after place `after`. Reading from the first on verifies them anew from the disk."""
        want = None if limit is None else after + limit
        with self._turn:
            scan = self._scan
            try:
                if after == 0 or os.fstat(self._fd).st_size < scan.size:
                    scan = Scan()
                known = scan.seq
                found = scan.advance(self._read_at, str(self._path), want)
                earlier = self._reread(scan, after, known if want is None else min(known, want))
            except Damaged:
                self._scan = scan
                raise
            except OSError as error:
                raise explained(error, self._path) from error
            if scan.seq >= self._scan.seq:
                self._scan = scan
            # `found` begins at place `known`, and may hold more than is wanted: the rest of an append
            return earlier + found[max(0, after - known) : None if want is None else max(0, want - known)]

    def end(self, count: int) -> list[bytes]:
        """The last lines of the file that have a newline, at most so many, as they stand."""
        try:
            size, length = os.fstat(self._fd).st_size, _END
            while True:
                start = max(0, size - length)
                lines = self._read_at(size - start, start).split(b"\n")[:-1]
                if not start or len(lines) > count or length >= _LONGEST_END:
                    return lines[max(int(start > 0), len(lines) - count) :]
                length *= 4
        except OSError as error:
            raise explained(error, self._path) from error

    def append(self, expected_seq: int, records: Sequence[bytes]) -> None:
        """Add records after the first `expected_seq`, synced. Raises Conflict, Damaged or StorageError."""
        with self.staying_at(expected_seq):
            head = head_after(self._scan.head, records, str(self._path))
            data = b"\n".join((*records, b""))
            try:
                write_all(self._fd, b"\n" + data if self._scan.lacks_newline else data)
                sync_data(self._fd)
            except OSError:
                # all or nothing: what was written of it goes away again
                os.ftruncate(self._fd, self._scan.size)
                raise
            self._scan.grown(list(records), head)

    @contextmanager
    def staying_at(self, expected_seq: int | None) -> Generator[None]:
        """Nobody else writes to it meanwhile. Raises Conflict if it has not so many records, or was deleted.

        None: it may have any number.
        """
        with self._turn:
            try:
                if self._is_read_only:
                    raise PermissionError(errno.EACCES, "it may only be read")
                fcntl.flock(self._fd, fcntl.LOCK_EX)
                try:
                    self._catch_up(expected_seq)
                    yield
                finally:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
            except OSError as error:
                raise explained(error, self._path) from error

    @contextmanager
    def staying(self) -> Generator[list[bytes]]:
        """All its records; nobody else writes to it meanwhile. Raises Damaged, and Conflict if it was deleted."""
        with self.staying_at(None):
            yield self._reread(self._scan, 0, self._scan.seq)

    def _catch_up(self, expected_seq: int | None) -> None:
        """Read what others have written since, and cut off a torn tail. Raises as `staying_at`."""
        size = os.fstat(self._fd).st_size
        if size < self._scan.size:
            self._scan = Scan()
        if size != self._scan.size:
            self._scan.advance(self._read_at, str(self._path))
        if size != self._scan.size:
            os.ftruncate(self._fd, self._scan.size)
        if expected_seq is not None and expected_seq != self._scan.seq:
            raise stale(str(self._path), expected_seq, self._scan.seq)
        if self.is_deleted:
            raise Conflict(f"{self._path}: it was deleted by another process")

    def _reread(self, scan: Scan, after: int, through: int) -> list[bytes]:
        """Records that were verified before."""
        if after >= through:
            return []
        start, end = scan.ends[after - 1] if after else 0, scan.ends[through - 1]
        return os.pread(self._fd, end - start, start).removesuffix(b"\n").split(b"\n")

    def _read_at(self, length: int, offset: int) -> bytes:
        return os.pread(self._fd, length, offset)
