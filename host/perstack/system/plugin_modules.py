"""Modules of plugins: entry points of installed packages, and modules that the user names in PERSTACK_PLUGINS."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import NamedTuple, cast

from perstack.system.module_path import is_taken_out, restore_current_folder

EXTRA_MODULES = "PERSTACK_PLUGINS"
"""Environment variable: comma-separated modules to load as plugins, in addition to the installed ones."""


class InstalledModule(NamedTuple):
    """An entry point, with the package that declares it."""

    point: EntryPoint
    package: str
    version: str


def installed_modules(group: str) -> tuple[InstalledModule, ...]:
    """Return the entry points of a group, sorted by name, except of folders taken out of the module path."""
    return _installed_modules(group, tuple(sys.path))


@lru_cache(maxsize=1)
def _entry_points(path: tuple[str, ...]) -> EntryPoints:
    """Return all entry points on this path. Cached, because reading all metadata is slow."""
    return cast("EntryPoints", entry_points())  # Python 3.11 returns another class with this `select`


@lru_cache(maxsize=2)
def _installed_modules(group: str, path: tuple[str, ...]) -> tuple[InstalledModule, ...]:
    result: list[InstalledModule] = []
    packages: dict[int, tuple[str, str]] = {}
    for point in sorted(_entry_points(path).select(group=group), key=lambda point: point.name):
        dist = point.dist
        if dist is not None and is_taken_out(str(dist.locate_file(""))):
            continue  # not installed: a folder that a stranger may have written
        if dist is None:
            result.append(InstalledModule(point, point.value, ""))
            continue
        if id(dist) not in packages:
            metadata = dist.metadata  # parsed at each access, also by `name` and `version`
            packages[id(dist)] = metadata["Name"], metadata["Version"]
        result.append(InstalledModule(point, *packages[id(dist)]))
    return tuple(result)


def named_modules(env: Mapping[str, str]) -> list[str]:
    """Return the modules named in PERSTACK_PLUGINS. With any, they are also looked for in the current folder."""
    modules = [name.strip() for name in env.get(EXTRA_MODULES, "").split(",") if name.strip()]
    if modules:
        from pydantic import TypeAdapter

        # pydantic loads its plugins with the first validator: after the next line it would search the current folder
        TypeAdapter(int)
        restore_current_folder()
    return modules
