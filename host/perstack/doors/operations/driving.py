"""Operations that drive a Job or stop it, and the arguments of an Expert's tool, which starts one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

from pydantic import ConfigDict, Field, PrivateAttr
from typing_extensions import override

from perstack.config.resolved_settings import resolve_settings
from perstack.core.base.ids import place_of
from perstack.core.base.records import JsonObject
from perstack.core.jobs.answer_reading import ALWAYS, DENIES, ApprovalWord, changed_answer, yes_or_no
from perstack.core.jobs.resuming import new_limits, unsettled_calls
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.facts import Settlement
from perstack.doors.operations import (
    AnyArguments,
    Arguments,
    OfferedOperation,
    OperationArguments,
    OperationCall,
    R,
    Route,
    views,
)
from perstack.doors.served_project import ServedProject
from perstack.doors.shared.consent import page_of
from perstack.doors.shared.job_tasks import DriveJob
from perstack.doors.shared.workspace_files import read_workspace_file, workspace_for_diff
from perstack.errors import Conflict, UsageError
from perstack.media.attachments import MAX_ATTACHMENTS
from perstack.next_steps import GiveAnswer
from perstack.oversight.job_decisions import (
    JobSubject,
    answer_decision,
    branch_decision,
    close_decision,
    continue_limit_decision,
    resume_limit_decision,
    settlement_decision,
    tell_decision,
)
from perstack.oversight.needed_decisions import FREE, Decides, FreeArgument
from perstack.posted_texts.model import Delivery, check_posted

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from perstack.core.base.ids import By
    from perstack.engine.log.run_session import OnEvent
    from perstack.engine.runs.input_protocols import Attachable
    from perstack.host import Host

_Wait = Annotated[
    bool,
    FREE,
    Field(
        description="Whether to wait for the end. false: return the Job's id at once, while it continues;"
        " get_job shows its state."
    ),
]
JobId = Annotated[str, FREE, Field(description="The Job's id.")]


class LinkedFile(Arguments):
    """A resource link of MCP, of which only the address is used."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["resource_link"] = "resource_link"
    uri: str = Field(description="A `file:` address in the workspace.")


_Attachments = Annotated[
    tuple[str | LinkedFile, ...],
    FREE,  # a client may name only files that the Experts' tools may read
    Field(
        max_length=MAX_ATTACHMENTS,
        description="Images, PDFs or texts that the Expert sees with the query: paths in its workspace, or resource"
        " links to them.",
    ),
]


class StartQuery(Protocol):
    """A method of the Host that starts a Run, with the query bound: it takes the attachments and the listener."""

    def __call__(
        self, *, attachments: Sequence[Attachable], on_event: OnEvent
    ) -> Coroutine[object, object, JobSummary]:
        """Start the Run and return its Job at its end or stop."""
        ...


async def read_attachments(host: Host, files: Sequence[str | LinkedFile]) -> list[Attachable]:
    """Read the named files of the workspace. Raises UsageError for a file that tools may not read."""
    return [await read_workspace_file(host, file if isinstance(file, str) else file.uri) for file in files]


def with_attachments(host: Host, work: StartQuery, files: Sequence[str | LinkedFile]) -> DriveJob:
    """Return the work with files of the workspace attached; they are read when it starts."""

    async def start_with_files(*, on_event: OnEvent) -> JobSummary:
        return await work(attachments=await read_attachments(host, files), on_event=on_event)

    return start_with_files


# The limits of a Job after a call.


async def _subject_of_resume(
    served_project: ServedProject, job_id: str, max_steps: int | None, max_cost: float | None
) -> JobSubject:
    """Return a Job with its limits after a resumption, to which this server's options apply as well."""
    await served_project.job_to_drive(job_id)
    job, overrides = (
        await served_project.host.jobs.load(job_id),
        served_project.host.jobs.source.setup.overrides,
    )
    if max_cost is not None:
        overrides = replace(overrides, max_cost=max_cost)
    run = job.coordinator
    return JobSubject(job, new_limits(run, overrides, max_steps) or run.limits, unsettled_calls(job.runs.values()))


async def _subject_of_continuation(served_project: ServedProject, job_id: str) -> JobSubject:
    """Return a Job with the limits of its next Run, which the definition sets."""
    await served_project.job_to_drive(job_id)
    job, context = await served_project.host.jobs.load(job_id), served_project.host.jobs.source.setup
    run = job.coordinator
    expert = context.project.expert(run.start.expert_key)
    if expert is None:
        return JobSubject(job)  # the Job cannot be continued, and continuing it reports that
    limits = resolve_settings(context.project, expert, context.overrides, steps_before=job.total_steps).limits
    is_default = "maxSteps" not in run.start.overrides and run.limits.max_steps == run.start.limits.max_steps
    if is_default:  # no person set this Job's limit: each query has the steps of the definition
        limits = limits.model_copy(update={"max_steps": run.limits.max_steps})
    return JobSubject(job, limits)


class ExpertArguments(OperationArguments[views.JobView]):
    """Arguments of the MCP tool that starts an Expert."""

    query: FreeArgument[str] = Field(
        description="What the Expert should do. It sees this text and nothing of your conversation."
    )
    continue_job: Annotated[str | None, Decides(continue_limit_decision)] = Field(
        default=None, description="The id of an earlier Job of this Expert, to continue it with its history."
    )
    attachments: _Attachments = ()
    wait: _Wait = True
    _expert_key: str = PrivateAttr("")

    def of(self, expert_key: str) -> ExpertArguments:
        """Return the arguments for a call of this Expert's tool."""
        arguments = self.model_copy()
        arguments._expert_key = expert_key
        return arguments

    @override
    async def subject(self, served_project: ServedProject) -> JobSubject | None:
        return None if self.continue_job is None else await _subject_of_continuation(served_project, self.continue_job)

    @override
    async def perform(self, call: OperationCall[views.JobView, R]) -> R:
        host = call.served_project.host
        if self.continue_job is not None:
            await call.served_project.job_to_drive(self.continue_job)
        elif not self.wait and host.leaves_to_workers:
            files = await read_attachments(host, self.attachments)
            return views.reply_job(call, await host.submit(self._expert_key, self.query, attachments=files, by=call.by))
        work: StartQuery = (
            partial(host.run, self._expert_key, self.query)
            if self.continue_job is None
            else partial(host.continue_job, self._expert_key, self.query, job_id=self.continue_job)
        )
        return await call.drive(with_attachments(host, work, self.attachments), wait=self.wait)


EXPERT_OPERATION = OfferedOperation("expert", ExpertArguments, "drive", FREE)
"""Operation of every Expert's tool."""


class _ContinueJob(OperationArguments[views.JobView]):
    """Gives a Job's Expert a new query, with the history; or branches from an earlier checkpoint."""

    job: JobId
    query: FreeArgument[str] = Field(description="What the Job's Expert should do next.")
    resume_from: Annotated[str | None, Decides(branch_decision)] = Field(
        default=None, description="A checkpoint of the Coordinator to branch from. A person is asked first."
    )
    attachments: _Attachments = ()
    wait: _Wait = True

    @override
    async def subject(self, served_project: ServedProject) -> JobSubject:
        return await _subject_of_continuation(served_project, self.job)

    @override
    async def perform(self, call: OperationCall[views.JobView, R]) -> R:
        host, summary = call.served_project.host, await call.served_project.job_to_drive(self.job)
        work = partial(host.continue_job, summary.expert_key, self.query, job_id=self.job, resume_from=self.resume_from)
        return await call.drive(with_attachments(host, work, self.attachments), wait=self.wait)


_Changed = Annotated[
    JsonObject | None,
    Decides(answer_decision),
    Field(
        description="With `yes` to a call that waits for approval: all of its arguments, in place of the model's. The"
        " rules judge the changed call; what they deny is asked again as it was."
    ),
]


def _changed_text(answer: str, args: JsonObject) -> str:
    decision = yes_or_no(answer)
    if decision is None or not decision.is_yes or decision.words:
        raise UsageError("`changed` goes with the answer `yes`: leave it out")
    return changed_answer(args)


class _AnswerJob(OperationArguments[views.JobView]):
    """Lets the person answer the open question of a Job in a form; from you, only a no to a call is accepted."""

    job: JobId
    answer: Annotated[str, Decides(answer_decision)] = Field(
        description="What the person says. For a question that asks for several values, a JSON object of them."
    )
    question: FreeArgument[str | None] = Field(
        default=None, description="The question's id: if it has been answered in the meantime, this answer is refused."
    )
    changed: _Changed = None
    wait: _Wait = True

    @property
    def answer_text(self) -> str:
        """The answer as `Host.answer` takes it. Raises UsageError for changed arguments without a yes."""
        return self.answer if self.changed is None else _changed_text(self.answer, self.changed)

    @override
    async def subject(self, served_project: ServedProject) -> JobSubject:
        await served_project.job_to_drive(self.job)
        subject = JobSubject(await served_project.host.jobs.load(self.job))
        asking = subject.question
        if self.changed is not None and (asking is None or not asking.call_digest):
            raise UsageError(f"Job {self.job} has no approval of a call open, so there are no arguments to change")
        if self.question is not None and asking is not None and asking.id != self.question:
            self._check_of_job()
            raise Conflict(f"question {self.question} has been answered already, or was never asked")
        return subject

    @override
    async def perform(self, call: OperationCall[views.JobView, R]) -> R:
        await call.served_project.job_to_drive(self.job)
        self._check_of_job()
        host, question = call.served_project.host, self.question
        summary = await host.job(self.job)
        if summary.asking is not None and summary.asking.call_digest:
            question = question or summary.asking.id
        work: DriveJob = partial(host.answer, self.answer_text, job_id=self.job, question_id=question, by=call.by)
        if self.wait and is_driven_by_worker(host, summary):
            work = partial(answer_and_follow, host, summary, self.answer_text, question_id=question, by=call.by)
        return await call.drive(work, wait=self.wait)

    def _check_of_job(self) -> None:
        if self.question is not None and place_of(self.question)[0] != self.job:
            raise UsageError(f"question {self.question} is not one of Job {self.job}; get_job shows the open question")


class _ResumeJob(OperationArguments[views.JobView]):
    """Continues a Job that was interrupted, failed or reached its step limit, from where it stopped."""

    job: JobId
    max_steps: Annotated[int | None, Decides(resume_limit_decision)] = Field(
        default=None,
        ge=0,
        description="A new limit on the steps of the whole Job; a person is asked about a higher one.",
    )
    max_cost: Annotated[float | None, Decides(resume_limit_decision)] = Field(
        default=None,
        gt=0,
        le=1e9,
        description="A new limit on what the Job may cost, in dollars; a person is asked about a higher one.",
    )
    settle: Annotated[dict[str, Settlement], Decides(settlement_decision)] = Field(
        default_factory=dict[str, Settlement],
        description="For calls that began but have no result, by their key: done, retry, ask (a question to a person)"
        " or tell (the default: the model sees that it was interrupted). get_job lists them. A person is asked about"
        " done and retry.",
    )
    wait: _Wait = True

    @override
    async def subject(self, served_project: ServedProject) -> JobSubject:
        return await _subject_of_resume(served_project, self.job, self.max_steps, self.max_cost)

    @override
    async def perform(self, call: OperationCall[views.JobView, R]) -> R:
        await call.served_project.job_to_drive(self.job)
        resume = call.served_project.host.resume
        work = partial(resume, self.job, max_steps=self.max_steps, max_cost=self.max_cost, settle=self.settle)
        return await call.drive(work, wait=self.wait)


class _CancelJob(OperationArguments[views.JobView]):
    """Stops a Job, whichever process drives it. It is recorded, and can be resumed unless `final`."""

    job: JobId
    final: Annotated[bool, Decides(close_decision)] = Field(
        default=False,
        description="Close it permanently, also if it waits or is paused. A person is asked first.",
    )

    @override
    async def subject(self, served_project: ServedProject) -> JobSubject:
        await served_project.job_to_drive(self.job)
        return JobSubject(await served_project.host.jobs.load(self.job))

    @override
    async def perform(self, call: OperationCall[views.JobView, R]) -> R:
        await call.served_project.job_to_drive(self.job)
        await call.served_project.host.cancel(self.job, final=self.final, by=call.by)
        return views.reply_job(call, await call.served_project.host.job(self.job))


class _TellJob(OperationArguments[Delivery]):
    """Tells a Job something from the person: its model sees it before its next generation. A person is asked first."""

    job: JobId
    text: FreeArgument[str | None] = Field(default=None, description="The words of the person, at most 20,000.")
    run: FreeArgument[str | None] = Field(default=None, description="The Run to tell; by default the Coordinator.")
    drop: FreeArgument[str | None] = Field(
        default=None, description="Instead of `text`: the id of an earlier text that should no longer be sent."
    )

    @override
    async def subject(self, served_project: ServedProject) -> JobSubject:
        if (self.text is None) == (self.drop is None):
            raise UsageError("give `text`, or `drop` to remove an earlier text")
        if self.text is not None:
            check_posted(self.text)
        await served_project.job_to_drive(self.job)
        return JobSubject(await served_project.host.jobs.load(self.job))

    @override
    async def perform(self, call: OperationCall[Delivery, R]) -> R:
        await self.subject(call.served_project)
        texts = call.served_project.host.texts
        if self.text is not None:
            delivery = await texts.tell(self.job, self.text, run_id=self.run, by=call.by)
        else:
            delivery = await texts.drop(self.job, self.drop or "", by=call.by)
        return call.reply(delivery, f"Kept; {delivery.words}.")


class Decision(OperationArguments[views.DrivenJob]):
    """Approve or deny a call, and continue its Job. Any answer but `no` needs a token with the right to decide."""

    id: Annotated[str, FREE, Field(description="The question's id.")]
    answer: Annotated[ApprovalWord, Decides(answer_decision)]
    rule: Annotated[str | None, FREE, Field(description="With `always`: one of the offered rules.")] = None
    text: Annotated[str | None, FREE, Field(description="With `no`: a text for the model.")] = None
    changed: _Changed = None
    call_digest: Annotated[
        str | None,
        FREE,
        Field(description="The digest of the call; if the open call has another digest, the answer is refused."),
    ] = None
    wait: Annotated[bool, FREE, Field(description="Reply when the Job has ended or stopped, instead of at once.")] = (
        False
    )

    @override
    async def subject(self, served_project: ServedProject) -> JobSubject:
        await self._check_asked(served_project)
        return JobSubject(await served_project.host.jobs.load(place_of(self.id)[0]))

    @override
    async def perform(self, call: OperationCall[views.DrivenJob, R]) -> R:
        """Give the answer. Raises Conflict if the question is decided or about another call, and UsageError."""
        await self._check_asked(call.served_project)
        answer = partial(call.served_project.host.answer, self.answer_text, question_id=self.id, by=call.by)
        return await call.drive(answer, wait=self.wait)

    async def _check_asked(self, served_project: ServedProject) -> None:
        """Raise Conflict or UsageError unless the question is open and asks for this call."""
        asking = (await served_project.job(place_of(self.id)[0])).asking
        if asking is None or asking.id != self.id:
            raise Conflict(f"question {self.id} has been answered already, or was never asked")
        if not asking.call_digest:
            raise UsageError(f"question {self.id} is not about the approval of a call")
        if self.call_digest not in (None, asking.call_digest):
            raise Conflict(f"question {self.id} is about another call: its digest is {asking.call_digest}")
        page = page_of(asking, await workspace_for_diff(served_project.host, asking))
        if page.missing and self.answer != DENIES:
            text = f"{page.missing}, so only `{DENIES}` is accepted here"
            raise UsageError(text, next_steps=(GiveAnswer(self.id, is_approval=True),))

    @property
    def answer_text(self) -> str:
        """The answer as `Host.answer` takes it. Raises UsageError for a rule or text that does not fit."""
        if self.rule is not None and self.answer != ALWAYS:
            raise UsageError(f"`rule` goes with the answer `{ALWAYS}`: leave it out")
        if self.text is not None and self.answer != DENIES:
            raise UsageError(f"`text` goes with the answer `{DENIES}`: leave it out")
        if self.changed is not None:
            return _changed_text(self.answer, self.changed)
        detail = self.rule or self.text
        return f"{self.answer}: {detail}" if detail else self.answer


APPROVALS = "/v1/approvals"

_DECISION = Route(
    "POST", f"{APPROVALS}/{{id}}", {202: "the Job continues", 200: "with `wait`: the Job has ended or stopped"}
)
_TELLING = Route("POST", "/v1/jobs/{job}/tell", {200: "it is kept until the Run takes it"})
DRIVING_OPERATIONS: tuple[OfferedOperation[AnyArguments], ...] = (
    OfferedOperation("continue_job", _ContinueJob, "drive", Decides(continue_limit_decision), "Continue a Job"),
    OfferedOperation("answer", _AnswerJob, "drive", Decides(answer_decision), "Answer a Job's question"),
    OfferedOperation("resume_job", _ResumeJob, "drive", Decides(resume_limit_decision), "Resume a Job"),
    OfferedOperation("tell_job", _TellJob, "write", Decides(tell_decision), "Tell a Job something", _TELLING),
    OfferedOperation("cancel_job", _CancelJob, "stop", FREE, "Stop a Job"),
    OfferedOperation("decideApproval", Decision, "drive", Decides(answer_decision), route=_DECISION),
)


# Answer a Job and follow it to its next end or stop, in this process or in a worker.


def is_driven_by_worker(host: Host, summary: JobSummary) -> bool:
    """Return whether workers drive the Job: it was submitted, and this Host has a dispatcher to notify them."""
    return summary.queued is not None and host.dispatcher is not None


async def answer_and_follow(
    host: Host, summary: JobSummary, text: str, *, question_id: str | None, by: By, on_event: OnEvent
) -> JobSummary:
    """Answer, and drive the Job or follow its worker until it ends or stops. Raises as `Host.answer`."""
    if not is_driven_by_worker(host, summary):
        return await host.answer(text, job_id=summary.id, question_id=question_id, by=by, drive=True, on_event=on_event)
    known_heads = {run_id: head.seq for run_id, head in (await host.jobs.load(summary.id)).heads.items()}
    await host.answer(text, job_id=summary.id, question_id=question_id, by=by, drive=False)
    return await host.jobs.follow(summary.id, after=known_heads, on_event=on_event)
