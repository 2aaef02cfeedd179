"""Host: the entry point to Experts and Jobs, used by every door.

    async with Host.open() as host:
        job = await host.run("writer", "Write a haiku about logs")
        print(job.text)

A Host is made of parts: `jobs`, `texts`, `files`, `audit`, `exports`, `tasks`, `iterations`, `schedules`, `experts`,
`skills` and `storage_admin`. Eight frequent methods of Jobs are methods of the Host, too. Parts that few commands need
are imported on first use. `Host.use` replaces the definition for what begins next.

Times are milliseconds. Every method may raise the errors of `perstack.errors`; each says what to change.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, overload

from perstack.config.project_place import ProjectPlace, check_workspace, find_place, workspace_folder
from perstack.core.base.ids import event_id_of
from perstack.core.definitions.project import Project
from perstack.core.definitions.settings import NO_OVERRIDES, Overrides
from perstack.diagnostics.experts_and_skills import Experts, Skills
from perstack.engine.context.audit_trail import NO_AUDIT
from perstack.engine.context.connections import choose_dispatcher
from perstack.engine.context.host_setup import HostSetup, SetupSource, never_attended
from perstack.engine.jobs.job_request import takes_caller_fields
from perstack.engine.jobs.jobs import Jobs, asked_question_id, person_answer
from perstack.engine.plugins.providers_and_prices import ProviderPool
from perstack.engine.plugins.registry import load_plugins
from perstack.errors import UsageError
from perstack.parts import describe_waiting_work, parts_of_features
from perstack.ports.environment import Environment
from perstack.ports.storage import Storage
from perstack.python_api.checked_calls import called_as, checked_call
from perstack.state_guard.guarded_state import guard_state, open_own_state
from perstack.system.clock import SYSTEM, Clock
from perstack.system.concurrency import run_to_end
from perstack.trust.agreements import Agreement, environment_of

if TYPE_CHECKING:
    from typing import TypedDict, Unpack

    from pydantic import BaseModel, JsonValue

    from perstack.audit.auditor import Auditor
    from perstack.audit.storage_admin import StorageAdmin
    from perstack.audit.trail import AnchoredTrail
    from perstack.core.base.ids import By
    from perstack.core.definitions.experts import Expert
    from perstack.core.jobs.resuming import UnsettledCall
    from perstack.core.jobs.summary import JobSummary, OutputT, ParsedJob
    from perstack.core.runs.events import StoredEvent
    from perstack.core.runs.facts import Settlement
    from perstack.core.runs.start import CallerFields
    from perstack.engine.log.event_log import StoredLine
    from perstack.engine.log.run_session import OnEvent
    from perstack.engine.runs.input_protocols import Attachable
    from perstack.iterations.iterations import Iterations
    from perstack.oversight.inbox import InboxItem
    from perstack.ports.dispatcher import Dispatcher
    from perstack.ports.skill import SkillFactory
    from perstack.posted_texts.model import Delivery
    from perstack.posted_texts.posting import PostedTexts
    from perstack.recordings.job_exports import JobExports
    from perstack.schedules.scheduler import Scheduler
    from perstack.schedules.schedules import JobLauncher, Schedules
    from perstack.snapshots.job_files import JobFiles
    from perstack.streams.events import Question
    from perstack.streams.job_stream import JobStream, Streams
    from perstack.tasks.execution_memory import StoredTasks
    from perstack.workers.serving import JobServer

    class NewJobOptions(CallerFields, total=False):
        """Keyword arguments of `Host.run` other than `output`."""

        job_id: str | None
        attachments: Sequence[Attachable]
        on_event: OnEvent | None

    class SubmitOptions(CallerFields, total=False):
        """Keyword arguments of `Host.submit`."""

        at: int | None
        priority: int
        attachments: Sequence[Attachable]
        job_id: str | None
        by: By | None

    class ContinueOptions(NewJobOptions, total=False):
        """Keyword arguments of `Host.continue_job` other than `output`."""

        resume_from: str | None

    class AnswerOptions(TypedDict, total=False):
        """Keyword arguments of `Host.answer` other than `output`."""

        changed: Mapping[str, JsonValue] | None
        job_id: str | None
        question: Question | str | None
        question_id: str | None
        resume_from: str | None
        signal: str | None
        by: By | None
        drive: bool | None
        on_event: OnEvent | None

    class ResumeOptions(TypedDict, total=False):
        """Keyword arguments of `Host.resume` other than `output`."""

        max_steps: int | None
        max_cost: float | None
        settle: Mapping[str, Settlement] | None
        signal: str | None
        by: By | None
        drive: bool | None
        on_unsettled: Callable[[tuple[UnsettledCall, ...]], None]
        on_event: OnEvent | None

    class RunOptions(NewJobOptions, total=False):
        """Keyword arguments of `perstack.run` other than `output`."""

        config: str | Path | None
        workspace: str | Path
        storage: str | None
        env: Mapping[str, str] | None
        overrides: Overrides | None
        plugins: Iterable[object]


def _take_functions(project: Project) -> tuple[Project, Sequence[SkillFactory]]:
    """Return the project without functions of Python, and the plugins that provide these."""
    if not any(expert.tools for expert in project.experts.values()):
        return project, ()
    from perstack.python_api.functions import take_functions  # most Experts have tools of skills alone

    return take_functions(project)


_PROGRAMS_RUN = "programs run without a question and outside a sandbox: {}"


class Host:
    """Runs Experts in one workspace, on one storage. Several Jobs may run at once."""

    @checked_call
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
        is_attended: Callable[[], bool] | None = None,
    ) -> None:
        """Create a Host for a project.

        `workspace`: `.` is the project's own workspace, or the current folder if it names none. A relative storage of
        the project is resolved against its `place`, or the workspace without one. `clock`: None is the system's.
        `dispatcher` takes precedence over that of `[workers]`. `agreement`: None is what a person has agreed to by
        `perstack trust`, for a project that was read from a file. `is_attended`, called in the task that drives a Job:
        whether a person answers what the Job asks meanwhile; otherwise `exec` that no definition names is sandboxed.
        """
        place = place or ProjectPlace(workspace_folder(project, workspace), None)
        environment = env if isinstance(env, Environment) else Environment(os.environ if env is None else env)
        public = environment.without_stored  # for addresses that a definition names
        project, functions = _take_functions(project)
        registry = load_plugins((*plugins, *functions), environment)
        agreement = agreement or Agreement(
            project, is_vendor=registry.is_vendor, workspace=place.workspace(project, workspace)
        )
        address = project.storage if storage is None else storage if isinstance(storage, str) else ""
        if storage is None or isinstance(storage, str):
            storage = open_own_state(registry, project, place, storage, public, describe_waiting_work, agreement)
        storage = guard_state(storage, place, describe_waiting_work)
        self._agreement = agreement
        adopted = agreement.adopt(project)
        agreement.take_choices(adopted, overrides or NO_OVERRIDES)
        folder = place.workspace(adopted, workspace)
        clock = SYSTEM if clock is None else clock
        self._trail_arguments = storage, project, folder, public, clock, agreement
        audit = NO_AUDIT if project.audit is None else self._trail
        run_env = environment.without(audit.key_variable)
        parts = parts_of_features(lambda: self.tasks)
        self._source = SetupSource(
            HostSetup(
                project=adopted,
                overrides=overrides or NO_OVERRIDES,
                workspace=folder,
                env=run_env,
                storage=storage,
                plugins=registry,
                providers=ProviderPool(registry, run_env, agreement, parts),
                audit=audit,
                clock=clock,
                dispatching=choose_dispatcher(registry, project, dispatcher, address, public, agreement),
                agreement=agreement,
                parts=parts,
                is_attended=is_attended or never_attended,
            )
        )
        self.jobs = Jobs(self._source)
        self.experts = Experts(self._source)
        self.skills = Skills(self._source)

    @classmethod
    @checked_call
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
        is_attended: Callable[[], bool] | None = None,
    ) -> Host:
        """Create a Host from the given perstack.toml, or one found from the workspace upward.

        Its `.env` files are read unless `env` is given. The state is next to a perstack.toml that was found, and in the
        workspace for one that was given. Raises DefinitionError with every problem of the file, and UsageError without
        a file or its workspace.
        """
        from perstack.definition_files import load_usable

        place = find_place(workspace, config)
        loaded = load_usable(place.require_path())
        for problem in loaded.warnings:
            warnings.warn(str(problem), stacklevel=2)
        project = loaded.project
        check_workspace(project, place.workspace(project, workspace))
        environment = environment_of(project, place) if env is None else env
        host = cls(
            project,
            workspace=workspace,
            storage=storage,
            env=environment,
            overrides=overrides,
            plugins=plugins,
            place=place,
            dispatcher=dispatcher,
            is_attended=is_attended,
        )
        for text in environment.warnings if isinstance(environment, Environment) else ():
            warnings.warn(str(text), stacklevel=2)
        return host

    @classmethod
    @checked_call
    def of(
        cls,
        *,
        experts: Iterable[Expert],
        workspace: str | Path = ".",
        storage: str | Storage | None = None,
        env: Mapping[str, str] | None = None,
        overrides: Overrides | None = None,
        plugins: Iterable[object] = (),
        dispatcher: str | Dispatcher | None = None,
        is_attended: Callable[[], bool] | None = None,
    ) -> Host:
        """Create a Host for Experts made in Python, without a perstack.toml.

        They are checked as a file is. Raises DefinitionError with every problem, and UsageError for two of one name
        or a workspace that does not exist.
        """
        from perstack.definition_files import checked_project

        project = checked_project(experts, Path(workspace))
        check_workspace(project, workspace_folder(project, workspace))
        return cls(
            project,
            workspace=workspace,
            storage=storage,
            env=env,
            overrides=overrides,
            plugins=plugins,
            dispatcher=dispatcher,
            is_attended=is_attended,
        )

    async def __aenter__(self) -> Host:
        """Return the Host, which `close` closes."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the Host."""
        await self.close()

    async def close(self) -> None:
        """Interrupt Jobs of streams, and close the storage, the providers and the dispatcher.

        Cancel other Jobs that are being driven first.
        """
        if (streams := await self._settled_streams()) is not None:
            await streams.close()
        await self.jobs.active.close()
        context = self._source.setup
        await context.providers.close()
        await context.dispatching.close()
        await context.storage.close()

    @cached_property
    def _streams(self) -> Streams:
        from perstack.streams.job_stream import Streams

        return Streams(self.jobs, self._source)

    async def _settled_streams(self) -> Streams | None:
        """Return the streams, after interrupts of abandoned ones are recorded; None if there never was one."""
        streams: Streams | None = vars(self).get("_streams")
        if streams is not None:
            await streams.settle()
        return streams

    # --- settings -------------------------------------------------------------------------------------------------

    @property
    def project(self) -> Project:
        """The definition that new Jobs use."""
        return self._source.setup.project

    @property
    def workspace(self) -> Path:
        """The folder that tools work in."""
        return self._source.setup.workspace

    @property
    def storage(self) -> Storage:
        """The storage of all logs."""
        return self._source.setup.storage

    @property
    def programs_note(self) -> str:
        """A line to show when a Job begins, if `exec` runs every program without a question; empty otherwise."""
        from perstack.config.resolved_settings import reason_for_open_exec

        reason = reason_for_open_exec(self.project, self._source.setup.overrides)
        return _PROGRAMS_RUN.format(reason) if reason else ""

    async def programs_note_of(self, summary: JobSummary) -> str:
        """Return the line to show when a Job continues whose `exec` was opened when it began; empty otherwise."""
        run = await self.jobs.run_state(
            summary.id, summary.coordinator_run_id, through=event_id_of(summary.coordinator_run_id, 1)
        )
        is_open = run is not None and run.start.exec_grant == "open"
        return _PROGRAMS_RUN.format("as when the Job began") if is_open else ""

    @property
    def dispatcher(self) -> Dispatcher | None:
        """The dispatcher that queues Jobs for workers; None without one. Raises UsageError for an invalid address."""
        return self._source.setup.dispatching.dispatcher

    @property
    def leaves_to_workers(self) -> bool:
        """True if a dispatcher was named: work that no caller waits for is then queued for workers."""
        return self._source.setup.dispatching.is_chosen

    @property
    def clock(self) -> Clock:
        """The source of the time of day."""
        return self._source.setup.clock

    @checked_call
    def use(self, project: Project) -> None:
        """Use this definition for what begins from now on; Jobs that are being driven keep theirs."""
        current = self._source.setup
        project, functions = _take_functions(project)
        plugins = replace(current.plugins, skills=(*functions, *current.plugins.skills))
        self._source.replace(replace(current, project=self._agreement.adopt(project), plugins=plugins))

    def check_agreed(self) -> None:
        """Raise NotAgreed if the definition has declarations that its user has not agreed to."""
        self._source.setup.agreement.check_definition()

    @cached_property
    def _trail(self) -> AnchoredTrail:
        from perstack.audit.trail import AnchoredTrail

        return AnchoredTrail(*self._trail_arguments)

    # --- parts, made on first use ---------------------------------------------------------------------------------

    @cached_property
    def audit(self) -> Auditor:
        """Verification, receipts, replay and redaction."""
        from perstack.audit.auditor import Auditor

        return Auditor(self._source, self.jobs, self._trail)

    @cached_property
    def files(self) -> JobFiles:
        """Comparison and rewinding of Jobs' files."""
        from perstack.snapshots.job_files import JobFiles

        return JobFiles(self._source, self.jobs)

    @cached_property
    def texts(self) -> PostedTexts:
        """The texts that people post to the Runs of Jobs, and what is never summarised away."""
        from perstack.posted_texts.posting import PostedTexts

        return PostedTexts(self._source, self.jobs)

    @cached_property
    def job_server(self) -> JobServer:
        """The server of queued Jobs for a worker."""
        from perstack.workers.serving import JobServer

        return JobServer(self._source, self.jobs, self.jobs.runner, self.files)

    @cached_property
    def exports(self) -> JobExports:
        """Exports and recordings of Jobs."""
        from perstack.recordings.job_exports import JobExports

        return JobExports(self._source, self.jobs)

    @cached_property
    def storage_admin(self) -> StorageAdmin:
        """Copies, checks and measures the storage."""
        from perstack.audit.storage_admin import StorageAdmin

        return StorageAdmin(self.storage)

    @cached_property
    def tasks(self) -> StoredTasks:
        """The tasks that agents pause and resume, in the same storage."""
        from perstack.tasks.execution_memory import StoredTasks

        return StoredTasks(self.storage, self._source.setup.audit, self.clock)

    @cached_property
    def iterations(self) -> Iterations:
        """Series of iterations: Runs of an Expert, repeated until the result is good enough."""
        from perstack.iterations.iterations import Iterations

        return Iterations(self.jobs, self._source)

    @cached_property
    def scheduler(self) -> Scheduler:
        """The scheduler of tasks and schedules: drives their Jobs here, or queues them if a dispatcher was named."""
        return self.scheduler_of_worker if self.leaves_to_workers else self._scheduling(self._launcher(queue=False))

    @cached_property
    def scheduler_of_worker(self) -> Scheduler:
        """The scheduler for a worker: everything due is queued, for this worker or another."""
        return self._scheduling(self._launcher(queue=True))

    def _scheduling(self, launcher: JobLauncher) -> Scheduler:
        from perstack.schedules.scheduler import Scheduler
        from perstack.schedules.schedules import Schedules

        schedules = cache(lambda: Schedules(self._source, self.jobs, launcher))
        return Scheduler(self.tasks, self.jobs, self.iterations, schedules, self._source, launcher)

    def _launcher(self, *, queue: bool) -> JobLauncher:
        from perstack.schedules.schedules import JobLauncher

        return JobLauncher(self.jobs, lambda: self.iterations, self._source, queue=queue)

    @cached_property
    def schedules(self) -> Schedules:
        """The schedules of the project. Their Jobs are driven here, or by workers if a dispatcher was named."""
        from perstack.schedules.schedules import Schedules

        return Schedules(self._source, self.jobs, self._launcher(queue=self.leaves_to_workers))

    async def inbox(self) -> tuple[InboxItem, ...]:
        """Return every open question of Jobs and tasks, and each Job and task that cannot be read, oldest first."""
        from perstack.oversight.inbox import merge_by_age, waiting_jobs
        from perstack.tasks.waiting_tasks import damaged_tasks, waiting_tasks

        of_tasks = (await waiting_tasks(self.tasks), await damaged_tasks(self.tasks))
        return merge_by_age(await waiting_jobs(self.jobs), *of_tasks)

    # --- frequent methods of Jobs ---------------------------------------------------------------------------------

    @overload
    async def run(
        self, expert_key: str, query: str, *, output: type[OutputT], **options: Unpack[NewJobOptions]
    ) -> ParsedJob[OutputT]: ...
    @overload
    async def run(
        self, expert_key: str, query: str, *, output: type[BaseModel] | None = None, **options: Unpack[NewJobOptions]
    ) -> JobSummary: ...
    @called_as(Jobs.run)
    async def run(
        self, expert_key: str, query: str, *, output: type[BaseModel] | None = None, **options: Unpack[NewJobOptions]
    ) -> JobSummary:
        """Start a new Job and drive it until it ends or stops. See `Jobs.run`."""
        return await self.jobs.run(expert_key, query, output=output, **options)

    @overload
    def run_sync(
        self, expert_key: str, query: str, *, output: type[OutputT], **options: Unpack[NewJobOptions]
    ) -> ParsedJob[OutputT]: ...
    @overload
    def run_sync(
        self, expert_key: str, query: str, *, output: type[BaseModel] | None = None, **options: Unpack[NewJobOptions]
    ) -> JobSummary: ...
    @called_as(Jobs.run)
    def run_sync(
        self, expert_key: str, query: str, *, output: type[BaseModel] | None = None, **options: Unpack[NewJobOptions]
    ) -> JobSummary:
        """Run an Expert as `run` does, from code that is not async, and close the Host's connections after it.

        Ctrl-C is recorded as an interrupt. Raises UsageError inside a running event loop, where `run` is awaited.
        """

        async def work() -> JobSummary:
            async with self:  # connections belong to the event loop of this call
                return await self.jobs.run(expert_key, query, output=output, **options)

        return run_to_end(work, "run")

    @checked_call
    @takes_caller_fields
    def stream(
        self,
        expert_key: str,
        query: str,
        *,
        job_id: str | None = None,
        attachments: Sequence[Attachable] = (),
        output: type[BaseModel] | None = None,
        **caller_fields: Unpack[CallerFields],
    ) -> JobStream:
        """Return the events of a new Job, which is driven while they are iterated over.

        The last event is `Finished`, or a `Question` that is not answered in the loop, by `answer`. The reader of the
        stream counts as a person who answers. Leaving the loop early interrupts the Job, as cancelling `run` does; use
        `async with` to wait for it. The first event raises what `run` raises.
        """

        def drive(jobs: Jobs, listener: OnEvent) -> Coroutine[object, object, JobSummary]:
            return jobs.run(
                expert_key, query, job_id=job_id, attachments=attachments, on_event=listener, **caller_fields
            )

        return self._streams.open(drive, output)

    @overload
    async def continue_job(
        self, expert_key: str, query: str, *, output: type[OutputT], **options: Unpack[ContinueOptions]
    ) -> ParsedJob[OutputT]: ...
    @overload
    async def continue_job(
        self, expert_key: str, query: str, *, output: type[BaseModel] | None = None, **options: Unpack[ContinueOptions]
    ) -> JobSummary: ...
    @called_as(Jobs.continue_job)
    async def continue_job(
        self, expert_key: str, query: str, *, output: type[BaseModel] | None = None, **options: Unpack[ContinueOptions]
    ) -> JobSummary:
        """Start a new Run of the Coordinator, with the messages of its last one. See `Jobs.continue_job`."""
        await self._settled_streams()
        return await self.jobs.continue_job(expert_key, query, output=output, **options)

    @overload
    async def answer(
        self, text: str = "", *, output: type[OutputT], **options: Unpack[AnswerOptions]
    ) -> ParsedJob[OutputT]: ...
    @overload
    async def answer(
        self, text: str = "", *, output: type[BaseModel] | None = None, **options: Unpack[AnswerOptions]
    ) -> JobSummary: ...
    @called_as(Jobs.answer)
    async def answer(
        self, text: str = "", *, output: type[BaseModel] | None = None, **options: Unpack[AnswerOptions]
    ) -> JobSummary:
        """Answer the question that a Job is stopped at, and continue the Job. See `Jobs.answer`.

        `changed`, in place of a text, approves a call with these arguments, all of them, after the rules have judged
        it again. What they deny is asked again as it was.

        `question` is the event of a stream, or an id, as `question_id`. The answer to a question of a stream that is
        being read returns when it is recorded, and the stream continues.
        """
        changed, question_id = (
            options.get("changed"),
            asked_question_id(options.get("question"), options.get("question_id")),
        )
        if changed is not None and text:
            raise UsageError("`changed` is a whole answer: give it without a text")
        streams = await self._settled_streams()
        continues_here = options.get("resume_from") is None and options.get("drive") is not False
        if streams is not None and question_id is not None and continues_here:
            stream = streams.find_asking(question_id)
            if stream is not None and output is not None:
                raise UsageError("pass `output` to `stream`: its `Finished` has the result")
            if stream is not None:
                answer = person_answer(text, changed, options.get("by"), question_id, options.get("signal"))
                return await stream.answer(question_id, answer, options.get("on_event"))
        return await self.jobs.answer(text, output=output, **options)

    @overload
    async def resume(
        self, job_id: str | None = None, *, output: type[OutputT], **options: Unpack[ResumeOptions]
    ) -> ParsedJob[OutputT]: ...
    @overload
    async def resume(
        self, job_id: str | None = None, *, output: type[BaseModel] | None = None, **options: Unpack[ResumeOptions]
    ) -> JobSummary: ...
    @called_as(Jobs.resume)
    async def resume(
        self, job_id: str | None = None, *, output: type[BaseModel] | None = None, **options: Unpack[ResumeOptions]
    ) -> JobSummary:
        """Resume a Job that crashed, failed, was interrupted or reached a limit. See `Jobs.resume`."""
        await self._settled_streams()
        return await self.jobs.resume(job_id, output=output, **options)

    @checked_call
    async def tell(self, job_id: str, text: str, *, run_id: str | None = None, by: By | None = None) -> Delivery:
        """Tell a Run of a Job something, by default the Coordinator, in whichever process. See `PostedTexts.tell`."""
        return await self.texts.tell(job_id, text, run_id=run_id, by=by)

    @checked_call
    async def cancel(self, job_id: str, *, final: bool = False, by: By | None = None, reason: str = "") -> None:
        """Stop a Job, in whichever process it is driven. See `Jobs.cancel`."""
        await self.jobs.cancel(job_id, final=final, by=by, reason=reason)

    @called_as(Jobs.submit)
    async def submit(self, expert_key: str, query: str, **options: Unpack[SubmitOptions]) -> JobSummary:
        """Record a new Job for a worker to drive. See `JobQueue.submit`."""
        return await self.jobs.submit(expert_key, query, **options)

    @checked_call
    async def job(self, job_id: str | None = None) -> JobSummary:
        """Return the summary of a Job, or of the latest one. Raises NotFound."""
        await self._settled_streams()
        return await self.jobs.job(job_id)

    @checked_call
    async def events(
        self, run_id: str, *, job_id: str | None = None, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredLine[StoredEvent]]:
        """Return a Run's events after place `after`, at most `limit`. See `Jobs.events`."""
        return await self.jobs.events(run_id, job_id=job_id, after=after, limit=limit)


@overload
async def run(
    expert: str, query: str, *, output: type[OutputT], **options: Unpack[RunOptions]
) -> ParsedJob[OutputT]: ...
@overload
async def run(
    expert: str, query: str, *, output: type[BaseModel] | None = None, **options: Unpack[RunOptions]
) -> JobSummary: ...
@checked_call
@takes_caller_fields
async def run(
    expert: str,
    query: str,
    *,
    on_event: OnEvent | None = None,
    config: str | Path | None = None,
    workspace: str | Path = ".",
    storage: str | None = None,
    job_id: str | None = None,
    attachments: Sequence[Attachable] = (),
    output: type[BaseModel] | None = None,
    env: Mapping[str, str] | None = None,
    overrides: Overrides | None = None,
    plugins: Iterable[object] = (),
    **caller_fields: Unpack[CallerFields],
) -> JobSummary:
    """Run an Expert on a query as a new Job, and return the Job's summary when it ends or stops.

    Check the `status` of the summary: a failing model, a question or the step limit stop a Job and raise nothing.
    `labels` are used to find the Job later. `attachments` are images, PDFs and texts that the model sees with the
    query: paths, bytes, or Blobs with a name. `on_event` is called with each event, and its line of JSON if it takes a
    second argument, and must not block. `output` is a pydantic model that parses the result: the summary's `output`.
    `config` is a perstack.toml; by default it is found from `workspace` upward. `env` replaces the process's
    environment. `plugins` are used in addition to the installed ones. Cancelling is recorded as an interrupt, and so is
    a SystemExit or KeyboardInterrupt of `on_event`, which this call then raises; other errors of it are reported.

    Raises UsageError (no such Expert, no perstack.toml, `job_id` exists), DefinitionError with every problem of
    perstack.toml, MissingCredential if no provider can be used, and StorageError.
    """
    async with Host.open(
        config=config, workspace=workspace, storage=storage, env=env, overrides=overrides, plugins=plugins
    ) as host:
        return await host.run(
            expert, query, job_id=job_id, attachments=attachments, output=output, on_event=on_event, **caller_fields
        )


@overload
def run_sync(
    expert: str, query: str, *, output: type[OutputT], **options: Unpack[RunOptions]
) -> ParsedJob[OutputT]: ...
@overload
def run_sync(
    expert: str, query: str, *, output: type[BaseModel] | None = None, **options: Unpack[RunOptions]
) -> JobSummary: ...
@called_as(run)
def run_sync(
    expert: str, query: str, *, output: type[BaseModel] | None = None, **options: Unpack[RunOptions]
) -> JobSummary:
    """Run an Expert as `run` does, from code that is not async. Ctrl-C is recorded as an interrupt.

    Raises what `run` raises, and UsageError inside a running event loop, where `run` is awaited.
    """
    return run_to_end(lambda: run(expert, query, output=output, **options), "run")
