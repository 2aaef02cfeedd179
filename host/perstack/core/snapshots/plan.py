"""What a rewind does: which of the changes between two trees are made, and what is left alone, and why. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Literal

from perstack.core.policy.globs import Glob
from perstack.core.snapshots.difference import Change
from perstack.core.snapshots.names import is_never_recorded, spelled
from perstack.core.snapshots.tree import LeftOut
from perstack.dataclass import dataclass

KeptWhy = Literal["notRecorded", "ignoredThen", "inTheWay", "unknownInside", "otherFileSystem"]
"""Why a path stays as it is, though the trees differ there: one of them has not recorded it, or the rules of what to
ignore said then that it is nobody's business; something that no snapshot knows is in its place, or in the folder that
would go; or another file system begins there."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A path that a rewind leaves alone."""

    path: bytes
    why: KeptWhy


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """What is to be made of a workspace."""

    changes: tuple[Change, ...] = ()
    """In the order of their paths: what is there now, and what is to be there."""
    kept: tuple[Kept, ...] = ()


def rewind_plan(changes: Iterable[Change], wanted: Callable[[bytes], bool], ignored_then: Set[bytes]) -> RewindPlan:
    """What to do of the changes that lead from the present tree to an earlier one.

    `wanted` are the paths that are asked for. `ignored_then` are those that the earlier tree knows nothing of because
    it was not to look at them: what is there now stays.
    """
    made: list[Change] = []
    kept: list[Kept] = []
    for change in changes:
        if not wanted(change.path) or any(map(is_never_recorded, change.path.split(b"/"))):
            continue
        if isinstance(change.old, LeftOut) or isinstance(change.new, LeftOut):
            kept.append(Kept(change.path, "notRecorded"))
        elif change.new is None and change.path in ignored_then:
            kept.append(Kept(change.path, "ignoredThen"))
        else:
            made.append(change)
    return RewindPlan(tuple(made), tuple(kept))


def wanted_paths(patterns: Iterable[str]) -> Callable[[bytes], bool]:
    """Whether a path is asked for by one of these globs, or is in a folder that is; without a pattern all are.

    `*` is within a name, `**` over folders; a pattern without a slash is of a name, wherever it is.
    """
    globs = [Glob(pattern.rstrip("/")) for pattern in patterns]

    def wanted(path: bytes) -> bool:
        parts = spelled(path).split("/")
        places = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
        return not globs or any(glob.matches_path(place, is_strict=False) for glob in globs for place in places)

    return wanted
