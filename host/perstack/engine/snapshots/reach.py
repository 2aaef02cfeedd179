"""All that the snapshots of a Job are made of, each blob once however many snapshots have it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable

from perstack.core.snapshots.names import DEEPEST
from perstack.core.snapshots.tree import MOST_ENTRIES, Below, File
from perstack.dataclass import dataclass
from perstack.engine.snapshots.trees import Trees
from perstack.errors import NotFound, StorageError, UsageError


@dataclass(frozen=True, slots=True)
class Part:
    """A blob that a snapshot is made of."""

    digest: str
    tree: str
    """That of the first snapshot that has it."""
    size: int | None = None
    """Of a file, as its folder says."""
    problem: str = ""
    """Why a folder does not read."""
    is_missing: bool = False
    """It is a folder, and is not there."""


async def parts_of(trees: Trees, roots: Iterable[str]) -> AsyncGenerator[Part]:
    """Every folder and file of these trees. What is behind a folder that does not read is not known."""
    seen: set[str] = set()
    for root in dict.fromkeys(roots):
        left, entries = [(root, 0)], 0
        while left:
            digest, depth = left.pop()
            if digest in seen:
                continue
            seen.add(digest)
            try:
                folder = await trees.folder(digest)
            except NotFound as error:
                yield Part(digest, root, problem=str(error), is_missing=True)
                continue
            except (StorageError, UsageError) as error:
                yield Part(digest, root, problem=str(error))
                continue
            entries += len(folder.entries)
            if depth > DEEPEST or entries > MOST_ENTRIES:
                yield Part(digest, root, problem=f"the snapshot {root} has more in it than one may have")
                break
            yield Part(digest, root)
            for entry in folder.entries:
                if isinstance(entry, Below):
                    left.append((entry.digest, depth + 1))
                elif isinstance(entry, File) and entry.digest not in seen:
                    seen.add(entry.digest)
                    yield Part(entry.digest, root, entry.size)
