"""Walk a workspace: compute its tree, and yield those of its blobs that may be new.

A file that has not changed since the previous walk (by times, size, inode, mode and device) is not read again, unless
it was changed just before it was read, within one tick of its file system's clock (git: "racily clean").
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Generator, Iterable
from pathlib import Path

from perstack.core.definitions.project import SnapshotPolicy
from perstack.core.files.file_names import (
    MAX_FOLDER_DEPTH,
    MAX_PATH_BYTES,
    STATE_FOLDER,
    folded_name,
    is_name,
    is_never_recorded,
    is_state_content,
    is_state_folder,
    spell,
)
from perstack.core.runs.events.files import MAX_LISTED_FILES, NotRecorded, SkipReason
from perstack.dataclass import dataclass
from perstack.errors import StorageError
from perstack.snapshots.ignore_rules import MAX_RULES_BYTES, IgnoreRules, rules_at
from perstack.snapshots.trees import (
    MAX_ENTRIES,
    Entry,
    File,
    Link,
    SkippedEntry,
    Subfolder,
    digest_of,
    folder_blob,
    folder_of,
)
from perstack.system.clock import SYSTEM
from perstack.system.files import REAL_FOLDER
from perstack.system.project_states import has_definition

# Reading of files that may change at any time.
#
# Everything is opened relative to an open folder. No link is followed, and special files do not block.

_RESOURCE_ERRORS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
"""Errors of the system's resources, which say nothing about the file."""

_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_READ_BYTES = 1 << 20
_MAX_READS = 3  # attempts to read a file that changes while it is read

Stamp = tuple[int, int, int, int, int, int]
"""Identity of an unchanged file: modification and change time, size, inode, mode and device."""


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a file."""

    data: bytes
    stamp: Stamp
    is_steady: bool  # True if the file did not change while it was read; otherwise `data` is from the last attempt


@dataclass(frozen=True, slots=True)
class UnreadFile:
    """The reason why a file was not read; None if it is gone, or no longer a regular file."""

    reason: SkipReason | None
    stamp: Stamp | None = None
    size: int | None = None


def stamp_of(status: os.stat_result) -> Stamp:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_mode, status.st_dev


def read_file(name: bytes, folder: int, max_bytes: int) -> Content | UnreadFile:
    """Read a file of an open folder, of at most `max_bytes`. Raises StorageError if the system lacks resources."""
    try:
        file = os.open(name, _FILE_FLAGS, dir_fd=folder)
    except FileNotFoundError:
        return UnreadFile(None)
    except OSError as error:
        check_system(error)
        return UnreadFile("unreadable", _stamp_of_name(name, folder))
    try:
        return _read_open_file(file, max_bytes)
    except OSError as error:
        check_system(error)
        return UnreadFile("unreadable", _stamp_of_name(name, folder))
    finally:
        os.close(file)


def check_system(error: OSError) -> None:
    """Raise StorageError if the system lacks resources: a later attempt may read the file."""
    if error.errno in _RESOURCE_ERRORS:
        reason = (error.strerror or str(error)).lower()
        raise StorageError(f"the workspace cannot be recorded now: {reason}; resume the Job later") from error


def read_link(name: bytes, folder: int) -> bytes | None:
    """Return the target of a link; None if it is no longer a link."""
    try:
        return os.readlink(name, dir_fd=folder) or None
    except OSError:
        return None


def _read_open_file(file: int, max_bytes: int) -> Content | UnreadFile:
    content: Content | None = None
    for _ in range(_MAX_READS):
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            return UnreadFile(None)
        if status.st_size > max_bytes:
            return UnreadFile("tooLarge", stamp_of(status), status.st_size)
        os.lseek(file, 0, os.SEEK_SET)
        data = _read_all(file, max_bytes, status.st_size)
        after = os.fstat(file)
        if len(data) > max_bytes:
            return UnreadFile("tooLarge", stamp_of(after), after.st_size)
        content = Content(data, stamp_of(after), stamp_of(status) == stamp_of(after) and len(data) == after.st_size)
        if content.is_steady:
            break
    return content or UnreadFile("changing")


def _read_all(file: int, max_bytes: int, expected: int) -> bytes:
    first = os.read(file, min(expected, max_bytes) + 1)
    if len(first) == expected:
        return first
    data = bytearray(first)
    while len(data) <= max_bytes and (chunk := os.read(file, min(_READ_BYTES, max_bytes + 1 - len(data)))):
        data += chunk
    return bytes(data)


def _stamp_of_name(name: bytes, folder: int) -> Stamp | None:
    try:
        return stamp_of(os.stat(name, dir_fd=folder, follow_symlinks=False))
    except OSError:
        return None


_BATCH_BYTES = 32 << 20
_BATCH_BLOBS = 5_000
_YIELD_INTERVAL_S = 0.2  # seconds after which a walk yields, so that the caller can check whether it is still wanted
_TICK_NS = 100_000_000  # longer than a clock tick of most file systems
_COARSE_TICK_NS = 2_100_000_000  # the tick of file systems with a resolution of one or two seconds
_SECOND_NS = 1_000_000_000
_MAX_PARENTS = 40

Batch = list[tuple[str, bytes]]  # blobs that may be new, each with its digest


class SnapshotUnavailable(Exception):
    """Raised with the reason, for people, why there can be no snapshot."""


@dataclass(frozen=True, slots=True)
class WorkspaceTree:
    """The result of a walk."""

    tree: str
    files: int  # number of files and links
    left_out: tuple[NotRecorded, ...] = ()
    left_out_count: int = 0


@dataclass(slots=True)
class _KnownEntry:
    """An entry that an earlier walk has seen."""

    entry: Entry
    stamp: Stamp | None  # stamp when it was read; None if each walk reads it again
    size: int | None = None  # size of a file that was not read
    is_file: bool = False  # True for a recorded file or link
    known_folder: _KnownFolder | None = None


@dataclass(slots=True)
class _KnownFolder:
    digest: str
    stamp: Stamp | None
    rules: IgnoreRules
    children: dict[bytes, _KnownEntry]


class Walker:
    """Walks one workspace repeatedly. Replace it after a walk that did not end, or whose blobs were not stored."""

    def __init__(self, top: Path, excluded: Iterable[Path], snapshot_policy: SnapshotPolicy) -> None:
        """Create without reading the workspace; `excluded` are paths that are never recorded."""
        self._top = top
        self._excluded_paths = tuple(excluded)
        self._max_bytes = snapshot_policy.max_file_size
        self._previous_root: _KnownFolder | None = None

    def walk(self) -> Generator[Batch, None, WorkspaceTree]:
        """Return the present tree; yield batches of blobs, which the caller must store before it continues.

        Raises SnapshotUnavailable, and StorageError if the system lacks resources.
        """
        try:
            top = os.path.realpath(os.fsencode(self._top))
            handle = os.open(top, REAL_FOLDER)
        except OSError as error:
            check_system(error)
            raise SnapshotUnavailable(f"{self._top}: {(error.strerror or str(error)).lower()}") from error
        try:
            walk = _WalkState(self._max_bytes, top, _excluded_paths(self._excluded_paths))
            root_folder = yield from walk.folder(handle, b"", self._previous_root, _top_rules(top, handle), 0)
            yield walk.batch
        except OSError as error:
            check_system(error)
            raise SnapshotUnavailable(f"{self._top}: {(error.strerror or str(error)).lower()}") from error
        finally:
            os.close(handle)
        self._previous_root = root_folder
        left_out = tuple(sorted(walk.left_out, key=lambda item: item.path))
        return WorkspaceTree(root_folder.digest, walk.files, left_out, walk.left_out_count)


@dataclass(frozen=True, slots=True)
class _ExcludedPaths:
    """Files and folders that are never recorded, by path and by device and inode."""

    paths: frozenset[bytes]
    numbers: frozenset[tuple[int, int]]


def _excluded_paths(paths: Iterable[Path]) -> _ExcludedPaths:
    names: set[bytes] = set()
    numbers: set[tuple[int, int]] = set()
    for path in paths:
        name = os.fsencode(path)
        names |= {os.path.normpath(name), os.path.realpath(name)}
        try:
            status = path.stat()
        except OSError:
            continue
        numbers.add((status.st_dev, status.st_ino))
    return _ExcludedPaths(frozenset(names), frozenset(numbers))


class _WalkState:
    def __init__(self, max_bytes: int, top: bytes, excluded: _ExcludedPaths) -> None:
        self.batch: Batch = []
        self.files = 0
        self.left_out: list[NotRecorded] = []
        self.left_out_count = 0
        self._max_bytes = max_bytes
        self._top = top
        self._excluded_paths = excluded
        self._began_ns = SYSTEM.now() * 1_000_000
        self._entries = 0
        self._batch_bytes = 0
        self._last_yield_s = time.monotonic()

    def folder(
        self, handle: int, path: bytes, known: _KnownFolder | None, rules: IgnoreRules, depth: int
    ) -> Generator[Batch, None, _KnownFolder]:
        stamp: Stamp | None = stamp_of(os.fstat(handle))
        is_same = known is not None and known.stamp == stamp and known.rules == rules
        previous_children = {} if known is None else known.children
        children, names_to_examine = _unchanged_entries(
            previous_children if is_same else self._recordable_names(handle, path, rules), previous_children, handle
        )
        for name in names_to_examine:
            previous = previous_children.get(name)
            current = yield from self._examine(name, handle, path, previous, rules, depth)
            if current is None:
                stamp = None
                continue
            is_same = is_same and previous is not None and current.entry is previous.entry
            children[name] = current
        self._record_entries(path, children)
        yield from self._pause()
        if known is not None and is_same and len(children) == len(previous_children):
            return _KnownFolder(known.digest, stamp, rules, children)
        blob = folder_blob(folder_of(child.entry for child in children.values()))
        digest = digest_of(blob)
        if known is None or digest != known.digest:
            yield from self._add_blob(digest, blob)
        return _KnownFolder(digest, self._stamp_if_steady(stamp), rules, children)

    def _record_entries(self, path: bytes, children: dict[bytes, _KnownEntry]) -> None:
        self._count_entries(len(children))
        for name, child in children.items():
            if child.is_file:
                self.files += 1
            elif isinstance(child.entry, SkippedEntry):
                self._list_left_out(path + name, child.entry.reason, child.size)

    def _recordable_names(self, handle: int, path: bytes, rules: IgnoreRules) -> list[bytes]:
        names: list[bytes] = []
        with os.scandir(handle) as entries:
            for entry in entries:
                name = os.fsencode(entry.name)
                if (
                    not is_name(name)
                    or is_never_recorded(name)
                    or self._top + b"/" + path + name in self._excluded_paths.paths
                ):
                    continue
                if rules.ignores(name, is_folder=entry.is_dir(follow_symlinks=False)):
                    continue
                names.append(name)
                if self._entries + len(names) > MAX_ENTRIES:
                    raise _too_many_files_error()
        return _without_state(names, handle, path)

    def _examine(
        self, name: bytes, handle: int, path: bytes, previous: _KnownEntry | None, rules: IgnoreRules, depth: int
    ) -> Generator[Batch, None, _KnownEntry | None]:
        try:
            status = os.stat(name, dir_fd=handle, follow_symlinks=False)
        except OSError:
            return None
        if (status.st_dev, status.st_ino) in self._excluded_paths.numbers:
            return None
        mode, stamp = status.st_mode, stamp_of(status)
        if stat.S_ISDIR(mode):
            return (yield from self._walk_folder(name, handle, path, previous, rules, depth))
        if stat.S_ISLNK(mode):
            target = read_link(name, handle)
            link = None if target is None else _KnownEntry(Link(name, target), None, is_file=True)
            return None if link is None else _same_if_equal(previous, link)
        if not stat.S_ISREG(mode):
            return _same_if_equal(previous, _skipped_entry(name, "special", self._stamp_if_steady(stamp)))
        content = read_file(name, handle, self._max_bytes)
        if not isinstance(content, Content):
            reason = content.reason
            if reason is None:
                return None
            return _same_if_equal(
                previous, _skipped_entry(name, reason, self._stamp_if_steady(content.stamp), content.size)
            )
        digest = digest_of(content.data)
        yield from self._add_blob(digest, content.data)
        is_program = bool(content.stamp[4] & stat.S_IXUSR)
        entry = File(name, len(content.data), digest, is_program)
        steady = self._stamp_if_steady(content.stamp) if content.is_steady else None
        return _same_if_equal(previous, _KnownEntry(entry, steady, is_file=True))

    def _walk_folder(
        self, name: bytes, handle: int, path: bytes, previous: _KnownEntry | None, rules: IgnoreRules, depth: int
    ) -> Generator[Batch, None, _KnownEntry | None]:
        if depth >= MAX_FOLDER_DEPTH or len(path) + len(name) + 2 > MAX_PATH_BYTES:
            return _skipped_entry(name, "tooDeep")
        try:
            known_folder = os.open(name, REAL_FOLDER, dir_fd=handle)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            check_system(error)
            return _skipped_entry(name, "unreadable")
        try:
            status = os.fstat(known_folder)
            if (status.st_dev, status.st_ino) in self._excluded_paths.numbers:
                return None
            subfolder_rules = rules.for_subfolder(name, _read_rules(known_folder))
            previous_inner = None if previous is None else previous.known_folder
            try:
                current = yield from self.folder(
                    known_folder, path + name + b"/", previous_inner, subfolder_rules, depth + 1
                )
            except OSError as error:
                check_system(error)
                return _skipped_entry(name, "unreadable")
        finally:
            os.close(known_folder)
        return _same_if_equal(previous, _KnownEntry(Subfolder(name, current.digest), None, known_folder=current))

    def _list_left_out(self, path: bytes, reason: SkipReason, size: int | None) -> None:
        self.left_out_count += 1
        if len(self.left_out) < MAX_LISTED_FILES:
            self.left_out.append(NotRecorded(path=spell(path), reason=reason, size=size))

    def _add_blob(self, digest: str, data: bytes) -> Generator[Batch]:
        self.batch.append((digest, data))
        self._batch_bytes += len(data)
        if self._batch_bytes >= _BATCH_BYTES or len(self.batch) >= _BATCH_BLOBS:
            batch, self.batch, self._batch_bytes = self.batch, [], 0
            yield batch
        else:
            yield from self._pause()

    def _pause(self) -> Generator[Batch]:
        """Yield an empty batch from time to time; blobs are collected, because storing a batch costs a sync."""
        if time.monotonic() - self._last_yield_s > _YIELD_INTERVAL_S:
            yield []
            self._last_yield_s = time.monotonic()

    def _count_entries(self, count: int) -> None:
        self._entries += count
        if self._entries > MAX_ENTRIES:
            raise _too_many_files_error()

    def _stamp_if_steady(self, stamp: Stamp | None) -> Stamp | None:
        return None if stamp is None or self._is_racy(stamp) else stamp

    def _is_racy(self, stamp: Stamp) -> bool:
        latest = max(stamp[0], stamp[1])
        tick = _TICK_NS if stamp[0] % _SECOND_NS or stamp[1] % _SECOND_NS else _COARSE_TICK_NS
        return latest + tick >= self._began_ns


def _without_state(names: list[bytes], handle: int, path: bytes) -> list[bytes]:
    """Return the names in a folder without the state of a project that is defined in it, or that it is itself."""
    if is_state_folder(os.fsdecode(path.rstrip(b"/").rpartition(b"/")[2])):
        names = [name for name in names if not is_state_content(folded_name(os.fsdecode(name)))]
    states = [name for name in names if len(name) >= len(STATE_FOLDER) and is_state_folder(os.fsdecode(name))]
    return [name for name in names if name not in states] if states and has_definition(handle) else names


def _same_if_equal(previous: _KnownEntry | None, current: _KnownEntry) -> _KnownEntry:
    """Return `current` with the previous entry object if it is equal, so that changes can be detected by identity."""
    if previous is not None and previous.entry == current.entry:
        current.entry = previous.entry
    return current


def _unchanged_entries(
    names: Iterable[bytes], before: dict[bytes, _KnownEntry], handle: int
) -> tuple[dict[bytes, _KnownEntry], list[bytes]]:
    """Return the unchanged entries, and the names to examine. Nearly all the work of a walk without changes."""
    unchanged: dict[bytes, _KnownEntry] = {}
    names_to_examine: list[bytes] = []
    get_status, get_previous = os.stat, before.get
    for name in names:
        previous = get_previous(name)
        if previous is None or previous.stamp is None:
            names_to_examine.append(name)
            continue
        try:
            status = get_status(name, dir_fd=handle, follow_symlinks=False)
        except OSError:
            names_to_examine.append(name)
            continue
        mtime, ctime, size, number, mode, device = previous.stamp
        if (
            ctime == status.st_ctime_ns
            and mtime == status.st_mtime_ns
            and size == status.st_size
            and number == status.st_ino
            and mode == status.st_mode
            and device == status.st_dev
        ):
            unchanged[name] = previous
        else:
            names_to_examine.append(name)
    return unchanged, names_to_examine


def _skipped_entry(name: bytes, reason: SkipReason, stamp: Stamp | None = None, size: int | None = None) -> _KnownEntry:
    return _KnownEntry(SkippedEntry(name, reason), stamp, size)


def _too_many_files_error() -> SnapshotUnavailable:
    return SnapshotUnavailable(
        f"the workspace has more than {MAX_ENTRIES:,} files: name what is not to be recorded in .perstackignore"
    )


def _read_rules(handle: int, name: bytes = b".gitignore") -> bytes | None:
    content = read_file(name, handle, MAX_RULES_BYTES)
    return content.data if isinstance(content, Content) else None


def _top_rules(top: bytes, handle: int) -> IgnoreRules:
    parts = [part for part in top.split(b"/") if part]
    parent_rules: list[tuple[bytes, bytes | None]] = []
    for levels_up in range(min(len(parts), _MAX_PARENTS) + 1):
        folder = b"/" + b"/".join(parts[: len(parts) - levels_up])
        name = parts[len(parts) - levels_up - 1] if levels_up < len(parts) else b""
        try:
            parent_handle = os.open(folder, REAL_FOLDER)
        except OSError:
            break
        try:
            parent_rules.insert(0, (name, _read_rules(parent_handle)))
            if _name_exists(b".git", parent_handle):
                exclude, own_rules = _read_info_exclude(parent_handle), _read_rules(handle, b".perstackignore")
                return rules_at(parent_rules, exclude=exclude, perstackignore=own_rules)
        finally:
            os.close(parent_handle)
    nearest = parent_rules[-1:] or [(b"", None)]
    return rules_at(nearest, perstackignore=_read_rules(handle, b".perstackignore"))


def _read_info_exclude(repository: int) -> bytes | None:
    try:
        git = os.open(b".git", REAL_FOLDER, dir_fd=repository)
    except OSError:
        return None  # a file in a git worktree, whose repository is in another folder
    try:
        info = os.open(b"info", REAL_FOLDER, dir_fd=git)
    except OSError:
        return None
    finally:
        os.close(git)
    try:
        return _read_rules(info, b"exclude")
    finally:
        os.close(info)


def _name_exists(name: bytes, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True
