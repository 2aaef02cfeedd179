"""What operations show of Jobs: the models of structured results, and text for models and people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import Field

from perstack.core.base.ids import event_id_of, place_of
from perstack.core.base.records import JsonObject, Record, falsy
from perstack.core.base.text import one_line
from perstack.core.base.usage import Cost
from perstack.core.definitions.job_status import JobStatus, Lifecycle, PauseReason, RunStatus
from perstack.core.jobs.answer_reading import ANYTHING, accepted_answers, describe_accepted
from perstack.core.jobs.resuming import UnsettledCall
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.facts import WITHOUT_EFFECT
from perstack.core.runs.open_questions import OpenQuestion
from perstack.doors.operations import OperationCall, R
from perstack.doors.shared.consent import page_of
from perstack.doors.shared.next_step_phrases import as_sentence, mcp_phrase
from perstack.doors.shared.status_phrases import next_step_of_job, spending_line, status_of
from perstack.oversight.inbox import InboxItem
from perstack.snapshots.job_files import FilesDiff
from perstack.snapshots.rewind import Rewind
from perstack.snapshots.tree_diff import ChangeKind, FileDiff, KeptReason

_MAX_LISTED_FILES = 500  # maximum files listed in a result


class JobView(Record):
    """A Job as a caller sees it."""

    id: str
    expert_key: str
    status: JobStatus
    lifecycle: Lifecycle
    pause_reason: PauseReason | None = None
    resume_at: int | None = Field(
        default=None, description="The time from which it may be resumed: milliseconds since 1970."
    )
    query: str
    text: str | None = Field(default=None, description="The result, when completed.")
    result: JsonObject | None = Field(
        default=None, description="The same as JSON, if the Expert declares a schema for its result."
    )
    without_effect: bool = Field(
        default=False,
        exclude_if=falsy,
        description="The Expert declares that its work has an effect, but no call had one: check the result.",
    )
    question: str | None = Field(default=None, description="The question to a person, if the Job waits for an answer.")
    question_id: str | None = None
    error: str | None = None
    total_steps: int
    max_steps: int | None = None
    total_tokens: int
    cost_usd: Cost | None = Field(
        default=None, description="US dollars for the tokens whose price is known; `unknown` if none is."
    )
    updated_at: int = Field(description="Milliseconds since 1970, UTC.")
    next: str | None = Field(default=None, description="How to continue.")


class RunView(Record):
    """One Run of a Job."""

    id: str
    expert_key: str
    status: RunStatus
    steps: int
    total_tokens: int
    delegated_by: str | None = None


class OpenCall(Record):
    """A call that began and may have had a side effect, but has no result."""

    key: str
    expert_key: str
    tool_name: str
    args: str = Field(description="The arguments as JSON.")


class JobDetails(JobView):
    """A Job with its Runs."""

    runs: tuple[RunView, ...] = ()
    open_calls: tuple[OpenCall, ...] = ()
    checkpoint: str | None = Field(default=None, description="The Coordinator's latest checkpoint.")


class JobList(Record):
    """A page of Jobs, the most recently written first."""

    jobs: tuple[JobView, ...]
    next: str | None = Field(default=None, description="Pass it to get the next page; absent on the last page.")


class OpenItem(Record):
    """An open question of a Job or a task, or a Job or task that cannot be read."""

    id: str
    job: str | None = None
    task: str | None = None
    who: str = Field(default="", description="The Expert that asks, or the agent of a task.")
    text: str
    approval: bool = Field(description="Whether the question is an approval: a yes or no.")
    since: int = Field(description="Milliseconds since 1970, UTC.")
    next: str = Field(description="How to answer.")
    damaged: bool = Field(
        default=False, exclude_if=falsy, description="Whether the Job or task cannot be read; `text` has the reason."
    )


class Inbox(Record):
    """All open questions, the oldest first."""

    questions: tuple[OpenItem, ...]


class ChangedFile(Record):
    """A file that was changed."""

    path: str
    kind: ChangeKind
    added: int | None = Field(default=None, description="Number of lines; absent for files that are not text.")
    removed: int | None = None


class FilesView(Record):
    """The changes of files."""

    job: str
    of: str = Field(description="What was compared: a Job, a Run, a step, or two checkpoints.")
    files: tuple[ChangedFile, ...]
    more: int = Field(default=0, exclude_if=falsy, description="The number of further files that are not listed.")


class KeptFile(Record):
    """A path that a rewind does not change."""

    path: str
    why: KeptReason


class RewindView(Record):
    """The changes that a rewind made, or would make."""

    job: str
    checkpoint: str
    done: bool = Field(description="Whether the files were restored.")
    files: tuple[ChangedFile, ...]
    kept: tuple[KeptFile, ...] = Field(default=(), exclude_if=falsy, description="The paths that were not changed.")
    undo: str | None = Field(default=None, description="The checkpoint that undoes the rewind.")


class OpenApproval(Record):
    """A call that waits for a person's approval."""

    id: str  # the id that a decision names
    job_id: str
    run_id: str
    expert_key: str
    tool_name: str
    skill_name: str
    args: JsonObject
    call_digest: str
    rule: str
    offers: tuple[str, ...]
    asked_at: int
    text: str  # the whole page, as text for a person
    missing: str | None = Field(
        default=None, exclude_if=falsy
    )  # why not everything is shown; then only a `no` is accepted


class Approvals(Record):
    """All calls that wait for a person's approval, the oldest first."""

    approvals: tuple[OpenApproval, ...]


class DrivenJob(Record):
    """A Job that continues, has ended, or has stopped."""

    job_id: str
    status: JobStatus
    text: str | None = None
    result: JsonObject | None = None


class SubmittedJob(Record):
    """A Job for workers."""

    id: str
    status: JobStatus


_View = TypeVar("_View", bound=Record)


def view_of(model: type[_View], source: object, **others: object) -> _View:
    """Return a view with the attributes of `source` that have the names of its fields, and `others`."""
    names = (name for name in model.model_fields if name not in others and hasattr(source, name))
    return model.model_validate({**others, **{name: getattr(source, name) for name in names}})


def job_view(summary: JobSummary) -> JobView:
    question_id = summary.asking.id if summary.asking is not None else None
    return view_of(
        JobView, summary, question_id=question_id, total_tokens=summary.usage.total_tokens, next=_next_step(summary)
    )


def job_details(summary: JobSummary, open_calls: Sequence[UnsettledCall]) -> JobDetails:
    """Return the Job with its Runs and open calls."""
    runs = tuple(
        view_of(RunView, run_summary, total_tokens=run_summary.usage.total_tokens) for run_summary in summary.runs
    )
    calls = tuple(view_of(OpenCall, unsettled_call) for unsettled_call in open_calls)
    extras = {"runs": runs, "open_calls": calls, "checkpoint": _latest_checkpoint(summary)}
    return JobDetails.model_validate(job_view(summary).model_dump() | extras)


def status_line(summary: JobSummary) -> str:
    """Return one line with the Job's id, status and next step."""
    word = status_of(summary)
    spending = spending_line(summary)
    detail = {
        "stoppedByInteractiveTool": summary.asks,
        "stoppedByError": summary.error,
        "stoppedByBudget": summary.exceeded,
    }.get(summary.status)
    suffix = f": {detail}" if detail else ""
    warning = f" {WITHOUT_EFFECT[0].upper()}{WITHOUT_EFFECT[1:]}." if summary.without_effect else ""
    return f"Job {summary.id} of {summary.expert_key} ({word}, {spending}){suffix}.{warning} {_next_step(summary)}"


def _next_step(summary: JobSummary) -> str:
    if summary.closed is not None:
        return f"It was closed permanently by {summary.closed.by}: it cannot be continued."
    step = next_step_of_job(summary)
    if step is None:
        return f"It is still running: get_job {summary.id} shows its state, cancel_job stops it."
    allowed = accepted_answers(summary.asking) if summary.asking is not None else ANYTHING
    form = f" To answer, {describe_accepted(allowed)}." if allowed.is_restricted else ""
    return f"{as_sentence(step)}{form}"


def job_texts(summary: JobSummary) -> tuple[str, ...]:
    """Return the Job's state as texts; its result, if any, is alone in the first."""
    return (summary.text, status_line(summary)) if summary.text else (status_line(summary),)


def reply_job(call: OperationCall[JobView, R], summary: JobSummary, *texts: str) -> R:
    """Reply with the Job's state."""
    return call.reply(job_view(summary), *job_texts(summary), *texts, is_error=summary.status == "stoppedByError")


def files_view(diff: FilesDiff) -> FilesView:
    """Return the changes of files, up to the limit of a list."""
    extra_count = max(0, len(diff.files) - _MAX_LISTED_FILES)
    return FilesView(job=diff.job_id, of=diff.of, files=_changed_files(diff.files), more=extra_count)


def rewind_view(plan: Rewind, *, done: bool) -> RewindView:
    """Return what a rewind changes."""
    kept = tuple(view_of(KeptFile, file) for file in plan.kept[:_MAX_LISTED_FILES])
    ids = {"job": plan.job_id, "checkpoint": plan.checkpoint_id}
    return view_of(RewindView, plan, **ids, done=done, files=_changed_files(plan.files), kept=kept)


def _changed_files(files: tuple[FileDiff, ...]) -> tuple[ChangedFile, ...]:
    return tuple(view_of(ChangedFile, file) for file in files[:_MAX_LISTED_FILES])


def open_approval(question: OpenQuestion, workspace: Path | None) -> OpenApproval:
    """Return a call that waits for a person's approval, with its page; `workspace` as in `page_of`."""
    page = page_of(question, workspace)
    texts = {"text": "\n".join(page.lines), "missing": page.missing or None}
    return view_of(OpenApproval, question, job_id=place_of(question.id)[0], **texts)


def in_list(summary: JobSummary) -> str:
    """Return the Job as a line of a list."""
    text = summary.asks or summary.error or summary.text or summary.query
    return f"{summary.id}  {summary.expert_key or '?'}  {status_of(summary)}  {one_line(text)[:200]}"


def open_item(item: InboxItem) -> OpenItem:
    """Return an open question with the way to answer it."""
    tool = f"answer (job {item.job_id})" if item.task_id is None else "task_answer, where that is offered"
    command = f'perstack answer {item.id} "ANSWER"'
    step = f"Have a person answer with the tool {tool}, or with: {command}"
    if item.next_steps:
        step = "; ".join(map(mcp_phrase, item.next_steps))
    if item.damaged:
        remedy = f"; {step}" if item.task_id is None else f", or remove it: perstack task delete {item.id}"
        step = f"It cannot be answered: restore its log from a copy{remedy}"
    text = item.text if item.question is None else item.question.shown
    return view_of(OpenItem, item, job=item.job_id, task=item.task_id, text=text, approval=item.is_approval, next=step)


def _latest_checkpoint(summary: JobSummary) -> str | None:
    last = next((run_summary for run_summary in summary.runs if run_summary.id == summary.coordinator_run_id), None)
    is_at_rest = last is not None and last.head_seq > 0 and summary.status != "running"
    return event_id_of(last.id, last.head_seq) if last is not None and is_at_rest else None
