"""Jobs driven by a server, each in a separate task, so that they outlive the calls that started them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Protocol, TypeAlias

from perstack.core.base.ids import job_of_run
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.events import Event, StoredEvent
from perstack.engine.log.run_session import EventListener, OnEvent
from perstack.errors import UsageError
from perstack.host import Host

CallKey: TypeAlias = tuple[str, str]  # the client and request id of a call: each client numbers its calls itself


class DriveJob(Protocol):
    """A method of the Host that drives a Job, with all arguments bound except the listener."""

    def __call__(self, *, on_event: OnEvent) -> Coroutine[object, object, JobSummary]:
        """Drive the Job and return it at its end or stop."""
        ...


class _JobTask:
    def __init__(self, host: Host, work: DriveJob, listen: EventListener | None) -> None:
        self._host = host
        self._listen = listen
        self._begun: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(work(on_event=self._on_event))

    async def wait_until_begun(self) -> str:
        """Return the Job's id once its first event is stored. Raises the error that prevented its start."""
        waiting: set[asyncio.Future[str] | asyncio.Task[JobSummary]] = {self._begun, self.task}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if self._begun.done():
            return job_of_run(self._begun.result())
        if self.task.cancelled():
            raise UsageError("the Job was stopped before its first event")
        return self.task.result().id

    async def outcome(self) -> JobSummary:
        """Return the Job at its end or stop. Cancelling this call does not stop the Job."""
        await asyncio.wait({self.task})
        if not self.task.cancelled():
            return self.task.result()
        return await self._host.job(await self.wait_until_begun())

    def _on_event(self, event: Event, line: bytes) -> None:
        if not self._begun.done() and isinstance(event, StoredEvent):
            self._begun.set_result(event.run_id)
        if self._listen is not None:
            self._listen(event, line)


class JobTasks:
    """The tasks of all Jobs driven here."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._running: dict[_JobTask, CallKey | None] = {}

    def start(self, work: DriveJob, key: CallKey | None, listen: EventListener | None = None) -> _JobTask:
        """Start to drive a Job. `key` identifies the call that waits for it; None if none does."""
        job_task = _JobTask(self._host, work, listen)
        self._running[job_task] = key
        job_task.task.add_done_callback(lambda task: self._forget(job_task, task))
        return job_task

    def cancel_call(self, key: CallKey) -> None:
        """Interrupt the Jobs that a call started, because its client cancelled it."""
        for job_task, call_key in tuple(self._running.items()):
            if call_key == key:
                job_task.task.cancel()

    async def close(self) -> None:
        """Interrupt all Jobs and wait until that is recorded."""
        tasks = [running.task for running in self._running]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _forget(self, job_task: _JobTask, task: asyncio.Task[JobSummary]) -> None:
        del self._running[job_task]
        if not task.cancelled():
            task.exception()  # retrieve the error, so that asyncio does not warn about a Job that nobody awaits
