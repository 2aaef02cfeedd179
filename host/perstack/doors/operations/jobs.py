"""Arguments of the operations on Jobs, approvals and submissions, and answering a Job."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import ConfigDict, Field

from perstack.core.base.ids import check_job_id
from perstack.core.base.records import Fact, JsonObject
from perstack.core.jobs.answers import ALWAYS, DENIES, ApprovalWord
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.events import Settlement
from perstack.core.runs.messages import MOST
from perstack.doors.operations.declaration import Arguments
from perstack.errors import UsageError

if TYPE_CHECKING:
    from perstack.core.base.ids import By
    from perstack.engine.log.run_session import OnEvent
    from perstack.host import Host


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


# Answer a Job and follow it to its next end or stop, in this process or in a worker.


def is_driven_by_worker(host: Host, job: JobSummary) -> bool:
    """Return whether workers drive the Job: it was submitted, and this Host has a dispatcher to notify them."""
    return job.queued is not None and host.dispatcher is not None


async def answer_and_follow(
    host: Host, job: JobSummary, text: str, *, question_id: str | None, by: By, on_event: OnEvent
) -> JobSummary:
    """Answer, and drive the Job or follow its worker until it ends or stops. Raises as `Host.answer`."""
    if not is_driven_by_worker(host, job):
        return await host.answer(text, job_id=job.id, question_id=question_id, by=by, drive=True, on_event=on_event)
    seen = {run_id: head.seq for run_id, head in (await host.jobs.load(job.id)).heads.items()}
    await host.answer(text, job_id=job.id, question_id=question_id, by=by, drive=False)
    return await host.jobs.follow(job.id, after=seen, on_event=on_event)


# Approvals over HTTP.


class Decision(Arguments):
    """What a person says to a call that waits for approval."""

    answer: ApprovalWord
    rule: Annotated[str | None, Field(description="With `always`: one of the rules that are offered.")] = None
    text: Annotated[str | None, Field(description="With `no`: a text for the model.")] = None
    call_digest: Annotated[str | None, Field(description="Of the call that is meant; another is refused.")] = None
    wait: Annotated[bool, Field(description="Reply when the Job has ended or stopped, and not at once.")] = False

    @property
    def said(self) -> str:
        """The answer in the form `Host.answer` takes. Raises UsageError for a rule or text that does not fit it."""
        if self.rule is not None and self.answer != ALWAYS:
            raise UsageError(f"`rule` goes with the answer `{ALWAYS}`: leave it out")
        if self.text is not None and self.answer != DENIES:
            raise UsageError(f"`text` goes with the answer `{DENIES}`: leave it out")
        beside = self.rule or self.text
        return f"{self.answer}: {beside}" if beside else self.answer


class OpenApproval(Fact):
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
    text: str  # the whole question, as text for a person


# Submission of a Job over HTTP.


class Submission(Arguments):
    """A Job for workers to drive."""

    expert: Annotated[str, Field(min_length=1, description="The Expert's key.")]
    query: Annotated[str, Field(min_length=1)]
    at: Annotated[int | None, Field(description="Not before this time, in milliseconds since 1970.")] = None
    priority: Annotated[int, Field(description="Higher first.")] = 0
    labels: Annotated[dict[str, str], Field(description="To find it by, and for workers that take only some.")] = Field(
        default_factory=dict[str, str]
    )
    job_id: Annotated[
        str | None, Field(description="The new Job's id; the same request again is no second Job then.")
    ] = None

    def id_by(self, key: str | None) -> str | None:
        """Return the Job's id: the body's, or derived from the Idempotency-Key `key`; else None. Raises UsageError."""
        if self.job_id is not None:
            return check_job_id(self.job_id)
        return f"http-{sha256(key.encode()).hexdigest()[:32]}" if key else None

    def is_of(self, job: JobSummary) -> bool:
        """Return whether an existing Job has the Expert, query and labels of this request."""
        return (job.expert_key, job.query, job.labels) == (self.expert, self.query, self.labels)
