"""Host: everything that can be done with Experts and Jobs, for every front door.

    async with Host.open() as host:
        job = await host.run("writer", "Write a haiku about logs")
        print(job.text)

Times are milliseconds. Every method may raise the errors of `perstack.errors`; each says what to change.
"""

from __future__ import annotations

import asyncio
import os
import socket
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from copy import copy
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from perstack.config.lock import Lock, lock_path, merged, read_lock, write_lock
from perstack.config.places import ProjectPlace, check_workspace, find_place, named_or_own
from perstack.config.settings import Overrides
from perstack.core.by import By
from perstack.core.definitions import Expert, Project, Skill, with_delegates
from perstack.core.events import ContinuedFrom, Settlement
from perstack.core.ids import check_job_id, event_id_of, job_id_of, place_of
from perstack.core.job import Job, JobSummary
from perstack.core.labels import check_labels
from perstack.core.runs.state import Run
from perstack.engine.answering import Given, answer_again, answer_open
from perstack.engine.audit import Auditing
from perstack.engine.clock import new_ulid
from perstack.engine.driver import Driver, Wiring
from perstack.engine.emit import Emitter, OnEvent, runtime_begins
from perstack.engine.guarding import guarded, programs_of
from perstack.engine.load import LoadedJob
from perstack.engine.looking import Looking
from perstack.engine.own_task import in_own_task
from perstack.engine.plugins import load_plugins
from perstack.engine.providers import ProviderPool
from perstack.engine.read import UnsettledCall, unsettled_calls
from perstack.engine.resuming import (
    check_same_expert,
    check_same_model,
    check_settled,
    check_signal,
    new_limits,
    resume_reason,
)
from perstack.engine.session import Session
from perstack.engine.skills import JobSkills
from perstack.engine.slots import job_slots
from perstack.engine.state import open_state, places_of
from perstack.engine.trust import TrustStore, environment_of
from perstack.engine.who import this_user
from perstack.errors import Conflict, UsageError
from perstack.ports.environment import Environment
from perstack.ports.skill import LoginFactory, SkillContext

if TYPE_CHECKING:
    from perstack.core.cloudevents import CloudEvent
    from perstack.core.recorded import Definition
    from perstack.engine.inbox import InboxItem
    from perstack.engine.install import Installed, OnInstall
    from perstack.engine.iterate import Iterations
    from perstack.engine.memory import ExecutionMemory
    from perstack.engine.tooling import OfferedTools
    from perstack.engine.waking import Waker
    from perstack.ports.tasks import TaskMemory

STATE_DIR = "perstack"
"""The directory of a workspace that tools keep off."""


class Host(Looking):
    """Runs Experts in one workspace, on one storage. Several Jobs may run at once."""

    def __init__(
        self,
        project: Project,
        *,
        workspace: str | Path = ".",
        storage: str | None = None,
        env: Mapping[str, str] | None = None,
        overrides: Overrides | None = None,
        plugins: Iterable[object] = (),
        place: ProjectPlace | None = None,
    ) -> None:
        """The workspace `.` is the project's own, or if it names none the folder that one stands in. A relative storage
        of the project is seen from its `place`, and from the workspace if none is given.
        """
        self.project = project
        place = place or ProjectPlace(named_or_own(project, workspace), None)
        self.workspace = place.workspace(project, workspace)
        given = env if isinstance(env, Environment) else Environment(os.environ if env is None else env)
        self._overrides = overrides or Overrides()
        loaded = load_plugins(plugins, given)
        opened, self.notice = open_state(loaded, project, place, storage)
        """What a person should be told of where the state is, if anything."""
        super().__init__(opened, Auditing(opened, project, self.workspace, given), loaded)
        self._env = given.without(self.audit.key_variable)
        self._providers = ProviderPool(self.plugins, self._env)
        self._driving: dict[str, asyncio.Task[object]] = {}

    @cached_property
    def iterations(self) -> Iterations:
        """Runs Experts again and again until what they make is good enough."""
        from perstack.engine.iterate import Iterations
        from perstack.engine.series_drive import Definitions

        def check(expert_key: str, definition: Definition | None) -> None:
            (self if definition is None else self._under(definition))._check_ready(expert_key)

        definitions = Definitions(self._definition, self._under, check)
        return Iterations(self.storage, self, definitions, self.project, self.workspace, self._env)

    @classmethod
    def open(
        cls,
        *,
        config: str | Path | None = None,
        workspace: str | Path = ".",
        storage: str | None = None,
        env: Mapping[str, str] | None = None,
        overrides: Overrides | None = None,
        plugins: Iterable[object] = (),
    ) -> Host:
        """A Host on the perstack.toml given, or found from the workspace upward, with its `.env` files unless `env` is
        given. The state is beside a perstack.toml that was found, and in the workspace with one that was given.

        Raises DefinitionError with every problem of the file, and UsageError if there is no file.
        """
        from perstack.config.load import load_usable

        place = find_place(workspace, config)
        project = load_usable(place.required()).project
        check_workspace(project, place.workspace(project, workspace))
        host = cls(
            project,
            workspace=workspace,
            storage=storage,
            env=environment_of(project, place) if env is None else env,
            overrides=overrides,
            plugins=plugins,
            place=place,
        )
        for text in (*host._env.warnings, *([host.notice] if host.notice is not None else ())):
            warnings.warn(text, stacklevel=2)
        return host

    async def __aenter__(self) -> Host:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @cached_property
    def memory(self) -> ExecutionMemory:
        """The tasks that agents pause and resume, in the same storage."""
        from perstack.engine.memory import ExecutionMemory

        return ExecutionMemory(self.storage)

    @cached_property
    def waker(self) -> Waker:
        """Lets tasks go on that are due; those of Experts by a Job on this Host."""
        from perstack.engine.waking import Jobs, Waker

        jobs = Jobs(self.storage, self.run, self.resume, self.job, self._reader, self._check_ready, self.iterations)
        return Waker(self.memory, jobs, self.project.experts, self.workspace, self._env)

    async def close(self) -> None:
        """Close the storage and the providers. Jobs that are being driven are to be cancelled first."""
        await self._providers.close()
        await self.storage.close()

    # --- doing ----------------------------------------------------------------------------------------------------

    async def run(
        self,
        expert_key: str,
        query: str,
        *,
        job_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        on_event: OnEvent | None = None,
    ) -> JobSummary:
        """Start a new Job and drive it to its end or stop.

        Nothing is written before Expert, model and provider are known to be there. A cancelled call is recorded as an
        interrupt. `labels` are what the Job is found by later. Raises UsageError if `job_id` exists and has begun.
        """
        expert, labels = self._expert(expert_key), check_labels(labels or {})
        self._check_provider(expert)
        self.audit.check()
        lock = self._lock()

        async def work() -> JobSummary:
            def begin(driver: Driver) -> Session:
                return driver.begin_run(expert, query, labels=labels)

            async with job_slots().taken():
                made = await self._new_job(job_id)
                async with self._leased(made):
                    if made == job_id:
                        await self._check_not_begun(made)  # again, now that nobody else can begin it
                    return await self._drive(LoadedJob(Job(made)), begin, on_event, lock)

        return await in_own_task(work())

    async def continue_job(
        self,
        expert_key: str,
        query: str,
        *,
        job_id: str | None = None,
        resume_from: str | None = None,
        labels: Mapping[str, str] | None = None,
        on_event: OnEvent | None = None,
    ) -> JobSummary:
        """A new Run of the Coordinator, with the messages of the last one, or of the checkpoint `resume_from`.

        `job_id` None means the latest Job. The definition of today is used. `labels` are added to the Job's.
        """
        expert, labels = self._expert(expert_key), check_labels(labels or {})
        job_id = await self._job_id(job_id)

        async def begin(loaded: LoadedJob) -> Callable[[Driver], Session]:
            base = await self._base(loaded, resume_from)
            check_same_expert(base, expert, job_id)
            place = ContinuedFrom(run_id=base.id, checkpoint_id=event_id_of(base.id, base.head.seq))
            return lambda driver: driver.begin_run(expert, query, continued_from=place, base=base, labels=labels)

        return await self._go_on(job_id, begin, on_event)

    async def answer(
        self,
        text: str,
        *,
        job_id: str | None = None,
        question_id: str | None = None,
        resume_from: str | None = None,
        signal: str | None = None,
        by: By | None = None,
        on_event: OnEvent | None = None,
    ) -> JobSummary:
        """Answer the question that a Job is stopped at, and drive it on.

        `perstack.core.answers` tells how an answer is read. Raises UsageError if nothing is asked, or does not fit, and
        Conflict if `question_id` is given and has been answered already. `signal` names the event that answers, if it
        is no person: the Job takes each only once. `by` is recorded with the answer; this process's user if not given.
        `resume_from` is a checkpoint at which a question was open: it is answered anew by a new Run, a branch.
        """
        named = question_id or (resume_from if job_id is None else None)
        job_id = place_of(named)[0] if named is not None else await self._job_id(job_id)
        given = Given(text, by or this_user(), question_id, signal)

        async def begin(loaded: LoadedJob) -> Callable[[Driver], Session]:
            if resume_from is None:
                return answer_open(loaded, _coordinator(loaded), given, self._overrides)
            base = await self._base(loaded, resume_from)
            return await answer_again(self._reader, base, resume_from, self._expert(base.start.expert_key), given)

        return await self._go_on(job_id, begin, on_event)

    async def resume(
        self,
        job_id: str | None = None,
        *,
        max_steps: int | None = None,
        settle: Mapping[str, Settlement] | None = None,
        signal: str | None = None,
        on_unsettled: Callable[[tuple[UnsettledCall, ...]], None] = lambda calls: None,
        on_event: OnEvent | None = None,
    ) -> JobSummary:
        """Go on with a Job that crashed, failed, was interrupted or reached its step limit: the same Runs.

        A Run that failed before its model replied goes on under the definition and the settings of today.

        `on_unsettled` is told, before anything is done, of the calls that began and have no result; `settle` decides
        them by hand, by key or call id: otherwise the model is told that they were interrupted. Raises UsageError for a
        Job that is completed or waits for an answer, and for a call that is not open.
        """
        job_id = await self._job_id(job_id)

        async def begin(loaded: LoadedJob) -> Callable[[Driver], Session]:
            run = _coordinator(loaded)
            check_signal(loaded.job, signal)
            reason = resume_reason(job_id, run)
            if not run.may_be_redefined:
                check_same_model(run, self._overrides, job_id)
            limits = new_limits(run, self._overrides, max_steps)
            settled: dict[str, Settlement] = {**settle} if settle else {}
            calls = unsettled_calls(loaded)
            check_settled(calls, settled)
            if calls:
                on_unsettled(calls)

            def take_up(driver: Driver) -> Session:
                driver.settled, driver.signal = settled, signal
                return driver.take_up(run, reason, limits=limits)

            return take_up

        return await self._go_on(job_id, begin, on_event)

    async def signal(
        self, job_id: str, event: CloudEvent, *, by: By | None = None, on_event: OnEvent | None = None
    ) -> JobSummary:
        """An event from outside answers the question that a Job is stopped at with its data, or lets the Job go on.

        An event of the same source and id is taken once: then where the Job stands is all that comes of it.
        """
        job = (await self.load(check_job_id(job_id))).job
        if event.key in job.signals:
            return await self.job(job_id)
        if job.question is None:
            return await self.resume(job_id, signal=event.key, on_event=on_event)
        asked = job.question.id
        by = (by or this_user()).bringing(event.source)
        return await self.answer(event.text, question_id=asked, signal=event.key, by=by, on_event=on_event)

    async def cancel(self, job_id: str) -> None:
        """Stop a Job that this Host drives. Its Runs are recorded as interrupted, and its skills have ended, on return.

        Whoever called `run` sees CancelledError; the rest of that task is not waited for. Raises UsageError if the Job
        is not driven here, and what kept it from being recorded.
        """
        task = self._driving.get(check_job_id(job_id))
        if task is None:
            info = await self.storage.lease_info(job_id)
            where = f"it is driven by {info.holder}; stop it there" if info else "nobody drives it"
            raise UsageError(f"Job {job_id} cannot be cancelled here: {where}")
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def delete(self, job_id: str) -> None:
        """Remove a Job for good. Raises NotFound, and Conflict while it is driven."""
        await self.storage.delete_job(check_job_id(job_id))

    async def login(
        self, skill_name: str, present: Callable[[str], Awaitable[None]], *, expert_key: str | None = None
    ) -> None:
        """Log in to the server of a skill, for all later Jobs. `present` is given the address that a person must go to.

        Raises UsageError if no Expert has such a skill, or if several declare it differently and `expert_key` names
        none of them; SkillError if the login does not come about within some minutes.
        """
        factory, definition = self._login_of(skill_name, expert_key)
        await factory.login(definition, self._context(""), present)

    async def logout(self, skill_name: str, *, expert_key: str | None = None) -> bool:
        """Forget a login. False if there was none."""
        factory, definition = self._login_of(skill_name, expert_key)
        return await factory.logout(definition, self._context(""))

    async def install(self, *expert_keys: str, on_step: OnInstall = lambda step: None) -> Installed:
        """Ask every skill of these Experts, or of all, and of their delegates, what it offers; write perstack.lock.

        Runs then offer that at once, and connect when a tool is first called. `on_step` is told how each skill stands.
        One that fails keeps what was locked of it. Raises StorageError if the file cannot be written.
        """
        from perstack.engine.install import Installed, ask_skills

        if self.project.path is None:
            raise UsageError("there is no perstack.toml that a perstack.lock could stand beside")
        path = lock_path(self.project.path)
        keys = [self._expert(key).key for key in expert_keys] or list(self.project.experts)
        context = self._context("install")
        new, steps = await ask_skills(self.plugins.skills, context, with_delegates(self.project, keys), on_step)
        try:
            old = read_lock(path)
        except UsageError:
            old = Lock()  # it is being replaced
        write_lock(path, merged(old, new, self.project.experts.values()))
        return Installed(path, steps)

    async def inbox(self) -> tuple[InboxItem, ...]:
        """Every open question of every Job and task, and every task that does not read, the oldest first."""
        from perstack.engine.inbox import damaged_tasks, in_order, open_questions, waiting_tasks

        of_tasks = (await waiting_tasks(self.memory), await damaged_tasks(self.memory))
        return in_order(await open_questions(self._reader), *of_tasks)

    async def tools(self, expert_key: str) -> OfferedTools:
        """What a Run of this Expert, as a Coordinator, would be offered; its skills are opened for it, and ended."""
        from perstack.engine.tooling import offered_tools

        context = self._context("tools")
        return await offered_tools(self.plugins.skills, context, self.project, self._expert(expert_key))

    # --- inside ---------------------------------------------------------------------------------------------------

    def _login_of(self, skill_name: str, expert_key: str | None) -> tuple[LoginFactory, Skill]:
        from perstack.engine.logins import login_of

        return login_of(self.plugins.skills, self.project.experts, skill_name, expert_key)

    async def _go_on(
        self,
        job_id: str,
        begin: Callable[[LoadedJob], Awaitable[Callable[[Driver], Session]]],
        on_event: OnEvent | None,
    ) -> JobSummary:
        self.audit.check()
        lock = self._lock()

        async def work() -> JobSummary:
            async with job_slots().taken(), self._leased(job_id):
                loaded = await self._reader.load(job_id)
                return await self._drive(loaded, await begin(loaded), on_event, lock)

        return await in_own_task(work())

    async def _drive(
        self, loaded: LoadedJob, begin: Callable[[Driver], Session], on_event: OnEvent | None, lock: Lock
    ) -> JobSummary:
        emit = Emitter(self.plugins.listeners, on_event)
        context = self._context(loaded.job.id, tasks=lambda: self.memory)
        skills = JobSkills(self.plugins.skills, context, emit, lock)
        wiring = Wiring(
            storage=self.storage,
            project=self.project,
            providers=self._providers,
            skills=skills,
            emit=emit,
            overrides=self._overrides,
            directory=str(self.workspace),
        )
        driver = Driver(wiring, loaded.job, loaded.runs)
        session = begin(driver)
        start = session.run.start
        emit.display(runtime_begins(start, session.run.limits, self.storage.location))
        async with self.audit.kept(loaded.job):
            try:
                return await driver.drive_coordinator(session)
            finally:
                await skills.close()

    def _context(self, job_id: str, tasks: Callable[[], TaskMemory] | None = None) -> SkillContext:
        """What skills are given."""
        project = self.project
        lock = () if project.path is None else (lock_path(project.path),)
        read = (*project.files, *project.env_path, *self._env.files, *lock, *self.audit.key_files)
        return SkillContext(
            self.workspace,
            job_id,
            self._env,
            STATE_DIR,
            tasks=tasks,
            off_limits=(*places_of(self.storage), *self.audit.anchor_places),
            programs=programs_of(self.storage),
            protected=(*(Path(name).absolute() for name in read), TrustStore.of_user().folder),
            protected_patterns=project.includes,
        )

    def _lock(self) -> Lock:
        return Lock() if self.project.path is None else read_lock(lock_path(self.project.path))

    @asynccontextmanager
    async def _leased(self, job_id: str) -> AsyncGenerator[None]:
        task = asyncio.current_task()
        holder = f"pid {os.getpid()} on {socket.gethostname()}"
        async with self.storage.lease(job_id, holder), guarded(self.storage):
            if task is not None:
                self._driving[job_id] = task
            try:
                yield
            finally:
                self._driving.pop(job_id, None)

    async def _new_job(self, job_id: str | None) -> str:
        if job_id is None:
            while True:
                job_id = job_id_of(new_ulid())
                try:
                    await self.storage.create_job(job_id)
                except Conflict:
                    continue
                return job_id
        try:
            await self.storage.create_job(check_job_id(job_id))
        except Conflict:
            await self._check_not_begun(job_id)
        return job_id

    async def _check_not_begun(self, job_id: str) -> None:
        """Raises UsageError for a Job that has begun. One whose process ended before its first event can be taken over.

        Where a head of a log is known that is not there, somebody removed the log: that id is not used again.
        """
        begun = await self._reader.begun(job_id)
        if begun == "begun":
            raise UsageError(f"Job {job_id} exists; continue it with --continue-job, or choose another --job-id")
        if begun == "removed":
            raise UsageError(
                f"Job {job_id} had events, and its logs are gone: put them back, or choose another --job-id"
            )

    def _check_ready(self, expert_key: str) -> None:
        self._check_provider(self._expert(expert_key))

    def _definition(self, expert_key: str) -> Definition:
        from perstack.engine.recorded import record_definition

        return record_definition(self._providers, self.project, self._expert(expert_key), self._overrides)

    def _under(self, definition: Definition) -> Host:
        """This Host, with the Experts of a recorded definition alone, and today's secrets. It is not to be closed."""
        from perstack.engine.recorded import in_force_now

        host = copy(self)
        for name in ("iterations", "memory", "waker"):
            vars(host).pop(name, None)
        host.project, host._overrides = in_force_now(definition, self.project, self._overrides)
        return host

    def _check_provider(self, expert: Expert) -> None:
        """Raises UsageError or MissingCredential if a Run of the Expert could not begin."""
        settings = self._providers.settings(self.project, expert, self._overrides)
        self._providers.get(settings.provider)

    def _expert(self, key: str) -> Expert:
        expert = self.project.expert(key)
        if expert is None:
            self.project.check_broken(key)
            names = ", ".join(sorted(self.project.experts)) or "none"
            raise UsageError(f"there is no Expert {key!r} in {self.project.path or 'the project'}; there are: {names}")
        return expert

    async def _base(self, loaded: LoadedJob, resume_from: str | None) -> Run:
        if resume_from is None:
            return _coordinator(loaded)
        base = await self._reader.state_at(resume_from, loaded.job.id)
        if not base.is_coordinator:
            raise UsageError(f"{resume_from} is a delegate's checkpoint; only the Coordinator's can be branched from")
        return base


def _coordinator(loaded: LoadedJob) -> Run:
    return loaded.runs[loaded.job.coordinator.start.run_id]
