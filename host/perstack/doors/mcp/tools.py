"""The tools: one for each Expert, and those for Jobs and tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Generic, TypeVar

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, Tool, ToolAnnotations

from perstack.core.base.ids import is_place, place_of
from perstack.core.base.records import Fact
from perstack.core.definitions.experts import Expert
from perstack.core.jobs.checkpoints import Checkpoint
from perstack.core.jobs.summary import JobSummary, summarize
from perstack.core.tasks.operation_table import OPERATIONS, Operation
from perstack.dataclass import dataclass
from perstack.doors.mcp import views
from perstack.doors.mcp.driving import ask_approval, run_for_call
from perstack.doors.mcp.files import DiffArguments, FilesView, RewindArguments, RewindView, rewind, show_diff
from perstack.doors.mcp.notifications import caller
from perstack.doors.mcp.project import ClientCall, DriveJob, Outcome, StartQuery
from perstack.doors.operations import declaration, jobs
from perstack.doors.operations import views as shown
from perstack.doors.shared.questions import is_refusal
from perstack.engine.log.run_session import OnEvent
from perstack.errors import UsageError

# Operations on tasks as tools, for agents that track long work: `perstack mcp --tasks`.

PREFIX = "task_"

TASK_TOOLS: dict[str, Operation] = {f"{PREFIX}{operation.name}": operation for operation in OPERATIONS}


def listed_tasks() -> list[Tool]:
    """Return one tool for each operation."""
    return [_tool(name, operation) for name, operation in TASK_TOOLS.items()]


async def call_task_tool(call: ClientCall) -> Outcome:
    """Perform an operation on tasks. Raises PerstackError."""
    operation = TASK_TOOLS[call.params.name]
    arguments = declaration.read_arguments(
        declaration.arguments_of(operation), dict(call.params.arguments or {}), call.params.name
    )
    memory, hides = call.host.tasks.signed(caller(call.context)), call.state.definitions.hides
    done = await declaration.perform(operation, memory, arguments, hides)
    return views.result(done, done.to_json().decode())


def _tool(name: str, operation: Operation) -> Tool:
    return Tool(
        name=name,
        description=operation.description,
        input_schema=views.input_schema(declaration.arguments_of(operation)),
        output_schema=views.output_schema(operation.gives),
        annotations=ToolAnnotations(
            read_only_hint=operation.reads, destructive_hint=operation.method == "DELETE", open_world_hint=False
        ),
    )


_A = TypeVar("_A", bound=declaration.Arguments)

_LOOKS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_DRIVES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True)
_CHANGES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
_STOPS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False)


@dataclass(frozen=True, slots=True)
class _JobTool(Generic[_A]):
    name: str
    title: str
    description: str
    arguments: type[_A]
    gives: type[Fact]
    annotations: ToolAnnotations
    work: Callable[[ClientCall, _A], Awaitable[Outcome]]

    def listed(self) -> Tool:
        return Tool(
            name=self.name,
            title=self.title,
            description=self.description,
            input_schema=views.input_schema(self.arguments),
            output_schema=views.output_schema(self.gives),
            annotations=self.annotations,
        )

    async def __call__(self, call: ClientCall) -> Outcome:
        return await self.work(call, declaration.read_arguments(self.arguments, call.params.arguments or {}, self.name))


async def _list_jobs(call: ClientCall, args: jobs.ListJobsArguments) -> Outcome:
    page = await call.state.page_of_jobs(limit=args.limit, after=args.after)
    lines = "\n".join(shown.in_list(job) for job in page.jobs) or "no Jobs"
    return views.result(
        shown.JobList(jobs=tuple(shown.job_view(job) for job in page.jobs), next=page.next), lines, *call.notes
    )


async def _get_job(call: ClientCall, args: jobs.JobArguments) -> Outcome:
    job = await call.state.job(args.job)
    if job.status == "running":  # the stored summary of a running Job is a step or a second old
        job = summarize(await call.host.jobs.load(args.job), is_driven=True)
    is_stopped = job.status in ("stoppedByInterrupt", "stoppedByError", "stoppedByMaxSteps", "stoppedByBudget")
    open_calls = await call.host.jobs.unsettled(args.job) if is_stopped else ()
    texts = [job.text] if job.text else []
    return views.result(shown.job_details(job, open_calls), *texts, shown.standing(job), *call.notes)


async def _inbox(call: ClientCall, args: jobs.InboxArguments) -> Outcome:
    items = tuple(shown.open_item(one) for one in await call.state.inbox())
    lines = "\n".join(f"{one.id}  {one.who or '-'}  {one.text}\n  {one.next}" for one in items)
    return views.result(shown.Inbox(questions=items), lines or "nothing waits for a person", *call.notes)


async def _continue_job(call: ClientCall, args: jobs.ContinueJobArguments) -> Outcome:
    key = await _expert_of(call, args.job)
    work = partial(call.host.continue_job, key, args.query, job_id=args.job, resume_from=args.resume_from)
    return await run_for_call(call, _attaching(call, work, args.attachments), wait=args.wait)


async def _answer(call: ClientCall, args: jobs.AnswerArguments) -> Outcome:
    await _expert_of(call, args.job)
    if args.question is not None and place_of(args.question)[0] != args.job:
        raise UsageError(f"question {args.question} is not one of Job {args.job}; get_job shows what is asked")
    job, question = await call.host.job(args.job), args.question
    if job.asking is not None and job.asking.call_digest:
        if not is_refusal(job.asking, args.answer):
            return await ask_approval(call, job)
        question = question or job.asking.id
    by = caller(call.context)
    work: DriveJob = partial(call.host.answer, args.answer, job_id=args.job, question_id=question, by=by)
    if args.wait and jobs.is_driven_by_worker(call.host, job):
        work = partial(jobs.answer_and_follow, call.host, job, args.answer, question_id=question, by=by)
    return await run_for_call(call, work, wait=args.wait)


async def _resume_job(call: ClientCall, args: jobs.ResumeJobArguments) -> Outcome:
    await _expert_of(call, args.job)
    work = partial(call.host.resume, args.job, max_steps=args.max_steps, max_cost=args.max_cost, settle=args.settle)
    return await run_for_call(call, work, wait=args.wait)


async def _cancel_job(call: ClientCall, args: jobs.CancelJobArguments) -> Outcome:
    await _expert_of(call, args.job)
    await call.host.cancel(args.job, final=args.final, by=caller(call.context))
    return views.job_result(await call.host.job(args.job), *call.notes)


async def _get_checkpoint(call: ClientCall, args: jobs.CheckpointArguments) -> Outcome:
    if args.job is not None or is_place(args.checkpoint):
        await call.state.job(args.job or place_of(args.checkpoint)[0])
    checkpoint = await call.host.jobs.checkpoint(args.checkpoint, job_id=args.job)
    return views.result(checkpoint, checkpoint.model_dump_json(by_alias=True, exclude_none=True, indent=1))


async def _diff(call: ClientCall, args: DiffArguments) -> Outcome:
    await call.state.job(args.job)
    return await show_diff(call, args)


async def _rewind(call: ClientCall, args: RewindArguments) -> Outcome:
    await _expert_of(call, args.job)
    return await rewind(call, args)


JOB_TOOLS = {
    tool.name: tool
    for tool in (
        _JobTool(
            "list_jobs",
            "List Jobs",
            "Lists Jobs, the one written to last first, with their results and open questions.",
            jobs.ListJobsArguments,
            shown.JobList,
            _LOOKS,
            _list_jobs,
        ),
        _JobTool(
            "get_job",
            "Look at a Job",
            "Tells how a Job stands: its result, its question, its Runs, and calls that began and have no result.",
            jobs.JobArguments,
            shown.JobDetails,
            _LOOKS,
            _get_job,
        ),
        _JobTool(
            "inbox",
            "List open questions",
            "Lists what waits for a person: every open question and approval of every Job and task, the oldest first.",
            jobs.InboxArguments,
            shown.Inbox,
            _LOOKS,
            _inbox,
        ),
        _JobTool(
            "continue_job",
            "Continue a Job",
            "Gives a Job's Expert a new query, its history kept; or branches from an earlier checkpoint.",
            jobs.ContinueJobArguments,
            shown.JobView,
            _DRIVES,
            _continue_job,
        ),
        _JobTool(
            "answer",
            "Answer a Job's question",
            "Gives a Job that waits for a person the person's answer. Ask the person; do not answer in their place.",
            jobs.AnswerArguments,
            shown.JobView,
            _DRIVES,
            _answer,
        ),
        _JobTool(
            "resume_job",
            "Resume a Job",
            "Continues a Job that was interrupted, failed or reached its step limit, where it was.",
            jobs.ResumeJobArguments,
            shown.JobView,
            _DRIVES,
            _resume_job,
        ),
        _JobTool(
            "cancel_job",
            "Stop a Job",
            "Stops a Job, whichever process drives it. It is recorded, and can be resumed unless `final`.",
            jobs.CancelJobArguments,
            shown.JobView,
            _STOPS,
            _cancel_job,
        ),
        _JobTool(
            "get_checkpoint",
            "Look at a checkpoint",
            "Tells a Run's state at a checkpoint, with all its messages.",
            jobs.CheckpointArguments,
            Checkpoint,
            _LOOKS,
            _get_checkpoint,
        ),
        _JobTool(
            "diff",
            "Look at changes of files",
            "Shows what a Job, a Run or a step did to files, as a patch; for Jobs whose workspace is recorded.",
            DiffArguments,
            FilesView,
            _LOOKS,
            _diff,
        ),
        _JobTool(
            "rewind",
            "Rewind files",
            "Makes the files of the workspace what they were at a checkpoint of a Job. A person is asked first.",
            RewindArguments,
            RewindView,
            _CHANGES,
            _rewind,
        ),
    )
}


def listed(experts: dict[str, Expert]) -> list[Tool]:
    """Return every tool, Experts first."""
    return [
        *(_expert_tool(name, expert) for name, expert in experts.items()),
        *(t.listed() for t in JOB_TOOLS.values()),
    ]


async def call_tool(call: ClientCall) -> Outcome:
    """Perform a call. Raises PerstackError for an error of the caller, and MCPError for an unknown tool."""
    name = call.params.name
    tool = JOB_TOOLS.get(name)
    if tool is not None:
        return await tool(call)
    expert = call.state.definitions.experts.get(name)
    if expert is None:
        names = (*call.state.definitions.experts, *JOB_TOOLS)
        near = get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"
        raise MCPError(INVALID_PARAMS, f"Unknown tool {name!r}: {hint}")
    return await _run_expert(call, expert)


async def _run_expert(call: ClientCall, expert: Expert) -> Outcome:
    args = declaration.read_arguments(jobs.ExpertArguments, call.params.arguments or {}, call.params.name)
    if args.continue_job is not None:
        await _expert_of(call, args.continue_job)
    if args.continue_job is None and not args.wait and call.host.leaves_to_workers:
        names = [place if isinstance(place, str) else place.uri for place in args.attachments]
        files = [await call.host.jobs.attachment(name) for name in names]
        job = await call.host.submit(expert.key, args.query, attachments=files, by=caller(call.context))
        return views.job_result(job, *call.notes)
    work: StartQuery = (
        partial(call.host.run, expert.key, args.query)
        if args.continue_job is None
        else partial(call.host.continue_job, expert.key, args.query, job_id=args.continue_job)
    )
    return await run_for_call(call, _attaching(call, work, args.attachments), wait=args.wait)


def _attaching(call: ClientCall, work: StartQuery, places: Sequence[str | jobs.LinkedFile]) -> DriveJob:
    """Return the work with workspace files attached, read when it starts: a client may name no other files."""

    async def begun(*, on_event: OnEvent) -> JobSummary:
        names = [place if isinstance(place, str) else place.uri for place in places]
        return await work(attachments=[await call.host.jobs.attachment(name) for name in names], on_event=on_event)

    return begun


def _expert_tool(name: str, expert: Expert) -> Tool:
    return Tool(
        name=name,
        title=expert.key,
        description=expert.description or f"Runs the Expert {expert.key}.",
        input_schema=views.input_schema(jobs.ExpertArguments),
        output_schema=views.expert_output_schema(shown.JobView, expert.output),
        annotations=_DRIVES,
    )


async def _expert_of(call: ClientCall, job_id: str) -> str:
    """Return the Expert of a Job. Raises UsageError if its Jobs are not driven here."""
    key = (await call.host.job(job_id)).expert_key
    call.state.definitions.check_offered(key)
    return key
