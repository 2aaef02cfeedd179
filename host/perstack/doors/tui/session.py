"""A Job in a tab: driven here, or watched while another process drives it. Knows the Host, and no widget."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Literal, TypeAlias

from perstack.core.by import By
from perstack.core.chain import open_line
from perstack.core.events import (
    AnswerQuestion,
    CallInteractiveTool,
    DecideApproval,
    Event,
    FinishToolCall,
    QueueRun,
    RequestApproval,
    Settlement,
    StartRun,
    StoredEvent,
    parse_event,
)
from perstack.core.ids import place_of
from perstack.core.job import JobSummary
from perstack.core.runs.asking import OpenQuestion
from perstack.core.runs.resuming import UnsettledCall
from perstack.engine.emit import OnEvent
from perstack.engine.who import this_user
from perstack.errors import Conflict, NotFound, PerstackError
from perstack.frontends.shared.following import after_job
from perstack.frontends.shared.words import spent
from perstack.frontends.tui.listener import Listener
from perstack.frontends.tui.next_steps import said
from perstack.frontends.tui.view.spans import Style
from perstack.frontends.tui.view.transcript import Transcript
from perstack.host import Host
from perstack.next_steps import NextStep, Resume

State: TypeAlias = Literal["new", "running", "reading", "watching", "queued", "asking", "stopped", "completed"]

_TIME = re.compile(rb'"timestamp":(\d+)')

_AT_ONCE = 200
"""Stored events that are taken in before others have their turn."""

_END = 300
"""Stored events of a Run that has more: they are shown before the rest is read."""

_SEEN = 0.15
"""Seconds in which that is drawn."""

_LOOKS_EACH = 0.05
"""Seconds between two looks whether a delegate can be answered."""


class Session:
    """One Job, or one to be."""

    def __init__(
        self,
        host: Host,
        expert_key: str | None,
        on_change: Callable[[Session], None],
        listener: Listener | None = None,
        said: Callable[[NextStep], str] = said,
        *,
        drives: bool = False,
    ) -> None:
        """`on_change` is called at each event: it is to be quick. `said` names what may be done next. `drives`: a Job
        that is answered is driven here also where workers would drive it."""
        self.host = host
        self.drives = drives
        self.expert_key = expert_key
        self.transcript = Transcript()
        self.job_id: str | None = None
        self.job: JobSummary | None = None
        """As it stood when it was stopped last."""
        self.unsettled: tuple[UnsettledCall, ...] = ()
        """Calls that a crash left open: what became of them may be said before it is resumed."""
        self.settled: dict[str, Settlement] = {}
        self.resume_from: str | None = None
        """The checkpoint that the next query, or answer, branches from."""
        self.again: OpenQuestion | None = None
        """What was asked at that checkpoint, if what is sent next is another answer to it."""
        self.began: int | None = None
        """When the work in hand did, in milliseconds since 1970."""
        self.is_watching = False
        self._waits = False
        """Whether what is watched waits for a worker."""
        self._coordinator = ""
        """The Run that says so: a delegate may wait for another worker while its Job is driven."""
        self._heard: dict[str, int] = {}
        """How many stored events of each Run were heard."""
        self.is_reading = False
        """Whether what is heard was stored before the Job was opened."""
        self.coming: Transcript | None = None
        """All of a Job whose end is shown, while it is read."""
        self._overtaken: Conflict | None = None
        """Why nothing came of what was sent, until that is said below what others have done."""
        self._on_change = on_change
        self._listener = listener
        self._said = said
        self._work: asyncio.Task[None] | None = None
        self._others = set[asyncio.Task[None]]()
        self._meanwhile: dict[str, OpenQuestion] = {}
        """What delegates ask while others are at work here, by the call."""

    # --- how it stands --------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether it is driven here, or watched."""
        return self._work is not None

    @property
    def is_driven(self) -> bool:
        """Whether it is driven here: who leaves interrupts it."""
        return self._work is not None and not self.is_watching

    @property
    def is_stopping(self) -> bool:
        """Whether it has been interrupted, and is not yet at rest."""
        return self._work is not None and self._work.cancelling() > 0

    @property
    def asking(self) -> OpenQuestion | None:
        """What a person is asked: by the Job, or by a delegate while others of it are at work here."""
        if self.is_driven:
            return next(iter(self._meanwhile.values()), None)
        return None if self.job is None or self.is_busy else self.job.asking

    @property
    def open_question(self) -> OpenQuestion | None:
        """What is answered by what is sent next, if anything: what is asked, or what was once."""
        if self.resume_from is None:
            return self.asking
        return None if self.is_busy else self.again

    @property
    def state(self) -> State:
        if self._work is not None:
            if not self.is_watching:
                return "running" if self.asking is None else "asking"
            return "reading" if self.is_reading else "queued" if self._waits else "watching"
        if self.job is None:
            return "stopped" if self.is_unread else "new"
        if self.is_elsewhere:
            return "queued" if self.job.status == "queued" else "watching"
        if self.job.asking is not None:
            return "asking"
        return "completed" if self.job.status == "completed" else "stopped"

    @property
    def is_elsewhere(self) -> bool:
        """Whether a worker, or another process, has the Job, and nobody looks at it here."""
        return self.job is not None and not self.is_busy and self.job.status in ("queued", "running")

    @property
    def is_unread(self) -> bool:
        """Whether it could not be read: it is no longer there, or its storage cannot be reached."""
        return self.job is None and self.job_id is not None and not self.is_busy

    @property
    def resumption(self) -> Resume | None:
        """How it is resumed, if it can be."""
        if self.job is None or self.is_busy:
            return None
        step = after_job(self.job)
        return step if isinstance(step, Resume) else None

    # --- what a person does ---------------------------------------------------------------------------------------

    def send(self, text: str) -> None:
        """What was typed: the query, an answer, the next query of the same Job, or a higher limit to resume with."""
        job_id, asking, text, drive = self.job_id, self.asking, text.strip(), self.drives or None
        place, is_again = self.resume_from, self.again is not None
        if self.is_driven and asking is not None:
            self._beside(self._answered_meanwhile(text, asking))
            return
        self.resume_from, self.again = None, None
        resume = self.resumption
        if place is not None and is_again:
            self._drive(
                lambda on: self.host.answer(text, job_id=job_id, resume_from=place, by=_by(), drive=True, on_event=on)
            )
        elif asking is not None and place is None:
            self._drive(lambda on: self.host.answer(text, question_id=asking.id, by=_by(), drive=drive, on_event=on))
        elif job_id is None:
            self._drive(lambda on: self.host.run(self.expert_key or "", text, on_event=on))
        elif place is None and resume is not None and resume.needs is not None and _amount(text) is not None:
            self.resume(_amount(text))
        else:
            key = self.expert_key or ""
            self._drive(lambda on: self.host.continue_job(key, text, job_id=job_id, resume_from=place, on_event=on))

    def resume(self, limit: float | None = None) -> None:
        """Continue what is stopped, with what was said of open calls, and a higher limit of what it had used up."""
        resume, settle, job_id = self.resumption, dict(self.settled), self.job_id
        if resume is None or job_id is None:
            return
        steps = int(limit) if limit is not None and resume.needs == "max_steps" else None
        dollars = limit if resume.needs == "max_cost" else None
        self._drive(
            lambda on: self.host.resume(job_id, max_steps=steps, max_cost=dollars, settle=settle, by=_by(), on_event=on)
        )

    def follow(self) -> None:
        """See what becomes of a Job that somebody else has; one that waits for a worker may be driven here. One that
        could not be read is read again."""
        job = self.job
        if self.is_unread and self.job_id is not None:
            self.watch(self.job_id)
        elif job is not None and self.is_elsewhere and self._may_drive(job):
            self._drive(lambda on: self.host.resume(job.id, by=_by(), on_event=on))
        elif job is not None and self.is_elsewhere:
            self.is_watching = True
            self._begin(self._look)

    def branch(self, checkpoint_id: str, again: OpenQuestion | None = None) -> None:
        """What is sent next branches from this checkpoint: a new query, or another answer to what was asked there."""
        self.resume_from, self.again = checkpoint_id, again
        self._on_change(self)

    def interrupt(self) -> None:
        """Stop what is at work here; what another process drives is no longer watched, and a branch that has not begun
        is none any more."""
        if self._work is not None:
            self._work.cancel()
        elif self.resume_from is not None:
            self.resume_from, self.again = None, None
            self._on_change(self)

    async def ended(self) -> None:
        """Wait until nothing is at work."""
        while self._work is not None:
            await asyncio.wait({self._work})

    def watch(self, job_id: str) -> None:
        """Show a Job that there is, and follow it while somebody drives it."""
        self.job_id = job_id
        self.is_watching = self.is_reading = True
        self._begin(lambda: self._watched(job_id))

    async def _answered_meanwhile(self, text: str, asking: OpenQuestion) -> None:
        try:
            await self.host.jobs.answer_meanwhile(text, asking.id, by=_by())
        except Conflict as error:
            await self.ended()  # the others have come to rest in this moment: the Job itself asks
            if self.asking is not None and self.asking.id == asking.id:
                self.send(text)
            else:
                self._remark("error", error.said(self._said), "bad")
        except PerstackError as error:
            self._remark("error", error.said(self._said), "bad")
        self._on_change(self)

    async def _until_asked(self, question_id: str) -> None:
        """What a delegate asks may be answered a moment after that it does was written, if others are at work; if none
        is, the Job comes to rest."""
        while self.is_driven and self.job_id is not None:
            await asyncio.sleep(_LOOKS_EACH)
            for one in self.host.jobs.asked_meanwhile(self.job_id):
                if one.id == question_id:
                    self._meanwhile[f"{one.run_id} {one.tool_call_id}"] = one
                    self._on_change(self)
                    return

    def _beside(self, work: Coroutine[object, object, None]) -> None:
        """Do something while the Job is at work."""
        task = asyncio.create_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    # --- at work --------------------------------------------------------------------------------------------------

    def _drive(self, work: Callable[[OnEvent], Awaitable[JobSummary]]) -> None:
        if self._work is None:
            self.unsettled, self.settled = (), {}
            self.began = self.host.clock.now()
            self._begin(lambda: self._driven(work))

    def _begin(self, work: Callable[[], Awaitable[None]]) -> None:
        async def done() -> None:
            await work()

        self._work = asyncio.create_task(done())
        self._work.add_done_callback(self._ended)  # it is called of work too that was stopped before it began
        self._on_change(self)

    def _ended(self, work: asyncio.Task[None]) -> None:
        self._work, self.is_watching, self.is_reading, self.began, self.coming = None, False, False, None, None
        self._waits, self._meanwhile = False, {}
        self._on_change(self)
        if not work.cancelled():
            work.result()

    async def _driven(self, work: Callable[[OnEvent], Awaitable[JobSummary]]) -> None:
        before = self.job
        try:
            self.job = await work(self._take_with_line)
        except asyncio.CancelledError:  # it was interrupted, which is recorded by now
            await self._stands()
            self._ends()
        except Conflict as error:
            if self.job_id is None:
                self._says(error)
            else:
                self.is_watching, self._overtaken = True, error
                await self._watched(self.job_id)
        except PerstackError as error:
            self._says(error)
            await self._look(before)
        else:
            if self.job.status == "queued":
                await self._look()
            else:
                self._says_how_it_ended(self.job)

    async def _watched(self, job_id: str) -> None:
        """Show all of it, and then what comes. Of a long Job its end is seen first, while all is read and checked."""
        self.is_reading = True
        self._heard = {}
        self._on_change(self)
        whole = Transcript()
        try:
            if not await self._show_end(job_id):
                self.transcript = whole
            self.coming, taken = whole, 0
            async for line in self.host.watch(job_id, on_caught_up=self._caught_up):
                self._hear(line.event, whole, line.seq)
                self._on_change(self)
                taken += 1
                if taken % _AT_ONCE == 0:
                    await asyncio.sleep(0)
        except PerstackError as error:
            self.transcript = whole
            self._say_overtaken()
            self._says(error)
        except asyncio.CancelledError:  # it is no longer looked at
            await self._stands()
            return
        await self._look()

    def _caught_up(self) -> None:
        """All that was stored has been read, and holds."""
        if self.coming is not None:
            self.transcript, self.coming, self.is_reading = self.coming, None, False
            self._on_change(self)
        self._say_overtaken()

    def _say_overtaken(self) -> None:
        error, self._overtaken = self._overtaken, None
        if error is not None:
            self._remark("error", error.said(self._said), "bad")

    async def _show_end(self, job_id: str) -> bool:
        """Show the end of a Job that is long. Whether it is. Who takes what happens as it comes has no use for it."""
        logs = [] if self._listener is not None else await self.host.jobs.ends(job_id, count=_END)
        if all(len(log.lines) < _END for log in logs):
            return False
        latest = max(logs, key=lambda log: _time_of(log.lines[-1]) if log.lines else 0)
        self.transcript = Transcript()
        for line in latest.lines:
            with suppress(ValueError):  # the whole is read as well, and says what is wrong
                self.transcript.take(parse_event(open_line(line).payload))
        self._on_change(self)
        await asyncio.sleep(_SEEN)
        return True

    async def _look(self, known: JobSummary | None = None) -> None:
        """How the Job stands now that nothing is at work here, unless that is known; what somebody else drives, or
        will, is seen to its end."""
        try:
            await self._stands()
            while self.job is not None and _is_of_others(self.job) and not self._may_drive(self.job):
                heard = {**self._heard}
                await self._followed(self.job)
                await self._stands()
                if self._heard == heard:  # it is seen to: workers have nothing to do with it
                    break
        except PerstackError as error:
            self._says(error)
        except asyncio.CancelledError:  # it is no longer looked at
            await self._stands()
            return
        self._ends(known)

    def _may_drive(self, job: JobSummary) -> bool:
        """Whether a Job that waits for a worker is begun here, when a person says so."""
        return self.drives and job.status == "queued"

    async def _followed(self, job: JobSummary) -> None:
        """What others do with a Job, from what was heard on."""
        self.is_watching, self.is_reading, self._waits = True, False, job.status != "running"
        self._coordinator = job.coordinator_run_id or self._coordinator
        self._on_change(self)
        after = {**self._heard}
        if job.queued is not None:
            await self.host.jobs.follow(job.id, after=after, on_event=self._take_with_line)
            return
        async for line in self.host.watch(job.id, after=after):
            self._hear(line.event, self.transcript, line.seq)
            self._on_change(self)

    async def _stands(self) -> None:
        """Take in how the Job stands."""
        if self.job_id is None:
            return
        try:
            self.job = await self.host.job(self.job_id)
        except NotFound:
            if self.job is None and not self.is_watching:
                self.job_id = None  # it has not begun: what is typed next begins another
            return
        self.expert_key = self.expert_key or self.job.expert_key
        if self.job.status == "stoppedByInterrupt":
            self.unsettled = await self.host.unsettled(self.job_id)

    def _ends(self, known: JobSummary | None = None) -> None:
        """Nothing is at work: say so, unless all of it is known."""
        was_at_work = self.transcript.rest()
        if self.job is not None and self.job.status == "stoppedByInterrupt" and was_at_work:
            self._remark("interrupted", "its process has ended")
        if self.job is not None and self.job != known:
            self._says_how_it_ended(self.job)

    def _take_with_line(self, event: Event, line: bytes) -> None:
        self._take(event)

    def _take(self, event: Event) -> None:
        self.job_id = self.job_id or event.job_id
        self._hear(event, self.transcript, place_of(event.id)[2] if isinstance(event, StoredEvent) else 0)
        self._on_change(self)

    def _hear(self, event: Event, transcript: Transcript, seq: int) -> None:
        """`seq` is its place in the log of its Run; 0 for one that is not stored."""
        if seq:
            self._heard[event.run_id] = seq
            if isinstance(event, StartRun) and event.delegated_by is None:
                self._coordinator = event.run_id
            if event.run_id == self._coordinator:
                self._waits = isinstance(event, QueueRun)
        transcript.live.asks_at_once = self.is_driven
        told = transcript.take(event)
        if self.is_driven and isinstance(event, RequestApproval | CallInteractiveTool):
            self._beside(self._until_asked(event.id))
        elif isinstance(event, AnswerQuestion | DecideApproval | FinishToolCall):
            self._meanwhile.pop(f"{event.run_id} {event.tool_call_id}", None)
        if self._listener is not None:
            self._listener.heard(event, told, transcript.live)

    def _remark(self, word: str, text: str, style: Style = "warn") -> None:
        self.transcript.remark(word, text, style)
        if self._listener is not None:
            self._listener.remarked(word, text)

    def _says(self, error: PerstackError) -> None:
        self.transcript.rest()
        self._remark("error", error.said(self._said), "bad")

    def _says_how_it_ended(self, job: JobSummary) -> None:
        if job.status == "completed":
            self._remark("completed", spent(job), "good")


def _by() -> By:
    return this_user("start")


def _is_of_others(job: JobSummary) -> bool:
    """Whether another process drives a Job, or a worker will."""
    is_left = job.status == "queued" or (job.queued is not None and job.status == "stoppedByInterrupt")
    return job.closed is None and (is_left or job.status == "running")


def _time_of(line: bytes) -> int:
    """When the event of a line happened; 0 for one that does not read."""
    found = _TIME.search(line[:1_000])
    return int(found[1]) if found else 0


def _amount(text: str) -> float | None:
    try:
        found = float(text.removeprefix("$"))
    except ValueError:
        return None
    return found if 0 < found < 1e12 else None
