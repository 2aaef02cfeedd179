"""What lies in the folders of a sandbox and is not its programs' to see or to change, as it is now.

Files of variables, definitions of Experts and what git executes are known by their names, wherever they are. A folder
that has not changed since it was looked at is not read again.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import field
from pathlib import Path

from perstack.core.protected import is_definition, is_git_link, is_variables
from perstack.dataclass import dataclass
from perstack.errors import SkillError

MOST_FOLDERS = 50_000

_FRESH = 50_000_000
"""Nanoseconds in which a folder may change again without a new time."""

_OF_GIT = frozenset({"hooks", "config", "config.worktree"})
_BELOW_GIT = frozenset({"modules", "worktrees"})
_NOT_BELOW = frozenset({"objects", "refs", "logs"})


@dataclass(frozen=True, slots=True)
class Kept:
    """Absolute paths."""

    hidden: tuple[str, ...] = ()
    """Files that are not to be read."""
    fixed: tuple[str, ...] = ()
    """Files and folders that are not to be changed."""
    held: tuple[str, ...] = ()
    """Folders whose place is not to be taken by another."""
    linked: frozenset[tuple[int, int]] = frozenset()
    """The identities of hidden files that have further names, here or in another folder."""


@dataclass(slots=True)
class _Folder:
    changed: int = -1
    is_settled: bool = False
    folders: list[tuple[str, bool]] = field(default_factory=list[tuple[str, bool]])
    """Those in it, each with whether it is git's."""
    hidden: list[str] = field(default_factory=list[str])
    fixed: list[str] = field(default_factory=list[str])
    held: list[str] = field(default_factory=list[str])
    linked: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """The identities of hidden files that have further names."""


class Finder:
    """For one folder and all that is below it. Not to be used by two threads at a time."""

    def __init__(self, root: str, *, without: frozenset[str] = frozenset()) -> None:
        """What is below the folders `without` is not looked at."""
        self._root = root
        self._without = without
        self._known: dict[str, _Folder] = {}

    def now(self) -> Kept:
        """Raises SkillError if there is too much to look at, for then something may be missed."""
        found: dict[str, _Folder] = dict(self._folders())
        self._known = found
        return Kept(
            tuple(dict.fromkeys(path for one in found.values() for path in one.hidden)),
            tuple(path for one in found.values() for path in one.fixed),
            tuple(path for one in found.values() for path in one.held),
            frozenset(identity for one in found.values() for identity in one.linked),
        )

    def _folders(self) -> Iterator[tuple[str, _Folder]]:
        top = Path(self._root)
        waiting, count = [(self._root, any(map(is_git_link, top.parts)))], 0
        if is_git_link(top.name):
            _make_hooks(self._root)
        while waiting:
            path, is_gits = waiting.pop()
            if path in self._without:
                continue
            count += 1
            if count > MOST_FOLDERS:
                raise SkillError(
                    f"{self._root} has more than {MOST_FOLDERS:,} folders, too many to find every file in them that a"
                    " sandbox has to hide: use a smaller workspace"
                )
            with suppress(OSError):
                one = self._looked_at(path, is_gits)
                waiting += one.folders
                yield path, one

    def _looked_at(self, path: str, is_gits: bool) -> _Folder:
        changed = Path(path).stat(follow_symlinks=False).st_mtime_ns
        known = self._known.get(path)
        if known is not None and known.is_settled and known.changed == changed:
            return known
        now = time.time_ns()
        one = _Folder(changed, is_settled=changed < now - _FRESH)
        with os.scandir(path) as entries:
            for entry in entries:
                (_note_of_git if is_gits else _note)(entry, one)
        return one

    def names_of(self, linked: frozenset[tuple[int, int]]) -> Iterator[str]:
        """All names of files that have several, in what was found last."""
        inodes = {inode for _, inode in linked}
        for path in self._known:
            with suppress(OSError), os.scandir(path) as entries:
                for entry in entries:
                    if entry.inode() in inodes and entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        if (status.st_dev, status.st_ino) in linked:
                            yield entry.path


def _note(entry: os.DirEntry[str], one: _Folder) -> None:
    name = entry.name
    if entry.is_dir(follow_symlinks=False):
        is_gits = is_git_link(name)
        one.folders.append((entry.path, is_gits))
        if is_gits:
            one.held.append(entry.path)
            _make_hooks(entry.path)
    elif is_variables(name):
        _hide(entry, one)
    elif is_definition(name) or is_git_link(name):
        one.fixed.append(os.path.realpath(entry.path) if entry.is_symlink() else entry.path)


def _make_hooks(path: str) -> None:
    """Where there are none, a program could make some."""
    with suppress(OSError):
        Path(path, "hooks").mkdir()


def _note_of_git(entry: os.DirEntry[str], one: _Folder) -> None:
    """In a folder `.git`, and in those of modules and worktrees below it."""
    name = entry.name.casefold()
    if name in _OF_GIT:
        one.fixed.append(entry.path)
    elif entry.is_dir(follow_symlinks=False) and name not in _NOT_BELOW:
        is_below = name in _BELOW_GIT or any(f"/{part}/" in entry.path for part in _BELOW_GIT)
        if is_below:
            one.folders.append((entry.path, True))


def _hide(entry: os.DirEntry[str], one: _Folder) -> None:
    path = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
    with suppress(OSError):
        status = Path(path).stat()
        if stat.S_ISREG(status.st_mode):
            one.hidden.append(path)
            if status.st_nlink > 1:
                one.linked.append((status.st_dev, status.st_ino))
