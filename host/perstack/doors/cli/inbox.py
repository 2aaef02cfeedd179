"""The commands `perstack inbox`, `answer` and `signal`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from perstack.core.base.ids import place_of
from perstack.core.base.records import JsonObject
from perstack.core.base.text import approvable_text
from perstack.core.jobs.answer_reading import WITH, accepted_answers
from perstack.core.jobs.resuming import check_not_closed
from perstack.core.jobs.summary import JobSummary
from perstack.doors.cli.driving import (
    can_ask,
    drive_and_report,
    drive_interruptible,
    open_attended_host,
    report_outcome,
)
from perstack.doors.cli.options import (
    GroupedCommand,
    HostOptions,
    drive_options,
    driving_options,
    json_option,
    place_options,
    run_with,
)
from perstack.doors.cli.output import JobOutput, OutputOptions, output_options
from perstack.doors.cli.param_types import json_on_stdin, read_text
from perstack.doors.cli.terminal import print_err, print_out, write_json
from perstack.doors.shared.consent import LIST, FittedPage, fitted, page_of
from perstack.doors.shared.next_step_phrases import cli_phrase
from perstack.doors.shared.question_forms import is_refusal, question_text, select_option
from perstack.doors.shared.screen import Screen, StyledText
from perstack.doors.shared.signals import INTERRUPTED
from perstack.doors.shared.text import age_text
from perstack.engine.log.run_session import OnEvent
from perstack.errors import Conflict, NotFound, StorageError, UsageError
from perstack.host import Host
from perstack.next_steps import GiveAnswer, NextStep
from perstack.oversight.cloud_events import CloudEvent, read_cloud_event
from perstack.oversight.inbox import InboxItem
from perstack.system.clock import SYSTEM
from perstack.system.user import this_user
from perstack.tasks.state import TaskState

_CALL_ID = "PERSTACK_CALL_ID"  # environment variable that is set in processes of tools


@click.command("answer", cls=GroupedCommand)
@click.argument("ident", metavar="ID")
@click.argument("text", required=False)
@click.option(
    "--changed", metavar="JSON", help="Approve a call, but with these arguments: a JSON object with all of them."
)
@drive_options
@output_options
@driving_options
def answer_command(
    ident: str,
    text: str | None,
    changed: str | None,
    is_driven: bool,
    output_options: OutputOptions,
    options: HostOptions,
) -> None:
    """Answer ID, a question, Job or task that `perstack inbox` shows, with TEXT, and continue its Job.

    A submitted Job, and every Job of a project with a dispatcher, is queued for a worker again.

    Without TEXT, a terminal shows the whole question, and asks. TEXT `-` reads from stdin. The question of a running
    tool takes the one value that it asks for, a JSON object, or `decline`.
    """
    if changed is not None:
        if text is not None:
            raise UsageError("--changed approves the call: leave out TEXT")
        text = f"{WITH} {read_text(changed)}"
    if text is None:
        sys.exit(_ask(ident, output_options, options))
    answer = read_text(text) if changed is None else text
    question_answer = run_with(
        options.open_host(), lambda host: _find_question(host, ident, answer, is_change=changed is not None)
    )
    if question_answer is None:
        print_err(f"task {ident}: answered; `perstack task run-due` continues it")
        return
    host = open_attended_host(options, output_options)
    lines = JobOutput(output_options)
    question_id, answer = question_answer

    async def answer_job(on_event: OnEvent) -> JobSummary:
        await lines.begin(host, place_of(question_id)[0])
        return await host.answer(
            answer, question_id=question_id, by=this_user("cli"), drive=is_driven or None, on_event=on_event
        )

    sys.exit(drive_and_report(host, answer_job, lines))


def _ask(ident: str, output_options: OutputOptions, options: HostOptions) -> int:
    """Show the whole question at the terminal, ask, and return the exit status."""
    if not can_ask(asks=not output_options.no_input):
        raise UsageError("give the answer as TEXT: only a terminal shows the question and asks")
    check_no_tool("approve a call")
    host, lines = open_attended_host(options, output_options), JobOutput(output_options)

    async def find_asking_job(on_event: OnEvent) -> JobSummary:
        item = _find_item(await host.inbox(), await host.jobs.complete_id(ident, ("job", "task")))
        if item is None or item.job_id is None or item.question is None:
            if item is not None and item.task_id is not None:
                raise UsageError(f"give the answer to a task as TEXT; {_show_command(item)} shows its question")
            await _require_question_id(host, ident)
            raise Conflict(f"question {ident} has been answered already, or was never asked")
        await lines.begin(host, item.job_id)
        return await host.job(item.job_id)

    return drive_and_report(host, find_asking_job, lines)


def _find_item(items: Iterable[InboxItem], ident: str) -> InboxItem | None:
    return next((item for item in items if ident in (item.id, item.job_id)), None)


async def _find_question(host: Host, ident: str, answer: str, *, is_change: bool) -> tuple[str, str] | None:
    """Return the id of a Job's question, and the answer; None for a task, which is answered here.

    A number in `answer` selects the option that `perstack inbox` shows with it.
    """
    ident = await host.jobs.complete_id(ident, ("job", "task"))
    item = _find_item(await host.inbox(), ident)
    if is_change and (item is None or item.question is None or not item.question.call_digest):
        raise UsageError(f"{ident} is not an approval of a call, so there are no arguments to change")
    if item is not None and item.question is not None:
        _check_approval(item, ident, answer)
        is_approval = bool(item.question.call_digest)
        return item.id, answer if is_approval else select_option(accepted_answers(item.question), answer.strip())
    if (item is None or item.task_id is None) and not await _is_task(host, ident):
        return await _require_question_id(host, ident), answer
    await host.tasks.signed(this_user("cli")).answer(ident, answer)
    return None


def _check_approval(item: InboxItem, ident: str, answer: str) -> None:
    """Raise UsageError if an approval names only the Job, whose open call may have changed, or if a tool gives it."""
    if item.question is None or not item.question.call_digest:
        return
    if not is_refusal(item.question, answer):
        check_no_tool("approve a call")
    if ident != item.id:
        step = GiveAnswer(item.id, is_approval=True)
        raise UsageError(
            f"{item.question.shown}: an approval must name the question that it answers", next_steps=(step,)
        )


def check_no_tool(action: str) -> None:
    """Raise UsageError if a tool of an Expert runs this command. `action` is what only a person may do."""
    if os.environ.get(_CALL_ID):
        raise UsageError(f"a tool cannot {action}: {_CALL_ID} is set, so a tool runs this command; do it in a terminal")


async def _require_question_id(host: Host, ident: str) -> str:
    """Return the id of a question that is not in the inbox.

    Raises UsageError for any other id, saying what it names.
    """
    try:
        summary = await host.job(ident)
    except NotFound:
        try:
            place_of(ident)
        except UsageError:
            raise UsageError(
                f"there is no Job, task or question {ident}; `perstack inbox` lists what is open"
            ) from None
        return ident
    if summary.damaged:
        raise StorageError(summary.error or f"Job {ident} cannot be read")
    check_not_closed(summary)
    raise UsageError(f"Job {ident} has no open question ({summary.status}); `perstack inbox` lists what is open")


async def _is_task(host: Host, ident: str) -> bool:
    try:
        await host.tasks.get(ident)
    except (NotFound, UsageError):
        return False
    return True


# perstack inbox

_ITEMS_PER_WRITE = 200  # items written at once: each write is a system call


@click.command("inbox")
@json_option("Print a line of JSON for each question.")
@place_options
def inbox_command(as_json: bool, options: HostOptions) -> None:
    """List the open questions of all Jobs and tasks, the oldest first."""
    items, workspace = options.look(_load_items)
    if as_json:
        for item in items:
            write_json(_to_json(item))
    elif not items:
        print_out("nothing waits for you")
    else:
        _print(items, workspace)


async def _load_items(host: Host) -> tuple[tuple[InboxItem, ...], Path]:
    return await host.inbox(), host.workspace


def _to_json(item: InboxItem) -> JsonObject:
    common: JsonObject = {"id": item.id, "text": item.text, "since": item.since, "approval": item.is_approval}
    if item.damaged:
        common["damaged"] = True
    next_step: JsonObject = {"next": _next_step_text(item)} if item.next_steps else {}
    if item.task_id is not None:
        return {**common, "taskId": item.task_id, "agentId": item.who, **next_step}
    question = {} if item.question is None else item.question.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {**common, "jobId": item.job_id, **question, **next_step}


def _print(items: tuple[InboxItem, ...], workspace: Path) -> None:
    screen, now = Screen.of_stdout(), SYSTEM.now()
    for start in range(0, len(items), _ITEMS_PER_WRITE):
        parts = [
            part for item in items[start : start + _ITEMS_PER_WRITE] for part in _lines_of(item, screen, now, workspace)
        ]
        visible_parts = parts[1 if start == 0 else 0 : -1]
        # as one text it is sanitized in one pass
        print_out(*visible_parts) if screen.colours else print_out("".join(map(str, visible_parts)))


def _lines_of(item: InboxItem, screen: Screen, now: int, workspace: Path) -> Iterator[str | StyledText]:
    owner_kind = "Job" if item.task_id is None else "task"
    age = age_text(item.since, now) if item.since else "?"
    owner = f"{owner_kind} {item.job_id or item.task_id or '-'}"
    head = f"{owner}  {item.who or '-'}  {age}  wants {_needed_action(item)}"
    yield "\n"
    yield screen.styled(item.id, bold=True)
    text, is_whole = _fitted_question(item, workspace)
    lines = (f"  {line}".rstrip(" ") for line in text.split("\n"))
    yield "\n".join((f"  {screen.fit(head, len(item.id) + 2)}", *lines))
    for step in _answer_steps(item, is_whole=is_whole):
        yield "\n  "
        yield screen.styled(cli_phrase(step), dim=True)
    yield "\n"


def _fitted_question(item: InboxItem, workspace: Path) -> FittedPage:
    """Return the question, shortened for a list."""
    if item.question is not None and item.question.call_digest:
        return page_of(item.question, workspace, item.cost).fitted(LIST)
    text = approvable_text(item.text)
    if item.question is not None:
        text = question_text(item.question).removeprefix(f"{item.question.expert_key} asks: ")
    return fitted(text.split("\n"), LIST, _show_command(item))


def _show_command(item: InboxItem) -> str:
    return f"perstack answer {item.id}" if item.task_id is None else f"perstack task get {item.id}"


def _answer_steps(item: InboxItem, *, is_whole: bool) -> tuple[NextStep, ...]:
    if item.next_steps:
        return item.next_steps
    is_approval = item.question is not None and bool(item.question.call_digest)
    return (GiveAnswer(item.id, is_approval=is_approval, is_shown=is_whole),) if is_approval or is_whole else ()


def _next_step_text(item: InboxItem) -> str:
    return "; ".join(cli_phrase(step) for step in item.next_steps)


def _needed_action(item: InboxItem) -> str:
    if item.damaged:
        return "repair"
    if item.next_steps:
        return "help"
    if item.is_approval:
        return "approval"
    schema = item.question.requested_schema if item.question is not None else None
    fields = schema.get("properties") if schema is not None else None
    return ", ".join(fields) if isinstance(fields, dict) and fields else "an answer"


# perstack signal


@click.command("signal", cls=GroupedCommand)
@click.argument("target", metavar="JOB|TASK")
@drive_options
@output_options
@driving_options
def signal_command(target: str, is_driven: bool, output_options: OutputOptions, options: HostOptions) -> None:
    """Send an external event to a Job or task: a CloudEvent 1.0, as JSON on stdin.

    A waiting task takes the event as its answer and becomes due; a Job continues. A repeated event has no effect. A
    submitted Job, and every Job of a project with a dispatcher, is queued for a worker again.
    """
    event = read_cloud_event(json_on_stdin("write a CloudEvent to it"))
    target, task = run_with(options.open_host(), lambda host: _answer_task(host, target, event))
    if task is not None:
        print_err(f"task {target}: {task.status}, answered; `perstack task run-due` continues it")
        return

    async def signal_job(on_event: OnEvent) -> JobSummary:
        await lines.begin(host, target)
        try:
            return await host.jobs.signal(
                target, event, by=this_user("cli"), drive=is_driven or None, on_event=on_event
            )
        except NotFound as error:
            raise NotFound(f"there is no Job or task {target} in {host.storage.location}") from error

    host, lines = open_attended_host(options, output_options), JobOutput(output_options)
    job = drive_interruptible(host, signal_job, lines)
    if job is not None and job.status == "running" and lines.job_id is None:
        print_err(f"Job {target} has already received this event, and another process drives it")
        sys.exit(0)
    sys.exit(INTERRUPTED if job is None else report_outcome(job, lines))


async def _answer_task(host: Host, target: str, cloud_event: CloudEvent) -> tuple[str, TaskState | None]:
    """Return the whole id, and the task with that id after answering it; None if there is no such task."""
    target = await host.jobs.complete_id(target, ("job", "task"))
    try:
        await host.tasks.get(target)
    except (NotFound, UsageError):
        return target, None
    by = this_user("cli").with_source(cloud_event.source)
    return target, await host.tasks.signed(by).answer(target, cloud_event.data, event_id=cloud_event.key)
