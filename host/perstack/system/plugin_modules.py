"""Modules of plugins: entry points of installed packages, and modules that the user names in PERSTACK_PLUGINS."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, EntryPoints, distributions
from typing import NamedTuple

from perstack.system.module_path import is_taken_out, restore_current_folder

EXTRA_MODULES = "PERSTACK_PLUGINS"
"""Environment variable: comma-separated modules to load as plugins, in addition to the installed ones."""


_GROUPS = "[perstack"  # beginning of the headers of perstack's groups in a package's metadata


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
    """Return the entry points of perstack's groups on this path. Cached, because reading all metadata is slow.

    Only packages with such a group are parsed. Of two packages with one name the first on the path counts, whatever it
    declares, as in `importlib.metadata.entry_points`.
    """
    entry_points: list[EntryPoint] = []
    names: set[str] = set()
    for dist in distributions():
        if _GROUPS in (dist.read_text("entry_points.txt") or ""):
            name = _name_and_version(dist)[0]
            if name not in names and _is_first_on_path(dist, name):
                names.add(name)
                entry_points += dist.entry_points
    return EntryPoints(entry_points)


def _is_first_on_path(dist: Distribution, name: str) -> bool:
    first = next(iter(distributions(name=name)), dist) if name else dist
    return _metadata(first) == _metadata(dist) and first.locate_file("") == dist.locate_file("")


def _metadata(dist: Distribution) -> str:
    return dist.read_text("METADATA") or dist.read_text("PKG-INFO") or dist.read_text("") or ""


def _name_and_version(dist: Distribution) -> tuple[str, str]:
    """Return name and version of a package, without parsing its whole metadata, of which a README is part."""
    header = dict(line.split(": ", 1) for line in _metadata(dist).partition("\n\n")[0].splitlines() if ": " in line)
    return header.get("Name", ""), header.get("Version", "")


@lru_cache(maxsize=2)
def _installed_modules(group: str, path: tuple[str, ...]) -> tuple[InstalledModule, ...]:
    result: list[InstalledModule] = []
    packages: dict[int, tuple[str, str]] = {}
    for point in sorted(_entry_points(path).select(group=group), key=lambda point: point.name):
        dist = point.dist
        if dist is not None and is_taken_out(str(dist.locate_file(""))):
            continue  # skipped: a stranger may have written this folder
        if dist is None:
            result.append(InstalledModule(point, point.value, ""))
            continue
        if id(dist) not in packages:
            packages[id(dist)] = _name_and_version(dist)
        result.append(InstalledModule(point, *packages[id(dist)]))
    return tuple(result)


def named_modules(env: Mapping[str, str]) -> list[str]:
    """Return the modules named in PERSTACK_PLUGINS. If there are any, imports also search the current folder."""
    modules = [name.strip() for name in env.get(EXTRA_MODULES, "").split(",") if name.strip()]
    if modules:
        from pydantic import TypeAdapter

        # pydantic loads its plugins with the first validator: later it would search the current folder for them
        TypeAdapter(int)
        restore_current_folder()
    return modules
