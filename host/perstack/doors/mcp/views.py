"""What tools say of Jobs: structured for programs, and in words for models and people."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_types import CallToolResult, ContentBlock, TextContent

from perstack.core.answers import ANYTHING, accepted, asked_by
from perstack.core.base import Fact, JsonObject
from perstack.core.ids import event_id_of
from perstack.core.job import JobSummary
from perstack.core.plain import one_line
from perstack.core.runs.resuming import UnsettledCall
from perstack.engine.inbox import InboxItem
from perstack.errors import DefinitionError, PerstackError
from perstack.frontends.mcp_server.next_steps import as_sentence, said
from perstack.frontends.mcp_server.schemas import JobDetails, JobView, OpenCall, OpenItem, RunView
from perstack.frontends.shared.following import after_job
from perstack.frontends.shared.words import WITHOUT_EFFECT, spent, status_of

ERROR_KEY = "perstack/error"
"""Where in `_meta` the structure of an error is: a tool's output schema leaves no room for it in the result itself."""


def result(view: Fact, *texts: str, is_error: bool = False) -> CallToolResult:
    """A tool's result: the structure, and each text as a block."""
    content: list[ContentBlock] = [TextContent(text=text) for text in texts]
    structured = view.model_dump(mode="json", by_alias=True, exclude_none=True)
    return CallToolResult(content=content, structured_content=structured, is_error=is_error)


def error_result(error: PerstackError) -> CallToolResult:
    """What went wrong, for the model to read and correct."""
    text = error.said(said)
    told: JsonObject = {"name": type(error).__name__, "message": text}
    if isinstance(error, DefinitionError):
        told["problems"] = [
            {"file": one.file, "line": one.line, "key": one.key, "message": one.message, "severity": one.severity}
            for one in error.problems
        ]
    return CallToolResult(content=[TextContent(text=text)], is_error=True, _meta={ERROR_KEY: told})


def job_result(job: JobSummary, *notes: str) -> CallToolResult:
    """Where a Job stands: its result text, if it has one, alone in the first block."""
    texts = [job.text] if job.text else []
    return result(job_view(job), *texts, standing(job), *notes, is_error=job.status == "stoppedByError")


def job_view(job: JobSummary) -> JobView:
    """A Job in brief."""
    return JobView(
        id=job.id,
        expert_key=job.expert_key,
        status=job.status,
        lifecycle=job.lifecycle,
        pause_reason=job.pause_reason,
        resume_at=job.resume_at,
        query=job.query,
        text=job.text,
        result=job.result,
        without_effect=job.without_effect,
        question=job.question,
        question_id=job.asking.id if job.asking is not None else None,
        error=job.error,
        total_steps=job.total_steps,
        max_steps=job.max_steps,
        total_tokens=job.usage.total_tokens,
        cost_usd=job.cost_usd,
        updated_at=job.updated_at,
        next=next_step(job),
    )


def job_details(job: JobSummary, open_calls: Sequence[UnsettledCall]) -> JobDetails:
    """A Job with its Runs and open calls."""
    runs = tuple(
        RunView(
            id=run.id,
            expert_key=run.expert_key,
            status=run.status,
            steps=run.steps,
            total_tokens=run.usage.total_tokens,
            delegated_by=run.delegated_by,
        )
        for run in job.runs
    )
    calls = tuple(
        OpenCall(key=call.key, expert_key=call.expert_key, tool_name=call.tool_name, args=call.args)
        for call in open_calls
    )
    more = {"runs": runs, "open_calls": calls, "checkpoint": _latest_checkpoint(job)}
    return JobDetails.model_validate(job_view(job).model_dump() | more)


def standing(job: JobSummary) -> str:
    """One line: which Job, how it stands, and how it continues."""
    word = status_of(job)
    did = spent(job)
    told = {"stoppedByInteractiveTool": job.asks, "stoppedByError": job.error, "stoppedByBudget": job.exceeded}.get(
        job.status
    )
    about = f": {told}" if told else ""
    marked = f" {WITHOUT_EFFECT[0].upper()}{WITHOUT_EFFECT[1:]}." if job.without_effect else ""
    return f"Job {job.id} of {job.expert_key} ({word}, {did}){about}.{marked} {next_step(job)}"


def next_step(job: JobSummary) -> str:
    """How the Job continues."""
    if job.closed is not None:
        return f"It was closed for good by {job.closed.by}: nothing continues it."
    step = after_job(job)
    if step is None:
        return f"It continues; look with get_job {job.id}, stop it with cancel_job."
    asked = asked_by(job.asking) if job.asking is not None else ANYTHING
    form = f" To answer, {accepted(asked)}." if asked.is_bound else ""
    return f"{as_sentence(step)}{form}"


def in_list(job: JobSummary) -> str:
    """A Job as a line of a list."""
    about = job.asks or job.error or job.text or job.query
    return f"{job.id}  {job.expert_key or '?'}  {status_of(job)}  {one_line(about)[:200]}"


def open_item(item: InboxItem) -> OpenItem:
    """An open question, and how to answer it."""
    tool = f"answer (job {item.job_id})" if item.task_id is None else "task_answer, where that is offered"
    command = f'perstack answer {item.id} "ANSWER"'
    step = f"Give a person's answer with the tool {tool}, or by: {command}"
    if item.next_steps:
        step = "; ".join(map(said, item.next_steps))
    if item.damaged:
        remedy = f"; {step}" if item.task_id is None else f", or remove it: perstack task delete {item.id}"
        step = f"Nothing can be answered: put its log back from a copy{remedy}"
    return OpenItem(
        id=item.id,
        job=item.job_id,
        task=item.task_id,
        who=item.who,
        text=item.text if item.asking is None else item.asking.shown,
        approval=item.is_approval,
        since=item.since,
        next=step,
        damaged=item.damaged,
    )


def _latest_checkpoint(job: JobSummary) -> str | None:
    last = next((run for run in job.runs if run.id == job.coordinator_run_id), None)
    is_at_rest = last is not None and last.head_seq > 0 and job.status != "running"
    return event_id_of(last.id, last.head_seq) if last is not None and is_at_rest else None
