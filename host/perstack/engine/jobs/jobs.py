"""The public operations on Jobs: run, continue, answer, resume, signal, cancel, redact, delete.

`host.jobs` is a `Jobs`. It inherits, in this order, reads (reader.py), queries (queries.py), files (files.py), driving
(runner.py), serving for workers (serving.py) and the queue (queue.py). An operation that continues a Job gives `_go_on`
(runner.py) a `begin` function: under the Job's lease it checks the loaded states, writes no event, and returns the
function that records the first event. So every operation takes leases, limits and audits in the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perstack.config.settings import with_one_model
from perstack.core.base.actor import By
from perstack.core.base.ids import Owner, check_job_id, event_id_of, place_of
from perstack.core.jobs.job import Job
from perstack.core.jobs.queries import check_labels, not_retained
from perstack.core.jobs.resuming import UnsettledCall, check_same_expert, resumption, unsettled_calls
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.events import Settlement, StoredEvent
from perstack.core.runs.facts import ContinuedFrom
from perstack.core.runs.questions import OpenQuestion
from perstack.core.runs.state import Run
from perstack.core.runs.step_events import CompactHistory, Retry, StartCompaction
from perstack.engine.context.host_context import Setup
from perstack.engine.jobs.queue import JobQueue
from perstack.engine.jobs.reader import JobReader
from perstack.engine.jobs.runner import played_again, played_answer
from perstack.engine.log.emitter import Emitter, OnEvent
from perstack.engine.log.leases import StopRequests
from perstack.errors import Conflict, NotFound, StorageError, UsageError
from perstack.next_steps import Inspect
from perstack.support.storage import pages
from perstack.system.user import this_process, this_user

if TYPE_CHECKING:
    from perstack.core.audit.redaction import Redaction
    from perstack.core.jobs.cloud_events import CloudEvent
    from perstack.engine.jobs.attachments import Attachable  # what a Run without attachments does not need
    from perstack.engine.log.run_session import RunSession
    from perstack.engine.runs.loop import Driver  # whoever only looks at Jobs drives none
    from perstack.toolkit.context import Blob


_PAGE = 500


class Jobs(JobQueue):
    """The Jobs of one storage. Several may be driven at once, each in its own task."""

    def under(self, setup: Callable[[], Setup]) -> Jobs:
        """Return the same Jobs, driven with another setup."""
        return Jobs(setup, self._tasks, self._driving)

    def in_folder(self, workspace: Path) -> Jobs:
        """Return the same Jobs, driven in another folder."""
        return self.under(lambda: replace(self._setup(), workspace=workspace))

    async def run(
        self,
        expert_key: str,
        query: str,
        *,
        job_id: str | None = None,
        attachments: Sequence[Attachable] = (),
        labels: Mapping[str, str] | None = None,
        on_event: OnEvent | None = None,
    ) -> JobSummary:
        """Start a new Job and drive it until it ends or stops.

        Nothing is written before the Expert, the model and the provider have been checked. A cancelled call is recorded
        as an interrupt. `labels` are used to find the Job later. `attachments` are files, bytes, or Blobs with a name:
        images, PDFs and texts that the model sees with the query. Raises UsageError if `job_id` exists and has begun,
        and for an attachment that cannot be read, or that the model does not take.
        """
        begun = self._begin(self._setup(), expert_key, query, job_id, attachments, check_labels(labels or {}), on_event)
        return await begun

    async def continue_job(
        self,
        expert_key: str,
        query: str,
        *,
        job_id: str | None = None,
        resume_from: str | None = None,
        attachments: Sequence[Attachable] = (),
        labels: Mapping[str, str] | None = None,
        on_event: OnEvent | None = None,
    ) -> JobSummary:
        """Start a new Run of the Coordinator, with the messages of its last one, or of the checkpoint `resume_from`.

        `job_id` None means the latest Job. Today's definition is used. `labels` are added to the Job's.
        """
        setup, labels = self._setup(), check_labels(labels or {})
        expert = setup.expert(expert_key)
        job_id = await self._job_id(job_id)
        added = await self._attached(setup, expert.key, attachments)

        async def begin(loaded: Job) -> Callable[[Driver], RunSession]:
            base = await self._base(loaded, resume_from)
            check_same_expert(base, expert, job_id)
            contents = await self._kept(job_id, added)
            place = ContinuedFrom(run_id=base.id, checkpoint_id=event_id_of(base.id, base.head.seq))
            return lambda driver: driver.begin_run(
                expert, query, continued_from=place, base=base, labels=labels, attachments=contents
            )

        return await self._go_on(setup, job_id, begin, on_event)

    async def answer(
        self,
        text: str,
        *,
        job_id: str | None = None,
        question_id: str | None = None,
        resume_from: str | None = None,
        signal: str | None = None,
        by: By | None = None,
        drive: bool | None = None,
        on_event: OnEvent | None = None,
    ) -> JobSummary:
        """Answer the question that a Job is stopped at, and continue the Job.

        `perstack.core.jobs.answers` defines how an answer is read. `question_id` guards against answering another
        question; an approval of a call (`job.asking.call_digest`) needs it, and is `yes`, `always` or `no`. `signal`
        names the event that answers, if it is not a person: the Job takes each only once. `by` is recorded with the
        answer; by default it is this process's user. `resume_from` is a checkpoint at which a question was open: a new
        Run, a branch, answers it anew.

        With `drive` false the answer is only recorded, and a worker continues the Job; this is the default if a
        dispatcher was named, and for a Job that was submitted. Raises UsageError if nothing is asked or the answer does
        not fit, and Conflict if the question `question_id` has been answered already.
        """
        named = question_id or (resume_from if job_id is None else None)
        job_id = place_of(named)[0] if named is not None else await self._job_id(job_id)
        from perstack.core.jobs.answers import Given
        from perstack.engine.jobs.answers import answer_again, answer_open

        given, setup = Given(text, by or this_user(), question_id, signal), self._setup()

        async def begin(loaded: Job) -> Callable[[Driver], RunSession]:
            if resume_from is None:
                return answer_open(loaded, loaded.coordinator, given, setup.overrides)
            base = await self._base(loaded, resume_from)
            return await answer_again(self, base, resume_from, setup.expert(base.start.expert_key), given)

        leaves, takes_up = self._leaving(setup, by, drive), resume_from is None
        return await self._ordered(await self._go_on(setup, job_id, begin, on_event, takes_up=takes_up, leaves=leaves))

    def asked_meanwhile(self, job_id: str) -> tuple[OpenQuestion, ...]:
        """Return the questions of delegates while other Runs of the Job are active in this process, oldest first."""
        driver = self._driving.drivers.get(job_id)
        return () if driver is None else driver.live_answers.asked

    async def answer_meanwhile(self, text: str, question_id: str, *, by: By | None = None) -> None:
        """Answer a delegate's question while other Runs of its Job are active in this process: it continues at once.

        Returns when the answer is recorded; the caller that drives the Job sees the result. Raises UsageError if the
        answer does not fit, and Conflict if the question does not wait here: once the Job has come to rest use
        `answer`.
        """
        from perstack.core.jobs.answers import Given

        driver = self._driving.drivers.get(place_of(question_id)[0])
        if driver is None or not driver.live_answers.asks(question_id):
            raise Conflict(f"question {question_id} is not asked by a delegate of a Job that is at work here")
        await driver.live_answers.give(question_id, Given(text, by or this_user(), question_id))

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
        on_event: OnEvent | None = None,
    ) -> JobSummary:
        """Resume the same Runs of a Job that crashed, failed, was interrupted or reached a limit.

        New limits, from these arguments or the options of this Host, are recorded with who gave them: `by`, or this
        process's user. A Run that failed before its model replied resumes under today's definition and settings.

        `on_unsettled` is called, before anything is done, with the calls that began and have no result. `settle`
        decides them, by key or call id; the model is told that the others were interrupted. `drive` is as for `answer`,
        and true by default. Raises UsageError for a Job that is completed or waits for an answer, and for a call that
        is not open.
        """
        job_id, setup = await self._job_id(job_id), self._setup()
        asked = setup.overrides if max_cost is None else replace(setup.overrides, max_cost=max_cost)

        async def begin(loaded: Job) -> Callable[[Driver], RunSession]:
            run = loaded.coordinator
            if (played := played_answer(setup, loaded)) is not None:
                return played
            settled: dict[str, Settlement] = {**settle} if settle else {}
            again = played_again(setup, loaded)
            calls = tuple(call for call in unsettled_calls(loaded.runs.values()) if call.key not in again)
            wanted = with_one_model(setup.project, asked, run.start.provider)
            reason, limits = resumption(
                loaded, run, wanted, max_steps=max_steps, signal=signal, calls=calls, settled=settled
            )
            if calls:
                on_unsettled(calls)

            def take_up(driver: Driver) -> RunSession:
                driver.settled, driver.signal, driver.limited_by = {**again, **settled}, signal, by
                return driver.take_up(run, reason, limits=limits)

            return take_up

        leaves = None if drive else self._leaving(setup, by, drive)
        return await self._ordered(await self._go_on(setup, job_id, begin, on_event, takes_up=True, leaves=leaves))

    async def resume_before_compaction(
        self, job_id: str | None = None, *, on_event: OnEvent | None = None
    ) -> JobSummary:
        """Branch from the state before the Coordinator's latest compaction: the new Run sees the full history again.

        Its context is not reduced until compaction is turned on again, by the options of this Host now or of one that
        resumes the Job. Raises UsageError if there was no compaction.
        """
        job_id, setup = await self._job_id(job_id), self._setup()
        asked = setup.overrides
        setup = replace(setup, overrides=replace(asked, compaction=asked.compaction or "off"))

        async def begin(loaded: Job) -> Callable[[Driver], RunSession]:

            run = loaded.coordinator
            expert = setup.expert(run.start.expert_key)
            place = await before_compaction(self, run)
            base = await self._state_at(place.checkpoint_id, job_id)
            return lambda driver: driver.begin_run(expert, run.start.query, continued_from=place, base=base)

        return await self._go_on(setup, job_id, begin, on_event)

    async def signal(
        self,
        job_id: str,
        event: CloudEvent,
        *,
        by: By | None = None,
        drive: bool | None = None,
        on_event: OnEvent | None = None,
    ) -> JobSummary:
        """Answer the question that a Job is stopped at with an external event's data, or resume the Job.

        An event of the same source and id is taken only once; repeated, it only returns the Job's summary. `drive` is
        as for `answer`.
        """
        job = await self.load(check_job_id(job_id))
        if event.key in job.signals:
            return await self.job(job_id)
        if job.question is None:
            return await self.resume(job_id, signal=event.key, drive=drive, on_event=on_event)
        asked = job.question.id
        by = (by or this_user()).bringing(event.source)
        return await self.answer(event.text, question_id=asked, signal=event.key, by=by, drive=drive, on_event=on_event)

    async def cancel(self, job_id: str, *, final: bool = False, by: By | None = None, reason: str = "") -> None:
        """Stop a Job, in whichever process it is driven.

        On return its Runs are recorded as interrupted, and its skills are closed. The caller of `run` gets
        CancelledError; the rest of its task is not waited for. The order of a queued Job is withdrawn. Raises
        UsageError if nobody drives the Job, Conflict if another process drives it and does not stop, and the error that
        prevented the record.

        With `final` the Job is then closed for good, or at once if nobody drives it: its status stays, its lifecycle is
        `failed`, and nothing answers, resumes or continues it any more. `by`, or this process's user, and `reason` are
        recorded. Repeating it changes nothing. Raises UsageError for a Job that is completed.
        """
        is_driven = job_id in self._driving.tasks or await self.storage.lease_info(check_job_id(job_id)) is not None
        if is_driven or not final:
            await self._stop(job_id)
        if final:
            from perstack.engine.jobs.closing import close_job

            async with self.storage.lease(job_id, this_process()):
                loaded = await self.load(job_id)
                async with self.audit.anchored(loaded):
                    await self.stop_elsewhere(loaded)
                    emit = Emitter(self.plugins.listeners, None)
                    await close_job(self.storage, loaded, emit, by or this_user(), reason, self._setup().clock)
            if loaded.coordinator.queued is not None:
                await self._withdraw(job_id)

    def stop_after_step(self, job_id: str) -> bool:
        """Stop a Job of this process, as interrupted, when each of its Runs has finished its current step.

        A Job served by a worker is queued again then. The caller that drives the Job gets its summary. Returns False
        for a Job that this process does not drive.
        """
        if job_id in self._driving.tasks:
            self._driving.leaving.add(job_id)
        return job_id in self._driving.tasks

    async def _stop(self, job_id: str) -> None:
        task = self._driving.tasks.get(check_job_id(job_id))
        if task is None:
            info = await self.storage.lease_info(job_id)
            if info is None and await self._take_back(job_id):
                return
            info = info or await self.storage.lease_info(job_id)
            if info is None:
                raise UsageError(f"Job {job_id} cannot be stopped: nobody drives it")
            await StopRequests(self.storage).stop(job_id, info.holder)
            return
        self._driving.stop(job_id)
        await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def redact(
        self, event_id: str, fields: Sequence[str] = (), *, reason: str, by: By | None = None
    ) -> Redaction:
        """Remove what a person, a model or a tool wrote in an event from the log, caches and blobs, for good.

        `fields` are the fields to remove; all texts of the event are removed together. Who did it (`by`, or this
        process's user), why, and where else the same text occurs is recorded, and returned. If the process ends in
        between, the same call again completes it. Raises NotFound, Damaged, Conflict while the Job is driven, and
        UsageError for an event without text to remove.
        """
        from perstack.engine.audit.redact import redact_event

        job = Job(place_of(event_id)[0])
        async with self.audit.anchored(job):
            done = await redact_event(
                self.storage, event_id, fields=fields, reason=reason, by=by or this_user(), clock=self._setup().clock
            )
            job.heads.update((await self.load(job.id)).heads)
        return done

    async def delete(self, job_id: str) -> None:
        """Remove a Job for good, and withdraw its orders. Raises NotFound, and Conflict while it is driven.

        Its delegates that other workers drive are stopped afterwards.
        """
        ordered = await self._ordered_runs(check_job_id(job_id))
        async with self.audit.anchored_removal(Owner("job", job_id)):
            await self.storage.delete_job(job_id)
        for run_id in ordered:
            await self._withdraw(job_id, run_id)
        if ordered:
            from perstack.engine.log.leases import DelegateLeases

            await DelegateLeases(self.storage).forget_job(job_id)

    async def delete_each(self, job_ids: Iterable[str]) -> AsyncGenerator[tuple[str, str | None]]:
        """Remove these Jobs for good; yield each id with None once it is removed, or with the reason why it is kept."""
        for job_id in job_ids:
            try:
                await self.delete(job_id)
            except NotFound:
                continue  # another process has deleted it
            except StorageError as error:
                yield job_id, str(error)
            else:
                yield job_id, None

    async def not_retained(self) -> list[JobSummary]:
        """Return the Jobs that `[retention]` of the project removes now."""
        setup = self._setup()
        retention = setup.project.retention
        if retention is None:
            return []
        every = [job async for page in pages(lambda after: self.list(limit=_PAGE, after=after)) for job in page.jobs]
        return not_retained(every, retention, setup.clock.now())

    async def attachment(self, place: str) -> Blob:
        """Read a file of the workspace, by its path or a `file:` address, for a caller who may read no others.

        Raises UsageError for a file that does not exist, is outside, or is off limits to tools.
        """
        from perstack.engine.jobs.attachments import in_workspace

        return await in_workspace(self._setup(), place)


# Branching from the state before a compaction.


async def before_compaction(reader: JobReader, run: Run) -> ContinuedFrom:
    """Return the place before the latest compaction of a Coordinator's Run. Raises UsageError without one."""
    events = [line.event for line in await reader.events(run.id, job_id=run.start.job_id)]
    last = next((place for place in range(len(events) - 1, 0, -1) if isinstance(events[place], CompactHistory)), None)
    if last is None:
        words = f"{run.id} has no compaction to go back before; those of delegates are not undone"
        raise UsageError(words, next_steps=(Inspect("log", run.start.job_id),))
    place = last
    while _is_of_summary(events[place - 1]):
        place -= 1
    return ContinuedFrom(run_id=run.id, checkpoint_id=events[place - 1].id, as_it_was=True)


def _is_of_summary(event: StoredEvent) -> bool:
    return isinstance(event, StartCompaction) or (isinstance(event, Retry) and event.overflow is None)
