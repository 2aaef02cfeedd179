"""What is left to do once a deletion has been decided on: whoever comes next finishes one that was cut short."""

from __future__ import annotations

from perstack_s3.layout import Layout
from perstack_s3.objects import Objects

_AT_ONCE = 1000


async def finish_deletion(objects: Objects, layout: Layout, job_id: str, incarnation: str) -> None:
    """Remove all that an incarnation of a Job had, its marker apart, and then the word that it is being deleted."""
    marker = await objects.head(layout.of_job("markers", job_id))
    if marker is None:  # else the id has been taken anew, with caches of its own
        await objects.remove([layout.of_job(kind, job_id) for kind in ("entries", "summaries")])
    for kind in ("logs", "blobs"):
        prefix = layout.of_incarnation(kind, job_id, incarnation)
        keys = [listed.key for listed in await objects.list(prefix)]
        for start in range(0, len(keys), _AT_ONCE):
            await objects.remove(keys[start : start + _AT_ONCE])
    await objects.remove([layout.deleting(job_id, incarnation)])


async def finish_deletions(objects: Objects, layout: Layout) -> None:
    """Finish those that were cut short."""
    prefix = layout.below("deleting")
    left = [listed.key.removeprefix(prefix) for listed in await objects.list(prefix)]
    for name in left:
        job_id, _, incarnation = name.rpartition(".")
        await finish_deletion(objects, layout, job_id, incarnation)
