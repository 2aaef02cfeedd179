"""Calls of tools: they reply, or drive a Job, with progress and questions, until it ends or stops."""

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
    """Return a structured result, with the texts, or its JSON, and notes about the definition as text blocks."""
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
    logs: bool = False  # True if the client wants log messages of the level `LOG_LEVEL`

    @property
    @override
    def by(self) -> By:
        return caller(self.context)

    @property
    def key(self) -> CallKey:
        """The key by which a cancellation names the call."""
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

        async def load_job(progress: JobProgress | None) -> JobSummary:
            return await self.served_project.job(job_id)

        return await self._converse(load_job)

    @override
    async def confirm(
        self, decisions: Decisions, agreed: Callable[[OperationCall[Record, Outcome], str], Awaitable[Outcome]]
    ) -> Outcome:
        returned_decision = _DECISION.returned_decision(self.params)
        if returned_decision is not None:
            digest, is_agreed = returned_decision
        elif not elicitation.can_ask(self.context):
            return await super().confirm(decisions, agreed)
        else:
            digest, page = digest_of(decisions), _decisions_page(self.by, decisions)
            if len(page) > _MAX_PAGE_CHARS:
                raise person_refusal(decisions, reason=f"a form of {len(page):,} characters is too long to read")
            if elicitation.uses_returned_questions(self.context):
                return _DECISION.ask_by_result(page, digest)
            is_agreed = await _DECISION.ask_now(self.context, page)
        if not is_agreed:
            raise person_refusal(decisions, reason="the person did not agree")
        return await agreed(self, digest)

    async def _converse(self, begin: Callable[[JobProgress | None], Awaitable[JobSummary]]) -> Outcome:
        """Ask the questions of a Job until one gets no answer. The question that this call answers is not repeated."""
        elicitation.ASKS.set(elicitation.can_ask(self.context))
        async with progress_reports(*_senders(self.context, logs=self.logs)) as progress:
            returned_answer = elicitation.returned_answer(self.params)
            if returned_answer is None:
                summary, text = await begin(progress), None
            else:
                summary, text = await self._load_answered_job(returned_answer)
            while (asking := summary.asking) is not None:
                if text is None:
                    is_shown = returned_answer is not None and asking.id == returned_answer.question_id
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

    async def _load_answered_job(self, returned_answer: elicitation.PendingAnswer) -> tuple[JobSummary, str | None]:
        """Return the Job, and the answer that the call brings; None if another question is open by now."""
        summary = await self.served_project.job(returned_answer.job_id)
        asking = summary.asking
        if asking is None or asking.id != returned_answer.question_id or returned_answer.reply is None:
            return summary, None
        workspace = await workspace_for_diff(self.served_project.host, asking)
        return summary, elicitation.answer_in(asking, returned_answer.reply, workspace)

    async def _answer(
        self, summary: JobSummary, question: OpenQuestion, text: str, progress: JobProgress | None
    ) -> JobSummary:
        self.served_project.definitions.check_offered(summary.expert_key)
        work = partial(answer_and_follow, self.served_project.host, summary, text, question_id=question.id, by=self.by)
        try:
            return await self.served_project.job_tasks.start(work, self.key, progress).outcome()
        except Conflict:
            return await self.served_project.host.job(summary.id)  # another answer came first


_DECISION = elicitation.AgreementForm(elicitation.DECISION, "Agree")
_MAX_PAGE_CHARS = 20_000  # maximum characters of a form about decisions: a person must read all of it


def _decisions_page(by: By, decisions: Decisions) -> str:
    """Return the text for the person: the asking client, and each decision in full with visible control characters."""
    client = approvable_text(by.client).replace("\n", " ") or "A client"
    lines = (approvable_text(decision.text).replace("\n", "\n  | ") for decision in decisions)
    return "\n- ".join([f"{client} asks for decisions that only you can make:", *lines])


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
MAX_SILENCE_S = 15.0  # seconds after which the last text is repeated: clients cancel calls that seem dead
_MAX_QUEUED = 200  # maximum texts queued for a client that does not read; the oldest are dropped
_TEXT_CELLS = 120

Send = Callable[[str], Awaitable[None]]


# Progress of the Job as text for the client.


class ProgressText:
    """Converter of events to text: `step 4: readTextFile src/a.py`, and for a delegate `researcher: step 2`."""

    def __init__(self) -> None:
        self._activity = JobActivity()

    def of(self, event: events.Event) -> tuple[str, ...]:  # noqa: C901 - one case for each kind of event that has a text
        """Return the texts of an event; empty for an event without any."""
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
                names = ", ".join(delegate.expert_key for delegate in event.delegates)
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
        prefix = f"{event.expert_key}: " if self._activity.is_delegate(event.run_id) else ""
        return f"{prefix}step {event.step_number}"

    def _call(self, event: events.CallTools, decided: DecidedCall) -> str:
        activity = self._activity.run(event.run_id)
        call_activity = None if activity is None else activity.calls.get(decided.id)
        part = None if call_activity is None else call_activity.part
        return shorten(f"{decided.tool_name} {brief(part)}" if part else decided.tool_name, _TEXT_CELLS)


class JobProgress:
    """A queue of progress texts that are sent one at a time; a slow client delays nothing else."""

    def __init__(self, send: Send, remind: Send | None = None, *, max_silence_s: float = MAX_SILENCE_S) -> None:
        """Send texts with `send`, and repeat the last one with `remind`, if given, after `max_silence_s` seconds."""
        self._send = send
        self._remind = remind
        self._max_silence_s = max_silence_s
        self._progress_text = ProgressText()
        self._queued_texts: deque[str] = deque(maxlen=_MAX_QUEUED)
        self._wake = asyncio.Event()
        self._is_ending = False

    def __call__(self, event: events.Event, line: bytes) -> None:
        """Queue the texts of an event: this object is a listener of the Host."""
        for text in self._progress_text.of(event):
            self.report(text)

    def report(self, text: str) -> None:
        self._queued_texts.append(text)
        self._wake.set()

    async def run(self) -> None:
        """Send queued texts, and repeat the last one after a silence, until `end`."""
        clock_now = asyncio.get_running_loop().time
        last_text, sent_at = "working", clock_now()
        while not self._is_ending or self._queued_texts:
            try:
                async with asyncio.timeout(None if self._remind is None else self._max_silence_s):
                    await self._wake.wait()
            except TimeoutError:
                if self._remind is not None:
                    await self._remind(f"{last_text} (for {duration(round((clock_now() - sent_at) * 1000))})")
                continue
            self._wake.clear()
            while self._queued_texts:
                last_text, sent_at = self._queued_texts.popleft(), clock_now()
                await self._send(last_text)

    def end(self) -> None:
        """End `run` after the queued texts are sent."""
        self._is_ending = True
        self._wake.set()


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
