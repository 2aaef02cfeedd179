"""Serve queued Jobs, or awaited delegates, on a worker that has what they need: it is checked before any write."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from perstack.core.base.ids import check_id, check_job_id, number_of_run, one_plain_line
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.project import with_delegates
from perstack.core.definitions.sandbox import LOCAL
from perstack.core.definitions.skills import AgentSkill, InteractiveSkill, McpStdioSkill, with_base_skill
from perstack.core.jobs.due import reason_to_resume
from perstack.core.jobs.job import Job
from perstack.core.jobs.resuming import is_awaited
from perstack.core.jobs.summary import JobSummary, summarize
from perstack.core.runs.decide import has_ended
from perstack.core.runs.events import StartRun
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass
from perstack.engine.context.host_setup import HostSetup, SetupSource
from perstack.engine.jobs.reader import JobReader
from perstack.engine.jobs.runner import JobRunner
from perstack.engine.log.delegate_leases_and_stop_requests import DelegateLeases, end_leftover_programs
from perstack.engine.log.run_session import EventListener, OnEvent, as_listener, runtime_start_event
from perstack.engine.plugins.job_skills import factory_for
from perstack.errors import CannotServe, DefinitionError, NotFound, PluginError, ProviderError, SkillError, UsageError
from perstack.ports.dispatcher import order_key
from perstack.snapshots.job_files import JobFiles
from perstack.support.variables import require_secrets_known, variables_in
from perstack.system.concurrency import in_own_task
from perstack.system.user import this_process

if TYPE_CHECKING:
    from perstack.engine.runs.job_drive import StopFlags, WorkerRole

MISSING_REQUIREMENT = (UsageError, DefinitionError, ProviderError, PluginError, SkillError)
"""Errors that are raised if this worker lacks something that a Job needs."""

OnWaiting = Callable[[bool], None]


@dataclass(frozen=True, slots=True)
class _Service:
    setup: HostSetup
    worker: str
    on_event: EventListener | None
    on_waiting: OnWaiting | None
    apart: bool

    def role(self) -> WorkerRole:
        """Return the role of this process. Raises UsageError for an invalid address of the dispatcher."""
        from perstack.engine.runs.job_drive import WorkerRole

        workers = self.setup.project.workers
        wants_distribution = self.apart and workers is not None and workers.delegates == "distributed"
        distributes = wants_distribution and self.setup.dispatching.dispatcher is not None
        if self.on_waiting is None:
            return WorkerRole(self.worker, distributes)
        return WorkerRole(self.worker, distributes, self.on_waiting)


class JobServer:
    """Drives queued Jobs, and single Runs of them, as a worker."""

    def __init__(self, source: SetupSource, reader: JobReader, runner: JobRunner, files: JobFiles) -> None:
        """Serve with the context in force when a Job is claimed."""
        self._source = source
        self._reader = reader
        self._runner = runner
        self._files = files

    async def serve(
        self,
        job_id: str,
        *,
        worker: str,
        run_id: str | None = None,
        on_event: OnEvent | None = None,
        on_waiting: OnWaiting | None = None,
        apart: bool = True,
    ) -> JobSummary:
        """Drive a queued Job as far as possible under the name of a worker, and return its summary.

        With `run_id` only that Run and its descendants: a delegate that another process awaits. `on_waiting` is called
        with True when this process starts waiting only for such delegates, with False when it stops. With `apart` false
        they are driven here.

        A Job that no worker should drive, such as one that waits for a person, is not driven. A cancelled Job is queued
        again. Raises Conflict while another process drives it, and CannotServe, before anything is written, if this
        host lacks what the Job needs; NotFound, Damaged and StorageError.
        """
        context, task = self._source.setup, asyncio.current_task()
        context.audit.check()
        service = _Service(context, one_plain_line(worker), as_listener(on_event), on_waiting, apart)
        try:
            if run_id is not None:
                return await in_own_task(self._serve_run(service, check_job_id(job_id), check_id(run_id, "run")))
            return await in_own_task(self._serve_job(service, check_job_id(job_id)))
        except asyncio.CancelledError:
            if task is None or task.cancelling():
                raise
            return await self._reader.job(job_id)  # a stop of the Job was requested, not of its worker

    async def _serve_job(self, service: _Service, job_id: str) -> JobSummary:
        from perstack.engine.runs.beginning import ResumedRun

        async with self._runner.lease_queued_job(job_id) as stop:
            job = await self._reader.load(job_id)
            run = job.coordinator
            reason = reason_to_resume(run, service.setup.clock.now())
            if reason is None or job.closed is not None:
                return summarize(job, is_driven=False)
            heads = dict(job.heads)
            try:
                runnable = await self._runner.context_of(service.setup, job)
                await check_requirements(runnable.setup, job, run.start)
                if run.start.snapshots is not None:
                    await self._files.check_present(job_id)
                resumed_run = ResumedRun(run, reason)
                return await self._runner.drive(
                    runnable, job, resumed_run, service.on_event, stop, worker=service.role()
                )
            except MISSING_REQUIREMENT as error:
                if job.heads != heads or isinstance(error, NotFound):
                    raise
                raise CannotServe(str(error)) from error

    async def _serve_run(self, service: _Service, job_id: str, run_id: str) -> JobSummary:
        """Drive a delegate's Run, if another process awaits it; that process records the summary of its Job."""
        holders = DelegateLeases(self._reader.storage)
        try:
            job = await self._served_run(service, job_id, run_id)
        except NotFound:
            await holders.forget(run_id)
            raise
        if run_id not in job.runs or has_ended(job.runs[run_id]):
            await holders.forget(run_id)
        return summarize(job, is_driven=True)

    async def _served_run(self, service: _Service, job_id: str, run_id: str) -> Job:
        async with self._leased_run(job_id, run_id) as stop:
            job = await self._reader.load(job_id)
            run = job.runs.get(run_id)
            has_caller = run is not None and not run.is_coordinator and is_awaited(run, job.runs)
            reason = reason_to_resume(run, service.setup.clock.now()) if run is not None and has_caller else None
            if run is None or reason is None:
                return job
            head = run.head
            try:
                await self._drive_run(service, job, run, stop)
            except MISSING_REQUIREMENT as error:
                if job.heads.get(run_id) != head or isinstance(error, NotFound):
                    raise
                raise CannotServe(str(error)) from error
            return job

    async def _drive_run(self, service: _Service, loaded_job: Job, run: Run, stop: StopFlags) -> None:
        from perstack.engine.runs.beginning import ResumedRun, RunStarter
        from perstack.engine.runs.job_drive import Allowance
        from perstack.engine.runs.loop import RunLoop

        by, clock = run.start.delegated_by, service.setup.clock
        runnable = await self._runner.context_of(service.setup, loaded_job)
        await check_requirements(runnable.setup, loaded_job, run.start)
        if run.start.snapshots is not None:
            await self._files.check_present(loaded_job.id)
        loaded_job.root = number_of_run(run.id)
        parent_permissions = () if by is None else loaded_job.runs[by.run_id].permissions
        reason = reason_to_resume(run, clock.now()) or "crash"
        resumed_run = ResumedRun(run, reason, parent_rules=parent_permissions)
        drive = self._runner.job_drive(runnable, loaded_job, resumed_run, service.on_event, stop, worker=service.role())
        session = RunStarter(drive).resume(resumed_run)
        start, limits = session.run.start, session.run.limits
        drive.emit.display(runtime_start_event(start, limits, self._reader.storage.location, clock.now()))
        try:
            await RunLoop(drive, await Allowance.open(drive, session)).drive_root(session)
        finally:
            await drive.close()

    @asynccontextmanager
    async def _leased_run(self, job_id: str, run_id: str) -> AsyncGenerator[StopFlags]:
        holder, storage = this_process(), self._reader.storage
        holders = DelegateLeases(storage)
        leased = self._files.without_rewind(lambda: holders.lease(run_id, holder))
        key, requested = order_key(job_id, run_id), partial(holders.wait_for_stop_request, run_id, holder)
        async with (
            leased,
            end_leftover_programs(storage),
            self._runner.active.register_current_task(key, requested) as stop,
        ):
            yield stop


# What a worker must have.


async def check_requirements(setup: HostSetup, job: Job, start: StartRun) -> None:
    """Raise an error that names the key, plugin, program, variable or sandbox that any Run of the Job lacks here."""
    for expert in with_delegates(setup.project, (start.expert_key,)) or (start.expert,):
        settings = setup.providers.settings(setup.project, expert, setup.overrides)
        setup.providers.check(settings, setup.project, expert)
        if setup.providers.get(settings.provider).player is None:
            _check_skills(setup, expert)
    await setup.check_policies([run.start.sandbox for run in job.runs.values()])


def _check_skills(setup: HostSetup, expert: Expert) -> None:
    policy = setup.policy(expert)
    for skill in with_base_skill(expert.skills):
        if isinstance(skill, InteractiveSkill | AgentSkill):
            continue
        factory_for(setup.plugins.skills, skill)
        if isinstance(skill, McpStdioSkill) and (policy is None or policy.runtime == LOCAL):
            _check_program(setup, skill)


def _check_program(setup: HostSetup, skill: McpStdioSkill) -> None:
    require_secrets_known((*skill.args, *skill.env.values()), skill.name)
    variable_names = {*skill.required_env, *variables_in((*skill.args, *skill.env.values()))}
    missing = ", ".join(sorted(name for name in variable_names if not setup.env.without_stored.get(name)))
    if missing:
        raise UsageError(f"skill {skill.name!r} needs {missing}: set it in the environment or in a .env file")
    program = shutil.which(skill.command, path=setup.env.get("PATH", os.defpath))
    if program is None and not (setup.workspace / skill.command).is_file():
        raise UsageError(f"skill {skill.name!r} needs the program {skill.command}, which is not installed here")
