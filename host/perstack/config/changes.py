"""Whether the files that a project was read from have changed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from perstack.config.load import LoadedProject, matches

Stamp: TypeAlias = tuple[str, int, int, int]
"""Name, time of change in nanoseconds, size and inode; zeros if it is not there."""


def stamps(files: Iterable[Path]) -> tuple[Stamp, ...]:
    """How files are now; a few microseconds each."""
    return tuple(_stamp(path) for path in files)


def matched(loaded: LoadedProject) -> tuple[tuple[str, ...], ...]:
    """The files that the patterns of `include` match now; as slow as looking for them."""
    return tuple(tuple(matches(pattern, folder)) for folder, pattern in loaded.patterns)


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return (str(path), 0, 0, 0)
    return (str(path), found.st_mtime_ns, found.st_size, found.st_ino)
