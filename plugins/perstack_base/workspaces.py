"""Directories that file tools may use: the workspace and the additions of `[sandbox]`.

A named directory inside another one gets no handle of its own; its name only determines what may be done there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from perstack.core.base.file_names import Parts
from perstack.core.definitions.sandbox import is_below
from perstack.ports.skill import SkillContext
from perstack.support.sandbox_paths import SandboxPath, places
from perstack_base.files import printable
from perstack_base.workspace import PROTECTED_WAYS, Rules, Workspace


class WorkspaceSet:
    """Workspace of a Job with its added directories. The owner must `close` it.

    Added directories that do not exist yet are looked for again when a path is in none of the others.
    """

    def __init__(self, context: SkillContext) -> None:
        """Open the directories.

        Raises SkillError if the workspace is not a directory, or a link redirects an added one.
        """
        self._context = context
        self._real = os.path.realpath(context.workspace)
        self._named: tuple[SandboxPath, ...] = ()
        self._added: dict[str, Workspace] = {}
        if context.writable or context.readable:
            self._named = places(context.workspace, context.writable, context.readable)
        self._rules = Rules(self._may_change, self._may_remove, self._shows, self._elsewhere, self._names)
        self.workspace = Workspace(
            context.workspace,
            context.state_dir,
            context.off_limits,
            (*context.protected, *self._protected_in(*(one.real for one in self._named))),
            context.protected_patterns,
            self._rules,
            env=context.env,
        )
        try:
            self._look()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all handles."""
        self.workspace.close()
        for one in self._added.values():
            one.close()

    def _look(self) -> None:
        context = self._context
        if not context.writable and not context.readable:
            return
        self._named = places(context.workspace, context.writable, context.readable)
        tops = {one.real for one in self._named if Path(one.real).is_dir()}
        for one in sorted(self._named, key=lambda one: len(one.real)):
            around = {self._real, *tops} - {one.real}
            if one.real not in self._added and one.real != self._real and not is_below(one.real, around):
                self._added[one.real] = self._open(one.real)

    def _open(self, real: str) -> Workspace:
        context, path = self._context, Path(real)
        state = () if context.state_dir is None else (context.workspace / context.state_dir,)
        return Workspace(
            path if path.is_dir() else path.parent,
            None,
            (*state, *context.off_limits),
            (
                *context.protected,
                *self._protected_in(self._real, *(one.real for one in self._named if one.real != real)),
            ),
            context.protected_patterns,
            self._rules,
            is_added=True,
            only="" if path.is_dir() else path.name,
            env=context.env,
        )

    def _protected_in(self, *folders: str) -> Iterator[Path]:
        """Yield the protected paths at the top of these directories, which are protected under other names too."""
        for folder in folders:
            yield from (Path(folder).joinpath(*way) for way in PROTECTED_WAYS)

    def _elsewhere(self, path: str) -> tuple[Workspace, Parts] | None:
        found = self._find(path)
        if found is None and len({*self._context.writable, *self._context.readable}) > len(self._named):
            self._look()
            found = self._find(path)
        return found

    def _find(self, path: str) -> tuple[Workspace, Parts] | None:
        plain = os.path.normpath(path)
        for name in (plain, *self._resolve(plain)):
            for one in (self.workspace, *self._added.values()):
                parts = one.inside(name)
                if parts is not None and (not one.only or parts[:1] == (one.only,)):
                    return one, parts
        return None

    def _resolve(self, path: str) -> tuple[str, ...]:
        """Return the path with an added directory's name replaced by its resolved form."""
        return tuple(
            one.real + path.removeprefix(one.name)
            for one in self._named
            if one.name != one.real and is_below(path, (one.name,))
        )

    def _may_change(self, path: str) -> bool:
        """Return whether a path may be changed: the innermost named directory decides."""
        around = [one for one in self._named if is_below(path, (one.real,))]
        deepest = max(around, key=lambda one: (len(one.real), one.is_writable), default=None)
        if is_below(path, (self._real,)) and (deepest is None or len(deepest.real) <= len(self._real)):
            return True
        return deepest is not None and deepest.is_writable

    def _may_remove(self, path: str) -> bool:
        return not any(is_below(one, (path,)) for one in (self._real, *(place.real for place in self._named)))

    def _shows(self, path: str) -> bool:
        return any(one.real == path and Path(path).is_file() for one in self._named if not one.is_writable)

    def _names(self) -> str:
        added = ", ".join(sorted(printable(one.name) for one in self._named if one.real in self._added))
        return f", or one in {added}" if added else ""
