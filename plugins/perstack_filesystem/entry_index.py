"""entries.jsonl: what is told of each Job in a list, so that thousands are listed without opening a file for each.

A line is `{seq} {jobId} {entry}`. The file is only appended to, and written anew, without what is outdated, when that
is most of it. A line that was cut off by a crash is not a line, and costs one look at a log.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from threading import Lock

from perstack.errors import NotFound, StorageError
from perstack.ports.durable import sync_data
from perstack_filesystem.folders import Folder, explained, write_all

_FILE = "entries.jsonl"
_FORGOTTEN = -1
_ADDING = os.O_RDWR | os.O_CREAT | os.O_APPEND
_TOLERATED = 1000
"""How many outdated lines are kept in any case."""

_CHUNK = 1 << 24
"""No entry is as long."""
_LINE = rb"\n(-?[0-9]{1,18}) (%b) ([^\n]*)(?=\n)"
_ANY = re.compile(_LINE % b"[A-Za-z0-9_-]+")
_FEW = 8
"""How many entries are looked for in the text, before all of it is parsed."""

Entries = dict[str, tuple[int, bytes]]


def put_entry(
    space: Folder, job_id: str, seq: int, entry: bytes, *, synced: bool, is_wanted: Callable[[], bool]
) -> None:
    """Add a line, if it is wanted while nobody removes the Job.

    Raises NotFound if there is no such Job, and StorageError for an entry that is more than one line.
    """
    if b"\n" in entry:
        raise StorageError(f"{space.path / _FILE}: the entry of {job_id} is not one line")
    with _open(space, _ADDING, fcntl.LOCK_SH) as fd:
        if space.stat(job_id) is None:
            raise NotFound(f"there is no Job {job_id} in {space.path}")
        if is_wanted():
            _add(fd, job_id, seq, entry, synced=synced)


@contextmanager
def forgotten(space: Folder, job_id: str) -> Generator[None]:
    """The Job has no entry from now on, and until it is removed, which is to be done inside, nobody puts another."""
    if space.stat(_FILE) is None:
        yield
        return
    with _open(space, _ADDING, fcntl.LOCK_EX) as fd:
        _add(fd, job_id, _FORGOTTEN, b"", synced=True)
        yield


def _add(fd: int, job_id: str, seq: int, entry: bytes, *, synced: bool) -> None:
    # the newline before ends a line that a crash has cut off
    write_all(fd, b"\n%d %b %b\n" % (seq, job_id.encode(), entry))
    if synced:
        sync_data(fd)


def read_entries(space: Folder, jobs: Iterable[str]) -> dict[str, bytes]:
    """The entry of each of these Jobs; nothing for one that has none."""
    data = space.read(_FILE) or b""
    found, lines = _parse(data)
    if lines > 2 * len(found) + _TOLERATED:
        with suppress(StorageError):  # one that cannot be written is as good to read
            _compact(space)
    return {job_id: found[job_id][1] if job_id in found else b"" for job_id in jobs}


class EntryIndex:
    """The entries of a space by id. Of a file that has grown only what is new is read."""

    def __init__(self) -> None:
        self._fd: int | None = None
        self._read: int = 0
        self._asked: int = 0
        self._unparsed: bytes = b""
        """What the first few are looked for in, so that nobody who wants one entry parses those of all others."""
        self._entries: Entries = {}
        self._turn = Lock()

    def find(self, space: Folder, job_id: str) -> tuple[int, bytes] | None:
        """The entry of one Job, and the place that it tells of; None if it has none."""
        with self._turn:
            try:
                self._follow(space)
            except OSError as error:
                raise explained(error, space.path / _FILE) from error
            self._asked += 1
            if self._asked > _FEW:
                _take(self._entries, _ANY.finditer(self._unparsed))
                self._unparsed = b""
                return self._entries.get(job_id)
            found: Entries = {}
            _take(found, re.finditer(_LINE % job_id.encode(), self._unparsed))
            return found.get(job_id)

    def close(self) -> None:
        """Close the file, and begin anew."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd, self._read, self._asked = None, 0, 0
        self._unparsed, self._entries = b"", {}

    def _follow(self, space: Folder) -> None:
        now = space.stat(_FILE)
        # while it is open, no other file has its number
        if self._fd is None or now is None or now.st_ino != os.fstat(self._fd).st_ino or now.st_size < self._read:
            self.close()
            self._fd = None if now is None else space.open(_FILE, os.O_RDONLY)
        if self._fd is None:
            return
        while data := os.pread(self._fd, _CHUNK, self._read):
            end = data.rfind(b"\n") + 1
            if not end:
                return
            self._read += end
            self._unparsed += data[:end]


def _take(entries: Entries, lines: Iterable[re.Match[bytes]]) -> None:
    """Those of more lines, over those of the lines before."""
    for line in lines:
        seq, name = int(line[1]), line[2].decode()
        if seq == _FORGOTTEN:
            entries.pop(name, None)
        elif name not in entries or seq >= entries[name][0]:
            entries[name] = (seq, line[3])


def entry_names(space: Folder) -> list[str]:
    """The ids that have an entry."""
    return list(_parse(space.read(_FILE) or b"")[0])


def _parse(data: bytes) -> tuple[Entries, int]:
    """The latest of each Job, and how many lines there are."""
    found: dict[bytes, tuple[int, bytes]] = {}
    lines = data.split(b"\n\n")
    for line in lines:
        parts = line.split(b" ", 2)
        if len(parts) < 3:
            continue
        try:
            seq = int(parts[0])
        except ValueError:
            continue
        name = parts[1]
        if seq == _FORGOTTEN:
            found.pop(name, None)
        elif name not in found or seq >= found[name][0]:
            found[name] = (seq, parts[2])
    return {name.decode(errors="replace"): (seq, entry.rstrip(b"\n")) for name, (seq, entry) in found.items()}, len(
        lines
    )


def _compact(space: Folder) -> None:
    with _open(space, os.O_RDWR, fcntl.LOCK_EX):
        found, _ = _parse(space.read(_FILE) or b"")
        lines = [b"\n%d %b %b\n" % (seq, name.encode(), entry) for name, (seq, entry) in found.items()]
        space.replace(_FILE, b"".join(lines), sync=True)
        space.sync()


@contextmanager
def _open(space: Folder, flags: int, lock: int) -> Generator[int]:
    """The file, locked: many may add to it at once, and nobody while it is written anew."""
    while True:
        fd = space.open(_FILE, flags)
        if fd is None:
            raise StorageError(f"{space.path / _FILE}: it was removed while it was rewritten")
        try:
            fcntl.flock(fd, lock)
            if os.fstat(fd).st_nlink:
                yield fd
                return
        except OSError as error:
            raise explained(error, space.path / _FILE) from error
        finally:
            os.close(fd)
