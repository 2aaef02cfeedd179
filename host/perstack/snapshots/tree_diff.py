"""Compare two trees folder by folder, so that only folders that differ are read; plan a rewind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Literal

from perstack.core.base.file_names import is_never_recorded, spell
from perstack.core.base.patterns import Glob
from perstack.core.files.trees import Entry, File, Link, SkippedEntry, Subfolder, TreeFolder
from perstack.dataclass import dataclass

ChangeKind = Literal["added", "removed", "changed", "mode"]  # `mode` if only the executable bit changed


@dataclass(frozen=True, slots=True)
class Change:
    """Path whose entries in two trees differ. At most one of them is a folder; otherwise its contents differ."""

    path: bytes  # relative to the workspace's folder, with slashes
    old: Entry | None
    new: Entry | None

    @property
    def kind(self) -> ChangeKind:
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
    """Digests of two folders at one path to compare; None if a tree has no folder there."""

    path: bytes
    old: str | None
    new: str | None
    depth: int = 0


@dataclass(frozen=True, slots=True)
class FolderDiff:
    """Changes between two folders, and the subfolders to compare next."""

    changes: tuple[Change, ...]
    below: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of files and links that two trees differ in."""

    added: int = 0
    removed: int = 0
    changed: int = 0  # includes changes of the mode only


def compare(pair: Pair, old: TreeFolder, new: TreeFolder) -> FolderDiff:
    """Compare the folders of a pair; a missing one is passed as empty."""
    old_by_name = {entry.name: entry for entry in old.entries}
    new_by_name = {entry.name: entry for entry in new.entries}
    changes: list[Change] = []
    subfolders: list[Pair] = []
    for name in sorted(old_by_name.keys() | new_by_name.keys()):
        old_entry, new_entry = old_by_name.get(name), new_by_name.get(name)
        if old_entry == new_entry:
            continue
        path = pair.path + b"/" + name if pair.path else name
        subpair = Pair(path, _folder(old_entry), _folder(new_entry), pair.depth + 1)
        if subpair.old is None or subpair.new is None:
            changes.append(Change(path, old_entry, new_entry))
        if subpair.old is not None or subpair.new is not None:
            subfolders.append(subpair)
    return FolderDiff(tuple(changes), tuple(subfolders))


def counts_of(changes: tuple[Change, ...]) -> Counts:
    """Count changed files and links, except changes from or to an entry that was left out: it is unknown."""
    added = removed = changed = 0
    for change in changes:
        if isinstance(change.old, SkippedEntry) or isinstance(change.new, SkippedEntry):
            continue
        was_there, is_there = isinstance(change.old, File | Link), isinstance(change.new, File | Link)
        changed += was_there and is_there
        added += is_there and not was_there
        removed += was_there and not is_there
    return Counts(added, removed, changed)


def _folder(entry: Entry | None) -> str | None:
    return entry.digest if isinstance(entry, Subfolder) else None


# Rewinding: which changes between two trees are applied, and which paths are kept and why.

KeptReason = Literal["notRecorded", "ignoredThen", "addedSince", "inTheWay", "unknownInside", "otherFileSystem"]
"""Reason why a path is kept although the trees differ: one tree has not recorded it (`notRecorded`), the earlier tree
ignored it (`ignoredThen`), it was added since and is to stay (`addedSince`), something that no snapshot has is in its
place (`inTheWay`) or in the folder to remove (`unknownInside`), or it is on another file system."""


@dataclass(frozen=True, slots=True)
class KeptEntry:
    """Path that a rewind leaves unchanged."""

    path: bytes
    why: KeptReason


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """Changes that a rewind applies to a workspace, and paths that it keeps."""

    changes: tuple[Change, ...] = ()  # changes from the present entry to the wanted one, sorted by path
    kept: tuple[KeptEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class RewindScope:
    """The part of the differences that a rewind applies."""

    only: tuple[str, ...] = ()  # globs of paths; empty for all
    keeps_added: bool = False  # True if files stay that were added since, by the Job or by others


def rewind_plan(changes: Iterable[Change], scope: RewindScope, ignored_then: Set[bytes]) -> RewindPlan:
    """Return the changes to an earlier tree to apply; what that tree ignored (`ignored_then`) is kept."""
    is_wanted = path_filter(scope.only)
    applied: list[Change] = []
    kept: list[KeptEntry] = []
    for change in changes:
        if not is_wanted(change.path) or any(map(is_never_recorded, change.path.split(b"/"))):
            continue
        if isinstance(change.old, SkippedEntry) or isinstance(change.new, SkippedEntry):
            kept.append(KeptEntry(change.path, "notRecorded"))
        elif change.new is None and change.path in ignored_then:
            kept.append(KeptEntry(change.path, "ignoredThen"))
        elif change.new is None and scope.keeps_added:
            kept.append(KeptEntry(change.path, "addedSince"))
        else:
            applied.append(change)
    return RewindPlan(tuple(applied), tuple(kept))


def path_filter(patterns: Iterable[str]) -> Callable[[bytes], bool]:
    """Return a predicate: True for paths that match a glob or lie in a matching folder; without globs, for all."""
    globs = [Glob(pattern.rstrip("/")) for pattern in patterns]

    def is_wanted(path: bytes) -> bool:
        parts = spell(path).split("/")
        prefixes = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
        return not globs or any(glob.matches_path(prefix, is_strict=False) for glob in globs for prefix in prefixes)

    return is_wanted
