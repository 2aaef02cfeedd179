"""Jobs that this process drives: their tasks, to stop them, and the questions that their delegates ask.

This module also keeps the skills of Jobs at rest. A tool may ask a person in the middle of a call, as MCP servers do,
and wait for the answer within that call. Closing its session would end the call, and a tool that acts before it asks
would act twice. So while a person is present, the skills of such a Job stay open until it is answered here. They are
closed when the Job continues in any other way, an hour later, or when other Jobs take their place: the call is then
made again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from perstack.core.base.chain import Head
from perstack.dataclass import dataclass

if TYPE_CHECKING:
    from perstack.engine.plugins.job_skills import JobSkills
    from perstack.engine.runs.job_drive import JobDrive, StopFlags
    from perstack.engine.runs.person_decisions import LiveQuestions  # for types only: readers of Jobs need none

_MAX_KEPT_JOBS = 8  # Jobs at rest whose skills stay open; few, because each may have processes
_MAX_KEPT_S = 3600.0  # seconds for which the skills of a Job at rest stay open


@dataclass(frozen=True, slots=True)
class _KeptSkills:
    """Open skills of a Job at rest, and the timer that closes them."""

    skills: JobSkills
    heads: Mapping[str, Head]  # ends of the logs of the Job at rest
    loop: asyncio.AbstractEventLoop
    expiry: asyncio.TimerHandle


@dataclass(frozen=True, slots=True)
class _ActiveDrive:
    task: asyncio.Task[object]
    stop: StopFlags


class ActiveJobs:
    """The Jobs that this process drives, by id, and Runs driven apart from their Jobs, by the key of the order."""

    def __init__(self) -> None:
        self._active: dict[str, _ActiveDrive] = {}
        self._questions: dict[str, LiveQuestions] = {}
        self._kept_skills: dict[str, _KeptSkills] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def task(self, key: str) -> asyncio.Task[object] | None:
        """Return the task that drives a Job or Run; None if this process does not drive it."""
        active = self._active.get(key)
        return None if active is None else active.task

    def stop(self, key: str) -> None:
        """Cancel the task that drives a Job or Run, because a stop was requested."""
        self._active[key].stop.requested = True
        self._active[key].task.cancel()

    def stop_after_step(self, key: str) -> bool:
        """Stop a Job or Run after the current step of each Run. Return False if this process does not drive it."""
        active = self._active.get(key)
        if active is not None:
            active.stop.after_step = True
        return active is not None

    @asynccontextmanager
    async def register_current_task(
        self, key: str, stop_requested: Callable[[], Coroutine[object, object, None]]
    ) -> AsyncGenerator[StopFlags]:
        """Register the current task as the driver of `key`, and cancel it as soon as `stop_requested` returns."""
        from perstack.engine.runs.job_drive import StopFlags

        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a Job is driven by a task")
        active = self._active[key] = _ActiveDrive(task, StopFlags())
        stop_watch = asyncio.create_task(stop_requested())
        stop_watch.add_done_callback(lambda done: None if done.cancelled() else self.stop(key))
        try:
            yield active.stop
        finally:
            stop_watch.cancel()
            self._active.pop(key, None)

    @contextmanager
    def publish_questions(self, job_id: str, questions: LiveQuestions) -> Generator[None]:
        """Let `questions(job_id)` return these questions of the Job's delegates during the block."""
        self._questions[job_id] = questions
        try:
            yield
        finally:
            del self._questions[job_id]

    def questions(self, job_id: str) -> LiveQuestions | None:
        """Return the questions that delegates of a Job ask; None if the Job is not driven here."""
        return self._questions.get(job_id)

    # --- skills of Jobs at rest -----------------------------------------------------------------------------------

    async def keep_or_close_skills(self, drive: JobDrive) -> None:
        """Close the skills of a Job that is no longer driven, or keep them if one of their calls waits."""
        setup, loaded_job = drive.setup, drive.job
        is_answered_here = setup.is_attended() and loaded_job.question is not None and not drive.worker.name
        if not (is_answered_here and drive.skills.has_waiting_call):
            await drive.close()
            return
        drive.skills.pause()
        loop = asyncio.get_running_loop()
        expiry = loop.call_later(_MAX_KEPT_S, self._expire, loaded_job.id)
        self._kept_skills[loaded_job.id] = _KeptSkills(drive.skills, dict(loaded_job.heads), loop, expiry)
        if len(self._kept_skills) > _MAX_KEPT_JOBS:
            await self.close_skills(next(iter(self._kept_skills)))

    async def reuse_or_close_skills(self, drive: JobDrive, heads: Mapping[str, Head], *, resumes: bool) -> None:
        """Give a Job the skills that were kept for it if it resumes where it stopped; otherwise close them.

        `heads` are the ends of its logs before it resumes.
        """
        kept_skills = self._kept_skills.get(drive.job.id)
        if kept_skills is None:
            return
        if resumes and kept_skills.heads == heads and kept_skills.loop is asyncio.get_running_loop():
            self._pop_skills(drive.job.id)
            kept_skills.skills.continue_as(drive.skills)
            drive.skills = kept_skills.skills
        else:
            await self.close_skills(drive.job.id)

    async def close_skills(self, job_id: str) -> None:
        """Close the skills that are kept for a Job, if there are any."""
        kept_skills = self._pop_skills(job_id)
        # if another event loop opened them, it has ended and has cancelled their tasks
        if kept_skills is not None and kept_skills.loop is asyncio.get_running_loop():
            await kept_skills.skills.close()

    async def close(self) -> None:
        """Close all skills that are kept."""
        for job_id in tuple(self._kept_skills):
            await self.close_skills(job_id)
        closing = [task for task in self._closing if task.get_loop() is asyncio.get_running_loop()]
        if closing:
            await asyncio.wait(closing)

    def _pop_skills(self, job_id: str) -> _KeptSkills | None:
        kept_skills = self._kept_skills.pop(job_id, None)
        if kept_skills is not None:
            kept_skills.expiry.cancel()
        return kept_skills

    def _expire(self, job_id: str) -> None:
        task = asyncio.get_running_loop().create_task(self.close_skills(job_id))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
