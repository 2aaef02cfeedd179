"""Trees of a Job's storage, as they are read. What is read is a stranger's: bounded, checked, refused by name."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from perstack.core.snapshots.difference import Change, Pair, compare
from perstack.core.snapshots.names import DEEPEST, LONGEST_PATH, spelled
from perstack.core.snapshots.tree import MOST_ENTRIES, Below, Entry, Folder, NotATree, digest_of, read_folder
from perstack.errors import StorageError
from perstack.ports.storage import Storage

_NO_FOLDER = Folder()


class Trees:
    """The trees and contents that a Job keeps."""

    def __init__(self, storage: Storage, job_id: str) -> None:
        self._storage = storage
        self._job_id = job_id

    async def content(self, digest: str) -> bytes:
        """The bytes of a file. Raises NotFound, and StorageError if they are others."""
        data = await self._storage.blob(self._job_id, digest)
        if digest_of(data) != digest:
            raise StorageError(f"job {self._job_id}: blob {digest} is not what its name says")
        return data

    async def folder(self, digest: str) -> Folder:
        """What a folder holds. Raises NotFound, and StorageError for a blob that is not a folder."""
        try:
            return read_folder(await self.content(digest))
        except NotATree as error:
            raise StorageError(f"job {self._job_id}: blob {digest} {error}") from error

    async def changes(self, old: str | None, new: str | None) -> tuple[Change, ...]:
        """What differs from one tree to another, in the order of the paths' bytes; None: an empty one.

        Reads the folders alone that differ. Raises NotFound and StorageError.
        """
        found: list[Change] = []
        left, seen = [Pair(b"", old, new)], 0
        while left:
            pair = left.pop()
            self._check_place(pair.path, pair.depth)
            if pair.old == pair.new:
                continue
            before = _NO_FOLDER if pair.old is None else await self.folder(pair.old)
            after = _NO_FOLDER if pair.new is None else await self.folder(pair.new)
            seen += len(before.entries) + len(after.entries)
            self._check_count(seen, 2 * MOST_ENTRIES)
            compared = compare(pair, before, after)
            found += compared.changes
            left += compared.below
        return tuple(sorted(found, key=lambda change: change.path))

    async def entries(self, tree: str) -> AsyncGenerator[tuple[bytes, Entry]]:
        """Everything in a tree with its path, each folder before what is in it. Raises NotFound and StorageError."""
        left, seen = [(b"", tree, 0)], 0
        while left:
            path, digest, depth = left.pop()
            self._check_place(path, depth)
            folder = await self.folder(digest)
            seen += len(folder.entries)
            self._check_count(seen, MOST_ENTRIES)
            for entry in folder.entries:
                inner = path + b"/" + entry.name if path else entry.name
                yield inner, entry
                if isinstance(entry, Below):
                    left.append((inner, entry.digest, depth + 1))

    def _check_place(self, path: bytes, depth: int) -> None:
        if depth > DEEPEST or len(path) >= LONGEST_PATH:
            raise StorageError(f"job {self._job_id}: a snapshot has folders too far down: {spelled(path[:80])}…")

    def _check_count(self, seen: int, most: int) -> None:
        if seen > most:
            raise StorageError(f"job {self._job_id}: a snapshot has more than {MOST_ENTRIES} files")
