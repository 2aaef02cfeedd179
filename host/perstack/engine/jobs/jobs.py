"""The public operations on Jobs: run, continue, answer, resume, signal, cancel, delete.

`host.jobs` is a `Jobs`: a reader (reader.py) with these operations. Its parts are public: `runner` drives Jobs
(runner.py), `queue` queues them for workers (job_queue_protocol.py). An operation that continues a Job gives
`JobRunner.run_existing` a function that, under the Job's lease, checks the loaded states and returns the Run that
begins or resumes, as data. So every operation takes leases, limits and audits alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from perstack.config.resolved_settings import with_one_model
from perstack.core.base.ids import By, Owner, check_job_id, event_id_of, one_plain_line, place_of
from perstack.core.jobs.job_choice import check_query
from perstack.core.jobs.removal import expired_jobs
from perstack.core.jobs.resuming import UnsettledCall, check_same_expert, resumption, unsettled_calls
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.facts import ContinuedFrom, Settlement
from perstack.engine.context.host_setup import SetupSource
from perstack.engine.jobs.active_jobs import ActiveJobs
from perstack.engine.jobs.job_queue_protocol import JOB_QUEUE, JobQueue
from perstack.engine.jobs.job_request import JobRequest, checked_fields, takes_caller_fields
from perstack.engine.jobs.model_output import result_reader
from perstack.engine.jobs.reader import JobReader
from perstack.engine.jobs.recorded_answers_protocol import RECORDED_ANSWERS
from perstack.engine.log.delegate_leases_and_stop_requests import StopRequests
from perstack.engine.runs.input_protocols import TEXT_INBOX, Attachable, read_attachments
from perstack.errors import Conflict, NotFound, StorageError, UsageError
from perstack.next_steps import Continue, Inspect
from perstack.support.storage import pages
from perstack.system.user import this_process, this_user

if TYPE_CHECKING:
    from typing import Unpack

    from pydantic import BaseModel, JsonValue

    from perstack.core.jobs.answer_reading import UnreadAnswer
    from perstack.core.jobs.job import Job
    from perstack.core.runs.events import StoredEvent
    from perstack.core.runs.open_questions import OpenQuestion
    from perstack.core.runs.start import CallerFields
    from perstack.core.runs.state import Run
    from perstack.engine.jobs.runner import JobRunner
    from perstack.engine.log.run_session import OnEvent
    from perstack.engine.runs.beginning import NewRun, ResumedRun

    class Question(Protocol):
        """A question with an id: the event of a stream (`perstack.Question`), or the `asking` of a summary."""

        @property
        def id(self) -> str: ...


_PAGE = 500


class OutsideEvent(Protocol):
    """An event of another program, such as a CloudEvent."""

    @property
    def key(self) -> str:
        """Source and id, which together are unique."""
        ...

    @property
    def source(self) -> str: ...
    @property
    def text(self) -> str:
        """The answer to a Job's question."""
        ...


class Jobs(JobReader):
    """The Jobs of one storage. Several may be driven at once, each in its own task."""

    def __init__(self, source: SetupSource, active: ActiveJobs | None = None) -> None:
        """Operate on the Jobs of the setup's storage. `active` has the Jobs that are driven already."""
        super().__init__(source.setup.storage)
        self.source = source
        self.active = active or ActiveJobs()

    @cached_property
    def runner(self) -> JobRunner:
        """Drives the Jobs."""
        from perstack.engine.jobs.runner import JobRunner  # reading Jobs needs none of it

        return JobRunner(self.source, self, self.active)

    @cached_property
    def queue(self) -> JobQueue:
        """The Jobs that are queued for workers."""
        return self.source.setup.parts.get(JOB_QUEUE)(self.source, self, self.runner)

    def with_context(self, source: SetupSource) -> Jobs:
        """Return these Jobs, driven with another setup."""
        return Jobs(source, self.active)

    def in_folder(self, workspace: Path) -> Jobs:
        """Return these Jobs, driven in another folder."""
        return self.with_context(SetupSource(replace(self.source.setup, workspace=workspace)))

    def on_model(self, model: str | None) -> Jobs:
        """Return these Jobs, whose new Runs use that model; None for the configured one."""
        return self if model is None else self.with_context(SetupSource(self.source.setup.with_model(model)))

    @takes_caller_fields
    async def run(
        self,
        expert_key: str,
        query: str,
        *,
        job_id: str | None = None,
        attachments: Sequence[Attachable] = (),
        output: type[BaseModel] | None = None,
        on_event: OnEvent | None = None,
        **caller_fields: Unpack[CallerFields],
    ) -> JobSummary:
        """Start a new Job and drive it until it ends or stops. A cancelled call is recorded as an interrupt.

        `attachments` are files, bytes, or Blobs with a name, which the model sees with the query. The result is parsed
        by the pydantic model `output`, and is `output` of the summary. Raises UsageError, before anything is written,
        if `job_id` exists, or the Expert, the model, an attachment or `output` cannot be used.
        """
        results = result_reader(output)
        job_request = JobRequest(expert_key, query, job_id, attachments, checked_fields(caller_fields), results)
        return await self.runner.run_new(self.source.setup, job_request, on_event=on_event)

    @takes_caller_fields
    async def submit(
        self,
        expert_key: str,
        query: str,
        *,
        at: int | None = None,
        priority: int = 0,
        attachments: Sequence[Attachable] = (),
        job_id: str | None = None,
        by: By | None = None,
        **caller_fields: Unpack[CallerFields],
    ) -> JobSummary:
        """Record a new Job for a worker to drive from `at` (milliseconds since 1970). See `JobQueue.submit`."""
        job_request = JobRequest(expert_key, query, job_id, attachments, checked_fields(caller_fields))
        return await self.queue.submit(job_request, at=at, priority=priority, by=by)

    @takes_caller_fields
    async def continue_job(
        self,
        expert_key: str,
        query: str,
        *,
        job_id: str | None = None,
        resume_from: str | None = None,
        attachments: Sequence[Attachable] = (),
        output: type[BaseModel] | None = None,
        on_event: OnEvent | None = None,
        **caller_fields: Unpack[CallerFields],
    ) -> JobSummary:
        """Start a new Run with the messages of the Coordinator's last one, or of the checkpoint `resume_from`.

        `job_id` None means the latest Job. Today's definition is used. `labels` are added to the Job's. `output` parses
        the result of the new Run, as for `run`.
        """
        new_fields, results = checked_fields(caller_fields), result_reader(output)
        setup = results.with_schema_and_check(self.source.setup)
        expert, query = setup.expert(expert_key), check_query(query)
        setup.project.check_guarded(expert.key)
        job_id = await self.id_or_latest(job_id)
        store_attachments = await read_attachments(setup, expert.key, attachments) if attachments else None

        async def decide(job: Job) -> NewRun:
            from perstack.engine.runs.beginning import NewRun

            base = await self._base_run(job, resume_from)
            check_same_expert(base, expert, job_id)
            origin = ContinuedFrom(run_id=base.id, checkpoint_id=event_id_of(base.id, base.head.seq))
            return NewRun(expert, query, new_fields, continued_from=origin, base_run=base)

        return results.read(
            await self.runner.run_existing(setup, job_id, decide, on_event, store_attachments=store_attachments)
        )

    async def answer(
        self,
        text: str = "",
        *,
        changed: Mapping[str, JsonValue] | None = None,
        job_id: str | None = None,
        question: Question | str | None = None,
        question_id: str | None = None,
        resume_from: str | None = None,
        signal: str | None = None,
        by: By | None = None,
        drive: bool | None = None,
        output: type[BaseModel] | None = None,
        on_event: OnEvent | None = None,
    ) -> JobSummary:
        """Answer the question that a Job is stopped at, and continue the Job.

        `perstack.core.jobs.answer_reading` defines how an answer is read. `question_id`, or `question`, which may be
        the event of a stream, guards against answering another question; an approval of a call needs it, and is `yes`,
        `always` or `no`; `changed`, in place of a text, approves it with these arguments. `signal` names the event that
        answers, if it is not a person. `resume_from` is a checkpoint with an open question, which a new Run answers
        again. With `drive` false a worker continues the Job: the default with a named dispatcher, and for a submitted
        Job. `output` is the model that the Job was begun with, see `resume`.

        Raises UsageError if nothing is asked or the answer does not fit, and Conflict if the question was answered
        already.
        """
        question_id = asked_question_id(question, question_id)
        event_id = question_id or (resume_from if job_id is None else None)
        job_id = place_of(event_id)[0] if event_id is not None else await self.id_or_latest(job_id)
        from perstack.engine.jobs.answering import answer_current, answer_in_branch

        unread_answer = person_answer(text, changed, by, question_id, signal)
        results, resumes = result_reader(output), resume_from is None
        setup = (results.with_check if resumes else results.with_schema_and_check)(self.source.setup)

        async def decide(job: Job) -> NewRun | ResumedRun:
            if resume_from is None:
                results.check_recorded(job.coordinator)
                return answer_current(job, job.coordinator, unread_answer, setup.overrides)
            base = await self._base_run(job, resume_from)
            return await answer_in_branch(self, base, resume_from, setup.expert(base.start.expert_key), unread_answer)

        queue = self.queue.requests(setup, by, drive)
        summary = await self.runner.run_existing(setup, job_id, decide, on_event, resumes=resumes, queue=queue)
        return results.read(await self.queue.ordered(summary))

    def live_questions(self, job_id: str) -> tuple[OpenQuestion, ...]:
        """Return the questions of delegates while other Runs of the Job are active in this process, oldest first."""
        questions = self.active.questions(job_id)
        return () if questions is None else questions.open

    async def answer_live(
        self, text: str, question_id: str, *, changed: Mapping[str, JsonValue] | None = None, by: By | None = None
    ) -> None:
        """Answer a delegate's question while other Runs of its Job are active here. Returns when it is recorded.

        Raises UsageError if the answer does not fit, and Conflict if the question does not wait here: use `answer`.
        """
        questions = self.active.questions(place_of(question_id)[0])
        if questions is None or not questions.is_pending(question_id):
            raise Conflict(f"no delegate of a Job that this process drives asks question {question_id}")
        await questions.answer(question_id, person_answer(text, changed, by, question_id))

    async def resume(
        self,
        job_id: str | None = None,
        *,
        max_steps: int | None = None,
        max_cost: float | None = None,
        settle: Mapping[str, Settlement] | None = None,
        signal: str | None = None,
        by: By | None = None,
        drive: bool | None = True,
        on_unsettled: Callable[[tuple[UnsettledCall, ...]], None] = lambda calls: None,
        output: type[BaseModel] | None = None,
        on_event: OnEvent | None = None,
    ) -> JobSummary:
        """Resume the same Runs of a Job that crashed, failed, was interrupted or reached a limit.

        New limits are recorded with who gave them: `by`, or this process's user. A Run that failed before its model
        replied resumes under today's definition. `settle` decides the calls that began and have no result, by key or
        call id; `on_unsettled` is called with them before anything is done. `output` is the model that the Job was
        begun with: it also parses the result here. Raises UsageError for a Job that is completed or waits for an
        answer, for a call that is not open, and if the schema of `output` is not the recorded one.
        """
        job_id, results = await self.id_or_latest(job_id), result_reader(output)
        setup = results.with_check(self.source.setup)
        overrides = setup.overrides if max_cost is None else replace(setup.overrides, max_cost=max_cost)

        async def decide(job: Job) -> ResumedRun:
            from perstack.engine.runs.beginning import ResumedRun
            from perstack.engine.runs.person_decisions import PersonDecisions

            run = job.coordinator
            results.check_recorded(run)
            answers = setup.parts.get(RECORDED_ANSWERS)
            if (recorded := answers.recorded_answer(setup, job)) is not None:
                return recorded
            settled: dict[str, Settlement] = {**settle} if settle else {}
            retried = answers.recorded_settlements(setup, job)
            calls = tuple(
                unsettled_call
                for unsettled_call in unsettled_calls(job.runs.values())
                if unsettled_call.key not in retried
            )
            run_overrides = with_one_model(setup.project, overrides, run.start.provider)
            reason, limits = resumption(
                job, run, run_overrides, max_steps=max_steps, signal=signal, calls=calls, settled=settled
            )
            if calls:
                on_unsettled(calls)
            decisions = PersonDecisions(settled={**retried, **settled}, signal=signal, limited_by=by)
            return ResumedRun(run, reason, limits, decisions=decisions)

        queue = None if drive else self.queue.requests(setup, by, drive)
        summary = await self.runner.run_existing(setup, job_id, decide, on_event, resumes=True, queue=queue)
        return results.read(summary if queue is None else await self.queue.ordered(summary))

    async def resume_before_compaction(
        self, job_id: str | None = None, *, on_event: OnEvent | None = None
    ) -> JobSummary:
        """Branch from the state before the Coordinator's latest compaction: the new Run sees the full history again.

        Its context is not reduced until compaction is turned on again. Raises UsageError without a compaction.
        """
        job_id, setup = await self.id_or_latest(job_id), self.source.setup
        overrides = setup.overrides
        setup = replace(setup, overrides=replace(overrides, compaction=overrides.compaction or "off"))

        async def decide(job: Job) -> NewRun:
            from perstack.engine.runs.beginning import NewRun

            run = job.coordinator
            expert = setup.expert(run.start.expert_key)
            origin = await before_compaction(self, run)
            base = await self.state_at(origin.checkpoint_id, job_id)
            return NewRun(expert, run.start.query, continued_from=origin, base_run=base)

        return await self.runner.run_existing(setup, job_id, decide, on_event)

    async def signal(
        self,
        job_id: str,
        outside_event: OutsideEvent,
        *,
        by: By | None = None,
        drive: bool | None = None,
        on_event: OnEvent | None = None,
    ) -> JobSummary:
        """Answer a Job's question with an external event's data, or resume the Job.

        An event of one source and id is taken once; repeated, it only returns the Job's summary.
        """
        job = await self.load(check_job_id(job_id))
        if outside_event.key in job.signals:
            return await self.job(job_id)
        if job.question is None:
            return await self.resume(job_id, signal=outside_event.key, drive=drive, on_event=on_event)
        question_id = job.question.id
        by = (by or this_user()).with_source(outside_event.source)
        text, key = outside_event.text, outside_event.key
        return await self.answer(text, question_id=question_id, signal=key, by=by, drive=drive, on_event=on_event)

    async def cancel(self, job_id: str, *, final: bool = False, by: By | None = None, reason: str = "") -> None:
        """Stop a Job, in whichever process it is driven. On return its Runs are recorded as interrupted.

        The caller of `run` gets CancelledError. With `final` the Job is also closed for good: nothing continues it any
        more. Raises UsageError if nobody drives the Job, or to close a completed one; Conflict if another process does
        not stop it; and the error that prevented the record.
        """
        is_driven = self.active.task(job_id) is not None
        is_driven = is_driven or await self.storage.lease_info(check_job_id(job_id)) is not None
        if is_driven or not final:
            await self._stop(job_id)
        if final:
            setup = self.source.setup
            async with self.storage.lease(job_id, this_process()):
                job = await self.load(job_id)
                async with setup.audit.anchored(job):
                    await self.runner.stop_remote(job)
                    await self._close(job, by or this_user(), one_plain_line(reason))
            if job.coordinator.queued is not None:
                await self.queue.withdraw(job_id)

    async def _close(self, loaded_job: Job, by: By, reason: str) -> None:
        """Close each Run that is not completed, first the Coordinator's, which closes the Job. Idempotent."""
        from perstack.core.runs.events.lifecycle import CloseRun
        from perstack.engine.log.job_summary_file import JobSummaryFile
        from perstack.engine.log.run_session import RunSession

        await self.active.close_skills(loaded_job.id)
        job, coordinator, setup = loaded_job, loaded_job.coordinator, self.source.setup
        if coordinator.status == "completed":
            step = Continue(job.id, coordinator.start.expert_key)
            raise UsageError(f"Job {job.id} is completed: there is nothing to close", next_steps=(step,))
        other_runs = (run for run in loaded_job.runs.values() if run is not coordinator)
        open_runs = [run for run in (coordinator, *other_runs) if run.closed is None and run.status != "completed"]
        summary_file = JobSummaryFile(setup.storage, job)
        if open_runs:  # if this process dies meanwhile, readers must not trust the summary
            await summary_file.mark_stale()
        emit = setup.emitter()
        for run in open_runs:
            session = RunSession.of(setup.storage, job, run, emit, clock=setup.clock)
            session.add(CloseRun(**session.stamp(), by=by, reason=reason))
            await session.flush()
        await summary_file.write(is_driven=False)

    def stop_after_step(self, job_id: str) -> bool:
        """Stop a Job of this process when each of its Runs has finished its step; a worker's is queued again.

        Returns False for a Job that this process does not drive.
        """
        return self.active.stop_after_step(job_id)

    async def _stop(self, job_id: str) -> None:
        task = self.active.task(check_job_id(job_id))
        if task is None:
            info = await self.storage.lease_info(job_id)
            if info is None and await self.queue.interrupt_queued(job_id):
                return
            info = info or await self.storage.lease_info(job_id)
            if info is None:
                raise UsageError(f"Job {job_id} cannot be stopped: no process drives it")
            await StopRequests(self.storage).stop(job_id, info.holder)
            return
        self.active.stop(job_id)
        await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def delete(self, job_id: str) -> None:
        """Remove a Job for good, and withdraw its orders. Raises NotFound, and Conflict while it is driven."""
        runs_with_orders = await self.queue.runs_with_orders(check_job_id(job_id))
        await self.active.close_skills(job_id)
        async with self.source.setup.audit.anchor_removal(Owner("job", job_id)):
            await self.storage.delete_job(job_id)
            await self.source.setup.parts.get(TEXT_INBOX)(self.storage).forget_job(job_id)
        for run_id in runs_with_orders:
            await self.queue.withdraw(job_id, run_id)
        if runs_with_orders:
            from perstack.engine.log.delegate_leases_and_stop_requests import DelegateLeases

            await DelegateLeases(self.storage).forget_job(job_id)

    async def delete_each(self, job_ids: Iterable[str]) -> AsyncGenerator[tuple[str, str | None]]:
        """Remove these Jobs for good. Yield each id, with None after its removal or the reason why the Job is kept."""
        for job_id in job_ids:
            try:
                await self.delete(job_id)
            except NotFound:
                continue  # another process has deleted it
            except StorageError as error:
                yield job_id, str(error)
            else:
                yield job_id, None

    async def not_retained(self) -> Sequence[JobSummary]:
        """Return the Jobs that `[retention]` of the project removes now."""
        setup = self.source.setup
        retention = setup.project.retention
        if retention is None:
            return []
        all_jobs = [
            summary async for page in pages(lambda after: self.list(limit=_PAGE, after=after)) for summary in page.jobs
        ]
        return expired_jobs(all_jobs, retention, setup.clock.now())

    async def _base_run(self, job: Job, resume_from: str | None) -> Run:
        if resume_from is None:
            return job.coordinator
        base = await self.state_at(resume_from, job.id)
        if not base.is_coordinator:
            raise UsageError(f"{resume_from} is a delegate's checkpoint; only the Coordinator's can be branched from")
        return base


# Branching from the state before a compaction.


async def before_compaction(reader: JobReader, run: Run) -> ContinuedFrom:
    """Return the place before the latest compaction of a Coordinator's Run. Raises UsageError without one."""
    events = [line.event for line in await reader.events(run.id, job_id=run.start.job_id)]
    compactions = (index for index in range(len(events) - 1, 0, -1) if events[index].type == "compactHistory")
    if (compaction := next(compactions, None)) is None:
        message = f"{run.id} has no compaction to undo; compactions of delegates are not undone"
        raise UsageError(message, next_steps=(Inspect("log", run.start.job_id),))
    index = compaction
    while _belongs_to_summary(events[index - 1]):
        index -= 1
    return ContinuedFrom(run_id=run.id, checkpoint_id=events[index - 1].id, as_it_was=True)


def _belongs_to_summary(event: StoredEvent) -> bool:
    """Return whether an event before `compactHistory` records the making of its summary."""
    return event.type == "startCompaction" or (event.type == "retry" and event.overflow is None)


def asked_question_id(question: Question | str | None, question_id: str | None) -> str | None:
    """Return the id of a question that a caller names by either argument; None if by neither."""
    if question is None:
        return question_id
    return question if isinstance(question, str) else question.id


def person_answer(
    text: str,
    changed: Mapping[str, JsonValue] | None,
    by: By | None,
    question_id: str | None,
    signal: str | None = None,
) -> UnreadAnswer:
    """Return the answer, by this process's user unless `by` is given."""
    from perstack.core.jobs.answer_reading import UnreadAnswer  # imported late: most Jobs read no answers

    return UnreadAnswer(text, by or this_user(), question_id, signal, None if changed is None else dict(changed))
