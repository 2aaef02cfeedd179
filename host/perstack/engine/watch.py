"""Following a Job from outside the process that drives it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext

from perstack.core.events import StoredEvent
from perstack.engine.logs.lines import run_ids
from perstack.engine.logs.log import StoredLine
from perstack.engine.logs.runs import run_logs
from perstack.ports.storage import Announces, RunRef, Storage, Watch

_LOOK_AGAIN = 0.1
"""Seconds between two looks at the logs."""
_LOOK_AFTER_SILENCE = 1.0
"""The same where the storage says when there is something to see."""
_PAGE = 2_000
"""Events that are read together: to check them takes a moment, in which nothing else happens."""


async def watch_job(
    storage: Storage,
    job_id: str,
    is_over: Callable[[], Awaitable[bool]] | None = None,
    *,
    after: Mapping[str, int] | None = None,
    on_caught_up: Callable[[], None] = lambda: None,
) -> AsyncGenerator[StoredLine[StoredEvent]]:
    """Every stored event of a Job, each Run's in order, until nobody drives the Job and all was shown.

    Of a Run in `after` only what comes later than that event. With `is_over` until that says so as well, of a Job that
    nobody drives: a worker may be about to. `on_caught_up` is called each time that all there is was shown.
    """
    seen = dict(after or {})
    async with watching(storage, job_id) as watch:
        while True:
            is_driven = await storage.lease_info(job_id) is not None
            goes_on = is_driven or (is_over is not None and not await is_over())
            for run_id in await run_ids(storage, job_id):
                log, ref, is_more = run_logs(storage), RunRef(job_id, run_id), True
                while is_more:
                    began = seen.get(run_id, 0)
                    async with aclosing(log.events(ref, after=began, limit=_PAGE)) as lines:
                        async for line in lines:
                            seen[run_id] = line.seq
                            yield line
                    is_more = seen.get(run_id, 0) - began == _PAGE
            on_caught_up()
            if not goes_on:
                return
            await (asyncio.sleep(_LOOK_AGAIN) if watch is None else watch.wait(_LOOK_AFTER_SILENCE))


def watching(storage: Storage, job_id: str) -> AbstractAsyncContextManager[Watch | None]:
    """Tells when to look at a Job again; None where the storage hears nothing."""
    return storage.watch(job_id) if isinstance(storage, Announces) else nullcontext()
