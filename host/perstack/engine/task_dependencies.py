"""Looking at the tasks that a task waits for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from perstack.core.tasks.dependencies import MOST_DEPENDENCIES, Dependency, circle, without_an_end
from perstack.core.tasks.evolve import Changes
from perstack.core.tasks.rows import Row, by_id, check_unneeded, depends_on, in_short, is_completed
from perstack.core.tasks.state import TaskState, check_task_id, dependency_of
from perstack.core.tasks.summary import TaskSummary, blocked
from perstack.engine.logs.tasks import TaskLog
from perstack.errors import Conflict, NotAllowed, NotFound, StorageError, UsageError


async def seen(log: TaskLog, task: TaskState) -> TaskState:
    """The task with what holds it up."""
    if not task.depends_on:
        return task
    found = [await _dependency(log, one) for one in task.depends_on]
    return task.model_copy(update=Changes(blocked_by=tuple(one for one in found if one is not None)))


class Listing:
    """The same for a list, by the summaries of all tasks."""

    def __init__(self, log: TaskLog, rows: Mapping[str, Row]) -> None:
        self._log = log
        self._rows = rows
        self._waits = {
            one: [other for other in wanted if not is_completed(rows.get(other))]
            for one, row in rows.items()
            if (wanted := depends_on(row))
        }
        self._endless = without_an_end(self._waits)

    async def seen(self, task: TaskSummary) -> TaskSummary:
        """The task with what holds it up."""
        held = [one for one in task.depends_on if not is_completed(self._rows.get(one))]
        found = [await _dependency(self._log, one) for one in held]
        return blocked(task, tuple(self._in_a_circle(task.task_id, one) for one in found if one is not None))

    def _in_a_circle(self, task_id: str, one: Dependency) -> Dependency:
        if not {task_id, one.task_id} <= self._endless:
            return one
        way = circle(task_id, (one.task_id,), self._waits)
        return one if way is None else one.model_copy(update={"circle": way})


async def check_dependencies(log: TaskLog, task_id: str, given: Sequence[str]) -> tuple[str, ...]:
    """The tasks that a task is to wait for, each once.

    Raises UsageError if one does not exist, or waits for this task itself, or if there are too many.
    """
    wanted = tuple(dict.fromkeys(check_task_id(one) for one in given))
    if not wanted:
        return ()
    if len(wanted) > MOST_DEPENDENCIES:
        raise UsageError(
            f"task {task_id} may wait for {MOST_DEPENDENCIES} tasks, not {len(wanted)}: let one task wait for some of"
            " them, and this one for that"
        )
    rows = by_id(await log.rows())
    unknown = [one for one in wanted if one not in rows and one != task_id]
    if unknown:
        raise UsageError(
            f"task {task_id} cannot wait for {in_short(unknown)}: there is none in {log.location}; create it first"
        )
    way = circle(task_id, wanted, {one: depends_on(row) for one, row in rows.items()})
    if way is not None:
        raise UsageError(
            f"task {task_id} cannot wait for {in_short(wanted)}: that would be a circle, {' -> '.join(way)};"
            f" leave one of these out"
        )
    return wanted


async def delete_each(log: TaskLog, tasks: Sequence[TaskSummary]) -> AsyncIterator[tuple[str, str | None]]:
    """Remove these, unless they have been written to since they were listed: the id of each, and why it is kept."""
    doomed = {task.task_id for task in tasks}
    others = [row for row in await log.rows() if row.get("taskId") not in doomed]
    for task in tasks:
        try:
            if task.damaged:
                raise NotAllowed(f"task {task.task_id} is damaged: repair it, or delete it by its name")
            check_unneeded(task.task_id, others)
            await log.delete(task.task_id, task.version)
        except (Conflict, NotAllowed, NotFound) as error:
            yield task.task_id, str(error)
        else:
            yield task.task_id, None


async def _dependency(log: TaskLog, task_id: str) -> Dependency | None:
    """As it stands; None if it is completed."""
    try:
        return dependency_of((await log.load(task_id)).state)
    except NotFound:
        return Dependency(task_id=task_id, status="deleted")
    except StorageError as error:
        return Dependency(task_id=task_id, status="damaged", error=str(error))
