"""Checking whatever an id names, and a whole store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

from perstack.core.verification import Finding, Kind, Report
from perstack.engine import series_log, task_log
from perstack.engine.verify import verify_job
from perstack.engine.verify_kept import verify_lost, verify_series, verify_task
from perstack.errors import StorageError
from perstack.ports.storage import Storage

_PAGE = 1000


async def verify_any(storage: Storage, of: str) -> Report:
    """Check a Job, a series of iterations or a task, whichever has this id. Raises NotFound."""
    if not await storage.has_job(of):
        if await storage.space(series_log.SPACE).has_job(of):
            return await verify_series(storage, of)
        if await storage.space(task_log.SPACE).has_job(of):
            return await verify_task(storage, of)
    return await verify_job(storage, of)


async def verify_store(storage: Storage) -> AsyncGenerator[Report]:
    """Check every Job, series and task, one after the other; last, what is told of and is not there.

    What cannot be read at all is a report with that finding, and ends nothing.
    """
    places: list[tuple[Kind, Storage, Callable[[Storage, str], Awaitable[Report]]]] = [
        ("job", storage, verify_job),
        ("iterations", storage.space(series_log.SPACE), verify_series),
        ("task", storage.space(task_log.SPACE), verify_task),
    ]
    for kind, space, verify in places:
        for of in await _ids(space):
            try:
                yield await verify(storage, of)
            except StorageError as error:
                yield Report(of, 0, 0, (Finding("", 0, str(error)),), kind=kind)
    lost = await verify_lost(storage)
    if lost:
        yield Report(storage.location, 0, 0, tuple(lost), kind="store")


async def _ids(space: Storage) -> list[str]:
    """All of a space, taken down at once: a Job that is written to meanwhile changes its place in the list."""
    ids: list[str] = []
    after: str | None = None
    while True:
        page = await space.jobs(limit=_PAGE, after=after)
        ids += page.ids
        after = page.next
        if after is None:
            return sorted(dict.fromkeys(ids))
