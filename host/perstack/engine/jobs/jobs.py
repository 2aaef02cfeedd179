"""Jobs: what is done with them, and with what is kept of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perstack.config.settings import with_one_model
from perstack.core.by import By
from perstack.core.events import Settlement
from perstack.core.ids import check_job_id, event_id_of, place_of
from perstack.core.job import Job, JobSummary
from perstack.core.job_choice import not_retained
from perstack.core.labels import check_labels
from perstack.core.owners import Owner
from perstack.core.run_facts import ContinuedFrom
from perstack.core.runs.asking import OpenQuestion
from perstack.core.runs.resuming import (
    UnsettledCall,
    check_same_expert,
    resumption,
    unsettled_calls,
)
from perstack.engine.driven_jobs import coordinator_of
from perstack.engine.emit import Emitter, OnEvent
from perstack.engine.job_queue import JobQueue
from perstack.engine.logs.runs import LoadedJob
from perstack.engine.pages import pages
from perstack.engine.played_answers import played_again, played_answer
from perstack.engine.setup import Setup
from perstack.engine.stop_requests import StopRequests
from perstack.engine.who import this_process, this_user
from perstack.errors import Conflict, NotFound, StorageError, UsageError

if TYPE_CHECKING:
    from perstack.core.cloudevents import CloudEvent
    from perstack.core.redaction import Redaction
    from perstack.engine.attaching import Attachable  # what a Run without attachments does not need
    from perstack.engine.driver import Driver  # whoever only looks at Jobs drives none
    from perstack.engine.session import Session
    from perstack.ports.toolkit.context import Blob

_PAGE = 500


class Jobs(JobQueue):
    """The Jobs of one storage. Several may be driven at once, each in a task of its own."""

    def under(self, setup: Callable[[], Setup]) -> Jobs:
        """The same Jobs; those that begin or continue by these are driven with another setup."""
        return Jobs(setup, self._tasks, self._driving)

    def in_folder(self, workspace: Path) -> Jobs:
        """The same Jobs; those that begin or continue by these work in another folder."""
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
        """Start a new Job and drive it to its end or stop.

        Nothing is written before Expert, model and provider are known to be there. A cancelled call is recorded as an
        interrupt. `labels` are what the Job is found by later. `attachments` are files, bytes, or Blobs with a name:
        images, PDFs and texts that the model sees with the query. Raises UsageError if `job_id` exists and has begun,
        and for an attachment that cannot be read, or be shown to the model.
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
        """A new Run of the Coordinator, with the messages of the last one, or of the checkpoint `resume_from`.

        `job_id` None means the latest Job. The definition of today is used. `labels` are added to the Job's.
        """
        setup, labels = self._setup(), check_labels(labels or {})
        expert = setup.expert(expert_key)
        job_id = await self._job_id(job_id)
        added = await self._attached(setup, expert.key, attachments)

        async def begin(loaded: LoadedJob) -> Callable[[Driver], Session]:
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
        """Answer the question that a Job is stopped at, and drive it on.

        `perstack.core.answers` tells how an answer is read. Raises UsageError if nothing is asked, or does not fit, and
        Conflict if `question_id` is given and has been answered already. `signal` names the event that answers, if it
        is not a person: the Job takes each only once. `by` is recorded with the answer; this process's user if none is
        given. `resume_from` is a checkpoint at which a question was open: a new Run, a branch, answers it anew.
        An approval of a call (`job.asking.call_digest`) needs its `question_id`, and is `yes`, `always` or `no`.

        With `drive` false the answer is only recorded, and a worker drives the Job on; so it is by default where a
        dispatcher was named, and for a Job that was submitted.
        """
        named = question_id or (resume_from if job_id is None else None)
        job_id = place_of(named)[0] if named is not None else await self._job_id(job_id)
        from perstack.engine.answering import answer_again, answer_open
        from perstack.engine.given import Given

        given, setup = Given(text, by or this_user(), question_id, signal), self._setup()

        async def begin(loaded: LoadedJob) -> Callable[[Driver], Session]:
            if resume_from is None:
                return answer_open(loaded, coordinator_of(loaded), given, setup.overrides)
            base = await self._base(loaded, resume_from)
            return await answer_again(self, base, resume_from, setup.expert(base.start.expert_key), given)

        leaves, takes_up = self._leaving(setup, by, drive), resume_from is None
        return await self._ordered(await self._go_on(setup, job_id, begin, on_event, takes_up=takes_up, leaves=leaves))

    def asked_meanwhile(self, job_id: str) -> tuple[OpenQuestion, ...]:
        """What delegates ask while others of the Job are at work in this process, oldest first."""
        driver = self._driving.drivers.get(job_id)
        return () if driver is None else driver.live_answers.asked

    async def answer_meanwhile(self, text: str, question_id: str, *, by: By | None = None) -> None:
        """Answer what a delegate asks while others of its Job are at work in this process: it continues at once.

        Returns when the answer is recorded; whoever had the Job driven sees what comes of it. Raises UsageError if the
        answer does not fit, and Conflict if that is not asked: once the Job has come to rest `answer` takes it.
        """
        from perstack.engine.given import Given

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
        """Continue a Job that crashed, failed, was interrupted or reached a limit: the same Runs.

        New limits, these or the options of this Host, are recorded with who gave them: `by`, or this process's user.

        A Run that failed before its model replied goes on under the definition and the settings of today.

        `on_unsettled` is told, before anything is done, of the calls that began and have no result; `settle` decides
        them by hand, by key or call id: otherwise the model is told that they were interrupted. Raises UsageError for a
        Job that is completed or waits for an answer, and for a call that is not open. `drive` is as for `answer`, and
        true if it is not given.
        """
        job_id, setup = await self._job_id(job_id), self._setup()
        asked = setup.overrides if max_cost is None else replace(setup.overrides, max_cost=max_cost)

        async def begin(loaded: LoadedJob) -> Callable[[Driver], Session]:
            run = coordinator_of(loaded)
            if (played := played_answer(setup, loaded)) is not None:
                return played
            settled: dict[str, Settlement] = {**settle} if settle else {}
            again = played_again(setup, loaded)
            calls = tuple(call for call in unsettled_calls(loaded.runs.values()) if call.key not in again)
            wanted = with_one_model(setup.project, asked, run.start.provider)
            reason, limits = resumption(
                loaded.job, run, wanted, max_steps=max_steps, signal=signal, calls=calls, settled=settled
            )
            if calls:
                on_unsettled(calls)

            def take_up(driver: Driver) -> Session:
                driver.settled, driver.signal, driver.limited_by = {**again, **settled}, signal, by
                return driver.take_up(run, reason, limits=limits)

            return take_up

        leaves = None if drive else self._leaving(setup, by, drive)
        return await self._ordered(await self._go_on(setup, job_id, begin, on_event, takes_up=True, leaves=leaves))

    async def resume_before_compaction(
        self, job_id: str | None = None, *, on_event: OnEvent | None = None
    ) -> JobSummary:
        """Go back to the state before the latest compaction of the Coordinator, in a branch: a Run that sees all again.

        Nothing is left out of its context until compaction is turned on again, by the options of this Host now or of
        one that resumes the Job. Raises UsageError if there was no compaction.
        """
        job_id, setup = await self._job_id(job_id), self._setup()
        asked = setup.overrides
        setup = replace(setup, overrides=replace(asked, compaction=asked.compaction or "off"))

        async def begin(loaded: LoadedJob) -> Callable[[Driver], Session]:
            from perstack.engine.uncompacting import before_compaction

            run = coordinator_of(loaded)
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
        """An event from outside answers the question that a Job is stopped at with its data, or lets the Job go on.

        An event of the same source and id is taken once: then where the Job stands is all that comes of it. `drive` is
        as for `answer`.
        """
        job = (await self.load(check_job_id(job_id))).job
        if event.key in job.signals:
            return await self.job(job_id)
        if job.question is None:
            return await self.resume(job_id, signal=event.key, drive=drive, on_event=on_event)
        asked = job.question.id
        by = (by or this_user()).bringing(event.source)
        return await self.answer(event.text, question_id=asked, signal=event.key, by=by, drive=drive, on_event=on_event)

    async def cancel(self, job_id: str, *, final: bool = False, by: By | None = None, reason: str = "") -> None:
        """Stop a Job, wherever it is driven. On return its Runs are recorded as interrupted, its skills have ended.

        Whoever called `run` sees CancelledError; the rest of that task is not waited for. A Job that waits for a worker
        waits no more. Raises UsageError if nobody drives the Job, Conflict if another process does and does not stop
        it, and what kept it from being recorded.

        With `final` it is closed for good after that, or at once if nobody drives it: its status stays, its lifecycle
        is `failed`, and nothing answers, resumes or continues it any more. `by`, or this process's user, and `reason`
        are recorded. Doing it again changes nothing. Raises UsageError for a Job that is completed.
        """
        is_driven = job_id in self._driving.tasks or await self.storage.lease_info(check_job_id(job_id)) is not None
        if is_driven or not final:
            await self._stop(job_id)
        if final:
            from perstack.engine.closing import close_job

            async with self.storage.lease(job_id, this_process()):
                loaded = await self.load(job_id)
                async with self.audit.kept(loaded.job):
                    await self.stop_elsewhere(loaded)
                    emit = Emitter(self.plugins.listeners, None)
                    await close_job(self.storage, loaded, emit, by or this_user(), reason, self._setup().clock)
            if loaded.job.coordinator.queued is not None:
                await self._withdraw(job_id)

    def stop_after_step(self, job_id: str) -> bool:
        """A Job that this process drives stops as interrupted when the step that each of its Runs is in has ended.

        One that is served is queued again with that. Whoever called gets where it stands then.
        False for one that this process does not drive.
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
        """Take what a person, a model or a tool wrote in an event out of the log, caches and blobs, for good.

        `fields` are those that are meant; all texts of the event go together. Who did it (`by`, or this process's
        user), why, and where else the same text stands is recorded, and in what this returns. If the process ends in
        between, the same call again does the rest. Raises NotFound, Damaged, Conflict while the Job is driven, and
        UsageError for what has no text to take out.
        """
        from perstack.engine.redact import redact_event

        job = Job(place_of(event_id)[0])
        async with self.audit.kept(job):
            done = await redact_event(
                self.storage, event_id, fields=fields, reason=reason, by=by or this_user(), clock=self._setup().clock
            )
            job.heads.update((await self.load(job.id)).job.heads)
        return done

    async def delete(self, job_id: str) -> None:
        """Remove a Job for good, and its order if it waits for a worker. Raises NotFound, and Conflict while it is
        driven. Delegates of it that other workers drive are stopped then."""
        ordered = await self._ordered_runs(check_job_id(job_id))
        async with self.audit.removing(Owner("job", job_id)):
            await self.storage.delete_job(job_id)
        for run_id in ordered:
            await self._withdraw(job_id, run_id)
        if ordered:
            from perstack.engine.elsewhere.holding import Holders

            await Holders(self.storage).forget_job(job_id)

    async def delete_each(self, job_ids: Iterable[str]) -> AsyncGenerator[tuple[str, str | None]]:
        """Remove these for good: each with None once it is gone, or with why it is kept."""
        for job_id in job_ids:
            try:
                await self.delete(job_id)
            except NotFound:
                continue  # another process was quicker
            except StorageError as error:
                yield job_id, str(error)
            else:
                yield job_id, None

    async def not_retained(self) -> list[JobSummary]:
        """The Jobs that `[retention]` of the project removes now."""
        setup = self._setup()
        retention = setup.project.retention
        if retention is None:
            return []
        every = [job async for page in pages(lambda after: self.list(limit=_PAGE, after=after)) for job in page.jobs]
        return not_retained(every, retention, setup.clock.now())

    async def attachment(self, place: str) -> Blob:
        """A file of the workspace, by its path or a `file:` address, for a caller who may read no others.

        Raises UsageError for one that is not there, is outside, or is off limits to tools.
        """
        from perstack.engine.attaching import in_workspace

        return await in_workspace(self._setup(), place)
