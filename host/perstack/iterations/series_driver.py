"""Drive one series of iterations. The id of every Job is recorded before it begins: a later process finds it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import assert_never

from perstack.core.base.ids import Owner, check_job_id
from perstack.core.base.usage import NO_USAGE
from perstack.core.definitions.experts import Evaluator, ExpertEvaluator, FunctionEvaluator, Iterate
from perstack.core.definitions.recorded_definition import SeriesDefinition, without_job_limits
from perstack.core.definitions.settings import Budget
from perstack.core.jobs.due import is_resumable
from perstack.core.jobs.summary import JobSummary
from perstack.dataclass import dataclass
from perstack.engine.context.audit_trail import AuditTrail
from perstack.engine.context.host_setup import HostSetup, SetupSource
from perstack.engine.jobs.jobs import Jobs
from perstack.engine.log.delegate_leases_and_stop_requests import end_leftover_programs
from perstack.engine.log.event_log import AppendedState, LoadedState
from perstack.engine.log.run_session import OnEvent
from perstack.engine.log.storage_access import log_of, read_summary
from perstack.errors import Conflict, NotFound, PerstackError, SkillError, StorageError, UsageError
from perstack.feature_logs.indexed_log import IndexedLog, IndexedLogFormat, SummaryFiles
from perstack.iterations.commands import evaluator_label, measure_by_command, measure_by_function
from perstack.iterations.evolve import SeriesSummary, damaged_series, evolve_series, paused_by_crash, summary_of_series
from perstack.iterations.next_step import (
    BeginIteration,
    Evaluate,
    ExhaustedTotal,
    Finish,
    PauseIterations,
    RunExpert,
    SeriesCommand,
    SeriesStamp,
    budget_pause,
    evaluation_query,
    interrupt_event,
    job_of_evaluation,
    job_of_iteration,
    next_job_budget,
    pending_series,
    stop_event,
)
from perstack.iterations.programs import CommandSandbox, command_sandbox
from perstack.iterations.state import (
    FailSeries,
    FinishArtefact,
    FinishIteration,
    FinishSeries,
    Measurement,
    SeriesState,
    StartIteration,
    StoredSeriesEvent,
    measurement_in,
    parse_series_event,
    score_of,
)
from perstack.next_steps import Inspect, Resume
from perstack.ports.evaluator import Artifact
from perstack.ports.storage import Storage
from perstack.system.concurrency import shield_until_done
from perstack.system.user import this_process

# The store of series: each series is the single log of a Job in the space `iterations`.

SERIES = IndexedLogFormat[SeriesState, StoredSeriesEvent, SeriesSummary](
    kind="iterations",
    title="",
    missing_text="there are no iterations {of} in {location}",
    list_step=Inspect("series"),
    check=check_job_id,
    parse=parse_series_event,
    owner=lambda event: event.series_id,
    apply=evolve_series,
    summary=summary_of_series,
    damaged_summary=damaged_series,
    jobs=lambda series: [iteration.job_id for iteration in series.iterations],
    store=SummaryFiles(),
)


@dataclass(frozen=True, slots=True)
class SeriesPage:
    """A page of series, latest change first, and the cursor for the next page."""

    series: tuple[SeriesSummary, ...]
    next: str | None


class SeriesLog(IndexedLog[SeriesState, StoredSeriesEvent, SeriesSummary]):
    """Store of all series; decisions are in `next_step`."""

    def __init__(self, storage: Storage, audit: AuditTrail) -> None:
        """Create; `audit` sends the heads of series to an anchor, if there is one."""
        super().__init__(storage, SERIES)
        self._audit = audit

    async def has(self, series_id: str) -> bool:
        return await self._space.has_job(series_id)

    async def reserve(self, series_id: str) -> None:
        """Create an empty log for a new series. Raises UsageError if there is a series of that id."""
        try:
            await self._space.create_job(check_job_id(series_id))
        except Conflict as error:
            # an empty log was left by a process that died before the first event
            if await self._space.read(log_of(series_id), limit=1):
                step = Resume(series_id, "series")
                raise UsageError(f"iterations {series_id} exist already", next_steps=(step,)) from error

    @asynccontextmanager
    async def lease(self, series_id: str) -> AsyncGenerator[None]:
        """Hold the lease of a series; end what an earlier driver left running. Raises Conflict, naming the holder."""
        holder = this_process()
        async with self._space.lease(series_id, holder), end_leftover_programs(self._space):
            yield

    async def append(
        self, owner_id: str, loaded: LoadedState[SeriesState] | None, events: Sequence[StoredSeriesEvent]
    ) -> AppendedState[SeriesState]:
        """Append events; when a series starts or resumes, announce a later stop to the anchor first."""
        if loaded is None or loaded.state.status != "running":
            await self._audit.expect(Owner("iterations", owner_id))
        return await super().append(owner_id, loaded, events)

    async def send_head(self, loaded: LoadedState[SeriesState]) -> None:
        """Send the head of a series that has stopped to the anchor, if there is one."""
        await self._audit.send_after_stop(Owner("iterations", loaded.state.id), loaded.head)

    async def get(self, series_id: str) -> SeriesState:
        """Return the state of a series; a running series without a driver is shown as paused."""
        return await self._with_driver_state(series_id, await self.load(series_id))

    async def list(self, limit: int, after: str | None) -> SeriesPage:
        """Return a page of series, latest change first. A series that cannot be read is a row with its error."""
        page = await self._space.jobs(limit=limit, after=after)
        summaries: list[SeriesSummary] = []
        for series_id in page.ids:
            with suppress(NotFound):  # its process died before the first event
                summaries.append(await self._summary_at_rest(series_id) or await self.summary(series_id))
        return SeriesPage(tuple(summaries), page.next)

    async def _summary_at_rest(self, series_id: str) -> SeriesSummary | None:
        """Return the summary in job.json; None if it is missing, or the series may have continued since."""
        with suppress(StorageError):
            series_summary = await read_summary(self._space, series_id, SeriesSummary)
            if (
                series_summary is not None and series_summary.id == series_id
            ):  # otherwise it was copied from another series
                return None if series_summary.status == "running" else series_summary
        return None

    async def _summarize(self, owner_id: str, loaded: LoadedState[SeriesState]) -> SeriesSummary:
        return summary_of_series(await self._with_driver_state(owner_id, loaded))

    async def _with_driver_state(self, series_id: str, loaded: LoadedState[SeriesState]) -> SeriesState:
        while loaded.state.status == "running" and await self._space.lease_info(series_id) is None:
            # its driver may have stopped it, and its lease, after the log was read
            before, loaded = loaded, await self.load(series_id)
            if loaded.head == before.head:
                return paused_by_crash(loaded.state)
        return loaded.state


OnFact = Callable[[StoredSeriesEvent, SeriesState, bytes], None]
"""Listener that receives an event of the series, the state after it, and its line in the log."""


def settings_in_force(setup: HostSetup, expert_key: str, recorded: Iterate) -> Iterate:
    """Return an Expert's present settings, so that a wrong evaluator can be corrected; else the recorded ones."""
    expert = setup.project.expert(expert_key)
    return recorded if expert is None or expert.iterate is None else expert.iterate


def check_ready(setup: HostSetup, expert_key: str, recorded: Iterate, definition: SeriesDefinition) -> None:
    """Raise NotAgreed, UsageError or MissingCredential if a Job of the Expert, or its evaluator, could not begin."""
    setup.with_recorded(definition).check_ready(expert_key)
    settings = settings_in_force(setup, expert_key, recorded)
    setup.agreement.check_evaluator(settings, expert_key)
    evaluator = settings.evaluator
    if isinstance(evaluator, ExpertEvaluator):
        setup.check_ready(evaluator.expert)


class SeriesDriver:
    """Driver of one series: it performs the pending commands and appends their events."""

    def __init__(
        self,
        log: SeriesLog,
        jobs: Jobs,
        setup: HostSetup,
        on_event: OnEvent | None,
        on_fact: OnFact | None,
        loaded: LoadedState[SeriesState] | None = None,
    ) -> None:
        """Create; without `loaded` the first recorded event must start the series."""
        self._log = log
        self._jobs = jobs
        self._setup = setup
        self._on_event = on_event
        self._on_fact = on_fact
        self._loaded = loaded
        self._job_id: str | None = None
        self._is_leaving = False

    @property
    def series(self) -> SeriesState:
        """The state. Raises RuntimeError before the first event."""
        if self._loaded is None:
            raise RuntimeError("the series has not been started")
        return self._loaded.state

    async def record(self, event: StoredSeriesEvent) -> None:
        """Append an event and show it. Raises Conflict if another driver wrote first."""
        await shield_until_done(self._record(event))

    async def drive(self) -> SeriesState:
        """Drive until nothing is pending. A cancellation is recorded as a pause."""
        try:
            while (command := pending_series(self.series)) is not None:
                if self._is_leaving:
                    await self.record(interrupt_event(self._stamp))
                    break
                await self.record(await self._perform_or_fail(command))
        except asyncio.CancelledError:
            if self.series.status == "running":
                await self.record(interrupt_event(self._stamp))
            raise
        return self.series

    def stop_after_step(self) -> bool:
        """Pause as interrupted after the current step of the running Job; return False if no Job is running."""
        self._is_leaving = True
        return self._job_id is not None and self._jobs.stop_after_step(self._job_id)

    async def _record(self, event: StoredSeriesEvent) -> None:
        self._loaded = appended = await self._log.append(event.series_id, self._loaded, [event])
        if self._on_fact is not None:
            self._on_fact(event, appended.state, appended.lines[0])
        if appended.state.status != "running":
            await self._log.send_head(appended)

    async def _perform_or_fail(self, command: SeriesCommand) -> StoredSeriesEvent:
        try:
            return await self._perform(command)
        except PerstackError as error:
            return FailSeries(**self._stamp, error=str(error))

    async def _perform(self, command: SeriesCommand) -> StoredSeriesEvent:
        match command:
            case BeginIteration():
                job_id = await self._new_job_id(command.number)
                return StartIteration(**self._stamp, number=command.number, job_id=job_id, budget=command.budget)
            case RunExpert():
                return await self._run(command)
            case Evaluate():
                return await self._evaluate(command)
            case Finish():
                return FinishSeries(**self._stamp, reason=command.reason)
            case PauseIterations():
                return budget_pause(command.exhausted_total, self._stamp)
        assert_never(command)

    async def _new_job_id(self, number: int) -> str:
        job_id = job_of_iteration(self.series.id, number)
        if await self._setup.storage.has_job(job_id):
            raise UsageError(
                f"Job {job_id} exists already and is not one of these iterations: delete it, or start new iterations"
            )
        return job_id

    async def _run(self, command: RunExpert) -> StoredSeriesEvent:
        series, began_at = self.series, self._setup.clock.now()
        recorded, remaining = series.definition, next_job_budget(series)
        if isinstance(remaining, ExhaustedTotal):
            return budget_pause(remaining, self._stamp)
        setup = self._setup_for(recorded)
        new_setup = setup.with_budget(series.expert_key, remaining)
        resumed_setup = self._setup_for(None if recorded is None else without_job_limits(recorded))
        resumed_setup = resumed_setup.with_budget(series.expert_key, remaining, setup.overrides)
        summary = await self._run_job(
            self._jobs.with_context(SetupSource(new_setup)),
            self._jobs.with_context(SetupSource(resumed_setup)),
            command.job_id,
            series.expert_key,
            command.query,
        )
        if (stop := stop_event(summary, self._stamp, remaining)) is not None:
            return stop
        return FinishArtefact(
            **self._stamp,
            number=command.number,
            artefact=summary.text or "",
            duration=self._setup.clock.now() - began_at,
            usage=summary.usage,
            assumed=summary.assumed,
        )

    def _setup_for(self, definition: SeriesDefinition | None) -> HostSetup:
        return self._setup if definition is None else self._setup.with_recorded(definition)

    def _sandbox(self) -> AbstractAsyncContextManager[CommandSandbox]:
        return command_sandbox(self._setup_for(self.series.definition), self.series.expert_key)

    async def _evaluate(self, command: Evaluate) -> StoredSeriesEvent:
        series, began_at, usage, assumed = self.series, self._setup.clock.now(), NO_USAGE, None
        iterate = settings_in_force(self._setup, series.expert_key, series.settings)
        artifact = Artifact(command.artefact, series.user_input, command.number, self._setup.workspace)
        programs = self._setup.storage.programs
        try:
            match iterate.evaluator:
                case ExpertEvaluator() as evaluator:
                    remaining = next_job_budget(series)
                    if isinstance(remaining, ExhaustedTotal):
                        return budget_pause(remaining, self._stamp)
                    summary = await self._run_evaluator(evaluator, command, remaining)
                    if (stop := stop_event(summary, self._stamp, remaining)) is not None:
                        return stop
                    usage, assumed = summary.usage, summary.assumed
                    measurement = _read_answer(evaluator, summary)
                case FunctionEvaluator() as evaluator:
                    async with self._sandbox() as sandbox:
                        measurement = await measure_by_function(
                            evaluator, artifact, self._setup.env.without_stored, iterate.timeout, programs, sandbox
                        )
                case evaluator:
                    async with self._sandbox() as sandbox:
                        measurement = await measure_by_command(
                            evaluator, artifact, self._setup.env.without_stored, iterate.timeout, programs, sandbox
                        )
            _check_metrics(evaluator, series.settings, measurement)
        except PerstackError as error:
            return FailSeries(**self._stamp, error=str(error), invalid_answer=True, usage=usage, assumed=assumed)
        return FinishIteration(
            **self._stamp,
            number=command.number,
            metrics=measurement.metrics,
            analysis=measurement.analysis,
            cases=measurement.cases,
            duration=self._setup.clock.now() - began_at,
            usage=usage,
            assumed=assumed,
        )

    async def _run_evaluator(
        self, evaluator: ExpertEvaluator, command: Evaluate, remaining: Budget | None
    ) -> JobSummary:
        setup = self._setup.with_budget(evaluator.expert, remaining)
        jobs, job_id = self._jobs.with_context(SetupSource(setup)), job_of_evaluation(self.series.id, command)
        return await self._run_job(
            jobs, jobs, job_id, evaluator.expert, evaluation_query(self.series, command.artefact)
        )

    async def _run_job(
        self, new_jobs: Jobs, resumed_jobs: Jobs, job_id: str, expert_key: str, query: str
    ) -> JobSummary:
        self._job_id = job_id
        try:
            return await self._run_or_resume(new_jobs, resumed_jobs, job_id, expert_key, query)
        finally:
            self._job_id = None

    async def _run_or_resume(
        self, new_jobs: Jobs, resumed_jobs: Jobs, job_id: str, expert_key: str, query: str
    ) -> JobSummary:
        try:
            summary = await resumed_jobs.job(job_id)
        except NotFound:
            if await self._setup.storage.has_job(job_id):  # the process died before the first event
                await new_jobs.delete(job_id)
            return await new_jobs.run(expert_key, query, job_id=job_id, on_event=self._on_event)
        return await resumed_jobs.resume(job_id, on_event=self._on_event) if is_resumable(summary) else summary

    @property
    def _stamp(self) -> SeriesStamp:
        return SeriesStamp(series_id=self.series.id, timestamp=self._setup.clock.now())


def _read_answer(evaluator: ExpertEvaluator, summary: JobSummary) -> Measurement:
    try:
        return measurement_in(summary.text or "")
    except ValueError as error:
        raise SkillError(f"{evaluator_label(evaluator)} (Job {summary.id}): its result: {error}") from error


def _check_metrics(evaluator: Evaluator, settings: Iterate, measurement: Measurement) -> None:
    try:
        score_of(settings, measurement.metrics)
    except UsageError as error:
        raise SkillError(f"{evaluator_label(evaluator)}: {error}") from error
