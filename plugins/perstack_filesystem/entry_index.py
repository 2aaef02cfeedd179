"""Index file entries.jsonl: one entry per Job for lists, so that listing thousands of Jobs opens no file per Job.

A line is `{seq} {jobId} {entry}`. The file is append-only, and is rewritten without outdated lines when they are most
of it. A line that a crash has cut off is ignored; the cost is reading one log.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from threading import Lock

from perstack.errors import StorageError
from perstack.support.storage import no_job
from perstack.system.files import sync_data
from perstack_filesystem.directories import OpenDirectory, explain, write_all

_FILE = "entries.jsonl"
_REMOVED = -1
_APPEND_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND
_MAX_OUTDATED_LINES = 1000  # minimum outdated lines for a rewrite

_CHUNK_BYTES = 1 << 24  # bytes per read; longer than any entry
_LINE = rb"\n(-?[0-9]{1,18}) (%b) ([^\n]*)(?=\n)"
_ANY = re.compile(_LINE % b"[A-Za-z0-9_-]+")
_MAX_SEARCHES = 8  # maximum lookups that search the text before all of it is parsed

Entries = dict[str, tuple[int, bytes]]


def put_entry(
    space: OpenDirectory, job_id: str, seq: int, entry: bytes, *, synced: bool, is_wanted: Callable[[], bool]
) -> None:
    """Append an entry if `is_wanted()` while the Job cannot be removed. Raises NotFound and StorageError."""
    if b"\n" in entry:
        raise StorageError(f"{space.path / _FILE}: the entry of {job_id} is not one line")
    with _open_locked(space, _APPEND_FLAGS, fcntl.LOCK_SH) as fd:
        if space.stat(job_id) is None:
            raise no_job(job_id, space.path)
        if is_wanted():
            _append_entry(fd, job_id, seq, entry, synced=synced)


@contextmanager
def remove_entry(space: OpenDirectory, job_id: str) -> Generator[None]:
    """Remove the Job's entry.

    The caller removes the Job inside this context, in which no process can add another entry.
    """
    if space.stat(_FILE) is None:
        yield
        return
    with _open_locked(space, _APPEND_FLAGS, fcntl.LOCK_EX) as fd:
        _append_entry(fd, job_id, _REMOVED, b"", synced=True)
        yield


def _append_entry(fd: int, job_id: str, seq: int, entry: bytes, *, synced: bool) -> None:
    # The leading newline ends a line that a crash may have cut off.
    write_all(fd, b"\n%d %b %b\n" % (seq, job_id.encode(), entry))
    if synced:
        sync_data(fd)


def read_entries(space: OpenDirectory, jobs: Iterable[str], *, may_rewrite: bool) -> dict[str, bytes]:
    """Return the entry of each of these Jobs; empty bytes for a Job without one."""
    data = space.read(_FILE) or b""
    entries = _parse_entries(data)
    if may_rewrite and data.count(b"\n\n") > 2 * len(entries) + _MAX_OUTDATED_LINES:
        with suppress(StorageError):  # if the rewrite fails, the old file is still readable
            _rewrite_without_outdated(space)
    return {job_id: entries[job_id][1] if job_id in entries else b"" for job_id in jobs}


class EntryIndex:
    """Cached entries of a namespace by Job id. When the file has grown, only the new part is read."""

    def __init__(self) -> None:
        self._fd: int | None = None
        self._read: int = 0
        self._lookup_count: int = 0
        self._unparsed: bytes = b""
        """Text not parsed yet.

        The first lookups search it, so that a single lookup does not parse the entries of all Jobs.
        """
        self._entries: Entries = {}
        self._turn = Lock()

    def find(self, space: OpenDirectory, job_id: str) -> tuple[int, bytes] | None:
        """Return the entry of one Job and the sequence number it describes; None without one."""
        with self._turn:
            try:
                self._read_new_lines(space)
            except OSError as error:
                raise explain(error, space.path / _FILE) from error
            self._lookup_count += 1
            if self._lookup_count > _MAX_SEARCHES:
                _add_lines(self._entries, _ANY.finditer(self._unparsed))
                self._unparsed = b""
                return self._entries.get(job_id)
            entries: Entries = {}
            _add_lines(entries, re.finditer(_LINE % job_id.encode(), self._unparsed))
            return entries.get(job_id)

    def close(self) -> None:
        """Close the file and clear the cache."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd, self._read, self._lookup_count = None, 0, 0
        self._unparsed, self._entries = b"", {}

    def _read_new_lines(self, space: OpenDirectory) -> None:
        """Read what was appended since the last call; start again if the file was replaced."""
        status = space.stat(_FILE)
        # The comparison by inode number is safe: no other file can get it while this one is open.
        if (
            self._fd is None
            or status is None
            or status.st_ino != os.fstat(self._fd).st_ino
            or status.st_size < self._read
        ):
            self.close()
            self._fd = None if status is None else space.open(_FILE, os.O_RDONLY)
        if self._fd is None:
            return
        while data := os.pread(self._fd, _CHUNK_BYTES, self._read):
            end = data.rfind(b"\n") + 1
            if not end:
                return
            self._read += end
            self._unparsed += data[:end]


def _add_lines(entries: Entries, lines: Iterable[re.Match[bytes]]) -> None:
    for line in lines:
        seq, name = int(line[1]), line[2].decode()
        if seq == _REMOVED:
            entries.pop(name, None)
        elif name not in entries or seq >= entries[name][0]:
            entries[name] = (seq, line[3])


def entry_names(space: OpenDirectory) -> list[str]:
    """Return the Job ids that have an entry."""
    return list(_parse_entries(space.read(_FILE) or b""))


def _parse_entries(data: bytes) -> Entries:
    entries: Entries = {}
    _add_lines(entries, _ANY.finditer(data))
    return entries


def _rewrite_without_outdated(space: OpenDirectory) -> None:
    with _open_locked(space, os.O_RDWR, fcntl.LOCK_EX):
        entries = _parse_entries(space.read(_FILE) or b"")
        lines = [b"\n%d %b %b\n" % (seq, name.encode(), entry) for name, (seq, entry) in entries.items()]
        space.replace(_FILE, b"".join(lines), sync=True)
        space.sync()


@contextmanager
def _open_locked(space: OpenDirectory, flags: int, lock: int) -> Generator[int]:
    """Open the file and lock it: appending takes a shared lock, rewriting an exclusive one."""
    while True:
        fd = space.open(_FILE, flags)
        if fd is None:
            raise StorageError(f"{space.path / _FILE}: it was removed while it was being rewritten")
        try:
            fcntl.flock(fd, lock)
            if os.fstat(fd).st_nlink:
                yield fd
                return
        except OSError as error:
            raise explain(error, space.path / _FILE) from error
        finally:
            os.close(fd)
