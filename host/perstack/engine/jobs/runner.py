"""Drive Jobs in this process: the steps that are common to all operations which begin or continue a Job.

*Prepare*: check everything that can be missing here (definition, lock, Agent Skills, keys, sandbox), and keep the
results in a `RunnableContext` and a `PreparedRun`; nothing is written. *Begin*: record the Run's first event from them,
in memory. *Drive*: `RunLoop` writes it and performs commands; or the Job is queued for a worker. A new Job is prepared
before it is created. `run_existing` takes, in this order, a slot of the process's Job limit, the lease of the Job on a
workspace that is not being rewound, and the guard of leftover programs; it loads the Job and lets the operation's
`decide` check it. `decide` writes nothing: it returns the Run that begins or resumes, as data. `ActiveJobs`
(active_jobs.py) holds the tasks that drive Jobs, to stop them.
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
from perstack.core.jobs.job_choice import check_query
from perstack.core.jobs.resuming import check_not_closed
from perstack.core.jobs.summary import JobSummary
from perstack.dataclass import dataclass
from perstack.engine.context.host_setup import HostSetup, SetupSource
from perstack.engine.context.job_limit import job_slots
from perstack.engine.jobs.active_jobs import ActiveJobs
from perstack.engine.jobs.job_request import JobRequest
from perstack.engine.jobs.queueing_protocol import QUEUEING, QueueRequest
from perstack.engine.jobs.reader import JobReader
from perstack.engine.jobs.recorded_answers_protocol import RECORDED_ANSWERS
from perstack.engine.log.delegate_leases_and_stop_requests import StopRequests, end_leftover_programs
from perstack.engine.log.run_session import EventListener, OnEvent, as_listener, runtime_start_event
from perstack.engine.plugins.knowledge import Knowledge
from perstack.engine.plugins.trust_checks import ToolLock
from perstack.engine.runs.input_protocols import StoreAttachments, read_attachments
from perstack.errors import Conflict, UsageError
from perstack.next_steps import Continue, SetOption
from perstack.ports.parts import Part
from perstack.ports.storage import Storage
from perstack.system.clock import new_ids
from perstack.system.concurrency import in_own_task
from perstack.system.user import this_process

if TYPE_CHECKING:
    from perstack.engine.runs.beginning import (
        NewRun,
        PreparedRun,
        ResumedRun,
    )  # for types only: readers of Jobs need none
    from perstack.engine.runs.job_drive import JobDrive, StopFlags, WorkerRole

Decide = Callable[[Job], "Awaitable[NewRun | ResumedRun]"]
"""Checks a loaded Job, and returns the Run that begins or resumes. Writes no event."""


@dataclass(frozen=True, slots=True)
class RunnableContext:
    """A setup with the lock and the Agent Skills that a Job is driven with."""

    setup: HostSetup
    tool_lock: ToolLock
    knowledge: Knowledge

    @classmethod
    async def read(cls, setup: HostSetup, expert_key: str, tool_lock: ToolLock | None = None) -> RunnableContext:
        """Read an Expert's and its delegates' Agent Skills, and perstack.lock without `tool_lock`. Raises NotAgreed."""
        setup.agreement.check_definition()
        tool_lock = setup.lock() if tool_lock is None else tool_lock
        setup = replace(setup, task_commands=await setup.parts.get(WAITING_COMMANDS)(setup.storage))
        knowledge = setup.knowledge(tool_lock)
        await knowledge.read(with_delegates(setup.project, (expert_key,)))
        return cls(setup, tool_lock, knowledge)


WAITING_COMMANDS: Part[Callable[[Storage], Awaitable[tuple[tuple[str, ...], ...]]]] = Part("commands of tasks")
"""Returns the commands that tasks of a storage wait with: the files that they run are protected from Experts."""

Lease = Callable[[], AbstractAsyncContextManager[None]]
WORKSPACE_LEASE: Part[Callable[[SetupSource, JobReader, Lease], AbstractAsyncContextManager[None]]] = Part("rewinds")
"""Holds the lease of a Job that is driven in the workspace of a setup, and prevents rewinds of its files meanwhile."""


class JobRunner:
    """Drives Jobs with the setup that is in force when they begin."""

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
        setup, job_id = job_request.results.with_schema_and_check(setup), job_request.job_id
        listener = as_listener(on_event)
        runnable, prepared_run = await self._prepare_job(setup, job_request, is_driven_here=queue is None)
        attachments = job_request.attachments
        store_attachments = await read_attachments(setup, prepared_run.expert.key, attachments) if attachments else None

        async def begin_and_drive() -> JobSummary:
            async with job_slots().hold():
                created_id = await self._create_job(job_id)
                async with self._lease_job(created_id) as stop:
                    if created_id == job_id:
                        await self._check_not_begun(created_id)  # check again under the lease
                    start = await self._with_attachments(prepared_run, store_attachments, created_id)
                    return await self._drive_or_queue(runnable, Job(created_id), start, listener, stop, queue)

        return job_request.results.read(await in_own_task(begin_and_drive()))

    async def run_existing(
        self,
        setup: HostSetup,
        job_id: str,
        decide: Decide,
        on_event: OnEvent | None,
        *,
        resumes: bool = False,
        store_attachments: StoreAttachments | None = None,
        queue: Callable[[Job], Awaitable[QueueRequest | None]] | None = None,
    ) -> JobSummary:
        """Continue a Job: drive it, or queue it for a worker. Returns its summary.

        `resumes`: the Coordinator's latest Run is resumed, under the definition that it was queued with.
        `store_attachments` stores attachments of a new Run. `queue` returns how the Job is queued; None to drive it.
        """
        setup.audit.check()
        listener = as_listener(on_event)
        tool_lock = setup.lock()  # report a broken lock before the lease is taken

        async def continue_and_drive() -> JobSummary:
            from perstack.engine.runs.beginning import PreparedRun

            async with job_slots().hold(), self._lease_job(job_id) as stop:
                job = await self._reader.load(job_id)
                check_not_closed(job)
                decided_start = await decide(job)
                queue_request = None if queue is None else await queue(job)
                if not resumes:
                    runnable = await RunnableContext.read(setup, job.coordinator.start.expert_key, tool_lock)
                    await self.stop_remote(job)  # nothing awaits the delegates of the earlier Run
                else:
                    runnable = await self.context_of(setup, job, tool_lock)
                start = await self._prepare(runnable, job, decided_start, is_driven_here=queue_request is None)
                if isinstance(start, PreparedRun):
                    start = await self._with_attachments(start, store_attachments, job_id)
                return await self._drive_or_queue(runnable, job, start, listener, stop, queue_request)

        return await in_own_task(continue_and_drive())

    @asynccontextmanager
    async def lease_queued_job(self, job_id: str) -> AsyncGenerator[StopFlags]:
        """Hold a slot and the lease of a queued Job that a worker drives."""
        async with job_slots().hold(), self._lease_job(job_id) as stop:
            yield stop

    async def context_of(self, setup: HostSetup, job: Job, tool_lock: ToolLock | None = None) -> RunnableContext:
        """Return the context of a resumed Job: with the setup that its latest Run was queued with, or else `setup`."""
        digest, key = job.coordinator.definition, job.coordinator.start.expert_key
        if digest is not None:
            setup, tool_lock = await setup.parts.get(QUEUEING).load_queued_context(setup, job.id, digest)
        return await RunnableContext.read(setup, key, tool_lock)

    async def drive(
        self,
        runnable: RunnableContext,
        job: Job,
        start: PreparedRun | ResumedRun,
        on_event: EventListener | None,
        stop: StopFlags,
        *,
        worker: WorkerRole | None = None,
    ) -> JobSummary:
        """Begin or resume a Run of a Job and drive it until it stops and no recording answers its question.

        The caller has checked that this machine can apply the sandbox policy of the Run.
        """
        summary = await self._drive_until_stop(runnable, job, start, on_event, stop, worker)
        while summary.asking is not None and job.plays_recording:
            job = await self._reader.load(summary.id)
            recorded = runnable.setup.parts.get(RECORDED_ANSWERS).recorded_answer(runnable.setup, job)
            if recorded is None:
                break
            summary = await self._drive_until_stop(runnable, job, recorded, on_event, stop, None)
        return summary

    def job_drive(
        self,
        runnable: RunnableContext,
        job: Job,
        start: PreparedRun | ResumedRun,
        on_event: EventListener | None,
        stop: StopFlags,
        *,
        worker: WorkerRole | None = None,
        is_driven_here: bool = True,
    ) -> JobDrive:
        """Return the drive of a Job. `worker` None: this process is not a worker."""
        from perstack.engine.runs.beginning import ResumedRun
        from perstack.engine.runs.job_drive import NO_WORKER, JobDrive
        from perstack.engine.runs.person_decisions import NO_DECISIONS

        return JobDrive(
            runnable.setup,
            job,
            runnable.setup.emitter(on_event),
            runnable.tool_lock,
            runnable.knowledge,
            decisions=start.decisions if isinstance(start, ResumedRun) else NO_DECISIONS,
            worker=worker or NO_WORKER,
            stop=stop,
            is_driven_here=is_driven_here,
        )

    # --- preparing ------------------------------------------------------------------------------------------------

    async def _prepare_job(
        self, setup: HostSetup, job_request: JobRequest, *, is_driven_here: bool
    ) -> tuple[RunnableContext, PreparedRun]:
        """Check that a new Job can begin; for a worker, only what must be on this machine. Writes nothing."""
        from perstack.engine.runs.beginning import NewRun, prepare_run

        query, expert = check_query(job_request.query), setup.expert(job_request.expert_key)
        setup.project.check_guarded(expert.key)
        setup.audit.check()
        runnable = await RunnableContext.read(setup, expert.key)
        setup, knowledge = runnable.setup, runnable.knowledge
        new = NewRun(expert, query, job_request.caller_fields)
        prepared_run = prepare_run(setup, knowledge, new, steps_before=0, is_driven_here=is_driven_here)
        if is_driven_here:
            delegates = with_delegates(setup.project, expert.delegates)
            setup.check_tools(delegates, prepared_run.settings)
            await setup.check_policies((prepared_run.policy, *map(setup.policy, delegates)))
        else:
            setup.parts.get(QUEUEING).check_bundle(knowledge, with_delegates(setup.project, (expert.key,)))
        return runnable, prepared_run

    async def _prepare(
        self, runnable: RunnableContext, job: Job, start: NewRun | ResumedRun, *, is_driven_here: bool
    ) -> PreparedRun | ResumedRun:
        """Check that a Run of a Job can begin, or that a resumed one has its sandbox. Records nothing."""
        from perstack.engine.runs.beginning import ResumedRun, prepare_run

        setup = runnable.setup
        if isinstance(start, ResumedRun):
            if is_driven_here:
                await setup.check_policies((start.run.start.sandbox,))
            return start
        prepared_run = prepare_run(
            setup, runnable.knowledge, start, steps_before=job.total_steps, is_driven_here=is_driven_here
        )
        if is_driven_here:
            await setup.check_policies((prepared_run.policy,))
        return prepared_run

    async def _with_attachments(
        self, prepared_run: PreparedRun, store: StoreAttachments | None, job_id: str
    ) -> PreparedRun:
        """Store the attachments of a new Run's query, and return the Run with them."""
        contents = () if store is None else await store(self._reader.storage, job_id)
        return replace(prepared_run, new=replace(prepared_run.new, attachments=contents)) if contents else prepared_run

    # --- driving and queueing -------------------------------------------------------------------------------------

    async def _drive_or_queue(
        self,
        runnable: RunnableContext,
        job: Job,
        start: PreparedRun | ResumedRun,
        on_event: EventListener | None,
        stop: StopFlags,
        queue: QueueRequest | None,
    ) -> JobSummary:
        from perstack.engine.runs.beginning import RunStarter

        if queue is None:
            return await self.drive(runnable, job, start, on_event, stop)
        setup, drive = runnable.setup, self.job_drive(runnable, job, start, on_event, stop, is_driven_here=False)
        session = RunStarter(drive).start(start)
        await self.active.close_skills(job.id)
        async with setup.audit.anchored(job):
            return await setup.parts.get(QUEUEING).enqueue(drive, session, queue)

    async def _drive_until_stop(
        self,
        runnable: RunnableContext,
        job: Job,
        start: PreparedRun | ResumedRun,
        on_event: EventListener | None,
        stop: StopFlags,
        worker: WorkerRole | None,
    ) -> JobSummary:
        from perstack.engine.runs.beginning import ResumedRun, RunStarter
        from perstack.engine.runs.job_drive import Allowance

        setup, heads = runnable.setup, dict(job.heads)
        drive = self.job_drive(runnable, job, start, on_event, stop, worker=worker)
        session = RunStarter(drive).start(start)
        await self.active.reuse_or_close_skills(drive, heads, resumes=isinstance(start, ResumedRun))
        start_run, limits = session.run.start, session.run.limits
        drive.emit.display(runtime_start_event(start_run, limits, setup.storage.location, setup.clock.now()))
        from perstack.engine.runs.loop import RunLoop  # with all events, after the first one is shown

        async with setup.audit.anchored(job):
            try:
                with self.active.publish_questions(job.id, drive.questions):
                    summary = await RunLoop(drive, await Allowance.open(drive, session)).drive_job(session)
            except BaseException:
                await drive.close()
                raise
            await self.active.keep_or_close_skills(drive)
            return summary

    # --- stopping -------------------------------------------------------------------------------------------------

    async def stop_remote(self, job: Job, below: str | None = None) -> None:
        """Stop the remote Runs of a leased Job, or the descendants of the Run `below`, and update their states.

        Raises StorageError.
        """
        if any(run.queued is not None for run in job.runs.values() if not run.is_coordinator):
            from perstack.engine.runs.remote_delegates_protocol import REMOTE

            setup, runs = self._source.setup, dict(job.runs)
            await setup.parts.get(REMOTE).stop_remote(setup, job, runs, setup.emitter(), below=below)

    # --- leases and ids -------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _lease_job(self, job_id: str) -> AsyncGenerator[StopFlags]:
        """Hold the lease of a Job, end leftover programs, and register this task as the Job's driver."""
        holder, storage = this_process(), self._reader.storage
        stop_requested = partial(StopRequests(storage).wait_for_stop_request, job_id, holder)
        workspace_lease = self._source.setup.parts.get(WORKSPACE_LEASE)
        lease = workspace_lease(self._source, self._reader, lambda: storage.lease(job_id, holder))
        async with (
            lease,
            end_leftover_programs(storage),
            self.active.register_current_task(job_id, stop_requested) as stop,
        ):
            yield stop

    async def _create_job(self, job_id: str | None) -> str:
        """Create a Job, or use an empty one with this id. Return its id. Raises UsageError for a begun Job."""
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
        """Raise UsageError if a Job has events, or had some that were removed: its id must not be used again."""
        state = await self._reader.begun_state(job_id)
        if state == "begun":
            raise UsageError(f"Job {job_id} exists already", next_steps=(Continue(job_id), SetOption("job_id")))
        if state == "removed":
            message = f"Job {job_id} had events, and its logs are gone: put them back from a copy"
            raise UsageError(message, next_steps=(SetOption("job_id"),))
