"""Whether the files that a project was read from have changed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from perstack.config.globbing import TooMuch, matches
from perstack.config.load import LoadedProject

Stamp: TypeAlias = tuple[str, int, int, int]
"""Name, time of change in nanoseconds, size and inode; zeros if it is not there."""


def stamps(files: Iterable[Path]) -> tuple[Stamp, ...]:
    """How files are now; a few microseconds each."""
    return tuple(_stamp(path) for path in files)


def matched(loaded: LoadedProject) -> tuple[tuple[str, ...], ...]:
    """The files that the patterns of `include` match now; as slow as looking for them."""
    return tuple(_matched(folder, pattern) for folder, pattern in loaded.patterns)


def _matched(folder: Path, pattern: str) -> tuple[str, ...]:
    try:
        return tuple(matches(pattern, folder))
    except TooMuch:
        return ()  # since it was read, too much has come to be in there: what was read stays


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return (str(path), 0, 0, 0)
    return (str(path), found.st_mtime_ns, found.st_size, found.st_ino)
