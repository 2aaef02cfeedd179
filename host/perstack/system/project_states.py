"""Find the state of perstack projects in a folder: of each perstack.toml, at any depth.

The state of a project is the folder `perstack` next to its perstack.toml, and the files that addresses such as
`file:STATE` and `sqlite:STATE.db` in perstack.toml name. The file is not parsed: every text in it that begins like such
an address counts, so an anchor and a key file count too. An answer is kept until the file changes.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from perstack.core.files.file_names import is_state_folder
from perstack.system.files import read_regular

DEFINITION = "perstack.toml"
_ADDRESS = re.compile(rb"""["'](?:file|sqlite):(?://(?=/))?([^"'\n?#]+)[?#"']""")
_SQLITE_SUFFIXES = ("-wal", "-shm", "-journal", "-leases", "-programs", "-rewinds")
_MAX_BYTES = 8 << 20


def has_definition(folder: int | str) -> bool:
    """Return True if a folder, by its path or an open handle, contains a perstack.toml."""
    try:
        if isinstance(folder, int):
            os.stat(DEFINITION, dir_fd=folder, follow_symlinks=False)
        else:
            os.lstat(f"{folder}/{DEFINITION}")
    except (OSError, ValueError):
        return False
    return True


def states_of(folder: int, path: str) -> tuple[str, ...]:
    """Return the absolute paths of the state that the perstack.toml in an open folder, at `path`, names."""
    if not os.access(DEFINITION, os.F_OK, dir_fd=folder):  # faster than catching an exception
        return ()
    try:
        status = os.stat(DEFINITION, dir_fd=folder)
    except OSError:
        return ()
    if not stat.S_ISREG(status.st_mode):
        return ()
    return _named_states(path, status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)


def is_state_of_project(path: str) -> bool:
    """Return True if an absolute path without links is, or is in, the state of a project in a folder above it."""
    parts = path.split("/")
    for index, name in enumerate(parts):
        above = "/".join(parts[:index])
        if is_state_folder(name) and has_definition(above or "/"):
            return True
        if index and has_definition(above or "/") and _is_named(path, above or "/"):
            return True
    return False


def is_at_or_below(path: str, places: tuple[str, ...]) -> bool:
    """Return True if a path is one of `places`, or below one, ignoring upper and lower case."""
    folded = f"{path.casefold()}/"
    return any(folded.startswith(f"{place.casefold()}/") for place in places)


def contains_any(path: str, places: tuple[str, ...]) -> bool:
    """Return True if a path contains one of `places`, ignoring upper and lower case."""
    folded = f"{path.casefold()}/"
    return any(place.casefold().startswith(folded) for place in places)


def _is_named(path: str, folder: str) -> bool:
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return is_at_or_below(path, states_of(handle, folder))
    finally:
        os.close(handle)


@lru_cache(maxsize=1_000)
def _named_states(folder: str, *_version: int) -> tuple[str, ...]:
    """Return the states that a perstack.toml names; the numbers identify the version of the file, for the cache."""
    with suppress(OSError):
        text = read_regular(Path(folder, DEFINITION), _MAX_BYTES)
        names = [os.path.expanduser(os.fsdecode(name)) for name in _ADDRESS.findall(text)]  # noqa: PTH111
        paths = dict.fromkeys(os.path.normpath(os.path.join(folder, name)) for name in names)  # noqa: PTH118
        inner = [path for path in paths if not f"{folder.rstrip('/')}/".startswith(f"{path.rstrip('/')}/")]
        return tuple(f"{path}{suffix}" for path in inner for suffix in ("", *_SQLITE_SUFFIXES))
    return ()
