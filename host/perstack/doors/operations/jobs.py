"""The table of operations on Jobs, approvals and submissions: a new one is a class with `perform`, and a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

from pydantic import Field
from typing_extensions import override

from perstack.core.base.ids import check_job_id, is_place, place_of
from perstack.core.base.text import plain_text
from perstack.core.jobs.checkpoints import Checkpoint
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.start import CallerFields
from perstack.doors.operations import AnyArguments, OfferedOperation, OperationArguments, OperationCall, R, Route, views
from perstack.doors.operations.driving import APPROVALS, DRIVING_OPERATIONS, JobId
from perstack.doors.served_project import ServedProject
from perstack.doors.shared.file_changes import file_rows, patch_bytes, stat_words
from perstack.doors.shared.workspace_files import workspace_for_diff
from perstack.errors import Conflict, NotFound, UsageError
from perstack.next_steps import Decide
from perstack.oversight.needed_decisions import FREE, Decides, FreeArgument, NeededDecision

if TYPE_CHECKING:
    from perstack.host import Host
    from perstack.snapshots.rewind import Rewind

# Operations that only read.


class _ListJobs(OperationArguments[views.JobList]):
    """Lists Jobs, the most recently written first, with their results and open questions."""

    limit: FreeArgument[int] = Field(default=20, ge=1, le=200, description="The maximum number; the newest first.")
    after: FreeArgument[str | None] = Field(default=None, description="`next` of the previous page.")

    async def perform(self, call: OperationCall[views.JobList, R]) -> R:
        page = await call.served_project.page_of_jobs(limit=self.limit, after=self.after)
        lines = "\n".join(views.in_list(summary) for summary in page.jobs) or "no Jobs"
        return call.reply(
            views.JobList(jobs=tuple(views.job_view(summary) for summary in page.jobs), next=page.next), lines
        )


class _GetJob(OperationArguments[views.JobDetails]):
    """Shows the state of a Job: its result, its open question, its Runs, and calls that began but have no result."""

    job: JobId

    async def perform(self, call: OperationCall[views.JobDetails, R]) -> R:
        summary = await call.served_project.current_job(self.job)
        is_stopped = summary.status in ("stoppedByInterrupt", "stoppedByError", "stoppedByMaxSteps", "stoppedByBudget")
        open_calls = await call.served_project.host.jobs.unsettled(self.job) if is_stopped else ()
        return call.reply(views.job_details(summary, open_calls), *views.job_texts(summary))


class _ShowInbox(OperationArguments[views.Inbox]):
    """Lists what waits for a person: every open question and approval of every Job and task, the oldest first."""

    async def perform(self, call: OperationCall[views.Inbox, R]) -> R:
        items = tuple(views.open_item(item) for item in await call.served_project.inbox())
        lines = "\n".join(f"{item.id}  {item.who or '-'}  {item.text}\n  {item.next}" for item in items)
        return call.reply(views.Inbox(questions=items), lines or "nothing waits for a person")


class _GetCheckpoint(OperationArguments[Checkpoint]):
    """Shows a Run's state at a checkpoint, with all its messages."""

    checkpoint: FreeArgument[str] = Field(description="The checkpoint's id.")
    job: FreeArgument[str | None] = Field(
        default=None, description="The Job's id; only checkpoints of another program need it."
    )

    async def perform(self, call: OperationCall[Checkpoint, R]) -> R:
        if self.job is not None or is_place(self.checkpoint):
            await call.served_project.job(self.job or place_of(self.checkpoint)[0])
        checkpoint = await call.served_project.host.jobs.checkpoint(self.checkpoint, job_id=self.job)
        return call.reply(checkpoint, checkpoint.model_dump_json(by_alias=True, exclude_none=True, indent=1))


# Files.

_MAX_PATCH_CHARS = 60_000  # maximum characters of a patch in a result


class _ShowDiff(OperationArguments[views.FilesView]):
    """Shows the file changes of a Job, a Run or a step as a patch, for Jobs whose workspace has snapshots."""

    job: JobId
    what: FreeArgument[str | None] = Field(
        default=None,
        description="A step's number; a checkpoint, for the step that it ends; or FIRST..LAST, to compare the"
        " files at two checkpoints, or FIRST.. to compare with the current files. By default the whole Job.",
    )
    run: FreeArgument[str | None] = Field(
        default=None, description="Only the changes by this Run, without its delegates."
    )

    async def perform(self, call: OperationCall[views.FilesView, R]) -> R:
        await call.served_project.job(self.job)
        diff = await call.served_project.host.files.diff(self.job, self.what, run_id=self.run)
        text = plain_text(patch_bytes(diff.files).decode("utf-8", "backslashreplace"))
        if len(text) > _MAX_PATCH_CHARS:
            text = f"{text[:_MAX_PATCH_CHARS]}\n… ({len(text):,} characters: ask for one step)"
        return call.reply(views.files_view(diff), f"{diff.of}: {stat_words(diff.files)}", text)


class _RewindFiles(OperationArguments[views.RewindView]):
    """Restores the files of the workspace to a checkpoint of a Job. A person is asked first."""

    job: JobId
    checkpoint: FreeArgument[str] = Field(description="The checkpoint to restore the files to.")
    only: FreeArgument[tuple[str, ...]] = Field(
        default=(), description="Globs of the paths to restore; by default all."
    )

    async def subject(self, served_project: ServedProject) -> Rewind:
        await served_project.job_to_drive(self.job)
        return await served_project.host.files.plan_rewind(self.job, self.checkpoint, only=self.only)

    async def perform(self, call: OperationCall[views.RewindView, R]) -> R:
        plan, files = await self.subject(call.served_project), call.served_project.host.files
        if not plan.files:
            text = f"The files are already as they were at {self.checkpoint}."
            return call.reply(views.rewind_view(plan, done=True), text)
        expected = call.seal or plan.digest
        rewound = await files.rewind(self.job, self.checkpoint, only=self.only, expected=expected, by=call.by)
        text = f"The files are restored to {self.checkpoint}: {stat_words(rewound.files)}."
        return call.reply(views.rewind_view(rewound, done=True), f"{text} To undo it, rewind to {rewound.undo}.")


def _rewind_decision(plan: Rewind, arguments: _RewindFiles) -> NeededDecision | None:
    """Return the decision to rewind files, which names each of them."""
    if not plan.files:
        return None
    rows = (f"{change} {path} {lines}" for change, path, lines in file_rows(plan.files))
    head = f"Restore the files in {plan.workspace} to {plan.checkpoint_id}. This changes:"
    only = tuple(("only", glob) for glob in arguments.only)
    return NeededDecision(
        "\n".join([head, *rows]),
        Decide("rewind", arguments.job, arguments.checkpoint, options=only),
        seal=plan.digest,
    )


# Approvals.


class ListApprovals(OperationArguments[views.Approvals]):
    """The calls of Jobs that wait for a person's approval, the oldest first."""

    @override
    async def perform(self, call: OperationCall[views.Approvals, R]) -> R:
        questions = [item.question for item in await call.served_project.inbox()]
        host = call.served_project.host
        calls = [asking for asking in questions if asking is not None and asking.call_digest]
        approvals = [views.open_approval(asking, await workspace_for_diff(host, asking)) for asking in calls]
        return call.reply(views.Approvals(approvals=tuple(approvals)))


# Jobs for workers.


class Submission(OperationArguments[views.SubmittedJob]):
    """Queue a Job for workers. With a `jobId` or an idempotency key, a repeated request starts no second Job."""

    expert: Annotated[str, FREE, Field(min_length=1, description="The Expert's key.")]
    query: Annotated[str, FREE, Field(min_length=1)]
    at: Annotated[int | None, FREE, Field(description="Not before this time, in milliseconds since 1970.")] = None
    priority: Annotated[int, FREE, Field(description="Higher first.")] = 0
    labels: Annotated[
        dict[str, str],
        FREE,
        Field(description="Labels to find the Job by, and to select the workers that may take it."),
    ] = Field(default_factory=dict[str, str])
    job_id: Annotated[
        str | None, FREE, Field(description="The new Job's id; a repeated request then starts no second Job.")
    ] = None

    async def perform(self, call: OperationCall[views.SubmittedJob, R]) -> R:
        """Reply with a new Job, or the Job that an equal request started before. Raises PerstackError."""
        await call.served_project.refresh()
        call.served_project.definitions.check_offered(self.expert)
        host = call.served_project.host
        summary = await self._find_begun(host)
        try:
            summary = summary or await host.submit(
                self.expert,
                self.query,
                at=self.at,
                priority=self.priority,
                job_id=self.job_id,
                by=call.by,
                **self._caller_fields(),
            )
        except (UsageError, Conflict):
            summary = await self._find_begun(host)
            if summary is None:
                raise
        return call.reply(views.SubmittedJob(id=summary.id, status=summary.status))

    def _caller_fields(self) -> CallerFields:
        """Return the fields that `startRun` records as given, by the names that they have there."""
        fields = self.model_dump(include=set(CallerFields.__annotations__))
        return cast("CallerFields", fields)

    async def _find_begun(self, host: Host) -> JobSummary | None:
        """Return the Job with this id, or None. Raises Conflict if it was started by a different request."""
        try:
            summary = None if self.job_id is None else await host.job(check_job_id(self.job_id))
        except NotFound:
            return None
        wanted = {"expert_key": self.expert, "query": self.query, **self._caller_fields()}
        if summary is None or all(getattr(summary, name) == value for name, value in wanted.items()):
            return summary
        raise Conflict(f"Job {summary.id} was started by another request: send its Expert, query and labels")


class GetSubmittedJob(OperationArguments[JobSummary]):
    """Show the state of a Job."""

    id: JobId

    @override
    async def perform(self, call: OperationCall[JobSummary, R]) -> R:
        return call.reply(await call.served_project.job(self.id))


JOBS, _JOB = "/v1/jobs", "/v1/jobs/{id}"

_QUEUED = {202: "it waits for a worker"}
_LATER = {503: "it is recorded but could not be queued: a worker will find it"}
_DONE = {200: "done"}

JOB_OPERATIONS: tuple[OfferedOperation[AnyArguments], ...] = (
    OfferedOperation("list_jobs", _ListJobs, "read", FREE, "List Jobs"),
    OfferedOperation("get_job", _GetJob, "read", FREE, "Look at a Job"),
    OfferedOperation("inbox", _ShowInbox, "read", FREE, "List open questions"),
    *DRIVING_OPERATIONS,
    OfferedOperation("get_checkpoint", _GetCheckpoint, "read", FREE, "Look at a checkpoint"),
    OfferedOperation("diff", _ShowDiff, "read", FREE, "Look at changes of files"),
    OfferedOperation("rewind", _RewindFiles, "write", Decides(_rewind_decision), "Rewind files"),
    OfferedOperation("listApprovals", ListApprovals, "read", FREE, route=Route("GET", APPROVALS, _DONE)),
    OfferedOperation("submitJob", Submission, "drive", FREE, route=Route("POST", JOBS, _QUEUED, _LATER)),
    OfferedOperation("getJob", GetSubmittedJob, "read", FREE, route=Route("GET", _JOB, _DONE)),
)
