"""Shared parts of the `perstack task` commands: options and tables of tasks; and `perstack task delete`."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, NoReturn, TypeVar, get_args

import click
from pydantic import JsonValue

from perstack.core.base.text import command_line
from perstack.core.definitions.job_status import PauseReason
from perstack.dataclass import dataclass
from perstack.doors.cli.options import HostOptions, json_option, place_options
from perstack.doors.cli.param_types import SPAN
from perstack.doors.cli.terminal import agree_to_delete, print_out, report_deleted, table, write_json_line
from perstack.doors.shared.screen import Screen
from perstack.doors.shared.text import age_text, local_time
from perstack.errors import UsageError
from perstack.support.storage import pages
from perstack.system.clock import SYSTEM
from perstack.system.user import this_user
from perstack.tasks.state import TaskState, TaskStatus, in_words
from perstack.tasks.summaries import TaskPage, TaskSummary

if TYPE_CHECKING:
    from perstack.host import Host
    from perstack.tasks.execution_memory import StoredTasks


_F = TypeVar("_F", bound=Callable[..., object])
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Tasks:
    """The values of `task_options`, which locate the tasks of a project and select the output."""

    options: HostOptions
    as_json: bool

    def look(self, work: Callable[[StoredTasks], Awaitable[_T]]) -> _T:
        """Return the result of `work`, called with the stored tasks. It changes no task."""
        return self.options.look(lambda host: work(_signed_memory(host)))

    def do(self, work: Callable[[StoredTasks], Awaitable[_T]]) -> _T:
        """Return the result of `work`, called with the stored tasks. It may change them."""
        return self.options.change(lambda host: work(_signed_memory(host)))


def _signed_memory(host: Host) -> StoredTasks:
    return host.tasks.signed(this_user("cli"))


def task_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for location and output, passed to the command as one `tasks: Tasks`."""

    @wraps(command)
    def gather(*, as_json: bool, options: HostOptions, **others: object) -> None:
        command(tasks=Tasks(options, as_json), **others)

    return json_option("Print the task as a JSON object.")(place_options(gather))


def _version_option(command: _F) -> _F:
    return click.option(
        "--expected-version", type=click.IntRange(min=0), metavar="N", help="Fail if the task has another version."
    )(command)


def show_task(task: TaskState) -> None:
    """Print a task as a table."""
    table(Screen.of_stdout(), ("task", task.task_id), [(name, value) for name, value in _facts(task) if value])


def _facts(task: TaskState) -> list[tuple[str, str]]:
    now = SYSTEM.now()
    waiting_for = task.waiting_for
    return [
        ("name", task.name if task.name != task.task_id else ""),
        ("description", task.description),
        ("agent", task.agent_id),
        ("status", _status(task, now)),
        ("message", task.pause_message or ""),
        ("waits for", waiting_for.what if waiting_for else ""),
        ("depends on", ", ".join(task.depends_on)),
        ("held up", in_words(task.blocked_by)),
        ("asks", command_line(waiting_for.command) if waiting_for else ""),
        ("token", task.token or ""),
        ("webhook", f"POST /v1/hooks/{task.token} on a server of `perstack mcp --http`" if task.token else ""),
        ("resumes", time_text(task.resume_at)),
        ("input", text(task.input)),
        ("said", task.input_text),
        ("said by", str(task.input_by) if task.input_by else ""),
        ("state", text(task.state)),
        ("data", text(task.checkpoint_data)),
        ("result", text(task.result)),
        ("error", task.error or ""),
        ("details", text(task.error_details)),
        ("retries", f"{task.retry_count} of {task.config.max_retries}" if task.retry_count else ""),
        ("checkpoint", f"{task.checkpoint_id} ({task.checkpoints} in all)" if task.checkpoint_id else ""),
        ("next due", time_text(task.checkpoint_due_at)),
        ("Job", task.job_id or ""),
        ("version", str(task.version)),
        ("written", age_text(task.updated_at, now)),
    ]


def show_all(tasks: Sequence[TaskSummary]) -> None:
    """Print tasks as a table."""
    now = SYSTEM.now()
    rows = [
        (
            task_summary.task_id,
            task_summary.agent_id,
            _status(task_summary, now),
            str(task_summary.checkpoints),
            age_text(task_summary.updated_at, now) if task_summary.updated_at else "?",
            _describe(task_summary),
        )
        for task_summary in tasks
    ]
    table(
        Screen.of_stdout(),
        ("task", "agent", "status", "checkpoints", "when", "about"),
        rows,
        right=(3,),
        drops=(3, 1, 4, 2),
    )


def _describe(task_summary: TaskSummary) -> str:
    reason = task_summary.error or task_summary.pause_message or time_text(task_summary.resume_at)
    return "; ".join(filter(None, (reason, in_words(task_summary.blocked_by)))) or task_summary.name


def _status(task: TaskState | TaskSummary, now: int) -> str:
    if isinstance(task, TaskSummary) and task.damaged:
        return "damaged"
    if task.archived_at is not None:
        return f"{task.status}, archived"
    if task.pause_reason is not None:
        return f"{task.status}: {task.pause_reason}{', answered' if task.answered else ''}"
    is_late = task.checkpoint_due_at is not None and task.checkpoint_due_at < now
    return f"{task.status}: checkpoint late" if is_late else task.status


def time_text(moment: int | None) -> str:
    """Return a moment as local time; empty for None."""
    return "" if moment is None else f"{local_time(moment):%Y-%m-%d %H:%M:%S}"


def text(value: JsonValue) -> str:
    """Return a JSON value on one line; empty for None and {}."""
    if value is None or value == {}:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# perstack task delete: one task, or all that match

_PAGE_SIZE = 500


@dataclass(frozen=True, slots=True)
class _TaskSelection:
    status: TaskStatus | None
    reason: PauseReason | None
    agent: str | None
    older_than: int | None
    archived: bool

    @property
    def is_any(self) -> bool:
        return self == _TaskSelection(None, None, None, None, archived=False)

    async def tasks(self, memory: StoredTasks) -> list[TaskSummary]:
        def page(after: str | None) -> Awaitable[TaskPage]:
            return memory.list(
                status=self.status,
                reason=self.reason,
                agent_id=self.agent,
                older_than=self.older_than,
                archived=self.archived,
                limit=_PAGE_SIZE,
                after=after,
            )

        return [task_summary async for task_page in pages(page) for task_summary in task_page.tasks]


@click.command("delete")
@click.argument("task_id", metavar="[TASK]", required=False)
@click.option("--status", type=click.Choice(get_args(TaskStatus)), help="All tasks in this status.")
@click.option("--reason", type=click.Choice(get_args(PauseReason)), help=("All tasks that are paused for this reason."))
@click.option("--agent", "--agent-id", metavar="ID", help="All tasks of this agent.")
@click.option(
    "--older-than", type=SPAN, metavar="TIME", help=("All tasks without a change for this time, such as 30d.")
)
@click.option("--archived", is_flag=True, help="Archived tasks instead of the others.")
@click.option("--yes", is_flag=True, help="Delete without confirmation.")
@_version_option
@task_options
def delete(
    task_id: str | None,
    status: TaskStatus | None,
    reason: PauseReason | None,
    agent: str | None,
    older_than: int | None,
    archived: bool,
    yes: bool,
    expected_version: int | None,
    tasks: Tasks,
) -> None:
    """Delete TASK permanently, with its checkpoints, or all tasks that match the options, as `task list` shows them.

    Several tasks need confirmation. A task that another task waits for, or that has changed since, is kept, and the
    exit status is 1. With --json: `{"deleted": "TASK"}`, or `{"deleted": [TASK, …], "kept": {TASK: why, …}}`.
    """
    selection = _TaskSelection(status, reason, agent, older_than, archived)
    if task_id is not None and not selection.is_any:
        raise UsageError("task delete takes either a TASK, or options that select tasks")
    if task_id is None and expected_version is not None:
        raise UsageError("--expected-version is for one TASK: name it")
    if task_id is not None:
        task = _delete_one(task_id, expected_version, tasks)
        if tasks.as_json:
            write_json_line(json.dumps({"deleted": task}))
        else:
            print_out(f"deleted {task}")
    elif selection.is_any:
        raise UsageError("name a TASK, or select tasks with options such as --status completed --older-than 30d")
    else:
        _delete_all(selection, tasks, is_sure=yes)


def _delete_one(typed_id: str, expected_version: int | None, tasks: Tasks) -> str:
    async def work(memory: StoredTasks) -> str:
        task_id = await memory.resolve_id(typed_id)
        await memory.delete(task_id, expected_version=expected_version)
        return task_id

    return tasks.do(work)


def _delete_all(selection: _TaskSelection, tasks: Tasks, *, is_sure: bool) -> NoReturn:
    tasks_found = tasks.do(selection.tasks)
    if tasks_found and not is_sure:
        agree_to_delete(tasks_found, "task", "see them with task list", show_all)

    async def delete_all(memory: StoredTasks) -> dict[str, str | None]:
        return {task_id: error async for task_id, error in memory.delete_each(tasks_found)}

    report_deleted(tasks.do(delete_all), "task", had_any=bool(tasks_found), as_json=tasks.as_json)
