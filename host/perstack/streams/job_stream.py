"""Iterate over a Job while it is driven: `async for event in host.stream(…)`.

A `JobStream` drives its Job in a task, whose events a `_Feed` turns into stream events and queues. The task knows the
feed and not the stream: a stream without references, after a `break`, is collected and cancels the task, as a caller
cancels `run`. An answer starts the next task of the feed. `Streams` holds the streams of one Host: it
finds the stream that asked a question, and waits for tasks that were left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakSet

from perstack.core.base.ids import place_of
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.events import Event
from perstack.core.runs.open_questions import OpenQuestion
from perstack.engine.context.host_setup import SetupSource
from perstack.engine.jobs.jobs import Jobs
from perstack.engine.jobs.model_output import ResultReader, result_reader
from perstack.engine.log.run_session import EventListener, OnEvent, as_listener
from perstack.errors import UsageError
from perstack.streams.events import Question, StreamEvent, StreamReader
from perstack.system.concurrency import HeldExit, held_result, hold_exit, wait_despite_cancellation
from perstack.system.user import notice

if TYPE_CHECKING:
    from pydantic import BaseModel

    from perstack.core.jobs.answer_reading import UnreadAnswer

Drive: TypeAlias = Callable[[Jobs, OnEvent], Coroutine[object, object, JobSummary]]
"""Drives a Job with these Jobs and this listener."""

_DriveTask: TypeAlias = "asyncio.Task[JobSummary]"


class _Feed:
    """Stream events of one Job that were not read yet, and the ends of the tasks that drive it."""

    def __init__(self, jobs: Jobs) -> None:
        self.reader = StreamReader()
        self.queue: asyncio.Queue[StreamEvent | _DriveTask] = asyncio.Queue()
        self.job_id: str | None = None
        self.begun = asyncio.Event()  # set once the latest task has recorded that the Job begins or resumes
        self.open: dict[str, Question] = {}  # questions that were queued and not answered
        self._jobs = jobs

    def __call__(self, event: Event, line: bytes) -> None:
        """Queue what an event shows."""
        self.job_id = event.job_id
        questions = self._jobs.active.questions(event.job_id)
        if questions is not None:
            questions.on_asked = self.ask
            self.begun.set()
        for stream_event in self.reader.read(event):
            self.queue.put_nowait(stream_event)

    def ask(self, question: OpenQuestion) -> None:
        """Queue a question of a delegate, which is asked while other Runs are active."""
        self.queue.put_nowait(self.open_question(question))

    def open_question(self, asking_question: OpenQuestion) -> Question:
        """Return the event of a question, which is open from now on."""
        tool_question = self.open[asking_question.id] = self.reader.question(asking_question)
        return tool_question

    def start(self, drive_job: Drive, listener: EventListener) -> _DriveTask:
        """Start a task that drives the Job."""
        self.begun.clear()
        task = asyncio.create_task(hold_exit(drive_job(self._jobs, listener)))
        task.add_done_callback(lambda done: self.begun.set())
        return task


class JobStream:
    """Events of a Job, which is driven while they are read: an async iterator.

    The Job begins when the first event is awaited. Leaving the loop early interrupts the Job, as cancelling `run` does.
    As a context manager the stream also waits until the interrupt is recorded.
    """

    def __init__(self, streams: Streams, jobs: Jobs, drive_job: Drive, results: ResultReader) -> None:
        """Prepare a stream of the Job that `drive` drives, and whose result `results` reads. Nothing begins."""
        self._results = results
        self._streams = streams
        self._jobs = jobs
        self._drive = drive_job
        self._feed = _Feed(jobs)
        self._task: _DriveTask | None = None
        self._asking_task: _DriveTask | None = None  # the task that ended with the question of the last event
        self._is_over = False
        self._reading = False
        self._answering = asyncio.Lock()

    def __aiter__(self) -> JobStream:
        """Return the stream."""
        return self

    async def __anext__(self) -> StreamEvent:
        """Return the next event. Raises what `run` raises, and StopAsyncIteration at the end or an open question.

        Raises UsageError while another task waits for the next event, which only one of them would get.
        """
        if self._reading:
            raise UsageError("another task reads this stream: iterate over it in one task, and hand its events on")
        self._reading = True
        try:
            return await self._next_event()
        finally:
            self._reading = False

    async def _next_event(self) -> StreamEvent:
        if self._task is None and not self._is_over:
            self._continue(self._feed.start(self._drive, self._feed))
        while not self._is_over and await self._is_driven():
            try:
                event = await self._feed.queue.get()
            except asyncio.CancelledError:
                await self.aclose()
                raise
            if not isinstance(event, asyncio.Task):
                return event
            if event is self._task and (last := await self._end_event(event)) is not None:
                return last
        self._is_over = True
        raise StopAsyncIteration

    async def __aenter__(self) -> JobStream:
        """Return the stream."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the stream."""
        await self.aclose()

    async def aclose(self) -> None:
        """Interrupt the Job if it is still driven, and wait until that is recorded. Raises the error of the record."""
        self._is_over = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            cancelled = await wait_despite_cancellation(self._task)
            if not self._task.cancelled():
                held_result(self._task)
            if cancelled is not None:
                raise cancelled

    def __del__(self) -> None:
        """Interrupt a Job that was left before its end."""
        if self._task is not None and not self._task.done():
            self._streams.leave(self._task)

    def is_asking(self, question_id: str) -> bool:
        """Return whether this stream has shown the question, and it is not answered."""
        return not self._is_over and question_id in self._feed.open

    async def answer(self, question_id: str, answer: UnreadAnswer, on_event: OnEvent | None) -> JobSummary:
        """Answer a question of this stream, which continues. Returns when the answer is recorded.

        Raises as `Jobs.answer`; the question then stays open.
        """
        async with self._answering:
            live = self._jobs.active.questions(place_of(question_id)[0])
            if live is not None and live.is_pending(question_id) and answer.signal is None and on_event is None:
                await live.answer(question_id, answer)
            else:
                await self._answer_at_rest(question_id, answer, on_event)
            self._feed.open.pop(question_id, None)
            return await self._jobs.job(place_of(question_id)[0])

    # --- helpers --------------------------------------------------------------------------------------------------

    async def _is_driven(self) -> bool:
        """Return False if the Job rests at an open question that nobody is answering."""
        if self._task is self._asking_task:
            async with self._answering:
                pass
        return self._task is not self._asking_task

    def _continue(self, task: _DriveTask) -> None:
        self._task = task
        task.add_done_callback(self._feed.queue.put_nowait)

    async def _answer_at_rest(self, question_id: str, answer: UnreadAnswer, on_event: OnEvent | None) -> None:
        if self._task is not None:
            await asyncio.wait({self._task})  # it ends soon: the Job asks, and no other Run is active
        feed, extra_listener = self._feed, as_listener(on_event)

        def drive(jobs: Jobs, listener: OnEvent) -> Coroutine[object, object, JobSummary]:
            answering = partial(jobs.answer, changed=answer.changed, signal=answer.signal, by=answer.by)
            return answering(answer.text, question_id=question_id, drive=True, on_event=listener)

        def listener(event: Event, line: bytes) -> None:
            feed(event, line)
            if extra_listener is not None:
                extra_listener(event, line)

        task = feed.start(drive, listener)
        try:
            await feed.begun.wait()
        except asyncio.CancelledError:
            task.cancel()
            await wait_despite_cancellation(task)
            raise
        if task.done():
            held_result(task)  # an answer that does not fit
        self._continue(task)

    async def _end_event(self, task: _DriveTask) -> StreamEvent | None:
        """Return the event for the end of a task; None if it is an open question that was shown. Raises its error."""
        self._is_over = True
        if task.cancelled() and self._feed.job_id is not None:  # another caller has cancelled the Job
            summary = await self._jobs.job(self._feed.job_id)
        else:
            summary = held_result(task)
        if summary.asking is None:
            return self._feed.reader.finish_event(self._results.read(summary))
        self._is_over, self._asking_task = False, task
        return None if summary.asking.id in self._feed.open else self._feed.open_question(summary.asking)


class Streams:
    """The streams of one Host."""

    def __init__(self, jobs: Jobs, source: SetupSource) -> None:
        """Start without streams of these Jobs."""
        self._jobs = jobs
        self._source = source
        self._streams: WeakSet[JobStream] = WeakSet()
        self._unfinished_tasks: set[_DriveTask] = set()

    def open(self, drive_job: Drive, output: type[BaseModel] | None) -> JobStream:
        """Return a stream of the Job that `drive` drives, whose reader counts as a person who answers.

        Raises UsageError for an `output` that cannot be used.
        """
        results = result_reader(output)
        context = results.with_schema_and_check(replace(self._source.setup, is_attended=lambda: True))
        stream = JobStream(self, self._jobs.with_context(SetupSource(context)), drive_job, results)
        self._streams.add(stream)
        return stream

    def find_asking(self, question_id: str) -> JobStream | None:
        """Return the stream that waits for the answer to this question; None without one."""
        return next((stream for stream in self._streams if stream.is_asking(question_id)), None)

    def leave(self, task: _DriveTask) -> None:
        """Cancel the task of a stream that was collected, in any thread."""
        loop = task.get_loop()
        if not loop.is_closed():
            self._unfinished_tasks.add(task)
            loop.call_soon_threadsafe(task.cancel)

    async def settle(self) -> None:
        """Wait until the interrupts of streams that were left are recorded."""
        while self._unfinished_tasks:
            task = self._unfinished_tasks.pop()
            if task.get_loop() is asyncio.get_running_loop():
                await asyncio.wait({task})
                error = None if task.cancelled() else task.exception()
                if error is not None and not isinstance(error, HeldExit):
                    notice(f"a stream was left, and its interrupt was not recorded: {error}")

    async def close(self) -> None:
        """Interrupt every Job that a stream drives."""
        for stream in tuple(self._streams):
            await stream.aclose()
        await self.settle()
