"""Checking whatever an id names, and a whole store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

from perstack.core.verification import Finding, Kind, Report
from perstack.engine.logs.schedules import SCHEDULES
from perstack.engine.logs.series import SERIES
from perstack.engine.logs.tasks import TASKS
from perstack.engine.pages import every_id
from perstack.engine.verify import verify_job
from perstack.engine.verify_kept import verify_lost, verify_schedule, verify_series, verify_task
from perstack.errors import StorageError
from perstack.ports.storage import Storage

_PAGE = 1000


async def verify_any(storage: Storage, of: str) -> Report:
    """Check a Job, a series of iterations, a task or a schedule, whichever has this id. Raises NotFound."""
    if not await storage.has_job(of):
        if await storage.space(SERIES.space).has_job(of):
            return await verify_series(storage, of)
        if await storage.space(TASKS.space).has_job(of):
            return await verify_task(storage, of)
        if await storage.space(SCHEDULES.space).has_job(of):
            return await verify_schedule(storage, of)
    return await verify_job(storage, of)


async def verify_store(storage: Storage) -> AsyncGenerator[Report]:
    """Check every Job, series, task and schedule, one after the other; last, what is told of and is not there.

    What cannot be read at all is a report with that finding, and ends nothing.
    """
    places: list[tuple[Kind, Storage, Callable[[Storage, str], Awaitable[Report]]]] = [
        ("job", storage, verify_job),
        ("iterations", storage.space(SERIES.space), verify_series),
        ("task", storage.space(TASKS.space), verify_task),
        ("schedule", storage.space(SCHEDULES.space), verify_schedule),
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
    return sorted(set(await every_id(lambda after: space.jobs(limit=_PAGE, after=after))))
