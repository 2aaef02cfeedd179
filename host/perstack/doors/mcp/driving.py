"""Driving a Job for a call: with progress, with questions put to the person, until it ends, stops, or goes on alone."""

from __future__ import annotations

from functools import partial
from itertools import count

from perstack.core.job import JobSummary
from perstack.core.runs.asking import OpenQuestion
from perstack.errors import Conflict, UsageError
from perstack.frontends.mcp_server.asking import (
    Context,
    Returned,
    answer_in,
    ask_by_result,
    ask_now,
    asks_by_returning,
    can_ask,
    returned,
)
from perstack.frontends.mcp_server.clients import caller
from perstack.frontends.mcp_server.jobs import Work
from perstack.frontends.mcp_server.next_steps import said
from perstack.frontends.mcp_server.progress import Progress, Tell, reporting
from perstack.frontends.mcp_server.results import job_result
from perstack.frontends.mcp_server.sampling import CALLER
from perstack.frontends.mcp_server.state import Call, Outcome
from perstack.frontends.shared.answering import answered
from perstack.next_steps import Answer


async def drive(call: Call, work: Work, *, wait: bool) -> Outcome:
    """Do the work, or, if the call brings the answer to a question that it was asked before, go on from there."""
    CALLER.set(call.context)
    before = returned(call.params)
    if before is None and not wait:
        running = call.state.jobs.start(work, None)
        return job_result(await call.host.job(await running.begun()), *call.notes)
    async with reporting(_teller(call.context)) as progress:
        if before is None:
            job = await call.state.jobs.start(work, call.key, progress).outcome()
            return await _converse(call, job, progress)
        job, text = await _taken_up(call, before)
        return await _converse(call, job, progress, text=text, shown=before.question_id)


async def put_approval(call: Call, job: JobSummary) -> Outcome:
    """Put the call that a Job waits to have approved to the person, by a form: no model approves of it in their place.

    Raises UsageError if the client shows no forms.
    """
    if not can_ask(call.context):
        step = Answer(job.asking.id if job.asking is not None else job.id, is_approval=True)
        raise UsageError("only a person can approve a call, and this client cannot ask one", next_steps=(step,))
    async with reporting(_teller(call.context)) as progress:
        before = returned(call.params)
        if before is None:
            return await _converse(call, job, progress)
        job, text = await _taken_up(call, before)
        return await _converse(call, job, progress, text=text, shown=before.question_id)


async def _converse(
    call: Call, job: JobSummary, progress: Progress | None, *, text: str | None = None, shown: str | None = None
) -> Outcome:
    """Put the Job's questions, one after the other, as long as the person answers.

    `text` answers the first of them already; the question `shown` is not put again.
    """
    while (asking := job.asking) is not None:
        if text is None:
            if asking.id == shown or not can_ask(call.context):
                break
            if asks_by_returning(call.context):
                return ask_by_result(asking)
            if progress is not None:
                progress.say(f"waiting for an answer: {asking.shown}")
            text = await ask_now(call.context, asking)
        if text is None:
            break
        try:
            job, text = await _answer(call, job, asking, text, progress), None
        except UsageError as error:
            return job_result(job, f"The answer was not taken: {error.said(said)}", *call.notes)
    return job_result(job, *call.notes)


async def _taken_up(call: Call, before: Returned) -> tuple[JobSummary, str | None]:
    """The Job that a call brings an answer to, and the answer, if that question is still open."""
    job = await call.host.job(before.job_id)
    asking = job.asking
    if asking is None or asking.id != before.question_id or before.reply is None:
        return job, None
    return job, answer_in(asking, before.reply)


async def _answer(
    call: Call, job: JobSummary, asking: OpenQuestion, text: str, progress: Progress | None
) -> JobSummary:
    call.state.definitions.check_offered(job.expert_key)
    work = partial(answered, call.host, job, text, question_id=asking.id, by=caller(call.context))
    try:
        return await call.state.jobs.start(work, call.key, progress).outcome()
    except Conflict:
        return await call.host.job(job.id)  # somebody else has answered it


def _teller(context: Context) -> Tell | None:
    """Sends progress to the call's client; None if it asked for none."""
    if context.meta is None or context.meta.get("progress_token") is None:
        return None
    numbers = count(1)

    async def tell(text: str) -> None:
        await context.session.report_progress(next(numbers), message=text)

    return tell
