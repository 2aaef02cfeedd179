"""Drive Jobs in this process: what every operation that begins or continues a Job shares.

`_go_on` takes, in this order, a slot of the process's Job limit, the lease of the Job on a workspace that is not being
rewound, and the guard of leftover programs; it loads the Job, lets the operation's `begin` check it, and drives it, or
queues it for a worker. `Driving` holds the tasks that drive Jobs, to stop them. A Job that plays a recording is
continued as long as the recording answers its questions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING

from perstack.config.lock import Lock
from perstack.core.base.actor import By
from perstack.core.base.ids import check_job_id
from perstack.core.definitions.overrides import RECORDED
from perstack.core.definitions.permissions import Approval
from perstack.core.jobs.job import Job
from perstack.core.jobs.resuming import check_not_closed, new_limits
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.events import Settlement
from perstack.core.runs.facts import Answer, Question
from perstack.core.runs.messages import ResultContent
from perstack.core.runs.questions import OpenQuestion
from perstack.core.runs.state import Run, call_key, is_unsettled
from perstack.dataclass import dataclass
from perstack.engine.context.host_context import Setup
from perstack.engine.context.job_limit import job_slots
from perstack.engine.jobs.files import JobFiles
from perstack.engine.log.emitter import Emitter, OnEvent, runtime_begins
from perstack.engine.log.leases import StopRequests, leftover_programs_ended
from perstack.engine.plugins.agent_skills import SkillLibrary
from perstack.errors import Conflict, PerstackError, UsageError
from perstack.next_steps import Continue, SetOption
from perstack.ports.provider import Provider
from perstack.system.clock import new_ids
from perstack.system.concurrency import in_own_task
from perstack.system.user import this_process

if TYPE_CHECKING:
    from perstack.core.runs.messages import Attached
    from perstack.engine.jobs.attachments import Attachable  # what a Run without attachments does not need
    from perstack.engine.jobs.queued_definition import Queueing
    from perstack.engine.log.run_session import RunSession
    from perstack.engine.runs.loop import Driver  # whoever only looks at Jobs drives none
    from perstack.ports.tasks import TaskMemory


# Answers of a recording to a stopped Job: to its question, or for calls that began and have no result.

DOOR = "recording"
"""The door that is recorded for answers of a recording."""


def plays(job: Job) -> bool:
    """Return whether a Run of the Job plays a recording."""
    return any(run.start.provider == RECORDED for run in job.runs.values())


def played_answer(setup: Setup, loaded: Job) -> Callable[[Driver], RunSession] | None:
    """Return the function that resumes a Job with the recorded answer to its question.

    Returns None if nothing is asked, no recording is played, or it has no answer: then a person is asked.
    """
    asking = loaded.question
    asked = None if asking is None else loaded.runs.get(asking.run_id)
    if asking is None or asked is None:
        return None
    run = loaded.coordinator
    if run.status != "stoppedByInteractiveTool":
        return None
    provider = _provider(setup, asked)
    answer = None if provider is None else _said(provider, loaded, asking, asked)
    if answer is None:
        return None

    def take_up(driver: Driver) -> RunSession:
        driver.answers[asking.run_id], driver.answered_by = answer, By(door=DOOR)
        return driver.take_up(run, "answer", limits=new_limits(run, setup.overrides))

    return take_up


def played_again(setup: Setup, loaded: Job) -> dict[str, Settlement]:
    """Return the unsettled calls that a recording answers, by key, to be retried: no effect can be doubled."""
    if not plays(loaded):
        return {}
    from perstack.engine.runs.playback import played_calls

    found: dict[str, Settlement] = {}
    for run in loaded.runs.values():
        provider = _provider(setup, run)
        calls = () if provider is None else played_calls(provider, run, setup.plugins.skills)
        found.update({call_key(run, call): "retry" for call in calls if is_unsettled(call)})
    return found


def _provider(setup: Setup, run: Run) -> Provider | None:
    """Return the provider of a Run that plays a recording; None for other Runs."""
    try:
        provider = setup.providers.for_run(run, setup.project, setup.overrides).provider
    except PerstackError:
        return None
    return provider if provider.player is not None else None


def _said(provider: Provider, loaded: Job, asking: OpenQuestion, run: Run) -> str | Answer | Approval | None:
    from perstack.core.jobs.summary import places_of
    from perstack.core.recordings.model import SaidApproval, SaidForm, SaidText

    player = provider.player
    if player is None:
        return None
    place = places_of(one.start for one in loaded.runs.values())[run.id]
    where = (place, asking.tool_call_id, run.step)
    if asking.call_digest:
        approval = player.said(*where, SaidApproval)
        is_offered = approval is not None and approval.rule in ("", *asking.offers)
        return approval.approval if approval is not None and is_offered else None
    if asking.requested_schema is not None:
        form = player.said(*where, SaidForm, len(run.calls[asking.tool_call_id].answers))
        if form is None or form.action is None:
            return None
        question = Question(message=asking.text, requested_schema=asking.requested_schema)
        return Answer(question=question, action=form.action, content=form.content)
    text = player.said(*where, SaidText)
    return None if text is None else text.text


@dataclass(frozen=True, slots=True)
class InForce:
    """The setup, lock and knowledge that a Job is driven with."""

    setup: Setup
    lock: Lock
    knowledge: SkillLibrary


@dataclass(slots=True)
class Driving:
    """The Jobs, and single Runs, that this process drives."""

    tasks: dict[str, asyncio.Task[object]] = field(default_factory=dict[str, asyncio.Task[object]])
    """By the id of the Job; for a Run driven apart from its Job, by the key of its order."""
    stopped: set[str] = field(default_factory=set[str])
    """Keys whose stop was requested."""
    leaving: set[str] = field(default_factory=set[str])
    """Keys that stop when their current steps have ended."""
    drivers: dict[str, Driver] = field(default_factory=dict[str, "Driver"])
    """By the id of the Job, of Jobs that are driven with their Coordinator."""

    def stop(self, job_id: str) -> None:
        """Cancel the task of a Job because a stop was requested."""
        self.stopped.add(job_id)
        self.tasks[job_id].cancel()

    def forget(self, job_id: str) -> None:
        """Remove a Job that is not driven any more."""
        self.tasks.pop(job_id, None)
        self.stopped.discard(job_id)
        self.leaving.discard(job_id)

    @asynccontextmanager
    async def by_this_task(
        self, key: str, asked: Callable[[], Coroutine[object, object, None]]
    ) -> AsyncGenerator[None]:
        """Register the current task as the driver of `key` for the block, and cancel it as soon as `asked` returns."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a Job is driven by a task")
        self.tasks[key] = task
        watching = asyncio.create_task(asked())
        watching.add_done_callback(lambda done: None if done.cancelled() else self.stop(key))
        try:
            yield
        finally:
            watching.cancel()
            self.forget(key)


class DrivenJobs(JobFiles):
    """Jobs that this process drives."""

    def __init__(
        self,
        setup: Callable[[], Setup],
        tasks: Callable[[], TaskMemory],
        driving: Driving | None = None,
    ) -> None:
        """Read the current setup from `setup` each time a Job begins."""
        now = setup()
        super().__init__(now.storage, now.audit, now.plugins, now.workspace, now.env)
        self._setup = setup
        self._tasks = tasks
        self._driving = Driving() if driving is None else driving

    async def _go_on(
        self,
        setup: Setup,
        job_id: str,
        begin: Callable[[Job], Awaitable[Callable[[Driver], RunSession]]],
        on_event: OnEvent | None,
        *,
        takes_up: bool = False,
        leaves: Callable[[Job], Awaitable[Queueing | None]] | None = None,
    ) -> JobSummary:
        """Continue a Job: drive it, or queue it for a worker. Returns its summary.

        `takes_up`: the Coordinator's latest Run itself is resumed, under the definition that it was queued with.
        `leaves` returns how the Job is queued; None to drive it.
        """
        self.audit.check()
        lock = setup.lock()  # report a broken lock before the lease is taken

        async def work() -> JobSummary:
            async with job_slots().taken(), self._leased(job_id):
                loaded = await self.load(job_id)
                check_not_closed(loaded)
                started = await begin(loaded)
                queueing = None if leaves is None else await leaves(loaded)
                if not takes_up:  # nothing awaits the delegates of the earlier Run
                    await self.stop_elsewhere(loaded)
                used = await self._in_force(setup, loaded, lock, takes_up=takes_up)
                return await self._drive(used, loaded, started, on_event, queueing)

        return await in_own_task(work())

    async def stop_elsewhere(self, loaded: Job, below: str | None = None) -> None:
        """Stop the remote Runs of a Job whose lease the caller holds, or only the descendants of the Run `below`.

        Brings the loaded states up to date. Raises StorageError.
        """
        if any(run.queued is not None for run in loaded.runs.values() if not run.is_coordinator):
            from perstack.engine.runs.remote_delegates import stop_elsewhere

            setup, emit = self._setup(), Emitter(self.plugins.listeners, None)
            runs = dict(loaded.runs)
            await stop_elsewhere(self.storage, loaded, runs, emit, setup.clock, setup.dispatching, below=below)

    async def _in_force(self, setup: Setup, loaded: Job, lock: Lock | None, *, takes_up: bool = True) -> InForce:
        """Return what a Job is driven with: today's setup, or with `takes_up` what its latest Run was queued with."""
        digest, key = loaded.coordinator.definition, loaded.coordinator.start.expert_key
        if digest is not None and takes_up:
            from perstack.engine.jobs.queued_definition import as_queued  # most Jobs are never queued

            setup, lock = await as_queued(setup, loaded.id, digest)
        lock = setup.lock() if lock is None else lock
        return InForce(setup, lock, await setup.knowledge(key, lock))

    async def _attached(self, setup: Setup, expert_key: str, attachments: Sequence[Attachable]) -> tuple[Attached, ...]:
        """Read the attachments, and check that the Expert's model takes them. Raises UsageError."""
        if not attachments:
            return ()
        from perstack.engine.jobs.attachments import attached, check_taken

        found = await attached(attachments)
        check_taken(setup, expert_key, found)
        return found

    async def _kept(self, job_id: str, added: tuple[Attached, ...]) -> tuple[ResultContent, ...]:
        if not added:
            return ()
        from perstack.engine.jobs.attachments import keep

        return await keep(self.storage, job_id, added)

    async def _drive(
        self,
        used: InForce,
        loaded: Job,
        begin: Callable[[Driver], RunSession],
        on_event: OnEvent | None,
        queueing: Queueing | None = None,
    ) -> JobSummary:
        """Drive a Job, and on while a recording answers its questions; or queue it for a worker."""
        job = await self._drive_once(used, loaded, begin, on_event, queueing)
        while job.asking is not None and plays(loaded):
            loaded = await self.load(job.id)
            played = played_answer(used.setup, loaded)
            if played is None:
                break
            job = await self._drive_once(used, loaded, played, on_event)
        return job

    async def _drive_once(
        self,
        used: InForce,
        loaded: Job,
        begin: Callable[[Driver], RunSession],
        on_event: OnEvent | None,
        queueing: Queueing | None = None,
    ) -> JobSummary:
        from perstack.engine.runs.job_context import wired
        from perstack.engine.runs.loop import Driver

        setup, emit = used.setup, Emitter(self.plugins.listeners, on_event)
        wiring = wired(setup, loaded.id, emit, self._tasks, used.lock, used.knowledge)
        session = begin(driver := Driver(wiring, loaded, drives_here=queueing is None))
        driver.is_leaving = lambda: loaded.id in self._driving.leaving
        driver.is_stopped = lambda: loaded.id in self._driving.stopped
        start = session.run.start
        if queueing is not None:
            from perstack.engine.jobs.queued_definition import leave_to_a_worker

            async with self.audit.anchored(loaded):
                return await leave_to_a_worker(driver, wiring, session, queueing, used.lock)
        await setup.check_policies((start.sandbox,))  # before anything is written
        emit.display(runtime_begins(start, session.run.limits, self.storage.location, setup.clock.now()))
        async with self.audit.anchored(loaded):
            self._driving.drivers[loaded.id] = driver
            try:
                return await driver.drive_coordinator(session)
            finally:
                del self._driving.drivers[loaded.id]
                await wiring.skills.close()

    @asynccontextmanager
    async def _leased(self, job_id: str) -> AsyncGenerator[None]:
        holder = this_process()
        asked = partial(StopRequests(self.storage).wait_for_stop_request, job_id, holder)
        leased = self._leased_on_whole_files(job_id, holder)
        async with leased, leftover_programs_ended(self.storage), self._driving.by_this_task(job_id, asked):
            yield

    async def _new_job(self, job_id: str | None) -> str:
        if job_id is None:
            ids = new_ids(self._setup().clock.now())
            while True:
                job_id = next(ids)
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
        """Raise UsageError for a Job that has begun, or whose logs were removed, so that its id must not be used again.

        A Job whose process ended before its first event can be used.
        """
        begun = await self._begun(job_id)
        if begun == "begun":
            raise UsageError(f"Job {job_id} exists", next_steps=(Continue(job_id), SetOption("job_id")))
        if begun == "removed":
            words = f"Job {job_id} had events, and its logs are gone: put them back"
            raise UsageError(words, next_steps=(SetOption("job_id"),))

    async def _base(self, loaded: Job, resume_from: str | None) -> Run:
        if resume_from is None:
            return loaded.coordinator
        base = await self._state_at(resume_from, loaded.id)
        if not base.is_coordinator:
            raise UsageError(f"{resume_from} is a delegate's checkpoint; only the Coordinator's can be branched from")
        return base
