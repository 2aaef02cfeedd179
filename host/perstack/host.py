"""Host: the entry point to Experts and Jobs, used by every door.

    async with Host.open() as host:
        job = await host.run("writer", "Write a haiku about logs")
        print(job.text)

A Host is made of parts: `host.jobs`, `host.tasks`, `host.iterations`, `host.schedules`, `host.experts` and
`host.skills`. Frequent methods also have a short name: `host.run` is `host.jobs.run`. Parts that few commands need are
imported and made on first use, so that a command starts fast. `Host.use` replaces the definition for what begins next.

Times are milliseconds. Every method may raise the errors of `perstack.errors`; each says what to change.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, TypeVar, overload

from perstack.config.project import ProjectPlace, check_workspace, find_place, named_or_own
from perstack.config.trust import Agreement, environment_of
from perstack.core.definitions.overrides import Overrides
from perstack.core.definitions.project import Project
from perstack.engine.anchors.trail import AuditTrail
from perstack.engine.context.connections import dispatching_of, open_state
from perstack.engine.context.host_context import Setup
from perstack.engine.diagnostics.experts import Experts
from perstack.engine.diagnostics.skills import Skills
from perstack.engine.files.rewind_lock import repair_on_open
from perstack.engine.jobs.jobs import Jobs
from perstack.engine.plugins.providers import ProviderPool
from perstack.engine.plugins.registry import load_plugins
from perstack.ports.environment import Environment
from perstack.ports.storage import Storage
from perstack.system.clock import SYSTEM, Clock

if TYPE_CHECKING:
    from perstack.engine.iterations.iterations import Iterations
    from perstack.engine.jobs.inbox import InboxItem
    from perstack.engine.schedules.launcher import JobLauncher
    from perstack.engine.schedules.scheduler import Scheduler
    from perstack.engine.schedules.schedules import Schedules
    from perstack.engine.tasks.memory import ExecutionMemory
    from perstack.ports.dispatcher import Dispatcher

_Part = TypeVar("_Part")
_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Short(Generic[_Part, _P, _T]):
    """Descriptor that gives a method of a part a short name on the Host."""

    def __init__(self, part: Callable[[Host], _Part], method: Callable[Concatenate[_Part, _P], _T]) -> None:
        """Bind the name to `method` of the part that `part` returns."""
        self._part = part
        self._method = method

    @overload
    def __get__(self, host: None, owner: type[Host]) -> Callable[Concatenate[_Part, _P], _T]: ...
    @overload
    def __get__(self, host: Host, owner: type[Host]) -> Callable[_P, _T]: ...
    def __get__(self, host: Host | None, owner: type[Host]) -> Callable[Concatenate[_Part, _P], _T] | Callable[_P, _T]:
        """Return the bound method of the part; on the class, the function itself."""
        if host is None:
            return self._method
        bound: Callable[_P, _T] = getattr(self._part(host), self._method.__name__)
        return bound


def _jobs_of(host: Host) -> Jobs:
    return host.jobs


def _experts_of(host: Host) -> Experts:
    return host.experts


def _skills_of(host: Host) -> Skills:
    return host.skills


class Host:
    """Runs Experts in one workspace, on one storage. Several Jobs may run at once."""

    def __init__(
        self,
        project: Project,
        *,
        workspace: str | Path = ".",
        storage: str | Storage | None = None,
        env: Mapping[str, str] | None = None,
        overrides: Overrides | None = None,
        plugins: Iterable[object] = (),
        place: ProjectPlace | None = None,
        clock: Clock | None = None,
        dispatcher: str | Dispatcher | None = None,
        agreement: Agreement | None = None,
    ) -> None:
        """Create a Host for a project.

        `workspace`: `.` is the project's own workspace, or the current folder if it names none. A relative storage of
        the project is resolved against its `place`, or the workspace without one. `clock`: None is the system's.
        `dispatcher` takes precedence over that of `[workers]`. `agreement`: None is what a person has agreed to by
        `perstack trust`, for a project that was read from a file.
        """
        place = place or ProjectPlace(named_or_own(project, workspace), None)
        folder = place.workspace(project, workspace)
        given = env if isinstance(env, Environment) else Environment(os.environ if env is None else env)
        loaded = load_plugins(plugins, given)
        agreement = agreement or Agreement(project)
        address = project.storage if storage is None else storage if isinstance(storage, str) else ""
        if storage is None or isinstance(storage, str):
            storage = open_state(loaded, project, place, storage, given, agreement)
        clock = SYSTEM if clock is None else clock
        audit = AuditTrail(storage, project, folder, given, clock, agreement)
        kept = given.without(audit.key_variable)
        self._setup = Setup(
            project=project,
            overrides=overrides or Overrides(),
            workspace=folder,
            env=kept,
            storage=storage,
            plugins=loaded,
            providers=ProviderPool(loaded, kept, agreement),
            audit=audit,
            clock=clock,
            dispatching=dispatching_of(loaded, project, dispatcher, address, given, agreement),
            agreement=agreement,
        )
        self.jobs = Jobs(self._now, lambda: self.tasks)
        self.experts = Experts(self._now)
        self.skills = Skills(self._now)

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
        dispatcher: str | Dispatcher | None = None,
    ) -> Host:
        """Create a Host from the given perstack.toml, or one found from the workspace upward.

        Its `.env` files are read unless `env` is given. The state is beside a perstack.toml that was found, and in the
        workspace for one that was given. Raises DefinitionError with every problem of the file, and UsageError without
        a file.
        """
        from perstack.config.load import load_usable

        place = find_place(workspace, config)
        project = load_usable(place.required()).project
        check_workspace(project, place.workspace(project, workspace))
        given = environment_of(project, place) if env is None else env
        host = cls(
            project,
            workspace=workspace,
            storage=storage,
            env=given,
            overrides=overrides,
            plugins=plugins,
            place=place,
            dispatcher=dispatcher,
        )
        for text in given.warnings if isinstance(given, Environment) else ():
            warnings.warn(str(text), stacklevel=2)
        return host

    async def __aenter__(self) -> Host:
        """Finish or undo an interrupted rewind of the workspace."""
        await repair_on_open(self.storage, self.workspace, self.jobs.settle_rewind)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the Host."""
        await self.close()

    async def close(self) -> None:
        """Close the storage, the providers and the dispatcher. Cancel Jobs that are being driven first."""
        await self._setup.providers.close()
        await self._setup.dispatching.close()
        await self._setup.storage.close()

    # --- settings -------------------------------------------------------------------------------------------------

    @property
    def project(self) -> Project:
        """The definition that new Jobs use."""
        return self._setup.project

    @property
    def workspace(self) -> Path:
        """The folder that tools work in."""
        return self._setup.workspace

    @property
    def storage(self) -> Storage:
        """The storage of all logs."""
        return self._setup.storage

    @property
    def dispatcher(self) -> Dispatcher | None:
        """The dispatcher that queues Jobs for workers; None without one. Raises UsageError for an invalid address."""
        return self._setup.dispatching.dispatcher

    @property
    def leaves_to_workers(self) -> bool:
        """True if a dispatcher was named: work that no caller waits for is then queued for workers."""
        return self._setup.dispatching.is_chosen

    @property
    def clock(self) -> Clock:
        """The source of the time of day."""
        return self._setup.clock

    def use(self, project: Project) -> None:
        """Use this definition for what begins from now on; Jobs that are being driven keep theirs."""
        self._setup = replace(self._setup, project=project)

    def _now(self) -> Setup:
        return self._setup

    # --- parts, made on first use ---------------------------------------------------------------------------------

    @cached_property
    def tasks(self) -> ExecutionMemory:
        """The tasks that agents pause and resume, in the same storage."""
        from perstack.engine.tasks.memory import ExecutionMemory

        return ExecutionMemory(self.storage, self._setup.audit, self.clock)

    @cached_property
    def iterations(self) -> Iterations:
        """Series of iterations: Runs of an Expert, repeated until the result is good enough."""
        from perstack.engine.iterations.iterations import Iterations

        return Iterations(self.jobs, self._now)

    @cached_property
    def scheduler(self) -> Scheduler:
        """The scheduler, which resumes due tasks and starts due schedules.

        It drives their Jobs on this Host, or queues them for workers if a dispatcher was named.
        """
        return self.scheduler_of_worker if self.leaves_to_workers else self._scheduling(self._launcher(queue=False))

    @cached_property
    def scheduler_of_worker(self) -> Scheduler:
        """The scheduler for a worker: everything due is queued, for this worker or another."""
        return self._scheduling(self._launcher(queue=True))

    def _scheduling(self, launcher: JobLauncher) -> Scheduler:
        from perstack.engine.schedules.scheduler import Scheduler
        from perstack.engine.schedules.schedules import Schedules

        schedules = cache(lambda: Schedules(self._now, self.jobs, launcher))
        return Scheduler(self.tasks, self.jobs, self.iterations, schedules, self._now, launcher)

    def _launcher(self, *, queue: bool) -> JobLauncher:
        from perstack.engine.schedules.launcher import JobLauncher

        return JobLauncher(self.jobs, lambda: self.iterations, self._now, queue=queue)

    @cached_property
    def schedules(self) -> Schedules:
        """The schedules of the project. Their Jobs are driven here, or by workers if a dispatcher was named."""
        from perstack.engine.schedules.schedules import Schedules

        return Schedules(self._now, self.jobs, self._launcher(queue=self.leaves_to_workers))

    async def inbox(self) -> tuple[InboxItem, ...]:
        """Return every open question of Jobs and tasks, and each Job and task that cannot be read, oldest first."""
        from perstack.engine.jobs.inbox import damaged_tasks, in_order, waiting_jobs, waiting_tasks

        of_tasks = (await waiting_tasks(self.tasks), await damaged_tasks(self.tasks))
        return in_order(await waiting_jobs(self.jobs), *of_tasks)

    # --- short names ----------------------------------------------------------------------------------------------

    run = _Short(_jobs_of, Jobs.run)
    submit = _Short(_jobs_of, Jobs.submit)
    continue_job = _Short(_jobs_of, Jobs.continue_job)
    answer = _Short(_jobs_of, Jobs.answer)
    resume = _Short(_jobs_of, Jobs.resume)
    attachment = _Short(_jobs_of, Jobs.attachment)
    signal = _Short(_jobs_of, Jobs.signal)
    cancel = _Short(_jobs_of, Jobs.cancel)
    delete = _Short(_jobs_of, Jobs.delete)
    job = _Short(_jobs_of, Jobs.job)
    runs = _Short(_jobs_of, Jobs.runs)
    events = _Short(_jobs_of, Jobs.events)
    logs = _Short(_jobs_of, Jobs.logs)
    checkpoints = _Short(_jobs_of, Jobs.checkpoints)
    checkpoint = _Short(_jobs_of, Jobs.checkpoint)
    checkpoint_path = _Short(_jobs_of, Jobs.checkpoint_path)
    unsettled = _Short(_jobs_of, Jobs.unsettled)
    watch = _Short(_jobs_of, Jobs.watch)
    verify = _Short(_jobs_of, Jobs.verify)
    verify_all = _Short(_jobs_of, Jobs.verify_all)
    verify_receipt = _Short(_jobs_of, Jobs.verify_receipt)
    receipt = _Short(_jobs_of, Jobs.receipt)
    replay = _Short(_jobs_of, Jobs.replay)
    record = _Short(_jobs_of, Jobs.record)
    document = _Short(_jobs_of, Jobs.document)
    export = _Short(_jobs_of, Jobs.export)
    load = _Short(_jobs_of, Jobs.load)
    tools = _Short(_experts_of, Experts.tools)
    login = _Short(_skills_of, Skills.login)
    logout = _Short(_skills_of, Skills.logout)
    install = _Short(_skills_of, Skills.install)
