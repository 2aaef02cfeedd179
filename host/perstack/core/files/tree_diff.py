"""What differs between two trees, folder by folder: whoever reads the folders need read those alone that differ."""

from __future__ import annotations

from typing import Literal

from perstack.core.snapshots.tree import Below, Entry, File, Folder, LeftOut, Link
from perstack.dataclass import dataclass

ChangeKind = Literal["added", "removed", "changed", "mode"]
"""`mode`: only whether it may be executed."""


@dataclass(frozen=True, slots=True)
class Change:
    """One path that two trees have differently. Both are never folders: what differs is in them then."""

    path: bytes
    """From the workspace's folder, with slashes."""
    old: Entry | None
    new: Entry | None

    @property
    def kind(self) -> ChangeKind:
        """In a word."""
        match self.old, self.new:
            case None, _:
                return "added"
            case _, None:
                return "removed"
            case File(digest=old), File(digest=new) if old == new:
                return "mode"
            case _:
                return "changed"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two folders at one path that have to be compared; None: there is none in that tree."""

    path: bytes
    old: str | None
    new: str | None
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Compared:
    """What two folders differ in, and which folders in them are to be compared next."""

    changes: tuple[Change, ...]
    below: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class Counts:
    """How many files and links two trees differ in."""

    added: int = 0
    removed: int = 0
    changed: int = 0
    """Their mode alone included."""


def compare(pair: Pair, old: Folder, new: Folder) -> Compared:
    """The folders of a pair, each empty where there is none."""
    before = {entry.name: entry for entry in old.entries}
    after = {entry.name: entry for entry in new.entries}
    changes: list[Change] = []
    below: list[Pair] = []
    for name in sorted(before.keys() | after.keys()):
        one, other = before.get(name), after.get(name)
        if one == other:
            continue
        path = pair.path + b"/" + name if pair.path else name
        inner = Pair(path, _folder(one), _folder(other), pair.depth + 1)
        if inner.old is None or inner.new is None:
            changes.append(Change(path, one, other))
        if inner.old is not None or inner.new is not None:
            below.append(inner)
    return Compared(tuple(changes), tuple(below))


def counts_of(changes: tuple[Change, ...]) -> Counts:
    """How many files and links are among them. What is left out on either side is not counted: it is not known."""
    added = removed = changed = 0
    for change in changes:
        if isinstance(change.old, LeftOut) or isinstance(change.new, LeftOut):
            continue
        was, is_there = isinstance(change.old, File | Link), isinstance(change.new, File | Link)
        changed += was and is_there
        added += is_there and not was
        removed += was and not is_there
    return Counts(added, removed, changed)


def _folder(entry: Entry | None) -> str | None:
    return entry.digest if isinstance(entry, Below) else None
