"""What this process drives: the tasks of Jobs, to stop them, and the questions that their delegates ask meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from perstack.dataclass import dataclass

if TYPE_CHECKING:
    from perstack.engine.runs.decisions import LiveQuestions  # reading Jobs needs none of it
    from perstack.engine.runs.job_context import StopFlags


@dataclass(frozen=True, slots=True)
class _Active:
    task: asyncio.Task[object]
    stop: StopFlags


class ActiveJobs:
    """The Jobs that this process drives, by id, and Runs driven apart from their Jobs, by the key of the order."""

    def __init__(self) -> None:
        """Start with none."""
        self._active: dict[str, _Active] = {}
        self._questions: dict[str, LiveQuestions] = {}

    def task(self, key: str) -> asyncio.Task[object] | None:
        """Return the task that drives it; None if this process does not."""
        active = self._active.get(key)
        return None if active is None else active.task

    def stop(self, key: str) -> None:
        """Cancel its task because a stop was requested."""
        self._active[key].stop.requested = True
        self._active[key].task.cancel()

    def stop_after_step(self, key: str) -> bool:
        """Stop it when each of its Runs has finished its current step; False if this process does not drive it."""
        active = self._active.get(key)
        if active is not None:
            active.stop.after_step = True
        return active is not None

    @asynccontextmanager
    async def owned_by_current_task(
        self, key: str, stop_requested: Callable[[], Coroutine[object, object, None]]
    ) -> AsyncGenerator[StopFlags]:
        """Register the current task as the driver of `key`, and cancel it as soon as `stop_requested` returns."""
        from perstack.engine.runs.job_context import StopFlags

        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a Job is driven by a task")
        active = self._active[key] = _Active(task, StopFlags())
        watching = asyncio.create_task(stop_requested())
        watching.add_done_callback(lambda done: None if done.cancelled() else self.stop(key))
        try:
            yield active.stop
        finally:
            watching.cancel()
            self._active.pop(key, None)

    @contextmanager
    def showing(self, job_id: str, questions: LiveQuestions) -> Generator[None]:
        """Let `questions` find the questions that delegates of the Job ask during the block."""
        self._questions[job_id] = questions
        try:
            yield
        finally:
            del self._questions[job_id]

    def questions(self, job_id: str) -> LiveQuestions | None:
        """Return the questions that delegates of a Job ask; None if the Job is not driven here."""
        return self._questions.get(job_id)
