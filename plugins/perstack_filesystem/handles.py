"""The directories of a store that stay open from one use to the next: its root, its spaces, the Jobs in use.

At each use every one of them is compared with what has its name now. One that was removed, replaced or linked elsewhere
behind our back is opened anew, or is not there; while a handle is open, no other directory has its number.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from threading import RLock
from types import TracebackType

from perstack.errors import StorageError
from perstack.ports.state_folder import make_state_folder
from perstack_filesystem.folders import Folder, explained

_MOST_OPEN_JOBS = 32

Names = tuple[str, ...]
"""From the root down: nothing, a space, or a space and a Job."""


class KeptFolder(Folder):
    """A directory that more than one use shares. It is not listed by this handle: the place in a list is shared too."""

    def __init__(self, fd: int, path: Path, turn: RLock) -> None:
        super().__init__(fd, path)
        found = os.fstat(fd)
        self._number = (found.st_dev, found.st_ino)
        self._users = 0
        self._is_retired = False
        self._turn = turn

    @property
    def is_used(self) -> bool:
        """Whether somebody is at work in it, maybe in a thread."""
        return self._users > 0

    def is_that(self, found: os.stat_result | None) -> bool:
        """Whether this is the directory that was found."""
        return found is not None and self._number == (found.st_dev, found.st_ino)

    def used(self) -> KeptFolder:
        """Begin a use, which is to be ended as a context manager: until then it stays open."""
        self._users += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._turn:
            self._users -= 1
            self._close_if_unused()

    def retire(self) -> None:
        """Close it as soon as nobody uses it."""
        self._is_retired = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._is_retired and not self._users:
            os.close(self.fd)


class OpenFolders:
    """Those of one store. Any thread may ask for one."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._kept: OrderedDict[Names, KeptFolder] = OrderedDict()
        self._turn = RLock()

    def find(self, *names: str) -> Folder | None:
        """The directory of these names, to be used as a context manager; None if it is not there."""
        with self._turn:
            folder = self._top()
            for depth in range(len(names)):
                if folder is None:
                    return None
                folder = self._below(folder, names[: depth + 1])
            return None if folder is None else folder.used()

    def make(self, space: str) -> Folder:
        """The directory of a space, made if need be, and the root too; as in `find`."""
        with explained(self._root):
            make_state_folder(self._root)
        with self._turn:
            top = self._top()
            if top is None:
                raise StorageError(f"{self._root}: it was removed at the same moment")
            folder = self._below(top, (space,))
            if folder is None:
                top.add(space)
                folder = self._below(top, (space,))
            if folder is None:
                raise StorageError(f"{self._root / space}: it was removed at the same moment")
            return folder.used()

    def close(self) -> None:
        """Close them all; what is asked for later is opened anew."""
        with self._turn:
            while self._kept:
                self._kept.popitem()[1].retire()

    def _top(self) -> KeptFolder | None:
        known = self._kept.get(())
        with explained(self._root):
            try:
                # the root alone may be reached through a link
                found = self._root.stat()
            except FileNotFoundError:
                found = None
        if known is not None and known.is_that(found):
            return known
        self._retire(())
        return None if found is None else self._keep((), Folder.top(self._root))

    def _below(self, parent: Folder, names: Names) -> KeptFolder | None:
        known = self._kept.get(names)
        found = parent.stat(names[-1])
        if known is not None and known.is_that(found):
            self._kept.move_to_end(names)
            return known
        self._retire(names)
        return None if found is None else self._keep(names, parent.find(names[-1]))

    def _keep(self, names: Names, folder: Folder | None) -> KeptFolder | None:
        if folder is None:
            return None
        kept = self._kept[names] = KeptFolder(folder.fd, folder.path, self._turn)
        jobs = [one for one in self._kept if len(one) > 1]
        unused = [one for one in jobs if one != names and not self._kept[one].is_used]
        for one in unused[: max(0, len(jobs) - _MOST_OPEN_JOBS)]:
            self._retire(one)
        return kept

    def _retire(self, names: Names) -> None:
        known = self._kept.pop(names, None)
        if known is not None:
            known.retire()
