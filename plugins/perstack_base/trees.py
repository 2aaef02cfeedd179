"""What is below a directory that is to be moved or deleted whole."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack

from perstack.core.protected import Parts
from perstack.errors import SkillError
from perstack_base.files import printable
from perstack_base.workspace import ResolvedPath

_DEEPEST = 200
"""Levels: one handle is held for each."""

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def check_tree(place: ResolvedPath, destination: ResolvedPath | None = None) -> None:
    """Raises SkillError if something below a directory is off limits, or would be where it is to be moved to.

    It is for the person then to see to it: a part of a tree is neither left behind nor taken along.
    """
    known = place.workspace.protected_identities()
    status = place.status()
    if status is None or not stat.S_ISDIR(status.st_mode):
        return
    with ExitStack() as held:
        top = os.open(place.name, _OPEN, dir_fd=place.directory)
        held.callback(os.close, top)
        if destination is not None:
            destination.workspace.check_way(destination.parts, destination.shown)
        for way, identity in _below(top, (), 0):
            shown = place.workspace.shown((*place.parts, *way))
            place.workspace.check_way((*place.parts, *way), shown)
            if destination is not None:
                there = (*destination.parts, *way)
                destination.workspace.check_way(there, destination.workspace.shown(there))
            if identity in known:
                raise SkillError(f"{shown} is off limits to tools, and so is what holds it; use another path")


def _below(directory: int, way: Parts, depth: int) -> Iterator[tuple[Parts, tuple[int, int]]]:
    device = os.fstat(directory).st_dev
    with os.scandir(directory) as entries:
        found = [(entry.name, entry.inode(), entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, inode, is_directory in found:
        yield (*way, name), (device, inode)
        if not is_directory:
            continue
        if depth == _DEEPEST:
            raise SkillError(f"{printable('/'.join((*way, name)))} is more than {_DEEPEST} levels deep; use exec")
        handle = os.open(name, _OPEN, dir_fd=directory)
        try:
            yield from _below(handle, (*way, name), depth + 1)
        finally:
            os.close(handle)
