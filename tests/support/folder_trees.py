"""Contents of folders, read independently of the code that takes snapshots and rewinds."""

from __future__ import annotations

import os
import random
import shutil
import stat
from pathlib import Path

OFF = ("perstack", ".perstack-rewind")
"""Prefixes of state folders and a rewind's staging folder at the top of a workspace."""

Tree = dict[bytes, tuple[str, bytes]]
NAMES = ["a", "b", os.fsdecode(b"c\xff\x1b"), "d d", '"\\', "é"]


def tree(folder: Path) -> Tree:
    """Return every path with its kind, and its content or target; without state and perstack.toml."""
    entries: Tree = {}
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder)
        if inner.parts[0].startswith(OFF):
            continue
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            content = ("link", os.fsencode(path.readlink()))
        elif stat.S_ISDIR(mode):
            content = ("folder", b"")
        elif stat.S_ISREG(mode):
            content = ("program" if mode & stat.S_IXUSR else "file", path.read_bytes())
        else:
            content = ("special", b"")
        entries[os.fsencode(inner)] = content
    return entries


def edit(folder: Path, chance: random.Random, edits: int) -> None:
    """Change a folder at random: files, programs, links, folders, names with any bytes, and changes of kind."""
    for _ in range(edits):
        parent = folder
        for _ in range(chance.randrange(4)):
            inner = parent / chance.choice(NAMES)
            if inner.is_symlink() or not inner.is_dir():
                break
            parent = inner
        _change_file(parent / chance.choice(NAMES), chance)


def _change_file(path: Path, chance: random.Random) -> None:
    kind = chance.choice(["file", "program", "link", "folder", "nothing", "append"])
    if kind == "append":
        if path.is_file() and not path.is_symlink():
            with path.open("ab") as file:
                file.write(b"more\n")
        return
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if kind in ("file", "program"):
        path.write_bytes(chance.randbytes(chance.randrange(6)) + b"\n")
        path.chmod(0o755 if kind == "program" else 0o644)
    elif kind == "link":
        path.symlink_to(os.fsdecode(chance.choice([b"/etc/passwd", b"..", b"a", b"\xff"])))
    elif kind == "folder":
        path.mkdir()
