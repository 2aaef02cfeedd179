"""Carry out a rewind: check every path of the plan and stage all new files, then make or undo the steps."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import assert_never

from perstack.core.files.file_names import STAGING_PREFIX, parse_spelling, spell
from perstack.errors import Conflict, StorageError
from perstack.snapshots.rewind_journal import (
    Journal,
    JournalFile,
    Rewound,
    Step,
    make_folder,
    open_root,
    parent_of,
    read_file,
    status_at,
    write_file,
)
from perstack.snapshots.tree_diff import Change, KeptEntry, KeptReason, RewindPlan
from perstack.snapshots.trees import Entry, File, Link, SkippedEntry, Subfolder, digest_of
from perstack.system.files import REAL_FOLDER, sync

_NOT_A_FOLDER_ERRORS = (errno.ENOTDIR, errno.ELOOP)


class RewindSteps:
    """The steps of a plan, and the paths that have to be kept as they are."""

    def __init__(self, root: int, plan: RewindPlan) -> None:
        """Check all paths. Raises Conflict if a file differs from the present tree, and OSError."""
        self._root = root
        self._device = os.fstat(root).st_dev
        self._removed_paths: set[bytes] = set()  # paths that are empty once the steps so far are made
        self._created_paths: set[bytes] = set()
        self._kept_entries: list[KeptEntry] = []
        self._steps: list[Step] = []
        self.changes: list[Change] = []
        blocked: set[bytes] = set()
        for change in reversed(plan.changes):  # reversed, so that the content of a folder comes before the folder
            if change.old is not None and not self._plan_removal(change):
                blocked.add(change.path)
        for change in plan.changes:
            if change.path in blocked:
                continue
            if change.new is None or self._plan_put(change):
                self.changes.append(change)
        kept = sorted(self._kept_entries, key=lambda entry: entry.path)
        self.plan = RewindPlan(tuple(self.changes), (*plan.kept, *kept))
        self.steps = tuple(self._steps)

    def _plan_removal(self, change: Change) -> bool:
        """Add the steps that make room for a change. Return False if something has to be kept there."""
        with parent_of(self._root, change.path) as (folder, name):
            status = status_at(folder, name)
            if status is not None and status.st_dev != self._device:
                return self._add_kept(change.path, "otherFileSystem")
            if isinstance(change.old, Subfolder):
                return self._plan_folder_removal(change, folder, name, status)
            self._check_unchanged(change, folder, name, status)
        if change.new is None or isinstance(change.new, Subfolder):
            self._add_step("remove", change.path)
            self._removed_paths.add(change.path)
        return True

    def _plan_folder_removal(self, change: Change, folder: int, name: bytes, status: os.stat_result | None) -> bool:
        if status is None or not stat.S_ISDIR(status.st_mode):
            raise _changed_error(change.path)
        handle = os.open(name, REAL_FOLDER, dir_fd=folder)
        try:
            with os.scandir(handle) as entries:
                names = [os.fsencode(entry.name) for entry in entries]
        finally:
            os.close(handle)
        if any(change.path + b"/" + child not in self._removed_paths for child in names):
            return self._add_kept(change.path, "unknownInside")
        self._add_step("rmdir", change.path, mode=stat.S_IMODE(status.st_mode))
        self._removed_paths.add(change.path)
        return True

    def _plan_put(self, change: Change) -> bool:
        if isinstance(change.new, SkippedEntry) or change.new is None:
            return False
        missing = [
            path for path in _parent_paths(change.path) if path in self._created_paths or not self._is_folder(path)
        ]
        for path in missing:
            if path in self._created_paths:
                continue
            if path not in self._removed_paths and self._is_taken(path):
                return self._add_kept(change.path, "inTheWay")
            self._add_mkdir(path)
        is_free = bool(missing) or change.path in self._removed_paths
        replaces = not is_free and isinstance(change.old, File | Link)
        if not is_free and not replaces:
            outcome = self._find_existing(change)
            if outcome is not None:
                return outcome
        if isinstance(change.new, Subfolder):
            self._add_mkdir(change.path)
        else:
            digest = change.new.digest if isinstance(change.new, File) else ""
            self._add_step("put", change.path, replaces=replaces, digest=digest)
        return True

    def _find_existing(self, change: Change) -> bool | None:
        """Return None if the path of a new entry is free; False if an entry, equal or not, is there."""
        with parent_of(self._root, change.path) as (folder, name):
            status = status_at(folder, name)
            if status is None:
                return None
            if change.new is not None and _matches(change.new, folder, name, status):
                return False
        return self._add_kept(change.path, "inTheWay")

    def _is_folder(self, path: bytes) -> bool:
        if path in self._removed_paths:
            return False
        status = self._read_status(path)
        return status is not None and stat.S_ISDIR(status.st_mode) and status.st_dev == self._device

    def _is_taken(self, path: bytes) -> bool:
        # a path below a file is free: that file was checked already, or will be removed
        return self._read_status(path) is not None

    def _read_status(self, path: bytes) -> os.stat_result | None:
        """Return the status of an entry; None if there is none, or one above it is no folder. Raises OSError."""
        try:
            with parent_of(self._root, path) as (folder, name):
                return status_at(folder, name)
        except OSError as error:
            if error.errno in (errno.ENOENT, *_NOT_A_FOLDER_ERRORS):
                return None
            raise

    def _check_unchanged(self, change: Change, folder: int, name: bytes, status: os.stat_result | None) -> None:
        if status is None or change.old is None or not _matches(change.old, folder, name, status):
            raise _changed_error(change.path)

    def _add_mkdir(self, path: bytes) -> None:
        self._created_paths.add(path)
        self._add_step("mkdir", path)

    def _add_step(self, act: str, path: bytes, *, replaces: bool = False, digest: str = "", mode: int = 0) -> None:
        fields = {"act": act, "path": spell(path), "number": len(self._steps)}
        self._steps.append(Step.model_validate({**fields, "replaces": replaces, "digest": digest, "mode": mode}))

    def _add_kept(self, path: bytes, why: KeptReason) -> bool:
        self._kept_entries.append(KeptEntry(path, why))
        return False


def mode_of(root: int, path: bytes, *, is_program: bool) -> int:
    """Return the permissions for a restored file: as the replaced file has them, except for the executable bits."""
    try:
        with parent_of(root, path) as (folder, name):
            status = status_at(folder, name)
    except OSError:
        status = None
    if status is None or not stat.S_ISREG(status.st_mode):
        mask = os.umask(0o077)
        os.umask(mask)
        return (0o777 if is_program else 0o666) & ~mask
    mode = stat.S_IMODE(status.st_mode) & 0o777
    return mode | (mode & 0o444) >> 2 if is_program else mode & ~0o111


def _matches(entry: Entry, folder: int, name: bytes, status: os.stat_result) -> bool:
    match entry:
        case File():
            if not stat.S_ISREG(status.st_mode) or status.st_size != entry.size:
                return False
            if bool(status.st_mode & stat.S_IXUSR) != entry.is_program:
                return False
            content = read_file(folder, name, entry.size)
            return content is not None and digest_of(content) == entry.digest
        case Link():
            return stat.S_ISLNK(status.st_mode) and os.readlink(name, dir_fd=folder) == entry.target
        case Subfolder():
            return stat.S_ISDIR(status.st_mode)
        case _:
            return False


def _parent_paths(path: bytes) -> Iterator[bytes]:
    slash = path.find(b"/")
    while slash >= 0:
        yield path[:slash]
        slash = path.find(b"/", slash + 1)


def _changed_error(path: bytes) -> Conflict:
    return Conflict(
        f"{spell(path)} was changed while it was read: another program is writing there; try again when it has ended"
    )


# Steps. Each can be repeated after a crash: it skips what is already done.

_NO_HARD_LINK_ERRORS = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)


def make_step(root: int, staging: int, step: Step) -> None:
    """Make a step; a step that is already made changes nothing. Raises OSError."""
    new, old = _staged_names(step)
    if step.act == "remove" and status_at(staging, old) is not None:
        return
    try:
        _make_in_folder(root, staging, step, new, old)
    except (FileNotFoundError, NotADirectoryError):
        if step.act not in ("remove", "rmdir"):
            raise
        # already removed, perhaps with its folder


def _make_in_folder(root: int, staging: int, step: Step, new: bytes, old: bytes) -> None:
    with parent_of(root, parse_spelling(step.path)) as (folder, name):
        match step.act:
            case "remove":
                os.rename(name, old, src_dir_fd=folder, dst_dir_fd=staging)
            case "rmdir":
                _remove_folder(folder, name)
            case "mkdir":
                status = None if make_folder(folder, name) else status_at(folder, name)
                if status is not None and not stat.S_ISDIR(status.st_mode):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), step.path)
            case "put":
                if status_at(staging, new) is not None:
                    if step.replaces:
                        _back_up(folder, name, staging, old)
                        os.rename(new, name, src_dir_fd=staging, dst_dir_fd=folder)
                    else:
                        _move_to_free_path(staging, new, folder, name)
            case _:
                assert_never(step.act)


def undo_step(root: int, staging: int, step: Step) -> None:
    """Undo a step, if it was made. Raises OSError."""
    new, old = _staged_names(step)
    try:
        with parent_of(root, parse_spelling(step.path)) as (folder, name):
            match step.act:
                case "remove":
                    if status_at(staging, old) is not None:
                        with suppress(FileExistsError):  # a file created there in the meantime stays
                            _move_to_free_path(staging, old, folder, name)
                case "rmdir":
                    _make_folder_again(folder, name, step.mode)
                case "mkdir":
                    _remove_folder(folder, name)
                case "put":
                    if not step.replaces:
                        _move_back(staging, new, folder, name)
                    elif status_at(staging, old) is not None:
                        _swap_back(staging, new, old, folder, name)
                case _:
                    assert_never(step.act)
    except (FileNotFoundError, NotADirectoryError):
        pass  # its folder was not made, or is already undone


def _staged_names(step: Step) -> tuple[bytes, bytes]:
    return b"new-%d" % step.number, b"old-%d" % step.number


def _remove_folder(folder: int, name: bytes) -> None:
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError as error:
        # it contains new files, or was replaced: do not remove what this rewind did not make
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise


def _make_folder_again(folder: int, name: bytes, mode: int) -> None:
    if not make_folder(folder, name):
        return
    handle = os.open(name, REAL_FOLDER, dir_fd=folder)
    try:
        os.fchmod(handle, mode)
    finally:
        os.close(handle)


def _back_up(folder: int, name: bytes, staging: int, old: bytes) -> None:
    """Give the existing file a second name in the staging folder, so that its path is never empty."""
    if status_at(staging, old) is not None:
        return
    try:
        os.link(name, old, src_dir_fd=folder, dst_dir_fd=staging, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_HARD_LINK_ERRORS:
            raise
        os.rename(name, old, src_dir_fd=folder, dst_dir_fd=staging)


def _move_to_free_path(source: int, name: bytes, target: int, target_name: bytes) -> None:
    """Move a file to a free path. Raises FileExistsError if a file was created there in the meantime."""
    try:
        os.link(name, target_name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
    except FileExistsError:
        if not _is_same(source, name, target, target_name):
            raise
    except OSError as error:
        if error.errno not in _NO_HARD_LINK_ERRORS:
            raise
        if status_at(target, target_name) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target_name) from None
        os.rename(name, target_name, src_dir_fd=source, dst_dir_fd=target)
        return
    os.unlink(name, dir_fd=source)


def _move_back(staging: int, new: bytes, folder: int, name: bytes) -> None:
    if status_at(folder, name) is None:
        return
    if status_at(staging, new) is None:
        os.rename(name, new, src_dir_fd=folder, dst_dir_fd=staging)
    elif _is_same(staging, new, folder, name):
        os.unlink(name, dir_fd=folder)


def _swap_back(staging: int, new: bytes, old: bytes, folder: int, name: bytes) -> None:
    if status_at(staging, new) is None:
        with suppress(FileNotFoundError):
            os.rename(name, new, src_dir_fd=folder, dst_dir_fd=staging)
    os.rename(old, name, src_dir_fd=staging, dst_dir_fd=folder)
    with suppress(FileNotFoundError):  # renaming between two names of one file keeps both
        os.unlink(old, dir_fd=staging)


def _is_same(folder: int, name: bytes, other_folder: int, other_name: bytes) -> bool:
    first, second = status_at(folder, name), status_at(other_folder, other_name)
    return first is not None and second is not None and os.path.samestat(first, second)


# Staging new files and putting them in place: all of them, or none after an error.
#
# New files are first written to a staging folder in the workspace, on its file system. A full disk fails
# then, before anything was touched. What follows are renames, recorded in a journal.

_MAX_FILE_BYTES = 1 << 40


class StagedRewind:
    """One rewind of a workspace. A context manager that closes its handles at the end.

    The caller must keep out others, and call `begin`, `stage` for the files and links, `put_in_place`, and then
    `finish` or `undo`. `resume` continues a rewind that was killed.
    """

    def __init__(self, journal: JournalFile, storage: str) -> None:
        """Open the workspace. `storage`: location of the state that records the rewind. Raises OSError."""
        self._file = journal
        self._storage = storage
        self._journal: Journal | None = None
        self._root = open_root(journal.workspace)
        self._staging: int | None = None

    def __enter__(self) -> StagedRewind:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in (self._staging, self._root):
            if handle is not None:
                os.close(handle)
        self._staging = None

    @property
    def root(self) -> int:
        """The open handle of the workspace."""
        return self._root

    def begin(self) -> None:
        """Make the staging folder. Raises OSError."""
        name = STAGING_PREFIX + secrets.token_hex(6)
        workspace = str(self._file.workspace)
        self._write_journal(Journal(workspace=workspace, storage=self._storage, staging=name, phase="clearing"))
        os.mkdir(name, 0o700, dir_fd=self._root)
        self._staging = os.open(name, REAL_FOLDER, dir_fd=self._root)

    def stage(self, files: Iterable[tuple[Step, bytes, int]], links: Iterable[tuple[Step, bytes]] = ()) -> None:
        """Stage files, with content and permissions, and links, with their targets. Raises OSError."""
        for step, content, mode in files:
            write_file(self._staging_handle, b"new-%d" % step.number, content, mode)
        for step, target in links:
            os.symlink(target, b"new-%d" % step.number, dir_fd=self._staging_handle)

    def put_in_place(self, steps: tuple[Step, ...], rewound: Rewound | None = None) -> None:
        """Make all steps; `rewound` is what to record afterwards. If a step fails, undo all and raise StorageError."""
        sync(self._staging_handle)
        self._write_journal(
            self._current_journal.model_copy(update={"phase": "forward", "steps": steps, "rewound": rewound})
        )
        self._make_steps()

    def finish(self) -> None:
        """End a rewind that is made and recorded. Raises OSError."""
        self._end_rewind(is_made=True)

    def undo(self) -> None:
        """Undo the steps that were made. Raises OSError; the next process then continues."""
        if self._current_journal.phase == "clearing":
            return self._plan_removal()
        if self._current_journal.phase == "forward":
            with suppress(OSError):  # a full disk: if killed now, the next process completes the rewind
                self._write_journal(self._current_journal.model_copy(update={"phase": "back"}))
        for step in reversed(self._current_journal.steps):
            undo_step(self._root, self._staging_handle, step)
        self._sync_folders()
        self._end_rewind(is_made=False)
        return None

    def resume(self) -> Journal | None:
        """Continue a killed rewind. Return its journal if it is made, to be recorded before `finish`; otherwise None.

        Raises StorageError and OSError.
        """
        self._journal = journal = self._file.read()
        if journal is None:
            return None
        try:
            self._staging = os.open(journal.staging, REAL_FOLDER, dir_fd=self._root)
        except OSError as error:
            if journal.phase == "clearing" and error.errno == errno.ENOENT:
                self._file.remove()
                return journal if journal.is_made else None
            self._file.remove()
            raise StorageError(
                f"{self._file.workspace}: a rewind was cut short here, and {journal.staging}, where its files were"
                " staged, is gone: check the files, and rewind again"
            ) from error
        if journal.phase != "forward" or not self._is_staging_complete():
            self.undo()
            return journal if journal.is_made else None
        self._make_steps()
        return journal

    def _make_steps(self) -> None:
        try:
            for step in self._current_journal.steps:
                make_step(self._root, self._staging_handle, step)
            self._sync_folders()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            self.undo()
            raise StorageError(
                f"{self._file.workspace}: {reason}: nothing is rewound, the files are as they were"
            ) from error

    def _is_staging_complete(self) -> bool:
        for step in self._current_journal.steps:
            if step.act == "put" and step.digest:
                try:
                    content = read_file(self._staging_handle, b"new-%d" % step.number, _MAX_FILE_BYTES)
                except FileNotFoundError:
                    continue  # it is already in place
                except OSError:
                    return False
                if content is None or digest_of(content) != step.digest:
                    return False
        return True

    def _sync_folders(self) -> None:
        synced: set[bytes] = set()
        for step in self._current_journal.steps:
            path = parse_spelling(step.path)
            parent = path.rpartition(b"/")[0]
            if parent in synced:
                continue
            synced.add(parent)
            with suppress(OSError), parent_of(self._root, path) as (folder, _):
                sync(folder)

    def _end_rewind(self, *, is_made: bool) -> None:
        changes = {"phase": "clearing", "is_made": is_made, "steps": (), "rewound": None}
        try:
            self._write_journal(self._current_journal.model_copy(update=changes))
        except OSError:  # a full disk: removing the journal also prevents a later process from continuing
            self._file.remove()
        self._plan_removal()

    def _plan_removal(self) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self._current_journal.staging, dir_fd=self._root)
        self._file.remove()

    def _write_journal(self, journal: Journal) -> None:
        self._file.write(journal)
        self._journal = journal

    @property
    def _current_journal(self) -> Journal:
        if self._journal is None:
            raise RuntimeError("no rewind is under way")
        return self._journal

    @property
    def _staging_handle(self) -> int:
        if self._staging is None:
            raise RuntimeError("no rewind is under way")
        return self._staging
