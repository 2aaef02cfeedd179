"""The log file of one Run: scan, verify and append."""

from __future__ import annotations

import errno
import fcntl
import os
from array import array
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from perstack.core.base.chain import EMPTY_LOG, BrokenSeal, CheckedLines, Head, check
from perstack.errors import Conflict, Damaged
from perstack.support.storage import head_after, stale_writer
from perstack.system.files import sync_data
from perstack_filesystem.directories import explain, write_all

# Which records a log file holds, and where its valid part ends. A log consists of lines sealed by `core.base.chain`.
# Incomplete data is read by these rules:
#
# - Bytes after the last newline that are not a whole record are a torn tail: a write cut short by a crash (or the NUL
#   bytes that a file system leaves there). Whole records before them from the same append belong to the tail too.
# - A whole last record that only lacks its newline counts.
# - A line with its newline that does not verify is damage, at any position.

ReadAt = Callable[[int, int], bytes]
"""A function `(length, offset)` that returns at most `length` bytes; empty at the end of the file."""

_MIN_READ_BYTES = 1 << 16
_MAX_READ_BYTES = 1 << 26


class Scan:
    """The verified records of a log, from the first record up to the scanned position."""

    def __init__(self) -> None:
        self.head: Head = EMPTY_LOG
        self.ends: array[int] = array("Q")  # offset after each record's newline
        self.lacks_newline = False  # True if the last record's newline is missing in the file
        self._batch: list[bytes] = []
        self._batch_head = EMPTY_LOG
        self._missing_records = 0

    @property
    def seq(self) -> int:
        """The number of verified records."""
        return len(self.ends)

    @property
    def end(self) -> int:
        """The offset after the last verified record and its newline."""
        return self.ends[-1] if self.ends else 0

    @property
    def size(self) -> int:
        """The size of a file that ends with the last verified record."""
        return self.end - self.lacks_newline

    def advance(self, read_at: ReadAt, place: str, want: int | None = None) -> list[bytes]:
        """Verify records until the log ends or `want` are known. Return the new ones, whole appends only.

        Raises Damaged, naming `place`, for a damaged line before record `want`; the records before it stay known.
        """
        records: list[bytes] = []
        self.lacks_newline = False
        self._batch, self._batch_head, self._missing_records = [], self.head, 0
        rest, length = b"", _MAX_READ_BYTES if want is None else _MIN_READ_BYTES
        offset = self.end
        while want is None or self.seq < want:
            data = read_at(length, offset)
            if not data:
                records += self._read_torn_tail(rest)
                break
            offset, length = offset + len(data), min(length * 4, _MAX_READ_BYTES)
            lines = (rest + data).split(b"\n") if rest else data.split(b"\n")
            rest = lines.pop()
            try:
                for line in lines:
                    self._add_line(line, records)
            except BrokenSeal as error:
                records += self._discard_batch()
                if want is None or self.seq < want:
                    raise self._damage_error(place, error) from error
        return records

    def extend(self, records: Sequence[bytes], head: Head) -> None:
        """Add records that were just written after the last verified one."""
        end = self.end
        for record in records:
            end += len(record) + 1
            self.ends.append(end)
        self.head = head
        self.lacks_newline = False

    def _add_line(self, line: bytes, records: list[bytes]) -> None:
        sealed, self._batch_head = check(self._batch_head, line)
        if self._missing_records == 0:
            self._missing_records = sealed.batch
        self._missing_records -= 1
        self._batch.append(line)
        if self._missing_records == 0:
            records += self._batch
            self._commit_batch()

    def _commit_batch(self) -> None:
        self.extend(self._batch, self._batch_head)
        self._batch = []

    def _read_torn_tail(self, rest: bytes) -> list[bytes]:
        """Read the end of the file: a whole record without its newline counts, other incomplete data does not."""
        records: list[bytes] = []
        if rest:
            try:
                self._add_line(rest, records)
            except BrokenSeal:
                return []
            self.lacks_newline = bool(records)
        return records

    def _discard_batch(self) -> list[bytes]:
        # A damaged line is not a torn tail, so the valid records before it count, even if their append is incomplete.
        batch = self._batch
        self._commit_batch()
        return batch

    def _damage_error(self, place: str, broken: BrokenSeal) -> Damaged:
        return Damaged(
            f"{place}, line {self.seq + 1}, byte {self.end}: {broken}; records before it that can be read: {self.seq}. "
            "Restore the file from a copy, or delete that line and all after it to continue from there",
            readable=self.seq,
        )


_MIN_TAIL_BYTES = 1 << 17
_MAX_TAIL_BYTES = 1 << 25  # bytes read from the end of a file to find its last lines: at first, and at most


class LogFile:
    """An open events.jsonl. The cost of an append does not depend on the length of the log."""

    def __init__(self, fd: int, path: Path) -> None:
        """Take ownership of the descriptor `fd`."""
        self._users = 0
        self._is_retired = False
        self._fd = fd
        status = os.fstat(fd)
        self._number = (status.st_dev, status.st_ino)
        self._path = path
        self._name = str(path)  # the path as text, for `lstat` at each append
        self._scan = Scan()
        self._turn = Lock()
        self._is_read_only = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY

    @property
    def is_deleted(self) -> bool:
        """Return True if the path no longer leads to the file that was opened."""
        try:
            status = os.lstat(self._name)
        except OSError:
            return True  # reopening the file reports the reason
        return (status.st_dev, status.st_ino) != self._number

    @property
    def is_used(self) -> bool:
        """True while the log is in use, possibly in a thread."""
        return self._users > 0

    def enter(self) -> None:
        """Begin a use, during which the file stays open. The caller serializes `enter`, `leave` and `retire`."""
        self._users += 1

    def leave(self) -> None:
        """End a use."""
        self._users -= 1
        self._close_if_unused()

    def retire(self) -> None:
        """Close the file once it is unused. Its inode number may belong to another file from then on."""
        self._is_retired = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._is_retired and not self._users:
            os.close(self._fd)

    def unverified_bytes(self, after: int) -> int:
        """Return how many bytes `read` may verify before it returns records after `after`."""
        try:
            size = os.fstat(self._fd).st_size
        except OSError:
            return 0  # reading reports the reason
        return size if after == 0 else max(0, size - self._scan.size)

    def read(self, after: int, limit: int | None) -> list[bytes]:
        """Return at most `limit` records after `after`. Reading from the first one verifies the file again."""
        want = None if limit is None else after + limit
        with self._turn:
            scan = self._scan
            try:
                if after == 0 or os.fstat(self._fd).st_size < scan.size:
                    scan = Scan()
                known_seq = scan.seq
                new_records = scan.advance(self._read_at, self._name, want)
                earlier = self._reread(scan, after, known_seq if want is None else min(known_seq, want))
            except Damaged:
                self._scan = scan
                raise
            except OSError as error:
                raise explain(error, self._path) from error
            if scan.seq >= self._scan.seq:
                self._scan = scan
            # `new_records` begins after record `known_seq`, and may hold more than asked for: the rest of an append.
            end = None if want is None else max(0, want - known_seq)
            lines = earlier + new_records[max(0, after - known_seq) : end]

            return lines if after else CheckedLines(lines)

    def end(self, count: int) -> list[bytes]:
        """Return at most the last `count` complete lines, unverified."""
        try:
            size, length = os.fstat(self._fd).st_size, _MIN_TAIL_BYTES
            while True:
                start = max(0, size - length)
                lines = self._read_at(size - start, start).split(b"\n")[:-1]
                if not start or len(lines) > count or length >= _MAX_TAIL_BYTES:
                    return lines[max(int(start > 0), len(lines) - count) :]
                length *= 4
        except OSError as error:
            raise explain(error, self._path) from error

    def append(self, expected_seq: int, records: Sequence[bytes], *, synced: bool = True) -> None:
        """Append records, durably if `synced`. Raises Damaged, StorageError, and Conflict for another length."""
        with self.locked_at(expected_seq):
            head = head_after(self._scan.head, records, self._name)
            data = b"\n".join((*records, b""))
            try:
                write_all(self._fd, b"\n" + data if self._scan.lacks_newline else data)
                if synced:
                    sync_data(self._fd)
            except OSError:
                # All or nothing: remove the partial write.
                os.ftruncate(self._fd, self._scan.size)
                raise
            self._scan.extend(records, head)

    def sync(self) -> None:
        """Make all appended records durable. Raises StorageError."""
        try:
            sync_data(self._fd)
        except OSError as error:
            raise explain(error, self._path) from error

    @contextmanager
    def locked_at(self, expected_seq: int | None) -> Generator[None]:
        """Lock the log against writers. Raises Conflict if deleted or not of `expected_seq` records (None: any)."""
        with self._turn:
            try:
                if self._is_read_only:
                    raise PermissionError(errno.EACCES, "it is read-only")
                fcntl.flock(self._fd, fcntl.LOCK_EX)
                try:
                    self._verify_to_end(expected_seq)
                    yield
                finally:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
            except OSError as error:
                raise explain(error, self._path) from error

    @contextmanager
    def locked(self) -> Generator[list[bytes]]:
        """Lock the log against other writers and yield all records. Raises Damaged, and Conflict if it was deleted."""
        with self.locked_at(None):
            yield self._reread(self._scan, 0, self._scan.seq)

    def _verify_to_end(self, expected_seq: int | None) -> None:
        size = os.fstat(self._fd).st_size
        if size != self._scan.size:
            if size < self._scan.size:
                self._scan = Scan()
            self._scan.advance(self._read_at, self._name)
            if size != self._scan.size:
                os.ftruncate(self._fd, self._scan.size)
        if expected_seq is not None and expected_seq != self._scan.seq:
            raise stale_writer(self._name, expected_seq, self._scan.seq)
        if self.is_deleted:
            raise Conflict(f"{self._path}: it was deleted by another process")

    def _reread(self, scan: Scan, after: int, through: int) -> list[bytes]:
        if after >= through:
            return []
        start, end = scan.ends[after - 1] if after else 0, scan.ends[through - 1]
        return os.pread(self._fd, end - start, start).removesuffix(b"\n").split(b"\n")

    def _read_at(self, length: int, offset: int) -> bytes:
        return os.pread(self._fd, length, offset)
