"""Which trees an event names."""

from __future__ import annotations

from perstack.core.events import FinishRewind, RecordSnapshot, StartRewind, StoredEvent


def trees_of(event: StoredEvent) -> tuple[str, ...]:
    """The digests of the trees that an event names; the blobs that they are made of belong to it."""
    tree = event.tree if isinstance(event, RecordSnapshot | StartRewind | FinishRewind) else None
    return () if tree is None else (tree,)
