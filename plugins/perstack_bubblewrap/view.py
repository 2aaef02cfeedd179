"""Which folders of a person a policy gives to programs, and what in them it keeps from them, at this moment."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from perstack.core.sandbox import SandboxPolicy
from perstack.errors import UsageError
from perstack.ports.runtime import Surroundings
from perstack_bubblewrap.keeping import Finder, Kept
from perstack_bubblewrap.layout import View, is_below

_NOBODYS = ("/proc", "/sys", "/dev", "/run")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/boot", "/var")


def check_places(policy: SandboxPolicy, around: Surroundings) -> None:
    """Raises UsageError for a folder that would give more away than anybody means."""
    home = {str(Path(name)) for name in (around.env.get("HOME"), os.path.expanduser("~")) if name}  # noqa: PTH111
    for what, path, writable in (
        ("the workspace", str(around.workspace), True),
        *(("`writable` of [sandbox]", path, True) for path in policy.writable),
        *(("`readable` of [sandbox]", path, False) for path in policy.readable),
    ):
        for name in {path, os.path.realpath(path)}:
            if any(is_below(one, (name,)) for one in home):
                raise UsageError(f"{what} is {path}, which holds your home folder: name a folder in it")
            if is_below(name, _NOBODYS) or (writable and is_below(name, _SYSTEM)):
                raise UsageError(f"{what} is {path}, which belongs to the system: name another folder")


@dataclass(slots=True)
class Watch:
    """Looks again before each program. `now` blocks, and is not to be called twice at a time."""

    policy: SandboxPolicy
    around: Surroundings
    _finders: dict[str, Finder] = field(default_factory=dict[str, Finder])

    def now(self, more_readable: tuple[str, ...] = ()) -> View:
        """Raises SkillError for a folder that is too large to be looked through."""
        around = self.around
        named = _named((str(around.workspace), *self.policy.writable))
        writable = tuple(path for path in named if not any(path != one and is_below(path, (one,)) for one in named))
        readable = tuple(path for path in _named(self.policy.readable) if path not in writable)
        emptied, covered = _existing(map(str, around.hidden), writable)
        kept = [self._kept(root, frozenset(emptied)) for root in (*writable, *readable)]
        hidden = [path for one in kept for path in one.hidden if path not in self.policy.readable]
        protected = _named(map(str, around.protected))
        return View(
            (*readable, *(path for path in _named(more_readable) if not is_below(path, writable))),
            writable,
            tuple(emptied),
            tuple(dict.fromkeys((*hidden, *(path for path in covered if path not in self.policy.readable)))),
            tuple(dict.fromkeys((*(path for one in kept for path in one.fixed), *protected))),
            tuple(path for one in kept for path in one.held),
            protected,
        )

    def _kept(self, root: str, without: frozenset[str]) -> Kept:
        if not Path(root).is_dir():
            return Kept()
        key = root + "\0".join(sorted(without))
        if key not in self._finders:
            self._finders[key] = Finder(root, without=without)
        return self._finders[key].now()


def _named(paths: Iterable[str]) -> tuple[str, ...]:
    """Those that are there, each also by the name that it has without links."""
    found: list[str] = []
    for path in paths:
        if Path(path).exists():
            found += [os.path.normpath(path), os.path.realpath(path)]
    return tuple(dict.fromkeys(found))


def _existing(paths: Iterable[str], writable: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The folders and the files among them. What holds the workspace cannot be kept from it."""
    names = [path for path in _named(paths) if not any(is_below(root, (path,)) for root in writable)]
    return [path for path in names if Path(path).is_dir()], [path for path in names if not Path(path).is_dir()]
