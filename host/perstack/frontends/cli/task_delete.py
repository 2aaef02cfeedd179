"""`perstack task delete`: one task, or all that are of a kind."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, get_args

import click

from perstack.core.job import PauseReason
from perstack.core.tasks.state import TaskStatus
from perstack.core.tasks.summary import TaskSummary
from perstack.dataclass import dataclass
from perstack.errors import UsageError
from perstack.frontends.cli.confirm import confirm
from perstack.frontends.cli.spans import read_span
from perstack.frontends.cli.task_options import Tasks, show_all, task_options, version_option
from perstack.frontends.cli.terminal import data, err, out

if TYPE_CHECKING:
    from perstack.engine.memory import ExecutionMemory

_PAGE = 500
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class _Kind:
    """Which tasks are meant."""

    status: TaskStatus | None
    reason: PauseReason | None
    agent: str | None
    older_than: int | None
    archived: bool

    @property
    def is_any(self) -> bool:
        return self == _Kind(None, None, None, None, archived=False)

    async def tasks(self, memory: ExecutionMemory) -> list[TaskSummary]:
        """All of them."""
        found: list[TaskSummary] = []
        after: str | None = None
        while True:
            page = await memory.list(
                status=self.status,
                reason=self.reason,
                agent_id=self.agent,
                older_than=self.older_than,
                archived=self.archived,
                limit=_PAGE,
                after=after,
            )
            found += page.tasks
            after = page.next
            if after is None:
                return found


@click.command("delete")
@click.argument("task_id", metavar="[TASK]", required=False)
@click.option("--status", type=click.Choice(get_args(TaskStatus)), help="All of this status.")
@click.option("--reason", type=click.Choice(get_args(PauseReason)), help="All that are paused for this reason.")
@click.option("--agent", "--agent-id", metavar="ID", help="All of this agent.")
@click.option("--older-than", metavar="TIME", help="All that were not written to for so long, such as 30d.")
@click.option("--archived", is_flag=True, help="All archived ones, in place of the others.")
@click.option("--yes", is_flag=True, help="Delete all that are meant without asking.")
@version_option
@task_options
def delete(
    task_id: str | None,
    status: TaskStatus | None,
    reason: PauseReason | None,
    agent: str | None,
    older_than: str | None,
    archived: bool,
    yes: bool,
    expected_version: int | None,
    tasks: Tasks,
) -> None:
    """Remove TASK for good, with its checkpoints, or all tasks that the options mean: those that `task list` shows.

    All that are meant are asked for first. A task that another waits for, or that was written to meanwhile, is left,
    and the exit status is 1. With --json: `{"deleted": "TASK"}`, or `{"deleted": [TASK, …], "kept": {TASK: why, …}}`.
    """
    kind = _Kind(status, reason, agent, read_span(older_than, "--older-than"), archived)
    if task_id is not None and not kind.is_any:
        raise UsageError("task delete takes a TASK, or options that mean many, and not both")
    if task_id is None and expected_version is not None:
        raise UsageError("--expected-version is for one TASK: name it")
    if task_id is not None:
        task = _delete_one(task_id, expected_version, tasks)
        if tasks.as_json:
            data(json.dumps({"deleted": task}))
        else:
            out(f"deleted {task}")
    elif kind.is_any:
        raise UsageError("name a TASK, or say which are meant, such as --status completed --older-than 30d")
    else:
        _delete_all(kind, tasks, is_sure=yes)


def _delete_one(typed: str, expected_version: int | None, tasks: Tasks) -> str:
    async def work(memory: ExecutionMemory) -> str:
        task_id = await memory.find(typed)
        await memory.delete(task_id, expected_version=expected_version)
        return task_id

    return tasks.do(work)


def _delete_all(kind: _Kind, tasks: Tasks, *, is_sure: bool) -> None:
    found = tasks.do(kind.tasks)
    if found and not is_sure:
        _ask(found)
    deleted: list[str] = []
    kept: dict[str, str] = {}

    async def work(memory: ExecutionMemory) -> None:
        async for task_id, why in memory.delete_each(found):
            if why is None:
                deleted.append(task_id)
            else:
                kept[task_id] = why

    tasks.do(work)
    if tasks.as_json:
        data(json.dumps({"deleted": deleted, "kept": kept}, ensure_ascii=False))
    else:
        out(f"deleted {_count(len(deleted))}" if found else "no such tasks")
        for why in kept.values():
            err(f"kept: {why}")
    sys.exit(1 if kept else 0)


def _ask(found: list[TaskSummary]) -> None:
    """Go on if a person says yes; end otherwise. Raises UsageError if there is nobody to ask."""
    if not sys.stdin.isatty():
        raise UsageError(f"{_count(len(found))} would be deleted for good: see them with task list, and add --yes")
    show_all(found[:_SHOWN])
    if len(found) > _SHOWN:
        out(f"… and {len(found) - _SHOWN} more")
    if not confirm(f"Delete {_count(len(found))} for good?"):
        out("nothing is deleted")
        sys.exit(1)


def _count(number: int) -> str:
    return f"{number:,} task{'' if number == 1 else 's'}"
