"""The contents that Jobs share: `{root}/.blobs/{ab}/{sha256}`, each the same file as that name in every Job that has it
(hard links). A Job needs nothing of this folder: whatever becomes of it, its own blobs stay.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

from perstack.ports.state_folder import FOLDER_MODE
from perstack_filesystem.folders import Folder, explained

POOL = ".blobs"
_FEW = 8
"""So many files are synced one by one; more of them all at once."""


def keep_all(root: Path, blobs: Folder, contents: Mapping[str, bytes]) -> None:
    """Every content is in a Job's folder of blobs under its name, and survives power loss when this returns.

    A file has its name only when its content is on disk.
    """
    missing = {name: data for name, data in contents.items() if not _has(blobs, name, len(data))}
    with ExitStack() as opened:
        pool = _Pool(root, opened)
        new = {name: data for name, data in missing.items() if not pool.give(name, data, blobs)}
        _write(blobs, new)
        for name in new:
            pool.take(name, blobs)
    if missing:
        blobs.sync()


def free(root: Path, blobs: Folder, names: tuple[str, ...]) -> None:
    """What only this Job has of these is not kept for others any more. Done before the Job itself loses them, so that
    nothing is left behind if that is cut short."""
    with ExitStack() as opened:
        pool = _Pool(root, opened)
        for name in names:
            pool.free(name, blobs)


class _Pool:
    """The shared contents, by handles that are open as long as `opened` is."""

    def __init__(self, root: Path, opened: ExitStack) -> None:
        self._root = root
        self._opened = opened
        self._top: Folder | None = None
        self._parts: dict[str, Folder] = {}

    def give(self, name: str, data: bytes, blobs: Folder) -> bool:
        """Let a Job have a content that is here; False if it is not, or if it is damaged."""
        part = self._part(name, make=False)
        if part is None or part.read(name) != data:
            return False
        try:
            os.link(name, name, src_dir_fd=part.fd, dst_dir_fd=blobs.fd, follow_symlinks=False)
        except FileExistsError:
            return False  # what the Job has under that name is not whole
        except OSError:
            return False  # as many links as the file system allows, or none at all
        return True

    def take(self, name: str, blobs: Folder) -> None:
        """Share a content that a Job has from now on, where the file system can."""
        part = self._part(name, make=True)
        if part is None:
            return
        with suppress(OSError):
            try:
                os.link(name, name, src_dir_fd=blobs.fd, dst_dir_fd=part.fd, follow_symlinks=False)
            except FileExistsError:
                part.remove(name)  # a damaged one
                os.link(name, name, src_dir_fd=blobs.fd, dst_dir_fd=part.fd, follow_symlinks=False)

    def free(self, name: str, blobs: Folder) -> None:
        part = self._part(name, make=False)
        kept, own = None if part is None else part.stat(name), blobs.stat(name)
        if part is not None and kept is not None:
            links = 1 if own is None or own.st_ino != kept.st_ino else 2
            # who takes it in this moment has it, and puts it here again for the next
            if kept.st_nlink <= links:
                part.remove(name)

    def _part(self, name: str, *, make: bool) -> Folder | None:
        start = name[:2]
        if start not in self._parts:
            if self._top is None:
                top = self._opened.enter_context(_opened(self._root))
                found = _made(top, POOL) if make else top.find(POOL)
                if found is None:
                    return None
                self._top = self._opened.enter_context(found)
            part = _made(self._top, start) if make else self._top.find(start)
            if part is None:
                return None
            self._parts[start] = self._opened.enter_context(part)
        return self._parts[start]


def _made(folder: Folder, name: str) -> Folder | None:
    """A folder of the pool, whose name need not survive power loss: contents are shared less then."""
    with suppress(OSError):
        os.mkdir(name, FOLDER_MODE, dir_fd=folder.fd)
    return folder.find(name)


def _opened(root: Path) -> Folder:
    folder = Folder.top(root)
    if folder is None:
        raise explained(FileNotFoundError(2, "it was removed at the same moment"), root)
    return folder


def _has(blobs: Folder, name: str, size: int) -> bool:
    found = blobs.stat(name)
    return found is not None and found.st_size == size


def _write(blobs: Folder, contents: Mapping[str, bytes]) -> None:
    at_once = len(contents) <= _FEW or not _can_sync_all()
    waiting: list[tuple[str, str]] = []
    try:
        for name, data in contents.items():
            waiting.append((blobs.write_aside(name, data, sync=at_once), name))
        if not at_once:
            _sync_all(blobs)
        while waiting:
            blobs.put_in_place(*waiting[-1])
            waiting.pop()
    except BaseException:
        for aside, _ in waiting:
            with suppress(OSError):
                os.unlink(aside, dir_fd=blobs.fd)
        raise


@cache
def _system() -> ctypes.CDLL | None:
    try:
        system = ctypes.CDLL(None, use_errno=True)
        return system if hasattr(system, "syncfs") else None
    except OSError:
        return None


def _can_sync_all() -> bool:
    return _system() is not None


def _sync_all(folder: Folder) -> None:
    """Everything that was written to the file system of a folder survives power loss from now on."""
    system = _system()
    if system is None or system.syncfs(folder.fd):
        number = ctypes.get_errno()
        raise explained(OSError(number, os.strerror(number)), folder.path)
