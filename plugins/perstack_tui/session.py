"""A Job in a tab, driven here or followed; it knows no widget. Only one task (`_task`) runs; `interrupt` cancels it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Literal, Protocol, TypeAlias

from perstack.core.base.chain import open_line
from perstack.core.base.ids import By, place_of
from perstack.core.base.text import count, one_line
from perstack.core.base.usage import cost_text
from perstack.core.jobs.resuming import UnsettledCall
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs import events
from perstack.core.runs.facts import Settlement
from perstack.core.runs.open_questions import OpenQuestion
from perstack.doors.shared.activity import JobActivity, LogLine
from perstack.doors.shared.live_project import ReloadedProject
from perstack.doors.shared.next_step_phrases import tui_phrase
from perstack.doors.shared.status_phrases import next_step_of_job, spending_line
from perstack.engine.log.run_session import OnEvent
from perstack.errors import Conflict, NotFound, PerstackError
from perstack.host import Host
from perstack.next_steps import NextStep, Resume
from perstack.system.user import this_user
from perstack_tui.view.styled_text import Style
from perstack_tui.view.transcript import Transcript

NO_EXPERT = "Choose an Expert first: its definition names the model."


def no_change_message(live: ReloadedProject | None) -> str:
    """Return the message that no changed definition waits for agreement."""
    if live is not None and live.problem is not None:
        return "perstack.toml is invalid: there is nothing to agree to."
    return "The current perstack.toml is already in use."


class SessionListener(Protocol):
    """A receiver of events as they arrive, for interfaces that do not draw the transcript."""

    def print_event(self, event: events.Event, lines: Sequence[LogLine], live: JobActivity) -> None:
        """Receive an event, its log rows and the state; for an opened Job first the stored events, in order."""
        ...

    def print_message(self, word: str, text: str) -> None:
        """Receive a message of this program."""
        ...


State: TypeAlias = Literal["new", "running", "reading", "watching", "queued", "asking", "stopped", "completed"]

_TIME = re.compile(rb'"timestamp":(\d+)')

_EVENTS_PER_TURN = 200  # stored events that are applied between two turns of the event loop
_FIRST_EVENTS = 300  # number of last events of a long Run that are shown before the whole log is read
_DRAWING_TIME_S = 0.15  # seconds to draw these before reading blocks the event loop
_QUESTION_CHECK_INTERVAL_S = 0.05  # seconds between checks whether a delegate's question can be answered


class Session:
    """A Job in a tab, or a future Job."""

    def __init__(
        self,
        host: Host,
        expert_key: str | None,
        on_change: Callable[[Session], None],
        listener: SessionListener | None = None,
        phrase: Callable[[NextStep], str] = tui_phrase,
        *,
        drives: bool = False,
    ) -> None:
        """Call `on_change`, which must be quick, after each change. With `drives`, answered Jobs are driven here."""
        self.host = host
        self.drives = drives
        self.expert_key = expert_key
        self.transcript = Transcript()
        self.job_id: str | None = None
        self.job: JobSummary | None = None  # the Job's summary as of its last stop
        self.unsettled: tuple[UnsettledCall, ...] = ()  # calls that a crash left without a result
        self.settlements: dict[str, Settlement] = {}
        self.model: str | None = None  # the model of Runs that begin here; None for the configured one
        self.resume_from: str | None = None  # the checkpoint that the next query or answer branches from
        self.question_again: OpenQuestion | None = None  # the question there to answer again; None for a new query
        self.began: int | None = None  # start of the current task, in milliseconds since 1970; None without one
        self.is_watching = False
        self._waits_for_worker = False  # True if the followed Job waits for a worker
        self._coordinator = ""  # id of the Run that decides `_waits_for_worker`, never that of a delegate
        self._applied_seqs: dict[str, int] = {}  # number of the last applied stored event of each Run
        self.is_reading = False  # True while events are received that were stored before the Job was opened
        self.complete_transcript: Transcript | None = None  # the complete transcript, while only the Job's end is shown
        self._conflict: Conflict | None = None  # why the text sent last had no effect; None once it is shown
        self._on_change = on_change
        self._listener = listener
        self._phrase = phrase
        self._task: asyncio.Task[None] | None = None
        self._background_tasks = set[asyncio.Task[None]]()
        self._delegate_questions: dict[
            str, OpenQuestion
        ] = {}  # delegates' questions while other Runs run, by Run and call

    # --- state ----------------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        return self._task is not None

    @property
    def is_driven(self) -> bool:
        """True if this process drives the Job, so that leaving interrupts it."""
        return self._task is not None and not self.is_watching

    @property
    def is_stopping(self) -> bool:
        """True if the Job was interrupted and has not stopped yet."""
        return self._task is not None and self._task.cancelling() > 0

    @property
    def asking(self) -> OpenQuestion | None:
        """The open question of the Job, or of a delegate while other Runs are running here; None without one."""
        if self.is_driven:
            return next(iter(self._delegate_questions.values()), None)
        return None if self.job is None or self.is_busy else self.job.asking

    @property
    def open_question(self) -> OpenQuestion | None:
        """The question that the next text answers: the open one, or one to answer again; None without one."""
        if self.resume_from is None:
            return self.asking
        return None if self.is_busy else self.question_again

    @property
    def state(self) -> State:
        """The state for display; `reading` and `watching` are states of a Job that is followed here."""
        if self._task is not None:
            if not self.is_watching:
                return "running" if self.asking is None else "asking"
            return "reading" if self.is_reading else "queued" if self._waits_for_worker else "watching"
        if self.job is None:
            return "stopped" if self.is_unread else "new"
        if self.is_unfollowed:
            return "queued" if self.job.status == "queued" else "watching"
        if self.job.asking is not None:
            return "asking"
        return "completed" if self.job.status == "completed" else "stopped"

    @property
    def is_unfollowed(self) -> bool:
        """True if a worker or another process drives the Job, and it is not followed here."""
        return self.job is not None and not self.is_busy and self.job.status in ("queued", "running")

    @property
    def is_unread(self) -> bool:
        """True if the Job could not be read: it is gone, or its storage cannot be reached."""
        return self.job is None and self.job_id is not None and not self.is_busy

    @property
    def spent(self) -> str:
        """Steps, tokens and cost of the Job so far."""
        live = self.transcript.live
        tokens = count(live.usage.total_tokens, "token") if live.usage.total_tokens else ""
        return ", ".join(filter(None, (count(live.steps, "step"), tokens, cost_text(live.usage, live.unpriced_tokens))))

    @property
    def resumption(self) -> Resume | None:
        """The way to resume the Job; None if it cannot be resumed."""
        if self.job is None or self.is_busy:
            return None
        step = next_step_of_job(self.job)
        return step if isinstance(step, Resume) else None

    # --- user actions ---------------------------------------------------------------------------------------------

    def send(self, text: str) -> None:
        """Send the text as the state requires: as query, answer, next query, or higher limit to resume with."""
        job_id, asking, text, drive = self.job_id, self.asking, text.strip(), self.drives or None
        jobs = self.host.jobs.on_model(self.model)
        branch_at, answers_again = self.resume_from, self.question_again is not None
        if self.is_driven and asking is not None:
            self._run_in_background(self._answer_delegate(text, asking))
            return
        self.resume_from, self.question_again = None, None
        resume = self.resumption
        if branch_at is not None and answers_again:
            self._drive(
                lambda on_event: jobs.answer(
                    text, job_id=job_id, resume_from=branch_at, by=_this_user(), drive=True, on_event=on_event
                )
            )
        elif asking is not None and branch_at is None:
            self._drive(
                lambda on_event: self.host.answer(
                    text, question_id=asking.id, by=_this_user(), drive=drive, on_event=on_event
                )
            )
        elif job_id is None:
            self._drive(lambda on_event: jobs.run(self.expert_key or "", text, on_event=on_event))
        elif branch_at is None and resume is not None and resume.needs is not None and _parse_amount(text) is not None:
            self.resume(_parse_amount(text))
        else:
            key = self.expert_key or ""
            self._drive(
                lambda on_event: jobs.continue_job(key, text, job_id=job_id, resume_from=branch_at, on_event=on_event)
            )

    @property
    def accepts_texts(self) -> bool:
        """True if a typed text is posted to the running Job: a process drives it, and it has no open question."""
        return self.job_id is not None and self.asking is None and self.state in ("running", "watching")

    def tell(self, text: str) -> None:
        """Post a text to the running Job; its model sees it before the next generation."""
        self._run_in_background(self._tell(self.job_id or "", text.strip()))

    async def _tell(self, job_id: str, text: str) -> None:
        try:
            delivery = await self.host.tell(job_id, text, by=_this_user())
        except PerstackError as error:
            self._add_message("error", error.text_for(self._phrase), "bad")
        else:
            self._add_message("told", delivery.words, "good")
        self._on_change(self)

    def resume(self, limit: float | None = None) -> None:
        """Resume the Job with the settled calls and, if given, a higher value of the limit it reached."""
        resume, settle, job_id = self.resumption, dict(self.settlements), self.job_id
        if resume is None or job_id is None:
            return
        steps = int(limit) if limit is not None and resume.needs == "max_steps" else None
        dollars = limit if resume.needs == "max_cost" else None
        self._drive(
            lambda on_event: self.host.resume(
                job_id, max_steps=steps, max_cost=dollars, settle=settle, by=_this_user(), on_event=on_event
            )
        )

    def follow(self) -> None:
        """Follow a Job of another process, drive a queued one if `drives` is set, or read an unread one again."""
        summary = self.job
        if self.is_unread and self.job_id is not None:
            self.watch(self.job_id)
        elif summary is not None and self.is_unfollowed and self._may_drive(summary):
            self._drive(lambda on_event: self.host.resume(summary.id, by=_this_user(), on_event=on_event))
        elif summary is not None and self.is_unfollowed:
            self.is_watching = True
            self._start_task(self._refresh_and_follow)

    def branch(self, checkpoint_id: str, question: OpenQuestion | None = None) -> None:
        """Let the next text branch from this checkpoint: as a new query, or as another answer to `question`."""
        self.resume_from, self.question_again = checkpoint_id, question
        self._on_change(self)

    def use_model(self, model: str | None) -> None:
        """Use this model for Runs that begin here from now on; None for the configured one."""
        self.model = model
        self._on_change(self)

    def model_in_force(self) -> str:
        """Return the model of the next Run as `provider/model`; empty without an Expert. Raises PerstackError."""
        return "" if self.expert_key is None else self.host.experts.model(self.expert_key, self.model)

    async def check_model(self, name: str) -> tuple[str, bool]:
        """Return a message about the model in use, and True if it is a warning: a provider may not list a newer model.

        Raises PerstackError if the model cannot be used; then the configured one is used.
        """
        from perstack_tui.view.models import unknown_model_warning

        try:
            model_name, known_names = self.model_in_force(), await self.host.experts.models(self.expert_key or "")
        except PerstackError:
            self.use_model(None)
            raise
        warning = unknown_model_warning(name, known_names)
        return (warning, True) if warning else (f"{one_line(model_name)} from the next Run on", False)

    def interrupt(self) -> None:
        """Interrupt the Job driven here, stop watching another, or leave a branch that has not begun."""
        if self._task is not None:
            self._task.cancel()
        elif self.resume_from is not None:
            self.resume_from, self.question_again = None, None
            self._on_change(self)

    async def wait_until_idle(self) -> None:
        while self._task is not None:
            await asyncio.wait({self._task})

    def watch(self, job_id: str) -> None:
        """Show an existing Job, and follow it while another process drives it."""
        self.job_id = job_id
        self.is_watching = self.is_reading = True
        self._start_task(lambda: self._watch_job(job_id))

    async def _answer_delegate(self, text: str, question: OpenQuestion) -> None:
        try:
            await self.host.jobs.answer_live(text, question.id, by=_this_user())
        except Conflict as error:
            await self.wait_until_idle()  # the Job stopped meanwhile, so the question is now the Job's own
            if self.asking is not None and self.asking.id == question.id:
                self.send(text)
            else:
                self._add_message("error", error.text_for(self._phrase), "bad")
        except PerstackError as error:
            self._add_message("error", error.text_for(self._phrase), "bad")
        self._on_change(self)

    async def _wait_for_question(self, question_id: str) -> None:
        """Wait until a delegate's question can be answered, a moment after it was recorded, then show it."""
        while self.is_driven and self.job_id is not None:
            await asyncio.sleep(_QUESTION_CHECK_INTERVAL_S)
            for question in self.host.jobs.live_questions(self.job_id):
                if question.id == question_id:
                    self._delegate_questions[f"{question.run_id} {question.tool_call_id}"] = question
                    self._on_change(self)
                    return

    def _run_in_background(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    # --- tasks ----------------------------------------------------------------------------------------------------

    def _drive(self, work: Callable[[OnEvent], Awaitable[JobSummary]]) -> None:
        if self._task is None:
            self.unsettled, self.settlements = (), {}
            self.began = self.host.clock.now()
            self._start_task(lambda: self._drive_job(work))

    def _start_task(self, work: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            await work()

        self._task = asyncio.create_task(run())
        # a callback, since a task that is cancelled before it starts runs no `finally`
        self._task.add_done_callback(self._on_task_end)
        self._on_change(self)

    def _on_task_end(self, work: asyncio.Task[None]) -> None:
        self._task, self.began, self.complete_transcript, self._delegate_questions = None, None, None, {}
        self.is_watching = self.is_reading = self._waits_for_worker = False
        self._on_change(self)
        if not work.cancelled():
            work.result()

    async def _drive_job(self, work: Callable[[OnEvent], Awaitable[JobSummary]]) -> None:
        """Drive the Job and show its outcome. If another process drives it already, watch it instead."""
        previous = self.job
        try:
            self.job = await work(self._on_event)
        except asyncio.CancelledError:  # `interrupt` was called; the driver has recorded it
            await self._refresh_summary()
            self._show_outcome()
        except Conflict as error:
            if self.job_id is None:
                self._show_error(error)
            else:
                self.is_watching, self._conflict = True, error
                await self._watch_job(self.job_id)
        except PerstackError as error:
            self._show_error(error)
            await self._refresh_and_follow(previous)
        else:
            if self.job.status == "queued":
                await self._refresh_and_follow()
            else:
                self._show_ending(self.job)

    async def _watch_job(self, job_id: str) -> None:
        """Show the whole Job and then its new events; of a long Job first its end, while all of it is read."""
        self.is_reading = True
        self._applied_seqs = {}
        self._on_change(self)
        transcript = Transcript()
        try:
            if not await self._show_end(job_id):
                self.transcript = transcript
            self.complete_transcript, event_count = transcript, 0
            async for line in self.host.jobs.watch(job_id, on_caught_up=self._show_complete_transcript):
                self._apply_event(line.event, transcript, line.seq)
                self._on_change(self)
                event_count += 1
                if event_count % _EVENTS_PER_TURN == 0:
                    await asyncio.sleep(0)
        except PerstackError as error:
            self.transcript = transcript
            self._show_conflict()
            self._show_error(error)
        except asyncio.CancelledError:  # `interrupt` was called: stop watching
            await self._refresh_summary()
            return
        await self._note_programs(job_id)
        await self._refresh_and_follow()

    async def _note_programs(self, job_id: str) -> None:
        """Add a note if programs of an opened Job run without a question, as decided at its start."""
        with suppress(PerstackError):  # `_refresh_and_follow` reports the error
            if not self.host.programs_note and (note := await self.host.programs_note_of(await self.host.job(job_id))):
                self._add_message("note", note)

    def _show_complete_transcript(self) -> None:
        """Replace the shown end with the complete transcript, once all stored events are read and valid."""
        if self.complete_transcript is not None:
            self.transcript, self.complete_transcript, self.is_reading = self.complete_transcript, None, False
            self._on_change(self)
        self._show_conflict()

    def _show_conflict(self) -> None:
        conflict, self._conflict = self._conflict, None
        if conflict is not None:
            self._add_message("error", conflict.text_for(self._phrase), "bad")

    async def _show_end(self, job_id: str) -> bool:
        """Show the end of a long Job and return True; False for a short one, or with a listener, which needs all."""
        logs = () if self._listener is not None else await self.host.jobs.last_lines(job_id, count=_FIRST_EVENTS)
        if all(len(log.lines) < _FIRST_EVENTS for log in logs):
            return False
        latest = max(logs, key=lambda log: _read_timestamp(log.lines[-1]) if log.lines else 0)
        self.transcript = Transcript()
        for line in latest.lines:
            with suppress(ValueError):  # the following reading of the whole log reports errors
                self.transcript.apply(events.parse_event(open_line(line).payload))
        self._on_change(self)
        await asyncio.sleep(_DRAWING_TIME_S)
        return True

    async def _refresh_and_follow(self, known_summary: JobSummary | None = None) -> None:
        """Read the summary, follow the Job while others drive it, and show the outcome unless it is `known_summary`."""
        try:
            await self._refresh_summary()
            while self.job is not None and _is_driven_by_others(self.job) and not self._may_drive(self.job):
                known_seqs = {**self._applied_seqs}
                await self._follow_job(self.job)
                await self._refresh_summary()
                if self._applied_seqs == known_seqs:  # no event arrived, so no worker drives it
                    break
        except PerstackError as error:
            self._show_error(error)
        except asyncio.CancelledError:  # `interrupt` was called: stop watching
            await self._refresh_summary()
            return
        self._show_outcome(known_summary)

    def _may_drive(self, summary: JobSummary) -> bool:
        """Return whether a Job that waits for a worker is driven here at the user's request."""
        return self.drives and summary.status == "queued"

    async def _follow_job(self, summary: JobSummary) -> None:
        self.is_watching, self.is_reading, self._waits_for_worker = True, False, summary.status != "running"
        self._coordinator = summary.coordinator_run_id or self._coordinator
        self._on_change(self)
        known_seqs = {**self._applied_seqs}
        if summary.queued is not None:
            await self.host.jobs.follow(summary.id, after=known_seqs, on_event=self._on_event)
            return
        async for line in self.host.jobs.watch(summary.id, after=known_seqs):
            self._apply_event(line.event, self.transcript, line.seq)
            self._on_change(self)

    async def _refresh_summary(self) -> None:
        if self.job_id is None:
            return
        try:
            self.job = await self.host.job(self.job_id)
        except NotFound:
            if self.job is None and not self.is_watching:
                self.job_id = None  # the Job was never stored, so the next text starts a new one
            return
        self.expert_key = self.expert_key or self.job.expert_key
        if self.job.status == "stoppedByInterrupt":
            self.unsettled = await self.host.jobs.unsettled(self.job_id)

    def _show_outcome(self, known_summary: JobSummary | None = None) -> None:
        """Show that nothing is running, and the outcome unless it is `known_summary`."""
        was_at_work = self.transcript.stop_all()
        if self.job is not None and self.job.status == "stoppedByInterrupt" and was_at_work:
            self._add_message("interrupted", "the Job's process has ended")
        if self.job is not None and self.job != known_summary:
            self._show_ending(self.job)

    def _on_event(self, event: events.Event, line: bytes) -> None:
        self._apply_driven(event)

    def _apply_driven(self, event: events.Event) -> None:
        self.job_id = self.job_id or event.job_id
        self._apply_event(event, self.transcript, place_of(event.id)[2] if isinstance(event, events.StoredEvent) else 0)
        self._on_change(self)

    def _apply_event(self, event: events.Event, transcript: Transcript, seq: int) -> None:
        """Apply an event. `seq` is its number in its Run's log; 0 if it is not stored."""
        if seq:
            self._applied_seqs[event.run_id] = seq
            if isinstance(event, events.StartRun) and event.delegated_by is None:
                self._coordinator = event.run_id
            if event.run_id == self._coordinator:
                self._waits_for_worker = isinstance(event, events.QueueRun)
        transcript.live.asks_at_once = self.is_driven
        lines = transcript.apply(event)
        if self.is_driven and isinstance(event, events.RequestApproval | events.CallInteractiveTool):
            self._run_in_background(self._wait_for_question(event.id))
        elif isinstance(
            event,
            events.AnswerQuestion
            | events.SettleCall
            | events.DecideApproval
            | events.ChangeCall
            | events.FinishToolCall,
        ):
            self._delegate_questions.pop(f"{event.run_id} {event.tool_call_id}", None)
        if self._listener is not None:
            self._listener.print_event(event, lines, transcript.live)

    def _add_message(self, word: str, text: str, style: Style = "warn") -> None:
        self.transcript.add_message(word, text, style)
        if self._listener is not None:
            self._listener.print_message(word, text)

    def _show_error(self, error: PerstackError) -> None:
        self.transcript.stop_all()
        self._add_message("error", error.text_for(self._phrase), "bad")

    def _show_ending(self, summary: JobSummary) -> None:
        if summary.status == "completed":
            self._add_message("completed", spending_line(summary), "good")


def _this_user() -> By:
    return this_user("start")


def _is_driven_by_others(summary: JobSummary) -> bool:
    """Return whether another process drives the Job, or it is queued for a worker."""
    is_queued = summary.status == "queued" or (summary.queued is not None and summary.status == "stoppedByInterrupt")
    return summary.closed is None and (is_queued or summary.status == "running")


def _read_timestamp(line: bytes) -> int:
    """Return the time of a line's event, in milliseconds since 1970; 0 if it cannot be read."""
    match = _TIME.search(line[:1_000])
    return int(match[1]) if match else 0


def _parse_amount(text: str) -> float | None:
    try:
        amount = float(text.removeprefix("$"))
    except ValueError:
        return None
    return amount if 0 < amount < 1e12 else None
