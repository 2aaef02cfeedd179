"""Results about Jobs, and the JSON schemas that clients receive, with the fields and docstrings of the models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TypeVar

from mcp_types import CallToolResult, ContentBlock, TextContent
from pydantic import Field, JsonValue

from perstack.core.base.ids import event_id_of
from perstack.core.base.lifecycle import JobStatus, Lifecycle, PauseReason
from perstack.core.base.records import Fact, JsonObject, falsy
from perstack.core.base.text import one_line
from perstack.core.base.usage import Cost
from perstack.core.definitions.result_schemas import placed_below
from perstack.core.jobs.answers import ANYTHING, accepted, asked_by
from perstack.core.jobs.resuming import UnsettledCall
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.state import RunStatus
from perstack.doors.operations import Arguments
from perstack.doors.shared.job_status import WITHOUT_EFFECT, next_step_of_job, spent, status_of
from perstack.doors.shared.next_steps import as_sentence, mcp_phrase
from perstack.engine.jobs.inbox import InboxItem
from perstack.errors import DefinitionError, PerstackError


class JobView(Fact):
    """A Job as a caller sees it."""

    id: str
    expert_key: str
    status: JobStatus
    lifecycle: Lifecycle
    pause_reason: PauseReason | None = None
    resume_at: int | None = Field(default=None, description="From when on it may be resumed: milliseconds since 1970.")
    query: str
    text: str | None = Field(default=None, description="The result, when completed.")
    result: JsonObject | None = Field(
        default=None, description="The same as JSON, if the Expert declares a schema for its result."
    )
    without_effect: bool = Field(
        default=False,
        exclude_if=falsy,
        description="The Expert declares that its work has an effect, and no call had one: check the result.",
    )
    question: str | None = Field(default=None, description="What a person is asked, if the Job waits for an answer.")
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


class RunView(Fact):
    """One Run of a Job."""

    id: str
    expert_key: str
    status: RunStatus
    steps: int
    total_tokens: int
    delegated_by: str | None = None


class OpenCall(Fact):
    """A call that began, may have had a side effect, and has no result."""

    key: str
    expert_key: str
    tool_name: str
    args: str = Field(description="The arguments as JSON, shortened.")


class JobDetails(JobView):
    """A Job with its Runs."""

    runs: tuple[RunView, ...] = ()
    open_calls: tuple[OpenCall, ...] = ()
    checkpoint: str | None = Field(default=None, description="The Coordinator's latest checkpoint.")


class JobList(Fact):
    """A page of Jobs, the one written to last first."""

    jobs: tuple[JobView, ...]
    next: str | None = Field(default=None, description="Ask for the page after this one with it; absent at the end.")


class OpenItem(Fact):
    """One open question of a Job or a task, or one of these that does not read."""

    id: str
    job: str | None = None
    task: str | None = None
    who: str = Field(default="", description="The Expert that asks, or the agent of a task.")
    text: str
    approval: bool = Field(description="Whether a yes or no is asked for.")
    since: int = Field(description="Milliseconds since 1970, UTC.")
    next: str = Field(description="How to answer.")
    damaged: bool = Field(
        default=False,
        exclude_if=falsy,
        description="Whether it is one that does not read: `text` says where.",
    )


class Inbox(Fact):
    """All of them, the oldest first."""

    questions: tuple[OpenItem, ...]


@cache
def input_schema(model: type[Arguments]) -> JsonObject:
    """Return the JSON schema of a tool's arguments, without noise for clients."""
    return _plain(model.model_json_schema(by_alias=True))


@cache
def output_schema(model: type[Fact]) -> JsonObject:
    """Return the JSON schema of a tool's structured result."""
    return _plain(model.model_json_schema(by_alias=True, mode="serialization"))


def expert_output_schema(model: type[Fact], result: JsonObject | None) -> JsonObject:
    """Return the output schema of an Expert's tool, whose `result` fits the Expert's own schema."""
    whole = output_schema(model)
    properties = whole.get("properties")
    if result is None or not isinstance(properties, dict):
        return whole
    placed = placed_below(result, "#/properties/result")
    return whole if placed is None else {**whole, "properties": {**properties, "result": placed}}


def _plain(schema: JsonObject) -> JsonObject:
    """Return the schema without titles; an optional value may be left out rather than null."""
    plain = _without_noise(schema)
    return plain if isinstance(plain, dict) else {}


def _without_noise(value: JsonValue, *, is_names: bool = False) -> JsonValue:
    if isinstance(value, list):
        return [_without_noise(one) for one in value]
    if not isinstance(value, dict):
        return value
    if is_names:
        return {name: _without_noise(each) for name, each in value.items()}
    found: JsonObject = {}
    for name, each in value.items():
        if name == "title" or (name == "default" and each is None) or (name == "description" and "properties" in value):
            continue
        found[name] = _without_noise(each, is_names=name in ("properties", "$defs"))
    options = found.get("anyOf")
    if isinstance(options, list) and {"type": "null"} in options:
        rest = [one for one in options if one != {"type": "null"}]
        found.pop("anyOf")
        first = rest[0]
        found = {**first, **found} if len(rest) == 1 and isinstance(first, dict) else {**found, "anyOf": rest}
    return found


# Results of tools: structured for programs, and text for models and people.

ERROR_KEY = "perstack/error"  # in `_meta`: a tool's output schema allows no error in the result itself


def result(view: Fact, *texts: str, is_error: bool = False) -> CallToolResult:
    """Return a tool's result: the structure, and each text as a block."""
    content: list[ContentBlock] = [TextContent(text=text) for text in texts]
    structured = view.model_dump(mode="json", by_alias=True, exclude_none=True)
    return CallToolResult(content=content, structured_content=structured, is_error=is_error)


def error_result(error: PerstackError) -> CallToolResult:
    """Return an error for the model to read and correct."""
    text = error.said(mcp_phrase)
    told: JsonObject = {"name": type(error).__name__, "message": text}
    if isinstance(error, DefinitionError):
        told["problems"] = [
            {"file": one.file, "line": one.line, "key": one.key, "message": one.message, "severity": one.severity}
            for one in error.problems
        ]
    return CallToolResult(content=[TextContent(text=text)], is_error=True, _meta={ERROR_KEY: told})


def job_result(job: JobSummary, *notes: str) -> CallToolResult:
    """Return the Job's state as a result; its result text, if any, is alone in the first block."""
    texts = [job.text] if job.text else []
    return result(job_view(job), *texts, standing(job), *notes, is_error=job.status == "stoppedByError")


_View = TypeVar("_View", bound=Fact)


def view_of(model: type[_View], source: object, **others: object) -> _View:
    """Return a view with the attributes of `source` that have the names of its fields, and `others`."""
    names = (name for name in model.model_fields if name not in others and hasattr(source, name))
    return model.model_validate({**others, **{name: getattr(source, name) for name in names}})


def job_view(job: JobSummary) -> JobView:
    """Return the Job's summary."""
    question_id = job.asking.id if job.asking is not None else None
    return view_of(JobView, job, question_id=question_id, total_tokens=job.usage.total_tokens, next=_next_step(job))


def job_details(job: JobSummary, open_calls: Sequence[UnsettledCall]) -> JobDetails:
    """Return the Job with its Runs and open calls."""
    runs = tuple(view_of(RunView, run, total_tokens=run.usage.total_tokens) for run in job.runs)
    calls = tuple(view_of(OpenCall, call) for call in open_calls)
    more = {"runs": runs, "open_calls": calls, "checkpoint": _latest_checkpoint(job)}
    return JobDetails.model_validate(job_view(job).model_dump() | more)


def standing(job: JobSummary) -> str:
    """Return one line with the Job's id, status and next step."""
    word = status_of(job)
    did = spent(job)
    told = {"stoppedByInteractiveTool": job.asks, "stoppedByError": job.error, "stoppedByBudget": job.exceeded}.get(
        job.status
    )
    about = f": {told}" if told else ""
    marked = f" {WITHOUT_EFFECT[0].upper()}{WITHOUT_EFFECT[1:]}." if job.without_effect else ""
    return f"Job {job.id} of {job.expert_key} ({word}, {did}){about}.{marked} {_next_step(job)}"


def _next_step(job: JobSummary) -> str:
    if job.closed is not None:
        return f"It was closed for good by {job.closed.by}: nothing continues it."
    step = next_step_of_job(job)
    if step is None:
        return f"It continues; look with get_job {job.id}, stop it with cancel_job."
    asked = asked_by(job.asking) if job.asking is not None else ANYTHING
    form = f" To answer, {accepted(asked)}." if asked.is_bound else ""
    return f"{as_sentence(step)}{form}"


def in_list(job: JobSummary) -> str:
    """Return the Job as a line of a list."""
    about = job.asks or job.error or job.text or job.query
    return f"{job.id}  {job.expert_key or '?'}  {status_of(job)}  {one_line(about)[:200]}"


def open_item(item: InboxItem) -> OpenItem:
    """Return an open question with the way to answer it."""
    tool = f"answer (job {item.job_id})" if item.task_id is None else "task_answer, where that is offered"
    command = f'perstack answer {item.id} "ANSWER"'
    step = f"Give a person's answer with the tool {tool}, or by: {command}"
    if item.next_steps:
        step = "; ".join(map(mcp_phrase, item.next_steps))
    if item.damaged:
        remedy = f"; {step}" if item.task_id is None else f", or remove it: perstack task delete {item.id}"
        step = f"Nothing can be answered: put its log back from a copy{remedy}"
    text = item.text if item.asking is None else item.asking.shown
    return view_of(OpenItem, item, job=item.job_id, task=item.task_id, text=text, approval=item.is_approval, next=step)


def _latest_checkpoint(job: JobSummary) -> str | None:
    last = next((run for run in job.runs if run.id == job.coordinator_run_id), None)
    is_at_rest = last is not None and last.head_seq > 0 and job.status != "running"
    return event_id_of(last.id, last.head_seq) if last is not None and is_at_rest else None
