"""Drive one series of iterations. The id of every Job is recorded before it begins: a later process finds it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import assert_never

from perstack.core.base.usage import NO_USAGE
from perstack.core.definitions.experts import Budget, Evaluator, ExpertEvaluator, FunctionEvaluator, Iterate
from perstack.core.definitions.recorded_definition import SeriesDefinition, for_begun
from perstack.core.iterations.next_step import (
    BeginIteration,
    Evaluate,
    Finish,
    PauseIterations,
    RunExpert,
    SeriesCommand,
    SeriesStamp,
    UsedUp,
    interrupted,
    job_of_evaluation,
    job_of_iteration,
    pending_series,
    question_of,
    share,
    stopped,
    used_up,
)
from perstack.core.iterations.state import (
    FailSeries,
    FinishArtefact,
    FinishIteration,
    FinishSeries,
    Measurement,
    SeriesState,
    StartIteration,
    StoredSeriesEvent,
    measurement_in,
    score_of,
)
from perstack.core.jobs.summary import JobSummary
from perstack.core.queue.orders import stands
from perstack.engine.context.commands import measure_by_command, measure_by_function, name_of
from perstack.engine.context.host_context import ContextSource, HostContext
from perstack.engine.iterations.series_log import SeriesLog
from perstack.engine.jobs.jobs import Jobs
from perstack.engine.log.event_log import Loaded
from perstack.engine.log.run_session import OnEvent
from perstack.engine.plugins.runtimes import CommandSandbox
from perstack.errors import NotFound, PerstackError, SkillError, UsageError
from perstack.ports.evaluator import Artifact
from perstack.system.concurrency import uninterrupted

OnFact = Callable[[StoredSeriesEvent, SeriesState, bytes], None]
"""Listener that receives an event of the series, the state after it, and its line in the log."""


def settings_in_force(setup: HostContext, expert_key: str, recorded: Iterate) -> Iterate:
    """Return today's settings of an Expert, so that a wrong evaluator can be corrected; else the recorded ones."""
    expert = setup.project.expert(expert_key)
    return recorded if expert is None or expert.iterate is None else expert.iterate


def check_ready(setup: HostContext, expert_key: str, recorded: Iterate, definition: SeriesDefinition) -> None:
    """Raise UsageError or MissingCredential if a Job of the Expert, or of its evaluator, could not begin."""
    setup.with_recorded(definition).check_ready(expert_key)
    evaluator = settings_in_force(setup, expert_key, recorded).evaluator
    if isinstance(evaluator, ExpertEvaluator):
        setup.check_ready(evaluator.expert)


class SeriesDriver:
    """One series while it is driven."""

    def __init__(
        self,
        log: SeriesLog,
        jobs: Jobs,
        setup: HostContext,
        on_event: OnEvent | None,
        on_fact: OnFact | None,
        loaded: Loaded[SeriesState] | None = None,
    ) -> None:
        """Create; without `loaded` the first recorded event must start the series."""
        self._log = log
        self._jobs = jobs
        self._setup = setup
        self._on_event = on_event
        self._on_fact = on_fact
        self._loaded = loaded
        self._job_id: str | None = None
        self._leaves = False

    @property
    def series(self) -> SeriesState:
        """The state. Raises RuntimeError before the first event."""
        if self._loaded is None:
            raise RuntimeError("the series has not been started")
        return self._loaded.state

    async def record(self, event: StoredSeriesEvent) -> None:
        """Append an event and show it. Raises Conflict if another driver wrote first."""
        await uninterrupted(self._record(event))

    async def drive(self) -> SeriesState:
        """Drive until nothing is pending. A cancellation is recorded as a pause."""
        try:
            while (command := pending_series(self.series)) is not None:
                if self._leaves:
                    await self.record(interrupted(self._stamp))
                    break
                await self.record(await self._outcome(command))
        except asyncio.CancelledError:
            if self.series.status == "running":
                await self.record(interrupted(self._stamp))
            raise
        return self.series

    def stop_after_step(self) -> bool:
        """Pause as interrupted after the current step of the running Job; return False if no Job is running."""
        self._leaves = True
        return self._job_id is not None and self._jobs.stop_after_step(self._job_id)

    async def _record(self, event: StoredSeriesEvent) -> None:
        self._loaded = appended = await self._log.append(event.series_id, self._loaded, [event])
        if self._on_fact is not None:
            self._on_fact(event, appended.state, appended.lines[0])
        if appended.state.status != "running":
            await self._log.send_head(appended)

    async def _outcome(self, command: SeriesCommand) -> StoredSeriesEvent:
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
                return used_up(command.used_up, self._stamp)
        assert_never(command)

    async def _new_job_id(self, number: int) -> str:
        job_id = job_of_iteration(self.series.id, number)
        if await self._setup.storage.has_job(job_id):
            raise UsageError(
                f"there is a Job {job_id}, which is not one of these iterations: delete it, or begin again"
            )
        return job_id

    async def _run(self, command: RunExpert) -> StoredSeriesEvent:
        series, began = self.series, self._setup.clock.now()
        recorded, left = series.definition, share(series)
        if isinstance(left, UsedUp):
            return used_up(left, self._stamp)
        plain = self._under(recorded)
        new = plain.with_budget(series.expert_key, left)
        begun = self._under(None if recorded is None else for_begun(recorded))
        begun = begun.with_budget(series.expert_key, left, plain.overrides)
        job = await self._run_job(
            self._jobs.with_context(ContextSource(new)),
            self._jobs.with_context(ContextSource(begun)),
            command.job_id,
            series.expert_key,
            command.query,
        )
        if job.status != "completed":
            return stopped(job, self._stamp, left)
        return FinishArtefact(
            **self._stamp,
            number=command.number,
            artefact=job.text or "",
            duration=self._setup.clock.now() - began,
            usage=job.usage,
            assumed=job.assumed,
        )

    def _under(self, definition: SeriesDefinition | None) -> HostContext:
        return self._setup if definition is None else self._setup.with_recorded(definition)

    def _sandbox(self) -> AbstractAsyncContextManager[CommandSandbox]:
        return self._under(self.series.definition).ground(self.series.expert_key)

    async def _evaluate(self, command: Evaluate) -> StoredSeriesEvent:
        series, began, usage, assumed = self.series, self._setup.clock.now(), NO_USAGE, None
        iterate = settings_in_force(self._setup, series.expert_key, series.settings)
        made = Artifact(command.artefact, series.user_input, command.number, self._setup.workspace)
        programs = self._setup.storage.programs
        try:
            match iterate.evaluator:
                case ExpertEvaluator() as evaluator:
                    left = share(series)
                    if isinstance(left, UsedUp):
                        return used_up(left, self._stamp)
                    job = await self._run_evaluator(evaluator, command, left)
                    if job.status != "completed":
                        return stopped(job, self._stamp, left)
                    usage, assumed = job.usage, job.assumed
                    found = _read_answer(evaluator, job)
                case FunctionEvaluator() as evaluator:
                    async with self._sandbox() as ground:
                        found = await measure_by_function(
                            evaluator, made, self._setup.env, iterate.timeout, programs, ground
                        )
                case evaluator:
                    async with self._sandbox() as ground:
                        found = await measure_by_command(
                            evaluator, made, self._setup.env, iterate.timeout, programs, ground
                        )
            _check_metrics(evaluator, series.settings, found)
        except PerstackError as error:
            return FailSeries(**self._stamp, error=str(error), invalid_answer=True, usage=usage, assumed=assumed)
        return FinishIteration(
            **self._stamp,
            number=command.number,
            metrics=found.metrics,
            analysis=found.analysis,
            cases=found.cases,
            duration=self._setup.clock.now() - began,
            usage=usage,
            assumed=assumed,
        )

    async def _run_evaluator(self, evaluator: ExpertEvaluator, command: Evaluate, left: Budget | None) -> JobSummary:
        setup = self._setup.with_budget(evaluator.expert, left)
        jobs, job_id = self._jobs.with_context(ContextSource(setup)), job_of_evaluation(self.series.id, command)
        return await self._run_job(jobs, jobs, job_id, evaluator.expert, question_of(self.series, command.artefact))

    async def _run_job(self, new: Jobs, begun: Jobs, job_id: str, expert_key: str, query: str) -> JobSummary:
        self._job_id = job_id
        try:
            return await self._run_or_resume(new, begun, job_id, expert_key, query)
        finally:
            self._job_id = None

    async def _run_or_resume(self, new: Jobs, begun: Jobs, job_id: str, expert_key: str, query: str) -> JobSummary:
        try:
            job = await begun.job(job_id)
        except NotFound:
            if await self._setup.storage.has_job(job_id):  # the process died before the first event
                await new.delete(job_id)
            return await new.run(expert_key, query, job_id=job_id, on_event=self._on_event)
        return job if stands(job) else await begun.resume(job_id, on_event=self._on_event)

    @property
    def _stamp(self) -> SeriesStamp:
        return SeriesStamp(series_id=self.series.id, timestamp=self._setup.clock.now())


def _read_answer(evaluator: ExpertEvaluator, job: JobSummary) -> Measurement:
    try:
        return measurement_in(job.text or "")
    except ValueError as error:
        raise SkillError(f"{name_of(evaluator)} (Job {job.id}): its result: {error}") from error


def _check_metrics(evaluator: Evaluator, settings: Iterate, found: Measurement) -> None:
    try:
        score_of(settings, found.metrics)
    except UsageError as error:
        raise SkillError(f"{name_of(evaluator)}: {error}") from error
