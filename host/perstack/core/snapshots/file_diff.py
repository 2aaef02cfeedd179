"""What became of one file from one tree to another: its lines, if it is text, in bounded time. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Literal, assert_never

from perstack.core.base import JsonObject
from perstack.core.line_diff import Effort, Hunk, line_diff, lines_of
from perstack.core.snapshots.difference import Change, ChangeKind
from perstack.core.snapshots.lines import is_text
from perstack.core.snapshots.names import spelled
from perstack.core.snapshots.tree import Below, Entry, File, LeftOut, Link
from perstack.dataclass import dataclass

Kind = Literal["file", "program", "link", "folder", "leftOut"]

LARGEST_COMPARED = 4 << 20
"""Bytes of a file whose lines are compared."""
EFFORT = 8_000_000
"""What comparing all files of one diff may take: some seconds."""


@dataclass(frozen=True, slots=True)
class Side:
    """What a path was, or is."""

    kind: Kind
    size: int = 0
    target: str = ""
    """Where a link leads, spelled as names are."""


@dataclass(frozen=True, slots=True)
class FileDiff:
    """One path that two trees have differently."""

    path: str
    """Spelled as names in trees are: it holds no control characters but those of its text."""
    kind: ChangeKind
    old: Side | None
    new: Side | None
    added: int | None = None
    removed: int | None = None
    """Lines; None: what is no text, or too large to compare."""
    is_binary: bool = False
    hunks: tuple[Hunk, ...] = ()
    lacks_newline: tuple[bool, bool] = (False, False)
    """Whether the last line of the old text, and of the new one, has no line break."""

    @property
    def is_file(self) -> bool:
        """Whether it is about a file or a link, and not a folder alone."""
        sides = (self.old, self.new)
        return any(side is not None and side.kind in ("file", "program", "link") for side in sides)

    def to_json(self) -> JsonObject:
        """As `diff --json` has it; lines that are no UTF-8 have their bytes as `\\xHH`."""
        found: JsonObject = {"path": self.path, "kind": self.kind}
        for name, side in (("old", self.old), ("new", self.new)):
            if side is not None:
                found[name] = {"kind": side.kind, "size": side.size, **({"target": side.target} if side.target else {})}
        if self.is_binary:
            found["binary"] = True
        if self.added is not None and self.removed is not None:
            found |= {"added": self.added, "removed": self.removed}
        if self.hunks:
            found["hunks"] = [
                {"head": hunk.head, "lines": [sign + as_text(line) for sign, line in hunk.lines]} for hunk in self.hunks
            ]
        return found


@dataclass(frozen=True, slots=True)
class DiffStat:
    """What a diff comes to."""

    files: int
    added: int
    removed: int


def compared_bytes(entry: Entry | None) -> int | None:
    """How many bytes of an entry have to be read to compare it; None: it is not compared."""
    match entry:
        case File():
            return entry.size if entry.size <= LARGEST_COMPARED else None
        case Link() | Below() | None:
            return 0
        case LeftOut():
            return None
        case _:
            assert_never(entry)


def file_diff(change: Change, old: bytes | None, new: bytes | None, effort: Effort) -> FileDiff:
    """What became of a path. `old` and `new` are the contents; None: there is none, or it is not looked at."""
    path, before, after = spelled(change.path), _side(change.old), _side(change.new)
    compares = [side for side in (before, after) if side is not None and side.kind in ("file", "program")]
    if not compares or change.kind == "mode":
        return FileDiff(path, change.kind, before, after)
    is_looked_at = (old is not None or not isinstance(change.old, File)) and (
        new is not None or not isinstance(change.new, File)
    )
    if not is_looked_at:
        return FileDiff(path, change.kind, before, after)
    one, other = old or b"", new or b""
    if not is_text(one) or not is_text(other):
        return FileDiff(path, change.kind, before, after, is_binary=True)
    found = line_diff(lines_of(one), lines_of(other), effort)
    lacks = (bool(one) and not one.endswith(b"\n"), bool(other) and not other.endswith(b"\n"))
    return FileDiff(
        path,
        change.kind,
        before,
        after,
        added=found.added,
        removed=found.removed,
        hunks=found.hunks,
        lacks_newline=lacks,
    )


def combined(deltas: Iterable[Iterable[Change]]) -> tuple[Change, ...]:
    """What several comparisons, one after the other, come to: each path as it was before the first that names it, and
    as it was after the last."""
    found: dict[bytes, Change] = {}
    for change in chain.from_iterable(deltas):
        first = found.get(change.path)
        found[change.path] = change if first is None else Change(change.path, first.old, change.new)
    return tuple(found[path] for path in sorted(found) if found[path].old != found[path].new)


def stat_of(files: Iterable[FileDiff]) -> DiffStat:
    """Files and lines; folders alone are not counted."""
    counted = [file for file in files if file.is_file]
    return DiffStat(len(counted), sum(file.added or 0 for file in counted), sum(file.removed or 0 for file in counted))


def as_text(line: bytes) -> str:
    """A line of a file as text, without its line break."""
    return line.removesuffix(b"\n").decode("utf-8", "backslashreplace")


def _side(entry: Entry | None) -> Side | None:
    match entry:
        case None:
            return None
        case File():
            return Side("program" if entry.is_program else "file", entry.size)
        case Link():
            return Side("link", target=spelled(entry.target))
        case Below():
            return Side("folder")
        case LeftOut():
            return Side("leftOut")
        case _:
            assert_never(entry)
