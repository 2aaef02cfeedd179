"""Which blobs of a Job its snapshots are made of: what a redaction leaves, and says."""

from __future__ import annotations

from collections.abc import Iterable

from perstack.core.events import StoredEvent
from perstack.core.snapshots.named import trees_of
from perstack.engine.snapshots.reach import parts_of
from perstack.engine.snapshots.trees import Trees
from perstack.ports.storage import Storage


async def held_by_snapshots(storage: Storage, job_id: str, events: Iterable[StoredEvent]) -> dict[str, str]:
    """Of each such blob the id of the first event whose snapshot has it."""
    first: dict[str, str] = {}
    for event in events:
        for tree in trees_of(event):
            first.setdefault(tree, event.id)
    return {part.digest: first[part.tree] async for part in parts_of(Trees(storage, job_id), first)}
