"""Host: everything that can be done with Experts and Jobs, for every front door.

    async with Host.open() as host:
        job = await host.run("writer", "Write a haiku about logs")
        print(job.text)

It is made of parts: `host.jobs`, `host.tasks`, `host.iterations`, `host.schedules`, `host.experts`,
`host.skills`. What is used most is
there under a short name as well: `host.run` is `host.jobs.run`.

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

from perstack.config.places import ProjectPlace, check_workspace, find_place, named_or_own
from perstack.config.settings import Overrides
from perstack.core.definitions import Project
from perstack.engine.audit import Auditing
from perstack.engine.clock import SYSTEM
from perstack.engine.dispatching import dispatching_of
from perstack.engine.experts import Experts
from perstack.engine.jobs import Jobs
from perstack.engine.plugins import load_plugins
from perstack.engine.providers import ProviderPool
from perstack.engine.rewinding.whole import put_right
from perstack.engine.setup import Setup
from perstack.engine.skill_upkeep import Skills
from perstack.engine.state import open_state
from perstack.engine.trust import environment_of
from perstack.ports.clock import Clock
from perstack.ports.environment import Environment
from perstack.ports.storage import Storage

if TYPE_CHECKING:
    from perstack.engine.inbox import InboxItem
    from perstack.engine.iterate import Iterations
    from perstack.engine.memory import ExecutionMemory
    from perstack.engine.scheduler import Scheduler
    from perstack.engine.schedules.starting import JobStarter
    from perstack.engine.schedules.upkeep import Schedules
    from perstack.ports.dispatcher import Dispatcher

_Part = TypeVar("_Part")
_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Short(Generic[_Part, _P, _T]):
    """A method of a part of the Host, under a short name of the Host's own."""

    def __init__(self, part: Callable[[Host], _Part], method: Callable[Concatenate[_Part, _P], _T]) -> None:
        self._part = part
        self._method = method

    @overload
    def __get__(self, host: None, owner: type[Host]) -> Callable[Concatenate[_Part, _P], _T]: ...
    @overload
    def __get__(self, host: Host, owner: type[Host]) -> Callable[_P, _T]: ...
    def __get__(self, host: Host | None, owner: type[Host]) -> Callable[Concatenate[_Part, _P], _T] | Callable[_P, _T]:
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
    ) -> None:
        """The workspace `.` is the project's own, or if it names none the folder that one stands in. A relative storage
        of the project is seen from its `place`, and from the workspace if none is given. `clock` None is the system's.
        `dispatcher` takes precedence over that of `[workers]`.
        """
        place = place or ProjectPlace(named_or_own(project, workspace), None)
        folder = place.workspace(project, workspace)
        given = env if isinstance(env, Environment) else Environment(os.environ if env is None else env)
        loaded = load_plugins(plugins, given)
        self.notice: str | None = None
        """What a person should be told of where the state is, if anything."""
        address = project.storage if storage is None else storage if isinstance(storage, str) else ""
        if storage is None or isinstance(storage, str):
            storage, self.notice = open_state(loaded, project, place, storage, given)
        clock = SYSTEM if clock is None else clock
        audit = Auditing(storage, project, folder, given, clock)
        kept = given.without(audit.key_variable)
        self._setup = Setup(
            project=project,
            overrides=overrides or Overrides(),
            workspace=folder,
            env=kept,
            storage=storage,
            plugins=loaded,
            providers=ProviderPool(loaded, kept),
            audit=audit,
            clock=clock,
            dispatching=dispatching_of(loaded, project, dispatcher, address, given),
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
        """A Host on the perstack.toml given, or found from the workspace upward, with its `.env` files unless `env` is
        given. The state is beside a perstack.toml that was found, and in the workspace with one that was given.

        Raises DefinitionError with every problem of the file, and UsageError if there is no file.
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
        told = given.warnings if isinstance(given, Environment) else ()
        for text in (*told, *([host.notice] if host.notice is not None else ())):
            warnings.warn(str(text), stacklevel=2)
        return host

    async def __aenter__(self) -> Host:
        await put_right(self.storage, self.workspace, self.jobs.settle_rewind)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the storage and the providers. Jobs that are being driven are to be cancelled first."""
        await self._setup.providers.close()
        await self._setup.dispatching.close()
        await self._setup.storage.close()

    # --- what it works with ---------------------------------------------------------------------------------------

    @property
    def project(self) -> Project:
        """The definition that is in force for what begins next."""
        return self._setup.project

    @property
    def workspace(self) -> Path:
        """The folder that tools work in."""
        return self._setup.workspace

    @property
    def storage(self) -> Storage:
        """Where the logs are."""
        return self._setup.storage

    @property
    def dispatcher(self) -> Dispatcher | None:
        """The engine that says which worker drives a Job, if there is one. Raises UsageError for one that is none."""
        return self._setup.dispatching.dispatcher

    @property
    def leaves_to_workers(self) -> bool:
        """Whether somebody has named a dispatcher, so that what need not be waited for is a worker's to drive."""
        return self._setup.dispatching.is_chosen

    @property
    def clock(self) -> Clock:
        """Where the time of day comes from."""
        return self._setup.clock

    def use(self, project: Project) -> None:
        """From now on what begins is by this definition; what is driven keeps the one that it began with."""
        self._setup = replace(self._setup, project=project)
        for name in ("iterations", "scheduler", "scheduler_of_worker"):
            vars(self).pop(name, None)

    def _now(self) -> Setup:
        return self._setup

    # --- parts that are made when they are used -------------------------------------------------------------------

    @cached_property
    def tasks(self) -> ExecutionMemory:
        """The tasks that agents pause and resume, in the same storage."""
        from perstack.engine.memory import ExecutionMemory

        return ExecutionMemory(self.storage, self._setup.audit, self.clock)

    @property
    def memory(self) -> ExecutionMemory:
        """The older name of `tasks`."""
        return self.tasks

    @cached_property
    def iterations(self) -> Iterations:
        """Runs Experts again and again until what they make is good enough."""
        from perstack.engine.iterate import Iterations

        return Iterations(self.jobs, self._setup)

    @property
    def waker(self) -> Scheduler:
        """The older name of `scheduler`."""
        return self.scheduler

    @cached_property
    def scheduler(self) -> Scheduler:
        """Resumes tasks that are due, those of Experts by a Job, and starts what schedules say: on this Host, or for
        workers if a dispatcher was named."""
        return self.scheduler_of_worker if self.leaves_to_workers else self._scheduling(self._starter(queues=False))

    @cached_property
    def scheduler_of_worker(self) -> Scheduler:
        """The same for a worker: whatever is due is queued, for this worker or another."""
        return self._scheduling(self._starter(queues=True))

    def _scheduling(self, starter: JobStarter) -> Scheduler:
        from perstack.engine.scheduler import Scheduler
        from perstack.engine.schedules.starting import queued_series
        from perstack.engine.schedules.upkeep import Schedules

        iterations, schedules = self.iterations, cache(lambda: Schedules(self._now, self.jobs, starter))
        resume_series = iterations.resume if starter.resumes else queued_series(iterations, self._now)
        return Scheduler(self.tasks, self.jobs, iterations, schedules, self._now, starter, resume_series)

    def _starter(self, *, queues: bool) -> JobStarter:
        from perstack.engine.schedules.starting import DrivenHere, Queued

        return (Queued if queues else DrivenHere)(self.jobs, self._now)

    @cached_property
    def schedules(self) -> Schedules:
        """The schedules of the project. Who looks after them starts their Jobs here, or for workers if a dispatcher was
        named."""
        from perstack.engine.schedules.upkeep import Schedules

        return Schedules(self._now, self.jobs, self._starter(queues=self.leaves_to_workers))

    async def inbox(self) -> tuple[InboxItem, ...]:
        """Every open question of every Job and task, and each of them that does not read, the oldest first."""
        from perstack.engine.inbox import damaged_tasks, in_order, waiting_jobs, waiting_tasks

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
    original_files = _Short(_jobs_of, Jobs.original_files)
    load = _Short(_jobs_of, Jobs.load)
    tools = _Short(_experts_of, Experts.tools)
    login = _Short(_skills_of, Skills.login)
    logout = _Short(_skills_of, Skills.logout)
    install = _Short(_skills_of, Skills.install)
