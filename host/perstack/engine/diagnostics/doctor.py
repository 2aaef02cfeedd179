"""Whether what perstack needs is there on this machine, and what to do about what is not."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Literal

from perstack.dataclass import dataclass
from perstack.engine.provider_states import ProviderState, provider_states
from perstack.engine.setup import Setup
from perstack.engine.state import places_of
from perstack.ports.storage import ChecksItself, Storage
from perstack.version import VERSION

_PACKAGE = "perstack"
_OLDEST_PYTHON = (3, 11)
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+).*;.*extra\s*==\s*['\"]([^'\"]+)['\"]")
_ROOM = 1_000_000_000
"""Bytes on the disk of the state, below which somebody should look at it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    about: str
    state: Literal["ok", "missing", "problem"]
    """Missing is what is not needed by all; a problem is in the way."""
    text: str
    remedy: str = ""


async def diagnosis(setup: Setup) -> tuple[Finding, ...]:
    """Python, the extras, the providers, the place of the state. Nothing is changed."""
    return (
        _python(),
        *_extras(),
        *_providers(await provider_states(setup)),
        *(_place(path) for path in places_of(setup.storage)[:1]),
        *await _server(setup.storage),
    )


def _python() -> Finding:
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}, perstack {VERSION}"
    version = tuple(map(int, platform.python_version_tuple()[:2]))
    if version < _OLDEST_PYTHON:
        return Finding("Python", "problem", text, "use Python 3.11 or newer")
    return Finding("Python", "ok", text)


def _extras() -> Iterator[Finding]:
    """Each extra of the package, with what it would install."""
    needed = dict[str, list[str]]()
    for line in metadata.requires(_PACKAGE) or ():
        if found := _REQUIREMENT.match(line):
            needed.setdefault(found[2], []).append(found[1])
    for extra, packages in needed.items():
        missing = [name for name in packages if not _is_installed(name)]
        about = f"extra {extra}"
        if missing:
            yield Finding(about, "missing", f"not there: {', '.join(missing)}", f"pip install 'perstack[{extra}]'")
        else:
            yield Finding(about, "ok", ", ".join(f"{name} {metadata.version(name)}" for name in packages))


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _providers(states: Sequence[ProviderState]) -> Iterator[Finding]:
    for state in states:
        about = f"provider {state.name}"
        if state.is_configured and state.problem:
            yield Finding(about, "problem", state.problem, state.how_to_configure)
        elif state.is_configured:
            model = f", {state.default_model} if no model is named" if state.default_model else ""
            yield Finding(about, "ok", f"{'the default' if state.is_default else 'ready'}{model}")
        elif state.is_default:
            yield Finding(about, "problem", "perstack.toml names it, and it is not set up", state.how_to_configure)
        else:
            yield Finding(about, "missing", "not set up", state.how_to_configure)
    if not any(state.is_usable for state in states):
        remedy = "set up one of the providers above"
        yield Finding("a model", "problem", "no provider is set up, so no Expert can be run", remedy)


def _place(path: Path) -> Finding:
    """Where Jobs are kept: whether it can be written, and how much room there is."""
    folder = next(one for one in (*([path] if path.is_dir() else []), *path.parents) if one.exists())
    if not folder.is_dir():
        return Finding("state", "problem", f"{path}: {folder} is not a folder", "name another place as the storage")
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding("state", "problem", f"{path}: {error.strerror}", "name another place as the storage")
    text = f"{path}, {free / 1e9:.1f} GB free"
    if not os.access(folder, os.W_OK | os.X_OK):
        remedy = f"let {_user()} write to {folder}, or name another place as the storage"
        return Finding("state", "problem", f"{text}, not to be written to", remedy)
    if free < _ROOM:
        return Finding("state", "problem", text, "make room on that disk, or remove old Jobs")
    return Finding("state", "ok", text)


async def _server(storage: Storage) -> tuple[Finding, ...]:
    """What a storage that a server keeps says of it."""
    checks = await storage.checks() if isinstance(storage, ChecksItself) else ()
    states: tuple[Literal["problem", "ok"], ...] = ("problem", "ok")
    return tuple(Finding(f"state, {one.about}", states[one.is_there], one.text, one.remedy) for one in checks)


def _user() -> str:
    return os.environ.get("USER") or f"user {os.getuid()}"
