"""Telling clients that a Job which they subscribed to has moved on, whoever drives it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from perstack.core.events import FinishStep, StartRun, StoredEvent
from perstack.core.ids import job_of_run
from perstack.engine.logs.runs import checkpoint_at
from perstack.errors import NotFound, PerstackError
from perstack.frontends.mcp_server.addresses import EVENTS, JOB
from perstack.host import Host

Notify = Callable[[str], Awaitable[None]]
"""Tell whoever has subscribed to this address."""


def job_of(uri: str) -> str | None:
    """The Job that an address belongs to, if it can be subscribed to."""
    run_id = EVENTS.value_in(uri)
    if run_id is not None:
        with suppress(PerstackError):
            return job_of_run(run_id)
        return None
    return JOB.value_in(uri)


class Watching:
    """A task for each Job that somebody has subscribed to, while it is driven."""

    def __init__(self, host: Host, notify: Notify) -> None:
        self._host = host
        self._notify = notify
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def watch(self, uri: str) -> None:
        """See to it that changes of what this address shows are told."""
        job_id = job_of(uri)
        if job_id is None or job_id in self._tasks:
            return
        task = asyncio.create_task(self._follow(job_id))
        self._tasks[job_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(job_id, None))

    async def close(self) -> None:
        """End all of it."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _follow(self, job_id: str) -> None:
        began = self._host.clock.now()
        try:
            async for line in self._host.watch(job_id):
                if line.event.timestamp >= began and is_news(line.event):
                    await self._notify(EVENTS.uri(line.event.run_id))
                    await self._notify(JOB.uri(job_id))
        except NotFound:
            return
        except PerstackError:
            pass  # whoever looks is told what is wrong
        await self._notify(JOB.uri(job_id))


def is_news(event: StoredEvent) -> bool:
    """Whether a person would look again: a Run begins, a step ends, a Run stops."""
    return isinstance(event, StartRun | FinishStep) or checkpoint_at(event) is not None
