"""Which folders of a person a policy gives to programs, and what in them it keeps from them, at this moment."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import field
from pathlib import Path

from perstack.core.sandbox import SandboxPolicy, is_below
from perstack.dataclass import dataclass
from perstack.ports.places import places
from perstack.ports.runtime import Surroundings
from perstack_bubblewrap.keeping import Finder
from perstack_bubblewrap.layout import View


@dataclass(slots=True)
class Watch:
    """Looks again before each program. `now` blocks, and is not to be called twice at a time."""

    policy: SandboxPolicy
    around: Surroundings
    _finders: dict[str, Finder] = field(default_factory=dict[str, Finder])

    def now(self, more_readable: tuple[str, ...] = ()) -> View:
        """Raises SkillError for a folder that is too large to be looked through, or that a link leads elsewhere."""
        around = self.around
        given = places(around.workspace, self.policy.writable, self.policy.readable)
        changeable = (name for one in given if one.is_writable for name in one.names)
        named = tuple(dict.fromkeys((*_named((str(around.workspace),)), *changeable)))
        only_read = (name for one in given if not one.is_writable for name in one.names)
        readable = tuple(path for path in dict.fromkeys(only_read) if path not in named)
        writable = tuple(path for path in named if not any(path != one and is_below(path, (one,)) for one in named))
        emptied, covered = _existing(map(str, around.hidden), writable)
        finders = [self._finder(root, frozenset(emptied)) for root in (*writable, *readable) if Path(root).is_dir()]
        kept = [finder.now() for finder in finders]
        linked = frozenset[tuple[int, int]]().union(*(one.linked for one in kept), _linked(around.hidden))
        further = (path for finder in finders for path in finder.names_of(linked)) if linked else ()
        hidden = (*(path for one in kept for path in one.hidden), *covered, *further)
        protected = _named(map(str, around.protected))
        within = (path for path in named if path not in writable and is_below(path, readable))
        return View(
            (*readable, *(path for path in _named(more_readable) if not is_below(path, writable))),
            writable,
            tuple(emptied),
            tuple(dict.fromkeys(path for path in hidden if path not in readable)),
            tuple(dict.fromkeys((*(path for one in kept for path in one.fixed), *protected))),
            (*(path for one in kept for path in one.held), *within),
            protected,
        )

    def _finder(self, root: str, without: frozenset[str]) -> Finder:
        key = root + "\0".join(sorted(without))
        if key not in self._finders:
            self._finders[key] = Finder(root, without=without)
        return self._finders[key]


def _named(paths: Iterable[str]) -> tuple[str, ...]:
    """Those that are there, each also by the name that it has without links."""
    found: list[str] = []
    for path in paths:
        if Path(path).exists():
            found += [os.path.normpath(path), os.path.realpath(path)]
    return tuple(dict.fromkeys(found))


def _linked(paths: Iterable[Path]) -> Iterator[tuple[int, int]]:
    """The identities of files among them that have further names."""
    for path in paths:
        with suppress(OSError):
            status = path.stat()
            if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                yield status.st_dev, status.st_ino


def _existing(paths: Iterable[str], writable: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The folders and the files among them. What holds the workspace cannot be kept from it."""
    names = [path for path in _named(paths) if not any(is_below(root, (path,)) for root in writable)]
    return [path for path in names if Path(path).is_dir()], [path for path in names if not Path(path).is_dir()]
