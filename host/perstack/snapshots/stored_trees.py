"""Read the trees in a Job's storage: untrusted data, bounded and checked against digests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable

from perstack.core.files.file_names import MAX_FOLDER_DEPTH, MAX_PATH_BYTES, spell
from perstack.core.runs.events import StoredEvent
from perstack.dataclass import dataclass
from perstack.errors import NotFound, StorageError, UsageError
from perstack.ports.storage import Storage
from perstack.snapshots.tree_diff import Change, Pair, compare
from perstack.snapshots.trees import MAX_ENTRIES, Entry, File, NotATree, Subfolder, TreeFolder, digest_of, read_folder

_EMPTY_FOLDER = TreeFolder()


class Trees:
    """The trees and file contents that a Job stores."""

    def __init__(self, storage: Storage, job_id: str) -> None:
        self._storage = storage
        self._job_id = job_id

    async def content(self, digest: str) -> bytes:
        """Return the bytes of a file. Raises NotFound, and StorageError if they do not match the digest."""
        data = await self._storage.blob(self._job_id, digest)
        if digest_of(data) != digest:
            raise StorageError(f"Job {self._job_id}: blob {digest} does not match its name")
        return data

    async def folder(self, digest: str) -> TreeFolder:
        """Return the entries of a folder. Raises NotFound, and StorageError for a blob that is not a folder."""
        try:
            return read_folder(await self.content(digest))
        except NotATree as error:
            raise StorageError(f"Job {self._job_id}: blob {digest} {error}") from error

    async def changes(self, old: str | None, new: str | None) -> tuple[Change, ...]:
        """Return the differences between two trees, by path; None: an empty tree. Raises NotFound and StorageError."""
        all_changes: list[Change] = []
        pending, entry_count = [Pair(b"", old, new)], 0
        while pending:
            pair = pending.pop()
            self._check_depth(pair.path, pair.depth)
            if pair.old == pair.new:
                continue
            old_folder = _EMPTY_FOLDER if pair.old is None else await self.folder(pair.old)
            after = _EMPTY_FOLDER if pair.new is None else await self.folder(pair.new)
            entry_count += len(old_folder.entries) + len(after.entries)
            self._check_count(entry_count, 2 * MAX_ENTRIES)
            compared = compare(pair, old_folder, after)
            all_changes += compared.changes
            pending += compared.below
        return tuple(sorted(all_changes, key=lambda change: change.path))

    async def entries(self, tree: str) -> AsyncGenerator[tuple[bytes, Entry]]:
        """Yield each path and entry of a tree, folders before their content. Raises NotFound and StorageError."""
        pending, entry_count = [(b"", tree, 0)], 0
        while pending:
            path, digest, depth = pending.pop()
            self._check_depth(path, depth)
            folder = await self.folder(digest)
            entry_count += len(folder.entries)
            self._check_count(entry_count, MAX_ENTRIES)
            for entry in folder.entries:
                inner = path + b"/" + entry.name if path else entry.name
                yield inner, entry
                if isinstance(entry, Subfolder):
                    pending.append((inner, entry.digest, depth + 1))

    def _check_depth(self, path: bytes, depth: int) -> None:
        if depth > MAX_FOLDER_DEPTH or len(path) >= MAX_PATH_BYTES:
            raise StorageError(f"Job {self._job_id}: a snapshot has folders nested too deeply: {spell(path[:80])}…")

    def _check_count(self, count: int, limit: int) -> None:
        if count > limit:
            raise StorageError(f"Job {self._job_id}: a snapshot has more than {MAX_ENTRIES} files")


# Blobs of a Job's snapshots, each once.


@dataclass(frozen=True, slots=True)
class SnapshotBlob:
    """A blob that a snapshot consists of."""

    digest: str
    tree: str  # tree of the first snapshot that contains it
    size: int | None = None  # size of a file according to its folder; None for a folder
    problem: str = ""  # reason why a folder cannot be read; empty if it can
    is_missing: bool = False  # True for a folder whose blob is missing


async def blobs_of_trees(trees: Trees, roots: Iterable[str]) -> AsyncGenerator[SnapshotBlob]:
    """Yield every folder and file of these trees once. The content of a folder that cannot be read is unknown."""
    seen: set[str] = set()
    for root in dict.fromkeys(roots):
        pending, entries = [(root, 0)], 0
        while pending:
            digest, depth = pending.pop()
            if digest in seen:
                continue
            seen.add(digest)
            try:
                folder = await trees.folder(digest)
            except NotFound as error:
                yield SnapshotBlob(digest, root, problem=str(error), is_missing=True)
                continue
            except (StorageError, UsageError) as error:
                yield SnapshotBlob(digest, root, problem=str(error))
                continue
            entries += len(folder.entries)
            if depth > MAX_FOLDER_DEPTH or entries > MAX_ENTRIES:
                yield SnapshotBlob(digest, root, problem=f"the snapshot {root} has too many entries or levels")
                break
            yield SnapshotBlob(digest, root)
            for entry in folder.entries:
                if isinstance(entry, Subfolder):
                    pending.append((entry.digest, depth + 1))
                elif isinstance(entry, File) and entry.digest not in seen:
                    seen.add(entry.digest)
                    yield SnapshotBlob(entry.digest, root, entry.size)


# Blobs that a redaction keeps and reports, because snapshots contain them.


async def blobs_of_snapshots(storage: Storage, job_id: str, events: Iterable[StoredEvent]) -> dict[str, str]:
    """Return the blobs of these events' snapshots, each with the id of the first event whose snapshot contains it."""
    first_events: dict[str, str] = {}
    for event in events:
        if event.named_tree is not None:
            first_events.setdefault(event.named_tree, event.id)
    return {part.digest: first_events[part.tree] async for part in blobs_of_trees(Trees(storage, job_id), first_events)}
