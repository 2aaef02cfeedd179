"""What tools take and give back: the models that arguments are read with and that schemas are made from."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, JsonValue

from perstack.core.attachments import MOST
from perstack.core.base import Fact, JsonObject, falsy
from perstack.core.events import Settlement
from perstack.core.job import Cost, JobStatus, Lifecycle, PauseReason
from perstack.core.results import placed_below
from perstack.core.runs.state import RunStatus
from perstack.frontends.shared.arguments import Arguments

_Wait = Annotated[
    bool,
    Field(
        description="Whether to wait for the end. false: return the Job's id at once, and let it continue;"
        " get_job tells how it stands."
    ),
]
_JobId = Annotated[str, Field(description="The Job's id.")]


class LinkedFile(Arguments):
    """A resource link, as MCP has it: of what it may say, the address counts."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["resource_link"] = "resource_link"
    uri: str = Field(description="A `file:` address in the workspace.")


_Attachments = Annotated[
    tuple[str | LinkedFile, ...],
    Field(
        max_length=MOST,
        description="Files that the Expert sees with the query, images, PDFs or texts: paths in its workspace, or"
        " resource links to them.",
    ),
]


class ExpertArguments(Arguments):
    """Of an Expert's tool."""

    query: str = Field(description="What the Expert is to do. It sees this and nothing of your conversation.")
    continue_job: str | None = Field(
        default=None, description="The id of an earlier Job of this Expert, to continue it with its history kept."
    )
    attachments: _Attachments = ()
    wait: _Wait = True


class ListJobsArguments(Arguments):
    """Of `list_jobs`."""

    limit: int = Field(default=20, ge=1, le=200, description="How many, the newest.")
    after: str | None = Field(default=None, description="The `next` of the page before.")


class JobArguments(Arguments):
    """Of tools that only need to know which Job."""

    job: _JobId


class CancelJobArguments(Arguments):
    """Of `cancel_job`."""

    job: _JobId
    final: bool = Field(
        default=False,
        description="Close it for good, also if it waits or is paused; nothing continues it. Only if a person agrees.",
    )


class InboxArguments(Arguments):
    """Of `inbox`."""


class ContinueJobArguments(Arguments):
    """Of `continue_job`."""

    job: _JobId
    query: str = Field(description="What the Job's Expert is to do next.")
    resume_from: str | None = Field(default=None, description="A checkpoint of the Coordinator to branch from.")
    attachments: _Attachments = ()
    wait: _Wait = True


class AnswerArguments(Arguments):
    """Of `answer`."""

    job: _JobId
    answer: str = Field(
        description="What the person says. For a question that asks for several values, a JSON object of them."
    )
    question: str | None = Field(
        default=None, description="The question's id: if it has been answered meanwhile, this answer is not taken."
    )
    wait: _Wait = True


class ResumeJobArguments(Arguments):
    """Of `resume_job`."""

    job: _JobId
    max_steps: int | None = Field(default=None, ge=0, description="A new limit on the steps of the whole Job.")
    max_cost: float | None = Field(
        default=None, gt=0, le=1e9, description="A new limit on what the Job may cost, in dollars."
    )
    settle: dict[str, Settlement] = Field(
        default_factory=dict[str, Settlement],
        description="For calls that began and have no result, by their key: done, retry, or ask (the default: the model"
        " sees that it was interrupted). get_job lists them.",
    )
    wait: _Wait = True


class CheckpointArguments(Arguments):
    """Of `get_checkpoint`."""

    checkpoint: str = Field(description="The checkpoint's id.")
    job: str | None = Field(default=None, description="The Job's id; only checkpoints of another program need it.")


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
    """The JSON schema of a tool's arguments, without what clients have no use for."""
    return _plain(model.model_json_schema(by_alias=True))


@cache
def output_schema(model: type[Fact]) -> JsonObject:
    """The JSON schema of a tool's structured result."""
    return _plain(model.model_json_schema(by_alias=True, mode="serialization"))


def expert_output_schema(model: type[Fact], result: JsonObject | None) -> JsonObject:
    """That of an Expert's tool, whose Jobs have a `result` that fits the schema of its Expert."""
    whole = output_schema(model)
    properties = whole.get("properties")
    if result is None or not isinstance(properties, dict):
        return whole
    placed = placed_below(result, "#/properties/result")
    return whole if placed is None else {**whole, "properties": {**properties, "result": placed}}


def _plain(schema: JsonObject) -> JsonObject:
    """Without titles; an optional value is one that may be left out, not one that may be null."""
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
