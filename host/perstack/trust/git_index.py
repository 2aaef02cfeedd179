"""Digest of the files that git tracks below a folder, which a pull, a merge or a checkout may replace without asking.

Git's index is read as it is, by its documented format, and no program of git is run: a repository's configuration names
programs that git executes. Source: https://git-scm.com/docs/index-format.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from perstack.system.files import read_regular

_MAX_INDEX_BYTES = 1 << 28
_MAX_LINK_BYTES = 4096
_HEADER = b"DIRC"
_HEADER_BYTES = 12
_FIXED_BYTES = 62  # bytes of an entry before its path: times and numbers, the object's name (20 bytes), flags
_OBJECT = 40  # offset of the object's name
_EXTENDED = 0x40  # bit in the first byte of the flags: two more bytes of flags follow
_COMPRESSED_VERSION = 4


def tracked_digest(path: Path) -> str:
    """Return a digest of the files at or below a path that git tracks, with their contents; empty without any.

    An unreadable index counts as one without such files. Costs a search through the index.
    """
    try:
        repository = _repository_of(path)
        if repository is None:
            return ""
        top, index = repository
        data = read_regular(index, _MAX_INDEX_BYTES)
        prefix = os.fsencode(os.path.relpath(os.path.realpath(path), os.path.realpath(top)))
        entries = [entry for entry in _entries(data, prefix) if (entry[20:] + b"/").startswith(prefix + b"/")]
    except (OSError, ValueError, IndexError):
        return ""
    return sha256(b"\0".join(entries)).hexdigest() if entries else ""


def is_untracked(path: Path) -> bool:
    """Return whether a file is in a repository that does not track it, so that no pull or checkout changes it.

    An unreadable index counts as tracking everything.
    """
    try:
        repository = _repository_of(path)
        if repository is None:
            return False
        top, index = repository
        if not index.exists():
            return True
        name = os.fsencode(os.path.relpath(os.path.realpath(path), os.path.realpath(top)))
        return all(entry[20:] != name for entry in _entries(read_regular(index, _MAX_INDEX_BYTES), name))
    except (OSError, ValueError, IndexError):
        return False


def _repository_of(path: Path) -> tuple[Path, Path] | None:
    """Return the top folder of the nearest repository around a path, and its index."""
    for folder in Path(os.path.realpath(path)).parents:
        link = folder / ".git"
        if link.is_dir():
            return folder, link / "index"
        if link.is_file():  # a worktree or a submodule
            target = read_regular(link, _MAX_LINK_BYTES).decode("utf-8", "surrogateescape").partition("gitdir:")[2]
            return folder, folder / target.strip() / "index"
    return None


def _entries(data: bytes, prefix: bytes) -> Iterator[bytes]:
    """Yield the object's name and the path of each entry; paths that do not contain the prefix may be left out."""
    version, count = int.from_bytes(data[4:8], "big"), int.from_bytes(data[8:12], "big")
    if data[:4] != _HEADER or (version != _COMPRESSED_VERSION and prefix not in data):  # a search takes next to nothing
        return
    position, path = _HEADER_BYTES, b""
    for _ in range(count):
        start, name = position, data[position + _OBJECT : position + _OBJECT + 20]
        position += _FIXED_BYTES + (2 if data[position + _FIXED_BYTES - 2] & _EXTENDED else 0)
        if version == _COMPRESSED_VERSION:
            dropped, position = _read_varint(data, position)
            end = data.index(b"\0", position)
            path, position = path[: len(path) - dropped] + data[position:end], end + 1
        else:
            end = data.index(b"\0", position)
            path = data[position:end]
            position = start + (end - start) // 8 * 8 + 8
        yield name + path


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return an integer of variable length, and the position after it."""
    value = data[position] & 0x7F
    while data[position] & 0x80:
        position += 1
        value = ((value + 1) << 7) | (data[position] & 0x7F)
    return value, position + 1
