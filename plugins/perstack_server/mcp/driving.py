"""Calls of tools: the reply, and the driving of a Job, with progress and questions, until it ends or stops."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeAlias

import mcp_types as types
from typing_extensions import override

from perstack.core.base.ids import By
from perstack.core.base.records import Record
from perstack.core.base.text import approvable_text, count, duration
from perstack.core.definitions.skills import DecidedCall
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs import display_events, events
from perstack.core.runs.facts import RunEvent
from perstack.core.runs.open_questions import OpenQuestion
from perstack.dataclass import dataclass
from perstack.doors.operations import OperationCall
from perstack.doors.operations.driving import answer_and_follow
from perstack.doors.operations.views import reply_job
from perstack.doors.shared.activity import JobActivity
from perstack.doors.shared.job_tasks import CallKey, DriveJob
from perstack.doors.shared.next_step_phrases import mcp_phrase
from perstack.doors.shared.text import brief, shorten
from perstack.doors.shared.workspace_files import workspace_for_diff
from perstack.errors import Conflict, UsageError
from perstack.oversight.needed_decisions import Decisions, digest_of, person_refusal
from perstack_server.mcp import elicitation
from perstack_server.mcp.client_config import NAME
from perstack_server.mcp.notifications import ClientProject, call_key, caller, may_decide
from perstack_server.mcp.sampling import CALLER

_MAX_WARNINGS = 3  # maximum warnings about the definition in each result

Outcome: TypeAlias = types.CallToolResult | types.InputRequiredResult


def tool_result(
    client_project: ClientProject, view: Record, *texts: str, is_error: bool = False
) -> types.CallToolResult:
    """Return a result with the structure, and with the texts and notes about the definition as blocks."""
    live = client_project.definitions.live
    notes = [f"Warning: {problem}" for problem in live.loaded.warnings[:_MAX_WARNINGS]]
    if live.problem is not None:
        notes.append(f"Note: {live.problem.text_for(mcp_phrase)}.")
    content: list[types.ContentBlock] = [
        types.TextContent(text=text) for text in (*(texts or (view.to_json().decode(),)), *notes)
    ]
    structured = view.model_dump(mode="json", by_alias=True, exclude_none=True)
    return types.CallToolResult(content=content, structured_content=structured, is_error=is_error)


@dataclass(frozen=True)
class ClientCall(OperationCall[Record, Outcome]):
    """One call of a tool."""

    served_project: ClientProject
    context: elicitation.Context
    params: types.CallToolRequestParams
    logs: bool = False  # True if the client wants log messages of the level used for progress

    @property
    @override
    def by(self) -> By:
        return caller(self.context)

    @property
    def key(self) -> CallKey:
        """The key that a cancellation names the call by."""
        return call_key(self.context, self.context.request_id)

    @override
    def reply(self, view: Record, *texts: str, is_error: bool = False) -> Outcome:
        return tool_result(self.served_project, view, *texts, is_error=is_error)

    async def drive(self, work: DriveJob, *, wait: bool) -> Outcome:
        """Start the work; if the call answers an earlier question, continue with the answer instead."""
        CALLER.set(self.context)
        if not wait and elicitation.returned_answer(self.params) is None:
            running = self.served_project.job_tasks.start(work, None)
            return reply_job(self, await self.served_project.host.job(await running.wait_until_begun()))
        return await self._converse(
            lambda progress: self.served_project.job_tasks.start(work, self.key, progress).outcome()
        )

    @property
    @override
    def may_decide(self) -> bool:
        return may_decide(self.context)

    @property
    @override
    def brings_answer(self) -> bool:
        return elicitation.returned_answer(self.params) is not None

    @override
    async def ask_question(self, job_id: str, decisions: Decisions) -> Outcome:
        if not elicitation.can_ask(self.context):
            return await super().ask_question(job_id, decisions)

        async def waiting(progress: JobProgress | None) -> JobSummary:
            return await self.served_project.job(job_id)

        return await self._converse(waiting)

    @override
    async def confirm(
        self, decisions: Decisions, agreed: Callable[[OperationCall[Record, Outcome], str], Awaitable[Outcome]]
    ) -> Outcome:
        before = _DECISION.returned_decision(self.params)
        if before is not None:
            digest, is_agreed = before
        elif not elicitation.can_ask(self.context):
            return await super().confirm(decisions, agreed)
        else:
            digest, page = digest_of(decisions), _page(self.by, decisions)
            if len(page) > _MAX_PAGE_CHARS:
                raise person_refusal(decisions, reason=f"a form of {len(page):,} characters is too long to read")
            if elicitation.uses_returned_questions(self.context):
                return _DECISION.ask_by_result(page, digest)
            is_agreed = await _DECISION.ask_now(self.context, page)
        if not is_agreed:
            raise person_refusal(decisions, reason="the person did not agree")
        return await agreed(self, digest)

    async def _converse(self, begin: Callable[[JobProgress | None], Awaitable[JobSummary]]) -> Outcome:
        """Ask the questions of a Job while the user answers. A question that the call answers is not asked again."""
        elicitation.ASKS.set(elicitation.can_ask(self.context))
        async with progress_reports(*_senders(self.context, logs=self.logs)) as progress:
            before = elicitation.returned_answer(self.params)
            if before is None:
                summary, text = await begin(progress), None
            else:
                summary, text = await self._load_pending(before)
            while (asking := summary.asking) is not None:
                if text is None:
                    is_shown = before is not None and asking.id == before.question_id
                    if is_shown or not elicitation.can_ask(self.context):
                        break
                    workspace = await workspace_for_diff(self.served_project.host, asking)
                    if elicitation.uses_returned_questions(self.context):
                        return elicitation.ask_by_result(asking, workspace)
                    if progress is not None:
                        progress.report(f"waiting for an answer: {asking.shown}")
                    text = await elicitation.ask_now(self.context, asking, workspace)
                if text is None:
                    break
                try:
                    summary, text = await self._answer(summary, asking, text, progress), None
                except UsageError as error:
                    return reply_job(self, summary, f"The answer was not accepted: {error.text_for(mcp_phrase)}")
            return reply_job(self, summary)

    async def _load_pending(self, before: elicitation.PendingAnswer) -> tuple[JobSummary, str | None]:
        summary = await self.served_project.job(before.job_id)
        asking = summary.asking
        if asking is None or asking.id != before.question_id or before.reply is None:
            return summary, None
        workspace = await workspace_for_diff(self.served_project.host, asking)
        return summary, elicitation.answer_in(asking, before.reply, workspace)

    async def _answer(
        self, summary: JobSummary, question: OpenQuestion, text: str, progress: JobProgress | None
    ) -> JobSummary:
        self.served_project.definitions.check_offered(summary.expert_key)
        work = partial(answer_and_follow, self.served_project.host, summary, text, question_id=question.id, by=self.by)
        try:
            return await self.served_project.job_tasks.start(work, self.key, progress).outcome()
        except Conflict:
            return await self.served_project.host.job(summary.id)  # it was answered in the meantime


_DECISION = elicitation.AgreementForm(elicitation.DECISION, "Agree")
_MAX_PAGE_CHARS = 20_000  # maximum characters of a form about decisions, which a person must be able to read completely


def _page(by: By, decisions: Decisions) -> str:
    """Return the page for the person: who asks, and every decision in full, with invisible characters shown."""
    who = approvable_text(by.client).replace("\n", " ") or "A client"
    lines = (approvable_text(decision.text).replace("\n", "\n  | ") for decision in decisions)
    return "\n- ".join([f"{who} asks for decisions that only you can make:", *lines])


def _senders(context: elicitation.Context, *, logs: bool) -> tuple[Send | None, Send | None]:
    """Return the functions that send new texts and reminders to the call's client; None if it wants none.

    Requested progress gets both. Log messages, which clients keep, get only new texts.
    """
    has_progress = context.meta is not None and context.meta.get("progress_token") is not None
    numbers = itertools.count(1)

    async def report(text: str) -> None:
        await context.session.report_progress(next(numbers), message=text)

    async def log(text: str) -> None:
        params = types.LoggingMessageNotificationParams(level=LOG_LEVEL, logger=NAME, data=text)
        await context.session.send_notification(types.LoggingMessageNotification(params=params), context.request_id)

    async def report_and_log(text: str) -> None:
        await report(text)
        await log(text)

    if not has_progress:
        return (log, None) if logs else (None, None)
    return report_and_log if logs else report, report


LOG_LEVEL: types.LoggingLevel = "info"
MAX_SILENCE_S = 15.0  # seconds until the last text is repeated: clients end calls that seem dead
_MAX_QUEUED = 200  # maximum texts queued for a client that does not read; the oldest are dropped
_TEXT_CELLS = 120

Send = Callable[[str], Awaitable[None]]


# Progress of the Job as text for the client.


class ProgressText:
    """Converter of events to text: `step 4: readTextFile src/a.py`, and for a delegate `researcher: step 2`."""

    def __init__(self) -> None:
        self._activity = JobActivity()

    def of(self, event: events.Event) -> tuple[str, ...]:  # noqa: C901 - one case for each kind of event that has a text
        """Return the texts of an event; empty if it has nothing new."""
        self._activity.follow(event)
        match event:
            case display_events.SkillStarting():
                return (f"starting {event.skill_name}",)
            case events.StartGeneration():
                return (self._step(event),)
            case events.CallTools():
                tools = (decided for decided in event.calls if decided.kind not in ("delegate", "interactive"))
                return tuple(f"{self._step(event)}: {self._call(event, decided)}" for decided in tools)
            case events.CallDelegate():
                names = ", ".join(each.expert_key for each in event.delegates)
                return (f"{self._step(event)}: asks {names}",)
            case events.CallInteractiveTool():
                return (f"{self._step(event)}: asks a person",)
            case events.RequestApproval():
                return (f"{self._step(event)}: asks a person's approval of {event.tool_name}",)
            case events.Retry():
                error = shorten(event.error.message, _TEXT_CELLS)
                return (f"{self._step(event)}: tries again in {duration(event.delay_ms)}: {error}",)
            case events.AdaptRequest():
                return (f"{self._step(event)}: requests are sent {shorten(event.words, _TEXT_CELLS)}",)
            case events.SwitchModel():
                return (f"{self._step(event)}: the model is switched {event.words}",)
            case display_events.ToolProgress():
                return (f"{self._step(event)}: {shorten(event.message, _TEXT_CELLS)}",)
            case events.FinishRun() if self._activity.is_delegate(event.run_id):
                return (f"{event.expert_key}: done after {count(event.step_number, 'step')}",)
            case _:
                pass
        return ()

    def _step(self, event: RunEvent | display_events.ToolProgress) -> str:
        whose = f"{event.expert_key}: " if self._activity.is_delegate(event.run_id) else ""
        return f"{whose}step {event.step_number}"

    def _call(self, event: events.CallTools, decided: DecidedCall) -> str:
        activity = self._activity.run(event.run_id)
        known = None if activity is None else activity.calls.get(decided.id)
        part = None if known is None else known.part
        return shorten(f"{decided.tool_name} {brief(part)}" if part else decided.tool_name, _TEXT_CELLS)


class JobProgress:
    """A queue of progress texts that are sent one at a time; a slow client delays nothing else."""

    def __init__(self, send: Send, remind: Send | None = None, *, silence: float = MAX_SILENCE_S) -> None:
        """Send texts with `send`, and repeat the last one with `remind`, if given, after `silence` seconds."""
        self._send = send
        self._remind = remind
        self._silence = silence
        self._words = ProgressText()
        self._waiting: deque[str] = deque(maxlen=_MAX_QUEUED)
        self._is_news = asyncio.Event()
        self._is_ending = False

    def __call__(self, event: events.Event, line: bytes) -> None:
        """Queue the texts of an event: this object is a listener of the Host."""
        for text in self._words.of(event):
            self.report(text)

    def report(self, text: str) -> None:
        """Queue a text."""
        self._waiting.append(text)
        self._is_news.set()

    async def run(self) -> None:
        """Send queued texts, and repeat the last one after a silence, until `end`."""
        now = asyncio.get_running_loop().time
        last, since = "working", now()
        while not self._is_ending or self._waiting:
            try:
                async with asyncio.timeout(None if self._remind is None else self._silence):
                    await self._is_news.wait()
            except TimeoutError:
                if self._remind is not None:
                    await self._remind(f"{last} (for {duration(round((now() - since) * 1000))})")
                continue
            self._is_news.clear()
            while self._waiting:
                last, since = self._waiting.popleft(), now()
                await self._send(last)

    def end(self) -> None:
        """End `run` after the queued texts."""
        self._is_ending = True
        self._is_news.set()


@asynccontextmanager
async def progress_reports(send: Send | None, remind: Send | None = None) -> AsyncGenerator[JobProgress | None]:
    """Report progress within the block, and send queued texts before leaving it.

    Yields None if the client wants none.
    """
    if send is None:
        yield None
        return
    progress = JobProgress(send, remind)
    task = asyncio.create_task(progress.run())
    try:
        yield progress
        progress.end()
        await asyncio.wait({task})
    finally:
        task.cancel()
        await asyncio.wait({task})
