"""The directories of a store that stay open from one use to the next: its root, its spaces, the Jobs in use and theirs.

At each use every one of them is compared with what has its name now. One that was removed, replaced or linked elsewhere
behind our back is opened anew, or is not there; while a handle is open, no other directory has its number.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from threading import Lock, RLock
from types import TracebackType

from perstack.errors import StorageError
from perstack.ports.state_folder import make_state_folder
from perstack_filesystem.folders import Folder, explained

_MOST_OPEN = 16
"""Below the spaces, Jobs and what is in them: so many stay open when there are twice as many."""

Names = tuple[str, ...]
"""From the root down: nothing, a space, a Job of it, `runs` or the like of that."""


class KeptFolder(Folder):
    """A directory that more than one use shares."""

    def __init__(self, fd: int, path: Path, turn: RLock) -> None:
        super().__init__(fd, path)
        found = os.fstat(fd)
        self.number = (found.st_dev, found.st_ino)
        self.users = 0
        """How many are at work in it, maybe in threads: until they have ended it stays open."""
        self._is_retired = False
        self._turn = turn
        self._listing = Lock()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._turn:
            self.users -= 1
            if self._is_retired and not self.users:
                os.close(self.fd)

    def entries(self) -> list[os.DirEntry[str]]:
        """What is in it, in no order."""
        with self._listing:  # who lists by a handle moves its place, and puts it back at the end
            return super().entries()

    def retire(self) -> None:
        """Close it as soon as nobody uses it."""
        self._is_retired = True
        if not self.users:
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
            folder = self._current((), None)
            for depth in range(1, len(names) + 1):
                if folder is None:
                    return None
                folder = self._current(names[:depth], folder)
            if folder is not None:
                folder.users += 1
            return folder

    def make(self, *names: str) -> Folder | None:
        """As `find`, but the last of them is made if need be; None if the one above it is not there."""
        with self._turn:
            parent = self.find(*names[:-1])
            if parent is None:
                return None
            with parent:
                folder = self._current(names, parent)
                if folder is None:
                    parent.add(names[-1])
                    folder = self._current(names, parent)
            if folder is None:
                raise StorageError(f"{self._root.joinpath(*names)}: it was removed at the same moment")
            folder.users += 1
            return folder

    def make_space(self, space: str) -> Folder:
        """The directory of a space, made if need be, and the root too; as in `find`."""
        try:
            make_state_folder(self._root)
        except OSError as error:
            raise explained(error, self._root) from error
        folder = self.make(space)
        if folder is None:
            raise StorageError(f"{self._root}: it was removed at the same moment")
        return folder

    def close(self) -> None:
        """Close them all; what is asked for later is opened anew."""
        with self._turn:
            while self._kept:
                self._kept.popitem()[1].retire()

    def _current(self, names: Names, parent: Folder | None) -> KeptFolder | None:
        """What has this name in its parent now, which the root alone has not; opened anew if that is another one."""
        known = self._kept.get(names)
        found = self._stat_root() if parent is None else parent.stat(names[-1])
        if known is not None and found is not None and known.number == (found.st_dev, found.st_ino):
            self._kept.move_to_end(names)
            return known
        if known is not None:
            self._retire(names)
        if found is None:
            return None
        folder = Folder.top(self._root) if parent is None else parent.find(names[-1])
        return None if folder is None else self._keep(names, folder)

    def _stat_root(self) -> os.stat_result | None:
        try:
            return self._root.stat()  # the root alone may be reached through a link
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explained(error, self._root) from error

    def _keep(self, names: Names, folder: Folder) -> KeptFolder:
        kept = self._kept[names] = KeptFolder(folder.fd, folder.path, self._turn)
        if len(self._kept) > 2 * _MOST_OPEN:  # seldom, since it looks at all of them
            below = [one for one in self._kept if len(one) > 1]
            unused = [one for one in below if one != names[: len(one)] and not self._kept[one].users]
            for one in unused[: max(0, len(below) - _MOST_OPEN)]:
                self._retire(one)
        return kept

    def _retire(self, names: Names) -> None:
        for one in [one for one in self._kept if one[: len(names)] == names]:
            self._kept.pop(one).retire()
