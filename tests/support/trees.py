"""Folders as they are, seen by a walk of its own: not by what takes snapshots, nor by what rewinds."""

from __future__ import annotations

import os
import random
import shutil
import stat
from pathlib import Path

OFF = ("perstack", ".perstack-rewind")
"""What the names of a state folder, and of a rewind's staging folder, begin with at the top of a workspace."""

Tree = dict[bytes, tuple[str, bytes]]
NAMES = ["a", "b", os.fsdecode(b"c\xff\x1b"), "d d", '"\\', "é"]


def tree(folder: Path) -> Tree:
    """Every path with what it is: its kind, and its content or target. Without state, and perstack.toml."""
    found: Tree = {}
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder)
        if inner.parts[0].startswith(OFF):
            continue
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            what = ("link", os.fsencode(path.readlink()))
        elif stat.S_ISDIR(mode):
            what = ("folder", b"")
        elif stat.S_ISREG(mode):
            what = ("program" if mode & stat.S_IXUSR else "file", path.read_bytes())
        else:
            what = ("special", b"")
        found[os.fsencode(inner)] = what
    return found


def edit(folder: Path, chance: random.Random, edits: int) -> None:
    """Change a folder at random: files, programs, links, folders, names in any bytes; one may become another."""
    for _ in range(edits):
        place = folder
        for _ in range(chance.randrange(4)):
            inner = place / chance.choice(NAMES)
            if inner.is_symlink() or not inner.is_dir():
                break
            place = inner
        _change(place / chance.choice(NAMES), chance)


def _change(path: Path, chance: random.Random) -> None:
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
