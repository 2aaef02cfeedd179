"""Drive Jobs in this process: what every operation that begins or continues a Job shares.

`JobRunner.run_existing` takes, in this order, a slot of the process's Job limit, the lease of the Job on a workspace
that is not being rewound, and the guard of leftover programs; it loads the Job, lets the operation's `decide` check it,
and drives it, or queues it for a worker. `decide` writes nothing: it returns the Run that begins or resumes, as data.
`ActiveJobs` (active_jobs.py) holds the tasks that drive Jobs, to stop them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from perstack.core.base.ids import check_job_id
from perstack.core.definitions.project import with_delegates
from perstack.core.jobs.job import Job
from perstack.core.jobs.queries import check_query
from perstack.core.jobs.resuming import check_not_closed
from perstack.core.jobs.summary import JobSummary
from perstack.dataclass import dataclass
from perstack.engine.context.host_setup import HostSetup, SetupSource
from perstack.engine.context.job_limit import job_slots
from perstack.engine.jobs.active_jobs import ActiveJobs
from perstack.engine.jobs.job_request import JobRequest
from perstack.engine.jobs.queueing import QUEUEING, QueueRequest
from perstack.engine.jobs.reader import JobReader
from perstack.engine.jobs.recorded_answers import RECORDED_ANSWERS
from perstack.engine.log.leases_and_stop_requests import StopRequests, leftover_programs_ended
from perstack.engine.log.run_session import EventListener, OnEvent, as_listener, runtime_begins
from perstack.engine.plugins.knowledge import Knowledge
from perstack.engine.plugins.trust_checks import ToolLock
from perstack.engine.runs.inputs import read_attachments
from perstack.errors import Conflict, UsageError
from perstack.next_steps import Continue, SetOption
from perstack.ports.parts import Part
from perstack.ports.storage import Storage
from perstack.system.clock import new_ids
from perstack.system.concurrency import in_own_task
from perstack.system.user import this_process

if TYPE_CHECKING:
    from perstack.engine.runs.beginning import NewRun, ResumedRun  # reading Jobs needs none of it
    from perstack.engine.runs.job_drive import JobDrive, StopFlags, WorkerRole
    from perstack.engine.runs.person_decisions import PersonDecisions

Decide = Callable[[Job], "Awaitable[NewRun | ResumedRun]"]
"""Checks a loaded Job, and returns the Run that begins or resumes. Writes no event."""


@dataclass(frozen=True, slots=True)
class RunnableContext:
    """A host context with the lock and the Agent Skills that a Job is driven with."""

    setup: HostSetup
    tool_lock: ToolLock
    knowledge: Knowledge

    @classmethod
    async def read(cls, setup: HostSetup, expert_key: str, tool_lock: ToolLock | None = None) -> RunnableContext:
        """Read the lock, unless it is given, and the Agent Skills of an Expert and its delegates. Raises NotAgreed."""
        setup.agreement.check_definition()
        tool_lock = setup.lock() if tool_lock is None else tool_lock
        setup = replace(setup, task_commands=await setup.parts.get(WAITING_COMMANDS)(setup.storage))
        knowledge = setup.knowledge(tool_lock)
        await knowledge.read(with_delegates(setup.project, (expert_key,)))
        return cls(setup, tool_lock, knowledge)


WAITING_COMMANDS: Part[Callable[[Storage], Awaitable[tuple[tuple[str, ...], ...]]]] = Part("commands of tasks")
"""Returns the commands that tasks of a storage wait with: what they run is protected from Experts."""

Lease = Callable[[], AbstractAsyncContextManager[None]]
WORKSPACE_LEASE: Part[Callable[[SetupSource, JobReader, Lease], AbstractAsyncContextManager[None]]] = Part("rewinds")
"""Holds the lease of what is driven in the workspace of a context, and prevents rewinds of its files meanwhile."""


class JobRunner:
    """Drives Jobs with the context in force when they begin."""

    def __init__(self, source: SetupSource, reader: JobReader, active: ActiveJobs) -> None:
        """Drive the Jobs that `reader` reads."""
        self._source = source
        self._reader = reader
        self.active = active

    # --- beginning and continuing ---------------------------------------------------------------------------------

    async def run_new(
        self,
        setup: HostSetup,
        job_request: JobRequest,
        *,
        on_event: OnEvent | None = None,
        queue: QueueRequest | None = None,
    ) -> JobSummary:
        """Start a new Job: drive it, or record it for a worker, which must then have what it needs."""
        setup, job_id = job_request.results.add_to(setup), job_request.job_id
        listener, query = as_listener(on_event), check_query(job_request.query)
        key = job_request.expert_key
        expert = setup.expert(key) if queue is not None else setup.check_ready(key)
        setup.project.check_guarded(expert.key)
        setup.audit.check()
        if queue is None:
            await setup.check_sandbox(expert)
        runnable = await RunnableContext.read(setup, expert.key)
        runnable.knowledge.with_skill_digests(expert)
        if queue is not None:
            setup.parts.get(QUEUEING).check_bundle(runnable.knowledge, with_delegates(setup.project, (expert.key,)))
        store_attachments = await read_attachments(setup, expert.key, job_request.attachments)

        async def work() -> JobSummary:
            from perstack.engine.runs.beginning import NewRun

            async with job_slots().hold():
                created_id = await self._new_job(job_id)
                async with self._leased(created_id) as stop:
                    if created_id == job_id:
                        await self._check_not_begun(created_id)  # check again under the lease
                    contents = await store_attachments(self._reader.storage, created_id)
                    new = NewRun(expert, query, job_request.caller_fields, contents)
                    return await self.drive(runnable, Job(created_id), new, listener, stop, queue=queue)

        return job_request.results.read(await in_own_task(work()))

    async def run_existing(
        self,
        setup: HostSetup,
        job_id: str,
        decide: Decide,
        on_event: OnEvent | None,
        *,
        resumes: bool = False,
        queue: Callable[[Job], Awaitable[QueueRequest | None]] | None = None,
    ) -> JobSummary:
        """Continue a Job: drive it, or queue it for a worker. Returns its summary.

        `resumes`: the Coordinator's latest Run is resumed, under the definition that it was queued with. `queue`
        returns how the Job is queued; None to drive it.
        """
        setup.audit.check()
        listener = as_listener(on_event)
        tool_lock = setup.lock()  # report a broken lock before the lease is taken

        async def work() -> JobSummary:
            async with job_slots().hold(), self._leased(job_id) as stop:
                job = await self._reader.load(job_id)
                check_not_closed(job)
                start = await decide(job)
                queue_request = None if queue is None else await queue(job)
                if not resumes:  # nothing awaits the delegates of the earlier Run
                    await self.stop_remote(job)
                    runnable = await RunnableContext.read(setup, job.coordinator.start.expert_key, tool_lock)
                else:
                    runnable = await self.context_of(setup, job, tool_lock)
                return await self.drive(runnable, job, start, listener, stop, queue=queue_request)

        return await in_own_task(work())

    @asynccontextmanager
    async def leased_queued(self, job_id: str) -> AsyncGenerator[StopFlags]:
        """Hold a slot and the lease of a queued Job that a worker drives."""
        async with job_slots().hold(), self._leased(job_id) as stop:
            yield stop

    async def context_of(self, setup: HostSetup, job: Job, tool_lock: ToolLock | None = None) -> RunnableContext:
        """Return what a resumed Job is driven with: what its latest Run was queued with, or else `setup`."""
        digest, key = job.coordinator.definition, job.coordinator.start.expert_key
        if digest is not None:
            setup, tool_lock = await setup.parts.get(QUEUEING).load_queued_context(setup, job.id, digest)
        return await RunnableContext.read(setup, key, tool_lock)

    async def drive(
        self,
        runnable: RunnableContext,
        loaded_job: Job,
        start: NewRun | ResumedRun,
        on_event: EventListener | None,
        stop: StopFlags,
        *,
        worker: WorkerRole | None = None,
        queue: QueueRequest | None = None,
    ) -> JobSummary:
        """Drive a Job, and on while a recording answers its questions; or queue it for a worker."""
        summary = await self._drive_once(runnable, loaded_job, start, on_event, stop, worker, queue)
        while summary.asking is not None:
            if not loaded_job.plays_recording:
                break
            loaded_job = await self._reader.load(summary.id)
            recorded = runnable.setup.parts.get(RECORDED_ANSWERS).recorded_answer(runnable.setup, loaded_job)
            if recorded is None:
                break
            summary = await self._drive_once(runnable, loaded_job, recorded, on_event, stop, None, None)
        return summary

    def job_drive(
        self,
        runnable: RunnableContext,
        job: Job,
        on_event: EventListener | None,
        stop: StopFlags,
        *,
        decisions: PersonDecisions | None = None,
        worker: WorkerRole | None = None,
        is_driven_here: bool = True,
    ) -> JobDrive:
        """Return the context of a Job to drive; without a `worker` this process is none."""
        from perstack.engine.runs.job_drive import NO_WORKER, JobDrive
        from perstack.engine.runs.person_decisions import NO_DECISIONS

        return JobDrive(
            runnable.setup,
            job,
            runnable.setup.emitter(on_event),
            runnable.tool_lock,
            runnable.knowledge,
            decisions=decisions or NO_DECISIONS,
            worker=worker or NO_WORKER,
            stop=stop,
            is_driven_here=is_driven_here,
        )

    async def _drive_once(
        self,
        runnable: RunnableContext,
        loaded_job: Job,
        start: NewRun | ResumedRun,
        on_event: EventListener | None,
        stop: StopFlags,
        worker: WorkerRole | None,
        queue: QueueRequest | None,
    ) -> JobSummary:
        from perstack.engine.runs.beginning import ResumedRun, RunStarter
        from perstack.engine.runs.job_drive import Allowance
        from perstack.engine.runs.loop import RunLoop

        setup, decisions = runnable.setup, start.decisions if isinstance(start, ResumedRun) else None
        is_driven_here, heads = queue is None, dict(loaded_job.heads)
        drive = self.job_drive(
            runnable, loaded_job, on_event, stop, decisions=decisions, worker=worker, is_driven_here=is_driven_here
        )
        session = RunStarter(drive).start(start)
        if queue is not None:
            await self.active.close_skills(loaded_job.id)
            async with setup.audit.anchored(loaded_job):
                return await setup.parts.get(QUEUEING).enqueue(drive, session, queue)
        run = session.run
        await setup.check_policies((run.start.sandbox,))  # before anything is written
        await self.active.continue_skills(drive, heads, resumes=isinstance(start, ResumedRun))
        drive.emit.display(runtime_begins(run.start, run.limits, setup.storage.location, setup.clock.now()))
        async with setup.audit.anchored(loaded_job):
            try:
                with self.active.showing(loaded_job.id, drive.questions):
                    summary = await RunLoop(drive, await Allowance.open(drive, session)).drive_job(session)
            except BaseException:
                await drive.close()
                raise
            await self.active.leave_skills(drive)
            return summary

    # --- stopping -------------------------------------------------------------------------------------------------

    async def stop_remote(self, job: Job, below: str | None = None) -> None:
        """Stop the remote Runs of a leased Job, or the descendants of the Run `below`, and update their states.

        Raises StorageError.
        """
        if any(run.queued is not None for run in job.runs.values() if not run.is_coordinator):
            from perstack.engine.runs.remote import REMOTE

            setup, runs = self._source.setup, dict(job.runs)
            await setup.parts.get(REMOTE).stop_remote(setup, job, runs, setup.emitter(), below=below)

    # --- inside ---------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _leased(self, job_id: str) -> AsyncGenerator[StopFlags]:
        holder, storage = this_process(), self._reader.storage
        requested = partial(StopRequests(storage).wait_for_stop_request, job_id, holder)
        guard = self._source.setup.parts.get(WORKSPACE_LEASE)
        leased = guard(self._source, self._reader, lambda: storage.lease(job_id, holder))
        async with (
            leased,
            leftover_programs_ended(storage),
            self.active.owned_by_current_task(job_id, requested) as stop,
        ):
            yield stop

    async def _new_job(self, job_id: str | None) -> str:
        storage = self._reader.storage
        if job_id is None:
            ids = new_ids(self._source.setup.clock.now())
            while True:
                job_id = next(ids)
                try:
                    await storage.create_job(job_id)
                except Conflict:
                    continue
                return job_id
        try:
            await storage.create_job(check_job_id(job_id))
        except Conflict:
            await self._check_not_begun(job_id)
        return job_id

    async def _check_not_begun(self, job_id: str) -> None:
        """Raise UsageError for a Job with an event, or whose logs were removed: its id must not be used again."""
        state = await self._reader.begun_state(job_id)
        if state == "begun":
            raise UsageError(f"Job {job_id} exists", next_steps=(Continue(job_id), SetOption("job_id")))
        if state == "removed":
            words = f"Job {job_id} had events, and its logs are gone: put them back"
            raise UsageError(words, next_steps=(SetOption("job_id"),))
