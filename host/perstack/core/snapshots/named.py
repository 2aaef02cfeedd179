"""Which trees an event names."""

from __future__ import annotations

from perstack.core.events import RecordSnapshot, StoredEvent


def trees_of(event: StoredEvent) -> tuple[str, ...]:
    """The digests of the trees that an event names; the blobs that they are made of belong to it."""
    return (event.tree,) if isinstance(event, RecordSnapshot) and event.tree is not None else ()
