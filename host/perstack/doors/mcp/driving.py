"""Driving a Job for a call, with progress and questions, until it ends, stops, or continues without the call."""

from __future__ import annotations

from functools import partial
from itertools import count

from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.questions import OpenQuestion
from perstack.doors.mcp.clients import caller
from perstack.doors.mcp.elicitation import (
    Context,
    PendingAnswer,
    answer_in,
    ask_by_result,
    ask_now,
    asks_by_returning,
    can_ask,
    returned,
)
from perstack.doors.mcp.progress import Progress, Send, progress_reports
from perstack.doors.mcp.project import ClientCall, DriveJob, Outcome
from perstack.doors.mcp.sampling import CALLER
from perstack.doors.mcp.views import job_result
from perstack.doors.operations.jobs import answer_and_follow
from perstack.doors.shared.next_steps import mcp_phrase
from perstack.errors import Conflict, UsageError
from perstack.next_steps import GiveAnswer


async def run_for_call(call: ClientCall, work: DriveJob, *, wait: bool) -> Outcome:
    """Start the work, or, if the call brings the answer to an earlier question, continue with that."""
    CALLER.set(call.context)
    before = returned(call.params)
    if before is None and not wait:
        running = call.state.jobs.start(work, None)
        return job_result(await call.host.job(await running.begun()), *call.notes)
    async with progress_reports(_teller(call.context)) as progress:
        if before is None:
            job = await call.state.jobs.start(work, call.key, progress).outcome()
            return await _converse(call, job, progress)
        job, text = await _load_pending(call, before)
        return await _converse(call, job, progress, text=text, shown=before.question_id)


async def ask_approval(call: ClientCall, job: JobSummary) -> Outcome:
    """Ask the user, never a model, by a form to approve the call. Raises UsageError if the client shows no forms."""
    if not can_ask(call.context):
        step = GiveAnswer(job.asking.id if job.asking is not None else job.id, is_approval=True)
        raise UsageError("only a person can approve a call, and this client cannot ask one", next_steps=(step,))
    async with progress_reports(_teller(call.context)) as progress:
        before = returned(call.params)
        if before is None:
            return await _converse(call, job, progress)
        job, text = await _load_pending(call, before)
        return await _converse(call, job, progress, text=text, shown=before.question_id)


async def _converse(
    call: ClientCall, job: JobSummary, progress: Progress | None, *, text: str | None = None, shown: str | None = None
) -> Outcome:
    """Ask the Job's questions while the user answers. `text` answers the first; `shown` is not asked again."""
    while (asking := job.asking) is not None:
        if text is None:
            if asking.id == shown or not can_ask(call.context):
                break
            if asks_by_returning(call.context):
                return ask_by_result(asking)
            if progress is not None:
                progress.report(f"waiting for an answer: {asking.shown}")
            text = await ask_now(call.context, asking)
        if text is None:
            break
        try:
            job, text = await _answer(call, job, asking, text, progress), None
        except UsageError as error:
            return job_result(job, f"The answer was not taken: {error.said(mcp_phrase)}", *call.notes)
    return job_result(job, *call.notes)


async def _load_pending(call: ClientCall, before: PendingAnswer) -> tuple[JobSummary, str | None]:
    job = await call.state.job(before.job_id)
    asking = job.asking
    if asking is None or asking.id != before.question_id or before.reply is None:
        return job, None
    return job, answer_in(asking, before.reply)


async def _answer(
    call: ClientCall, job: JobSummary, asking: OpenQuestion, text: str, progress: Progress | None
) -> JobSummary:
    call.state.definitions.check_offered(job.expert_key)
    work = partial(answer_and_follow, call.host, job, text, question_id=asking.id, by=caller(call.context))
    try:
        return await call.state.jobs.start(work, call.key, progress).outcome()
    except Conflict:
        return await call.host.job(job.id)  # it was answered meanwhile


def _teller(context: Context) -> Send | None:
    """Return a function that sends progress to the call's client; None if it requested none."""
    if context.meta is None or context.meta.get("progress_token") is None:
        return None
    numbers = count(1)

    async def tell(text: str) -> None:
        await context.session.report_progress(next(numbers), message=text)

    return tell
