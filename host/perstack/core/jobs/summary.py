"""The summary of a Job, job.json: totals over the logs of all its Runs, and the tree that the Runs form.

A summary is a cache: everything in it is derived from a `Job`, and it can be deleted. What is stored is always derived
from logs that are on disk, at the ends that it names for each Run, so `verify` can derive it again and compare every
leaf. A new field needs a value in `summarize`, and nothing else.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import groupby
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from pydantic import BaseModel, Field, PrivateAttr

from perstack.core.base.chain import EMPTY_LOG, Head
from perstack.core.base.ids import is_place, number_of_run, place_of
from perstack.core.base.records import JsonObject, Record, canonical_json, falsy
from perstack.core.base.text import count, plain_text
from perstack.core.base.usage import NO_USAGE, BudgetName, Charge, Cost, ModelShare, Usage, cost_of, cost_text
from perstack.core.definitions.job_status import (
    JobStatus,
    Lifecycle,
    PauseReason,
    RunStatus,
    lifecycle_of,
    pause_reason_of,
)
from perstack.core.definitions.models import full_name
from perstack.core.definitions.settings import Budget
from perstack.core.runs.facts import Closed, ContinuedFrom, Queued
from perstack.core.runs.open_questions import OpenQuestion
from perstack.dataclass import dataclass

if TYPE_CHECKING:  # to read a stored summary takes no state of a Run
    from perstack.core.jobs.job import Job
    from perstack.core.runs.start import StartRun
    from perstack.core.runs.state import Run


class RunSummary(Record):
    """The summary of one Run."""

    id: str
    expert_key: str
    status: RunStatus
    model: str = Field(default="", exclude_if=falsy)  # `provider/model`; empty if an older version wrote it
    steps: int = 0
    usage: Usage = NO_USAGE
    unpriced_tokens: int = Field(default=0, exclude_if=falsy)
    by_model: dict[str, ModelShare] = Field(default_factory=dict, exclude_if=falsy)  # if several models have generated
    delegated_by: str | None = None
    continued_from: str | None = None
    started_at: int = 0
    updated_at: int = 0
    head_seq: int = Field(default=0, exclude_if=falsy)
    head_hash: str = Field(default="", exclude_if=falsy)
    job_id: str = Field(default="", exclude_if=falsy)  # set only in a list of the Runs of all Jobs


class JobSummary(Record):
    """The summary of a Job, stored as job.json. A cache that can be derived from the logs."""

    id: str  # id of the Job, which commands and methods take
    expert_key: str  # Expert of the latest Coordinator Run
    coordinator_expert_key: str = ""  # `expert_key` under the name that programs read
    runtime_version: str = Field(default="", exclude_if=falsy)  # perstack that started the Job; empty if unknown
    query: str  # first query of the Job
    labels: dict[str, str] = Field(default_factory=dict, exclude_if=falsy)  # labels by which the Job is found
    status: JobStatus  # how the Job stands, or how it ended: `completed` is the only success
    lifecycle: Lifecycle  # the status in brief, as tasks have it
    pause_reason: PauseReason | None = None  # what a paused Job waits for
    closed: Closed | None = Field(default=None, exclude_if=lambda value: value is None)
    """Permanent close of the Job; `status` is the one before it, and nothing continues the Job."""
    resume_at: int | None = None  # time at which a paused Job may be resumed, in milliseconds since 1970
    # order for workers, of a Job that none has taken yet
    queued: Queued | None = Field(default=None, exclude_if=lambda value: value is None)
    total_steps: int = 0  # steps of all Runs
    max_steps: int | None = None  # maximum of `total_steps`; None without a limit
    budget: Budget | None = None  # limits of the Job's spending
    exceeded: str | None = None  # sentence that says which budget stopped the Job
    exceeded_budget: BudgetName | None = None  # which budget stopped the Job, as a key
    usage: Usage = NO_USAGE  # tokens of all Runs
    cost_usd: Cost | None = None  # cost, or `unknown` if no price was known. With `unpriced_tokens` a lower bound
    unpriced_tokens: int = Field(default=0, exclude_if=falsy)  # tokens whose price is unknown
    assumed: Charge | None = Field(default=None, exclude_if=lambda value: value is None)
    """Charges for unreported usage, in addition to `usage`; only with a budget."""
    usage_by_expert: dict[str, Usage] = Field(default_factory=dict, exclude_if=falsy)  # tokens of each Expert
    usage_by_model: dict[str, Usage] = Field(default_factory=dict, exclude_if=falsy)  # tokens of each model, if several
    started_at: int = 0  # time in milliseconds since 1970
    updated_at: int = 0  # time of the last event, in milliseconds since 1970
    finished_at: int | None = None  # time at which the Job was completed, in milliseconds since 1970
    coordinator_run_id: str  # latest Coordinator Run, which `--continue` and `resume` refer to
    question: str | None = None  # text of the open question
    asking: OpenQuestion | None = None  # the open question with its origin and the form of the answer
    text: str | None = None  # the result of a completed Job
    # the result as an object, if the Expert or the caller has a schema
    result: JsonObject | None = Field(default=None, exclude_if=lambda value: value is None)
    # True for a success without an effect, of an Expert that declares one
    without_effect: bool = Field(default=False, exclude_if=falsy)
    error: str | None = None  # the error that stopped the Job, in one line
    damaged: bool = Field(default=False, exclude_if=falsy)  # True: `error` names the damage; not stored in job.json
    runs: tuple[RunSummary, ...] = ()  # all Runs, with the steps, tokens and status of each

    def _repr_html_(self) -> str:
        """Return the summary as a notebook shows it: result, tree of Runs and cost, all escaped."""
        return html_of(self)

    @property
    def output(self) -> object:
        """The result, parsed by the model that `run` was given as `output`; None without one."""
        return None

    @property
    def asks(self) -> str | None:
        """The open question as a person sees it, with the skill that asks."""
        return self.question if self.asking is None else self.asking.shown


OutputT = TypeVar("OutputT", bound=BaseModel)


class ParsedJob(JobSummary, Generic[OutputT]):
    """The summary of a Job whose result was parsed by a model of the caller."""

    _output: OutputT | None = PrivateAttr(default=None)

    @classmethod
    def of(cls, summary: JobSummary, output: OutputT | None) -> "ParsedJob[OutputT]":
        """Return the summary of a Job with its parsed result."""
        parsed = ParsedJob[OutputT].model_construct(summary.model_fields_set, **dict(summary))
        parsed._output = output
        return parsed

    @property
    def output(self) -> OutputT | None:
        """The parsed result; None without one."""
        return self._output


def summarize(job: "Job", *, is_driven: bool) -> JobSummary:
    """Return the summary of a Job. A running Job that nobody drives counts as interrupted."""
    last = job.coordinator
    first = min(job.coordinators, key=lambda run: run.start.timestamp)
    status = _job_status(last.status, is_driven)
    updated = max(run.updated_at for run in job.runs.values())
    question = job.question if status == "stoppedByInteractiveTool" else None
    closed, exceeded = job.closed, last.exceeded if status == "stoppedByBudget" else None
    return JobSummary(
        id=job.id,
        expert_key=last.start.expert_key,
        coordinator_expert_key=last.start.expert_key,
        runtime_version=last.start.runtime_version,
        query=first.start.query,
        labels=job.labels,
        status=status,
        lifecycle=lifecycle_of(status) if closed is None else "failed",
        pause_reason=None
        if closed is not None
        else pause_reason_of(
            status, waits_for_limit=last.waits_for_limit, is_approval=question is not None and question.approval
        ),
        closed=closed,
        resume_at=_resume_at(last, status) if closed is None else None,
        queued=last.queued,
        total_steps=job.total_steps,
        max_steps=last.limits.max_steps,
        budget=last.limits.budget,
        exceeded=exceeded and exceeded.words,
        exceeded_budget=exceeded and exceeded.budget,
        usage=job.usage,
        cost_usd=cost_of(job.usage, job.unpriced_tokens),
        unpriced_tokens=job.unpriced_tokens,
        assumed=job.assumed,
        usage_by_expert=_usage_by_expert(job),
        usage_by_model=_usage_by_model(job),
        started_at=first.start.timestamp,
        updated_at=updated,
        finished_at=updated if status == "completed" else None,
        coordinator_run_id=last.start.run_id,
        question=question.text if question else None,
        asking=question,
        text=last.result if status == "completed" else None,
        result=last.result_value if status == "completed" else None,
        without_effect=last.without_effect and status == "completed",
        error=None if last.error is None else last.error.message,
        runs=tuple(_run_summary(run, job.heads.get(run_id, EMPTY_LOG)) for run_id, run in job.runs.items()),
    )


def as_running(summary: JobSummary) -> JobSummary:
    """Return the summary with the status «running», which makes readers read the logs instead."""
    return summary.model_copy(update={"status": "running", "lifecycle": "running"})


def _usage_by_expert(job: "Job") -> dict[str, Usage]:
    usage: dict[str, Usage] = {}
    for run in job.runs.values():
        key = run.start.expert_key
        usage[key] = usage.get(key, NO_USAGE) + run.spending.usage
    return usage


def _usage_by_model(job: "Job") -> dict[str, Usage]:
    usage: dict[str, Usage] = {}
    for run in job.runs.values():
        model_name = full_name(run.start.provider, run.start.model)
        for name, share in (run.spending.by_model or {model_name: ModelShare(usage=run.spending.usage)}).items():
            usage[name] = usage.get(name, NO_USAGE) + share.usage
    return usage if len(usage) > 1 else {}


def _resume_at(last_run: "Run", status: JobStatus) -> int | None:
    if status == "queued":
        return (last_run.queued and last_run.queued.due) or None
    return last_run.resume_at


def _job_status(status: RunStatus, is_driven: bool) -> JobStatus:
    if status in ("running", "stoppedByDelegate"):
        return "running" if is_driven else "stoppedByInterrupt"
    return status  # type: ignore[return-value]  # the two others are handled above


def _run_summary(run: "Run", head: Head) -> RunSummary:
    start = run.start
    name, by_model = full_name(start.provider, start.model), run.spending.by_model
    return RunSummary(
        id=start.run_id,
        expert_key=start.expert_key,
        status=run.status,
        model=name,
        steps=run.step,
        usage=run.spending.usage,
        unpriced_tokens=run.spending.unpriced_tokens,
        by_model=by_model if len(by_model) > 1 or {*by_model} - {name} else {},
        delegated_by=start.delegated_by.run_id if start.delegated_by else None,
        continued_from=start.continued_from.checkpoint_id if start.continued_from else None,
        started_at=start.timestamp,
        updated_at=run.updated_at,
        head_seq=head.seq,
        head_hash=head.hash,
    )


# The positions of Runs in the tree of their Job, comparable between Jobs that do equal work.


@dataclass(frozen=True, slots=True)
class RunPlace:
    """The position of a Run, equal for the Run with the corresponding part in another Job."""

    expert_key: str
    query: str
    calls: tuple[str, ...] = ()  # ids of the calls that led to the Run, outermost first; empty for a Coordinator
    number: int = 0  # index among Runs that are otherwise equal, in the order of their start
    instruction: str = field(default="", compare=False)


def places_of(starts: "Iterable[StartRun]") -> dict[str, RunPlace]:
    """Return the position of each Run by its id; the Runs above each must be included."""
    by_id = {start.run_id: start for start in sorted(starts, key=lambda start: number_of_run(start.run_id))}
    calls: dict[str, tuple[str, ...]] = {}
    places: dict[str, RunPlace] = {}
    numbers: dict[RunPlace, int] = {}
    for run_id, start in by_id.items():
        above = start.delegated_by
        calls[run_id] = () if above is None else (*calls.get(above.run_id, ()), above.tool_call_id)
        place = RunPlace(start.expert_key, start.query, calls[run_id])
        number = numbers[place] = numbers.get(place, -1) + 1
        places[run_id] = RunPlace(place.expert_key, place.query, place.calls, number, start.expert.instruction)
    return places


# The tree that delegates, continuations and branches of a Job form.

RunOrigin = Literal["begun", "delegate", "continuation", "branch", "answer", "uncompacted"]
"""Origin of a Run: started by a person, called by another Run, or continuing another one from its end or from an
earlier checkpoint, also with another answer (`answer`) or with content that compaction has left out since
(`uncompacted`)."""


class PlacedRun(Record):
    """A Run in the tree of its Job."""

    run: RunSummary
    how: RunOrigin  # named so in the JSON
    parent: str | None = None  # Run that it follows from; None if a person started it, or the parent is missing
    at: str | None = None  # checkpoint of the parent that it starts from
    depth: int = 0  # number of ancestors. A continuation has the depth of the Run that it continues


def tree_of(runs: Sequence[RunSummary], places: Mapping[str, ContinuedFrom]) -> tuple[PlacedRun, ...]:
    """Return each Run once, after its parent, also if links form a cycle. `places`: checkpoints of continued Runs."""
    by_id = {run_summary.id: run_summary for run_summary in runs}
    placed = {run_summary.id: _place_run(run_summary, by_id, places.get(run_summary.id)) for run_summary in runs}
    children: dict[str | None, list[str]] = {}
    for run_summary in sorted(runs, key=lambda run: (number_of_run(run.id), run.id)):
        children.setdefault(placed[run_summary.id].parent, []).append(run_summary.id)
    tree: dict[str, PlacedRun] = {}
    todo = [(run_id, 0) for run_id in reversed([*children.get(None, ()), *by_id])]
    while todo:
        run_id, depth = todo.pop()
        if run_id in tree:
            continue
        tree[run_id] = placed[run_id].model_copy(update={"depth": depth})
        # A continuation follows all delegates and branches of the Run.
        followers = sorted(children.get(run_id, ()), key=lambda run_id: placed[run_id].how == "continuation")
        todo += [(child_id, depth + (placed[child_id].how != "continuation")) for child_id in reversed(followers)]
    return tuple(tree.values())


def with_descendants(runs: Sequence[RunSummary], run_id: str | None) -> tuple[RunSummary, ...]:
    """Return a Run and all Runs called by it and its delegates; all Runs if `run_id` is None."""
    if run_id is None:
        return tuple(runs)
    chosen = {run_id}
    for run_summary in sorted(runs, key=lambda run: number_of_run(run.id)):
        if run_summary.delegated_by in chosen:
            chosen.add(run_summary.id)
    return tuple(run_summary for run_summary in runs if run_summary.id in chosen)


def _place_run(run_summary: RunSummary, by_id: Mapping[str, RunSummary], origin: ContinuedFrom | None) -> PlacedRun:
    if run_summary.delegated_by is not None:
        return PlacedRun(
            run=run_summary,
            how="delegate",
            parent=run_summary.delegated_by if run_summary.delegated_by in by_id else None,
        )
    if origin is None:
        return PlacedRun(run=run_summary, how="begun")
    base = by_id.get(origin.run_id)
    how: RunOrigin = "continuation"
    if origin.answers or origin.as_it_was:
        how = "answer" if origin.answers else "uncompacted"
    elif base is not None and is_place(origin.checkpoint_id) and place_of(origin.checkpoint_id)[2] < base.head_seq:
        how = "branch"
    return PlacedRun(run=run_summary, how=how, parent=None if base is None else base.id, at=origin.checkpoint_id)


# A summary as HTML, for notebooks. All texts are escaped: models, tools and people wrote them.

_MAX_TEXT_CHARS = 20_000  # characters of a text that a notebook is shown


def html_of(summary: JobSummary) -> str:
    """Return the summary as one HTML element."""
    parts = [
        f"<p><b>{_escaped_text(summary.expert_key)}</b> {_escaped_text(summary.status)} · Job"
        f" <code>{_escaped_text(summary.id)}</code></p>"
    ]
    result = None if summary.result is None else canonical_json(summary.result).decode("utf-8", "replace")
    for label, text in (("asks", summary.asks), ("error", summary.error), ("result", result or summary.text)):
        if text:
            parts.append(f"<p>{label}:</p><pre>{_escaped_text(text)}</pre>")
    parts.append(f"<ul>{_tree_html(tree_of(summary.runs, {}))}</ul>")
    totals = (
        count(summary.total_steps, "step"),
        count(summary.usage.total_tokens, "token"),
        cost_text(summary.usage, summary.unpriced_tokens),
    )
    parts.append(f"<p>{_escaped_text(', '.join(filter(None, totals)))}</p>")
    return f"<div>{''.join(parts)}</div>"


def _escaped_text(text: str) -> str:
    from html import escape  # only a notebook needs it

    plain = plain_text(text)
    return escape(plain if len(plain) <= _MAX_TEXT_CHARS else f"{plain[:_MAX_TEXT_CHARS]} …")


def _tree_html(runs: tuple[PlacedRun, ...]) -> str:
    html, depth = "", 0
    for level, group in groupby(runs, key=lambda placed: placed.depth):
        html += "<ul>" * (level - depth) + "</ul>" * (depth - level)
        depth = level
        html += "".join(f"<li>{_escaped_text(_run_line(placed))}</li>" for placed in group)
    return html + "</ul>" * depth


def _run_line(placed: PlacedRun) -> str:
    run_summary = placed.run
    return f"{run_summary.expert_key} ({run_summary.id}): {run_summary.status}, {count(run_summary.steps, 'step')}"
