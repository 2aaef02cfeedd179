"""The Jobs that the server drives, each in a task of its own, so that they outlive the calls that began them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Protocol, TypeAlias

from perstack.core.events import Event, StoredEvent
from perstack.core.job import JobSummary
from perstack.engine.attaching import Attachable
from perstack.engine.emit import OnEvent
from perstack.errors import UsageError
from perstack.host import Host

CallKey: TypeAlias = tuple[str, str]
"""Which call of which client: calls are numbered by each client as it likes."""


class Work(Protocol):
    """A method of the Host that drives a Job, with all its arguments but the listener."""

    def __call__(self, *, on_event: OnEvent) -> Coroutine[object, object, JobSummary]: ...


class Begins(Protocol):
    """The same for one that begins a Run with a query."""

    def __call__(
        self, *, attachments: Sequence[Attachable], on_event: OnEvent
    ) -> Coroutine[object, object, JobSummary]: ...


class RunningJob:
    """A Job while it is driven here."""

    def __init__(self, host: Host, work: Work, listen: OnEvent | None) -> None:
        self._host = host
        self._listen = listen
        self._begun: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(work(on_event=self._on_event))

    async def begun(self) -> str:
        """The Job's id, once its first event is on disk. Raises what kept it from beginning."""
        either: set[asyncio.Future[str] | asyncio.Task[JobSummary]] = {self._begun, self.task}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._begun.done():
            return self._begun.result()
        if self.task.cancelled():
            raise UsageError("the Job was stopped before it began")
        return self.task.result().id

    async def outcome(self) -> JobSummary:
        """Where it stands at its end or stop. If this is cancelled, it goes on."""
        await asyncio.wait({self.task})
        if not self.task.cancelled():
            return self.task.result()
        return await self._host.job(await self.begun())

    def _on_event(self, event: Event, line: bytes) -> None:
        if not self._begun.done() and isinstance(event, StoredEvent):
            self._begun.set_result(event.job_id)
        if self._listen is not None:
            self._listen(event, line)


class JobTasks:
    """All of them."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._running: dict[RunningJob, CallKey | None] = {}

    def start(self, work: Work, key: CallKey | None, listen: OnEvent | None = None) -> RunningJob:
        """Begin to drive a Job; if that is for a call which waits for it, `key` says for which."""
        running = RunningJob(self._host, work, listen)
        self._running[running] = key
        running.task.add_done_callback(lambda task: self._forget(running, task))
        return running

    def cancel_call(self, key: CallKey) -> None:
        """Interrupt what a call began, because its client has cancelled it."""
        for running, of in tuple(self._running.items()):
            if of == key:
                running.task.cancel()

    async def close(self) -> None:
        """Interrupt them all, and wait until that is recorded."""
        tasks = [running.task for running in self._running]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _forget(self, running: RunningJob, task: asyncio.Task[JobSummary]) -> None:
        del self._running[running]
        if not task.cancelled():
            task.exception()  # looked at, so that a Job nobody waits for is no warning of asyncio's
