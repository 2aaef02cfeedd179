"""Compare two trees folder by folder, so that only folders that differ are read; plan a rewind; diff their files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Set
from itertools import chain
from typing import Literal, assert_never

from perstack.core.base.records import JsonObject
from perstack.core.files.file_names import is_never_recorded, spell
from perstack.core.files.globs import Glob
from perstack.core.files.line_diff import Effort, Hunk, as_text, is_text, line_diff, split_lines
from perstack.dataclass import dataclass
from perstack.snapshots.trees import Entry, File, Link, SkippedEntry, Subfolder, TreeFolder

ChangeKind = Literal["added", "removed", "changed", "mode"]  # `mode` if only the executable bit changed


@dataclass(frozen=True, slots=True)
class Change:
    """Path whose entries in two trees differ. At most one entry is a folder: two folders have changes of their own."""

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
        subpair = Pair(path, _folder_digest(old_entry), _folder_digest(new_entry), pair.depth + 1)
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
        existed_before, exists_now = isinstance(change.old, File | Link), isinstance(change.new, File | Link)
        changed += existed_before and exists_now
        added += exists_now and not existed_before
        removed += existed_before and not exists_now
    return Counts(added, removed, changed)


def _folder_digest(entry: Entry | None) -> str | None:
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


# Diffs of files between two trees.


def changed_lines(old: bytes, new: bytes) -> tuple[int, int] | None:
    """Count lines that only the new and only the old text has, moved ones excluded; None if either is binary."""
    if not is_text(old) or not is_text(new):
        return None
    before, after = Counter(old.splitlines()), Counter(new.splitlines())
    return (after - before).total(), (before - after).total()


Kind = Literal["file", "program", "link", "folder", "leftOut"]

MAX_COMPARED_BYTES = 4 << 20  # maximum bytes of a file whose lines are compared

EFFORT_STEPS = 8_000_000  # steps for comparing all files of one diff: some seconds


@dataclass(frozen=True, slots=True)
class Side:
    """Entry of a path in one of two trees."""

    kind: Kind
    size: int = 0
    target: str = ""  # target of a link, spelled as names are


@dataclass(frozen=True, slots=True)
class FileDiff:
    """Path whose entries in two trees differ."""

    path: str  # spelled as names in trees are: control characters are escaped
    kind: ChangeKind
    old: Side | None
    new: Side | None
    added: int | None = None
    removed: int | None = None  # number of lines; None for a binary file, or one too large to compare
    is_binary: bool = False
    hunks: tuple[Hunk, ...] = ()
    lacks_newline: tuple[bool, bool] = (False, False)  # True if the old and the new text end without a line break

    @property
    def is_file(self) -> bool:
        """True if a file or a link is on either side."""
        sides = (self.old, self.new)
        return any(side is not None and side.kind in ("file", "program", "link") for side in sides)

    def to_json(self) -> JsonObject:
        r"""Return the value that `diff --json` shows; bytes that are no UTF-8 become `\xHH`."""
        result: JsonObject = {"path": self.path, "kind": self.kind}
        for name, side in (("old", self.old), ("new", self.new)):
            if side is not None:
                result[name] = {
                    "kind": side.kind,
                    "size": side.size,
                    **({"target": side.target} if side.target else {}),
                }
        if self.is_binary:
            result["binary"] = True
        if self.added is not None and self.removed is not None:
            result |= {"added": self.added, "removed": self.removed}
        if self.hunks:
            result["hunks"] = [
                {"head": hunk.head, "lines": [sign + as_text(line) for sign, line in hunk.lines]} for hunk in self.hunks
            ]
        return result


@dataclass(frozen=True, slots=True)
class DiffStat:
    """Totals of a diff."""

    files: int
    added: int
    removed: int


def compared_bytes(entry: Entry | None) -> int | None:
    """Return the number of bytes to read for comparing an entry; None if it is not compared."""
    match entry:
        case File():
            return entry.size if entry.size <= MAX_COMPARED_BYTES else None
        case Link() | Subfolder() | None:
            return 0
        case SkippedEntry():
            return None
        case _:
            assert_never(entry)


def file_diff(change: Change, old: bytes | None, new: bytes | None, effort: Effort) -> FileDiff:
    """Return the diff of a path. `old` and `new` are None for a file that is missing or is not compared."""
    path, old_side, new_side = spell(change.path), _to_side(change.old), _to_side(change.new)
    compares = [side for side in (old_side, new_side) if side is not None and side.kind in ("file", "program")]
    if not compares or change.kind == "mode":
        return FileDiff(path, change.kind, old_side, new_side)
    is_read = (old is not None or not isinstance(change.old, File)) and (
        new is not None or not isinstance(change.new, File)
    )
    if not is_read:
        return FileDiff(path, change.kind, old_side, new_side)
    old_data, new_data = old or b"", new or b""
    if not is_text(old_data) or not is_text(new_data):
        return FileDiff(path, change.kind, old_side, new_side, is_binary=True)
    diff = line_diff(split_lines(old_data), split_lines(new_data), effort)
    lacks = (bool(old_data) and not old_data.endswith(b"\n"), bool(new_data) and not new_data.endswith(b"\n"))
    return FileDiff(
        path,
        change.kind,
        old_side,
        new_side,
        added=diff.added,
        removed=diff.removed,
        hunks=diff.hunks,
        lacks_newline=lacks,
    )


def combine_changes(deltas: Iterable[Iterable[Change]]) -> tuple[Change, ...]:
    """Combine successive comparisons: each path from its first state to its last, unless these are equal."""
    combined: dict[bytes, Change] = {}
    for change in chain.from_iterable(deltas):
        first = combined.get(change.path)
        combined[change.path] = change if first is None else Change(change.path, first.old, change.new)
    return tuple(combined[path] for path in sorted(combined) if combined[path].old != combined[path].new)


def stat_of(files: Iterable[FileDiff]) -> DiffStat:
    """Return the totals of a diff; folders are not counted."""
    counted = [file for file in files if file.is_file]
    return DiffStat(len(counted), sum(file.added or 0 for file in counted), sum(file.removed or 0 for file in counted))


def _to_side(entry: Entry | None) -> Side | None:
    match entry:
        case None:
            return None
        case File():
            return Side("program" if entry.is_program else "file", entry.size)
        case Link():
            return Side("link", target=spell(entry.target))
        case Subfolder():
            return Side("folder")
        case SkippedEntry():
            return Side("leftOut")
        case _:
            assert_never(entry)
