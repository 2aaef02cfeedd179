"""Inbox of a person: questions and approvals, with everything that a yes covers, and the form to answer."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from hashlib import sha256

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perstack.core.base.ids import place_of
from perstack.core.base.records import JsonObject
from perstack.core.base.usage import cost_text
from perstack.core.jobs.answer_reading import AcceptedAnswers, accepted_answers, changed_answer
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.open_questions import OpenQuestion
from perstack.dataclass import dataclass
from perstack.doors.operations.driving import answer_and_follow, is_driven_by_worker
from perstack.doors.shared.consent import TERMINAL, ConsentPage, page_of
from perstack.doors.shared.edited_arguments import arguments_text, read_arguments
from perstack.doors.shared.job_tasks import DriveJob
from perstack.doors.shared.question_forms import question_text
from perstack.doors.shared.workspace_files import workspace_for_diff
from perstack.errors import Conflict, UsageError
from perstack.oversight.inbox import InboxItem, items_of_job, merge_by_age, unsettled_jobs
from perstack.tasks.waiting_tasks import damaged_tasks, waiting_tasks
from perstack_studio.studio import Studio, read_form, render_page, see_other, studio_of


def pages() -> Iterable[BaseRoute]:
    """Return the routes: the list, one question, and its answer."""
    yield Route("/", _show_inbox, methods=["GET"])
    yield Route("/questions/{id:path}", _show_question, methods=["GET"])
    yield Route("/questions/{id:path}", _answer, methods=["POST"])


@dataclass(frozen=True, slots=True)
class ShownQuestion:
    """An open question as a page shows it."""

    question: OpenQuestion
    job_id: str
    text: str
    accepted: AcceptedAnswers
    consent: ConsentPage | None  # everything that a yes allows; None for a question without a call
    is_whole: bool  # False if the page cannot show the whole call: then only a no is accepted here
    arguments: str  # arguments of the call as editable JSON
    digest: str  # digest of the question, the call and the shown text


async def make_shown_question(studio: Studio, question: OpenQuestion, summary: JobSummary) -> ShownQuestion:
    """Return an open question with everything that a person should see before the answer."""
    consent, is_whole = None, True
    if question.call_digest:
        spent = cost_text(summary.usage, summary.unpriced_tokens)
        consent = page_of(question, await workspace_for_diff(studio.host, question), spent)
        is_whole = consent.fitted(TERMINAL).is_whole
    text = "" if consent is not None else question_text(question)
    shown_text = "\n".join(consent.lines) if consent is not None else text
    # Without the cost, which may rise while a person reads: it is not part of what they agree to.
    agreed_text = (
        "\n".join(line for row in consent.rows if row.kind != "spent" for line in row.lines) if consent else shown_text
    )
    return ShownQuestion(
        question,
        place_of(question.id)[0],
        text,
        accepted_answers(question),
        consent,
        is_whole,
        arguments_text(question.args) if question.call_digest else "",
        sha256(f"{question.id}\n{question.call_digest}\n{agreed_text}".encode(errors="replace")).hexdigest(),
    )


async def _show_inbox(request: Request) -> Response:
    return await render_page(request, "inbox.html", items=await read_inbox(studio_of(request)))


async def read_inbox(studio: Studio) -> tuple[InboxItem, ...]:
    """Return what `Host.inbox` returns of the Experts offered here, from the states of Jobs that are kept."""
    host, definitions = studio.host, studio.served_project.definitions
    of_tasks = [*await waiting_tasks(host.tasks), *await damaged_tasks(host.tasks)]
    rows = await studio.states.rows(await unsettled_jobs(host.storage), questions_from_logs=True)
    # the Expert of a Job that cannot be read is unknown
    offered = [row for row in rows if definitions.offers("" if row.damaged else row.expert_key)]
    return merge_by_age(
        tuple(item for row in offered for item in items_of_job(row)),
        tuple(item for item in of_tasks if not definitions.hides(item.who)),
    )


async def _show_question(request: Request) -> Response:
    studio = studio_of(request)
    question, summary = await _open_question(studio, request.path_params["id"])
    return await render_page(
        request, "question.html", shown_question=await make_shown_question(studio, question, summary), summary=summary
    )


async def _open_question(studio: Studio, question_id: str) -> tuple[OpenQuestion, JobSummary]:
    """Return an open question. Raises Conflict if it is not open."""
    summary = await studio.served_project.job(place_of(question_id, "question")[0])
    if summary.asking is None or summary.asking.id != question_id:
        raise Conflict(f"question {question_id} has been answered already, or was never asked")
    return summary.asking, summary


async def _answer(request: Request) -> Response:
    """Answer a question, if it is still open and its page is still up to date."""
    studio, fields = studio_of(request), await read_form(request)
    question, summary = await _open_question(studio, request.path_params["id"])
    shown_question = await make_shown_question(studio, question, summary)
    if fields.get("digest") != shown_question.digest:
        raise Conflict("what the call would do has changed since the page was loaded: read it again, then decide")
    text = _answer_text(shown_question, fields)
    await studio.served_project.job_to_drive(summary.id)
    work: DriveJob = partial(studio.host.answer, text, job_id=summary.id, question_id=question.id, by=studio.by)
    if is_driven_by_worker(studio.host, summary):
        work = partial(answer_and_follow, studio.host, summary, text, question_id=question.id, by=studio.by)
    try:
        await studio.served_project.job_tasks.start(work, None).wait_until_begun()
    except Conflict as error:  # another answer came first, so the Job is running again
        raise Conflict(f"the question has been answered already, or the Job is at work: {error}") from error
    return see_other(f"/jobs/{summary.id}")


def _answer_text(shown_question: ShownQuestion, fields: dict[str, str]) -> str:
    """Return the answer of a form as `Host.answer` takes it. Raises UsageError for an answer that is not accepted."""
    accepted, answer = shown_question.accepted, fields.get("answer", "")
    reason = fields.get("reason", "").strip()
    if not accepted.is_approval:
        if accepted.schema is None and not answer:
            answer = fields.get("other", "").strip()
        if not answer:
            raise UsageError("choose or write an answer")
        return f"{answer}: {reason}" if reason and accepted.is_yes_no else answer
    if answer == "no":
        return f"no: {reason}" if reason else "no"
    if not shown_question.is_whole:
        raise UsageError("the call was not shown completely, so only a no is accepted here")
    if answer == "change":
        return changed_answer(_changed_arguments(fields, shown_question))
    if answer not in accepted.options:
        raise UsageError("choose an answer")
    return answer


def _changed_arguments(fields: dict[str, str], shown_question: ShownQuestion) -> JsonObject:
    args = read_arguments(fields.get("arguments", ""))
    if args == shown_question.question.args:
        raise UsageError("the arguments are unchanged: approve the call as it is, or change them")
    return args
