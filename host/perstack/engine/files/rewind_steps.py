"""What of a plan can be done where the files are: each place is looked at before anything is touched."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from perstack.core.snapshots.difference import Change
from perstack.core.snapshots.names import spelled
from perstack.core.snapshots.plan import Kept, KeptWhy, RewindPlan
from perstack.core.snapshots.tree import Below, Entry, File, LeftOut, Link, digest_of
from perstack.engine.rewinding.below import FOLDER, parent_of, read_file, status_at
from perstack.engine.rewinding.journal import Step
from perstack.errors import Conflict

_NO_FOLDER = (errno.ENOTDIR, errno.ELOOP)


class Looked:
    """The steps of a plan, and what of it has to be left alone."""

    def __init__(self, root: int, plan: RewindPlan) -> None:
        """Raises Conflict if a file is not what the present tree says, and OSError."""
        self._root = root
        self._device = os.fstat(root).st_dev
        self._gone: set[bytes] = set()
        """Places that are empty once the first steps are made."""
        self._made: set[bytes] = set()
        self._kept: list[Kept] = []
        self._steps: list[Step] = []
        self.changes: list[Change] = []
        """Those that are made."""
        blocked: set[bytes] = set()
        for change in reversed(plan.changes):  # what is in a folder before the folder
            if change.old is not None and not self._clear(change):
                blocked.add(change.path)
        for change in plan.changes:
            if change.path in blocked:
                continue
            if change.new is None or self._put(change):
                self.changes.append(change)
        self.plan = RewindPlan(tuple(self.changes), (*plan.kept, *sorted(self._kept, key=lambda kept: kept.path)))
        self.steps = tuple(self._steps)

    def _clear(self, change: Change) -> bool:
        """Whether nothing is in the way of what is to be there, once the steps are made that this adds."""
        with parent_of(self._root, change.path) as (folder, name):
            found = status_at(folder, name)
            if found is not None and found.st_dev != self._device:
                return self._keep(change.path, "otherFileSystem")
            if isinstance(change.old, Below):
                return self._clear_folder(change, folder, name, found)
            self._check(change, folder, name, found)
        if change.new is None or isinstance(change.new, Below):
            self._step("remove", change.path)
            self._gone.add(change.path)
        return True

    def _clear_folder(self, change: Change, folder: int, name: bytes, found: os.stat_result | None) -> bool:
        if found is None or not stat.S_ISDIR(found.st_mode):
            raise _changed(change.path)
        handle = os.open(name, FOLDER, dir_fd=folder)
        try:
            with os.scandir(handle) as entries:
                names = [os.fsencode(entry.name) for entry in entries]
        finally:
            os.close(handle)
        if any(change.path + b"/" + one not in self._gone for one in names):
            return self._keep(change.path, "unknownInside")
        self._step("rmdir", change.path, mode=stat.S_IMODE(found.st_mode))
        self._gone.add(change.path)
        return True

    def _put(self, change: Change) -> bool:
        if isinstance(change.new, LeftOut) or change.new is None:
            return False
        missing = [path for path in _above(change.path) if path in self._made or not self._is_folder(path)]
        for path in missing:
            if path in self._made:
                continue
            if path not in self._gone and self._is_taken(path):
                return self._keep(change.path, "inTheWay")
            self._mkdir(path)
        is_free = bool(missing) or change.path in self._gone
        replaces = not is_free and isinstance(change.old, File | Link)
        if not is_free and not replaces:
            stands = self._stands(change)
            if stands is not None:
                return stands
        if isinstance(change.new, Below):
            self._mkdir(change.path)
        else:
            digest = change.new.digest if isinstance(change.new, File) else ""
            self._step("put", change.path, replaces=replaces, digest=digest)
        return True

    def _stands(self, change: Change) -> bool | None:
        """Whether the place of something new has it already, or has something else; None if it is free."""
        with parent_of(self._root, change.path) as (folder, name):
            found = status_at(folder, name)
            if found is None:
                return None
            if change.new is not None and _is(change.new, folder, name, found):
                return False
        return self._keep(change.path, "inTheWay")

    def _is_folder(self, path: bytes) -> bool:
        if path in self._gone:
            return False
        try:
            with parent_of(self._root, path) as (folder, name):
                found = status_at(folder, name)
        except OSError as error:
            if error.errno in (errno.ENOENT, *_NO_FOLDER):
                return False
            raise
        return found is not None and stat.S_ISDIR(found.st_mode) and found.st_dev == self._device

    def _is_taken(self, path: bytes) -> bool:
        """Whether something that is not a folder of this file system is there."""
        try:
            with parent_of(self._root, path) as (folder, name):
                return status_at(folder, name) is not None
        except OSError as error:
            if error.errno in (errno.ENOENT, *_NO_FOLDER):
                return False  # it is in what is in the way, which has been looked at, or goes
            raise

    def _check(self, change: Change, folder: int, name: bytes, found: os.stat_result | None) -> None:
        if found is None or change.old is None or not _is(change.old, folder, name, found):
            raise _changed(change.path)

    def _mkdir(self, path: bytes) -> None:
        self._made.add(path)
        self._step("mkdir", path)

    def _step(self, act: str, path: bytes, *, replaces: bool = False, digest: str = "", mode: int = 0) -> None:
        fields = {"act": act, "path": spelled(path), "number": len(self._steps)}
        self._steps.append(Step.model_validate({**fields, "replaces": replaces, "digest": digest, "mode": mode}))

    def _keep(self, path: bytes, why: KeptWhy) -> bool:
        self._kept.append(Kept(path, why))
        return False


def mode_of(root: int, path: bytes, *, is_program: bool) -> int:
    """The permissions that a file gets: those of what it replaces, but for whether it may be executed."""
    try:
        with parent_of(root, path) as (folder, name):
            found = status_at(folder, name)
    except OSError:
        found = None
    if found is None or not stat.S_ISREG(found.st_mode):
        mask = os.umask(0o077)
        os.umask(mask)
        return (0o777 if is_program else 0o666) & ~mask
    mode = stat.S_IMODE(found.st_mode) & 0o777
    return mode | (mode & 0o444) >> 2 if is_program else mode & ~0o111


def _is(entry: Entry, folder: int, name: bytes, found: os.stat_result) -> bool:
    """Whether this is what is there. Raises OSError."""
    match entry:
        case File():
            if not stat.S_ISREG(found.st_mode) or found.st_size != entry.size:
                return False
            if bool(found.st_mode & stat.S_IXUSR) != entry.is_program:
                return False
            content = read_file(folder, name, entry.size)
            return content is not None and digest_of(content) == entry.digest
        case Link():
            return stat.S_ISLNK(found.st_mode) and os.readlink(name, dir_fd=folder) == entry.target
        case Below():
            return stat.S_ISDIR(found.st_mode)
        case _:
            return False


def _above(path: bytes) -> Iterator[bytes]:
    """The folders that a path is in, the outermost first."""
    at = path.find(b"/")
    while at >= 0:
        yield path[:at]
        at = path.find(b"/", at + 1)


def _changed(path: bytes) -> Conflict:
    return Conflict(
        f"{spelled(path)} was changed while it was read: something else is at work there; try again when that has ended"
    )
