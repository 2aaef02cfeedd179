"""Store tasks, each in a log of its own in the space `tasks`, and check the tasks that a task depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter

from pydantic import ValidationError
from pydantic_core import from_json

from perstack.core.base.ids import Owner
from perstack.engine.context.audit_trail import NO_AUDIT, AuditTrail
from perstack.engine.log.event_log import AppendedState, LoadedState
from perstack.engine.log.storage_access import log_of
from perstack.errors import Conflict, Damaged, NotFound, StorageError, UsageError
from perstack.feature_logs.indexed_log import IndexedLog, IndexedLogFormat, IndexEntries
from perstack.next_steps import Inspect
from perstack.ports.storage import Storage
from perstack.system.concurrency import shield_until_done
from perstack.tasks.events import StoredTaskEvent, parse_task_event
from perstack.tasks.evolve import TaskChanges, evolve_task, is_running_after
from perstack.tasks.state import MAX_DEPENDENCIES, Dependency, TaskState, check_task_id, dependency_of
from perstack.tasks.summaries import (
    Row,
    TaskSummary,
    by_id,
    damaged_task,
    depends_on,
    is_completed,
    list_briefly,
    summary_of,
    with_dependencies,
)

_MAX_ATTEMPTS = 50  # attempts to append a change; after a conflict it is decided again on the new state

_INDEX = IndexEntries(frozenset(("taskId", "name", "status", "version", "createdAt", "updatedAt")))


TASKS = IndexedLogFormat[TaskState, StoredTaskEvent, TaskSummary](
    kind="task",
    title="task ",
    missing_text="there is no task {of} in {location}",
    list_step=Inspect("tasks"),
    check=check_task_id,
    parse=parse_task_event,
    owner=lambda event: event.task_id,
    apply=evolve_task,
    summary=summary_of,
    damaged_summary=damaged_task,
    jobs=lambda task: () if task.job_id is None else (task.job_id,),
    store=_INDEX,
)


class TaskLog(IndexedLog[TaskState, StoredTaskEvent, TaskSummary]):
    """Store of all tasks; decisions are in `operations`."""

    def __init__(self, storage: Storage, audit: AuditTrail) -> None:
        """Create; `audit` sends a task's head to the anchor, if any, at each change after which it is not running."""
        super().__init__(storage, TASKS)
        self._audit = audit

    async def create(self, events: Sequence[StoredTaskEvent]) -> TaskState:
        """Create a task from its first events. Raises Conflict if the id is taken."""
        task_id = events[0].task_id
        expected_count = (await TASKS.store.read(self._space, task_id)).min_length
        if expected_count and not await self._space.read(log_of(task_id), limit=1):
            raise self.shortened_log_error(task_id, 0, expected_count)
        with suppress(Conflict):  # a process that died before the first event has left an empty log
            await self._space.create_job(task_id)
        return (await shield_until_done(self.append(task_id, None, events))).state

    async def change(
        self, task_id: str, decide: Callable[[TaskState], Sequence[StoredTaskEvent]], expected_version: int | None
    ) -> TaskState:
        """Append the events that `decide` returns. Raises NotFound, its errors, and Conflict for another version."""
        for _ in range(_MAX_ATTEMPTS):
            loaded = await self.load(task_id)
            _check_version(loaded.state, expected_version)
            events = decide(loaded.state)
            if not events:
                return loaded.state
            try:
                return (await shield_until_done(self.append(task_id, loaded, events))).state
            except Conflict as conflict:
                if expected_version is not None:
                    raise Conflict(_changed_concurrently(task_id, expected_version)) from conflict
        raise Conflict(f"others keep writing to task {task_id}: try again later")

    async def delete(self, task_id: str, expected_version: int | None) -> None:
        """Delete a task. Raises NotFound, and Conflict if the version is not, or is no longer, the expected one."""
        try:
            _check_version((await self.load(task_id)).state, expected_version)
        except Damaged:
            if expected_version is not None:
                raise
        expected = None if expected_version is None else (log_of(task_id), expected_version)
        try:
            async with self._audit.anchor_removal(Owner("task", task_id)):
                await shield_until_done(self._space.delete_job(task_id, expected=expected))
        except Conflict as conflict:
            if expected_version is not None:
                raise Conflict(_changed_concurrently(task_id, expected_version)) from conflict
            raise Conflict(f"task {task_id} is being deleted by another process") from conflict

    async def append(
        self, owner_id: str, loaded: LoadedState[TaskState] | None, events: Sequence[StoredTaskEvent]
    ) -> AppendedState[TaskState]:
        """Append events, and send the head to the anchor unless the task runs after them."""
        if _is_running_after(loaded, events):
            return await super().append(owner_id, loaded, events)
        await self._audit.expect(Owner("task", owner_id))
        appended = await super().append(owner_id, loaded, events)
        await self._audit.send_after_stop(Owner("task", owner_id), appended.head)
        return appended

    async def rows(self) -> list[Row]:
        """Return the summaries of all tasks, unordered. A task that cannot be read is a row with its error."""
        entries = await self._space.entries()
        rows = _parse_entries(entries.values())
        if len(rows) < len(entries):
            rows += await self._rows_from_logs(entries.keys() - {str(row.get("taskId")) for row in rows})
        return rows

    async def summary_of_row(self, row: Row) -> TaskSummary:
        """Return the summary in a row; from the log if the row is invalid. Raises NotFound."""
        try:
            return TaskSummary.model_validate(row)
        except ValidationError:
            return await self.summary(str(row["taskId"]))

    async def _rows_from_logs(self, task_ids: Iterable[str]) -> list[Row]:
        rows: list[Row] = []
        for task_id in task_ids:
            with suppress(NotFound):
                rows.append(_row_of(await self.summary(task_id)))
        return rows

    async def _summarize(self, owner_id: str, loaded: LoadedState[TaskState]) -> TaskSummary:
        task_summary = await super()._summarize(owner_id, loaded)
        with suppress(StorageError):  # lists work without the entry
            await TASKS.store.put(self._space, owner_id, task_summary, loaded.head)
        return task_summary


def _is_running_after(loaded: LoadedState[TaskState] | None, events: Sequence[StoredTaskEvent]) -> bool:
    """Return whether the task runs after these events; True if they cannot follow, which the append then reports."""
    try:
        return is_running_after(None if loaded is None else loaded.state, events)
    except (ValueError, LookupError, UsageError):
        return True


def _check_version(task: TaskState, expected: int | None) -> None:
    if expected is not None and task.version != expected:
        raise Conflict(f"task {task.task_id} is of version {task.version}, not {expected}: look at it again first")


def _changed_concurrently(task_id: str, expected: int) -> str:
    return f"task {task_id} was written to by another process, so it is not of version {expected} any more"


def _parse_entries(entries: Iterable[bytes]) -> list[Row]:
    """Return the valid summaries. All are parsed at once, which is many times faster; singly if one is damaged."""
    non_empty = [entry for entry in entries if entry]
    try:
        rows: list[Row] = from_json(b"[" + b",".join(non_empty) + b"]")
    except ValueError:
        rows = []
    if len(rows) == len(non_empty) and all(map(_INDEX.is_summary, rows)):
        return rows
    valid_rows: list[Row] = []
    for entry in non_empty:
        with suppress(ValidationError):
            valid_rows.append(_row_of(TaskSummary.model_validate_json(entry)))
    return valid_rows


def _row_of(task_summary: TaskSummary) -> Row:
    return task_summary.model_dump(mode="json", by_alias=True)


async def commands_of_tasks(storage: Storage, task_ids: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Return the commands that these tasks run while they wait. Deleted and damaged tasks run none."""
    log = TaskLog(storage, NO_AUDIT)
    commands: list[tuple[str, ...]] = []
    for task_id in task_ids:
        with suppress(NotFound, Damaged):
            waiting_for = (await log.load(task_id)).state.waiting_for
            commands += [] if waiting_for is None or not waiting_for.command else [waiting_for.command]
    return tuple(commands)


# Dependencies between tasks.


async def with_blockers(log: TaskLog, task: TaskState) -> TaskState:
    if not task.depends_on:
        return task
    dependencies = [await _read_dependency(log, task_id) for task_id in task.depends_on]
    blocked_by = tuple(dependency for dependency in dependencies if dependency is not None)
    return task.model_copy(update=TaskChanges(blocked_by=blocked_by))


class BlockerSearch:
    """Finds the tasks that block others, for lists, from the summaries of all tasks."""

    def __init__(self, log: TaskLog, rows: Mapping[str, Row]) -> None:
        """Find all tasks in dependency cycles."""
        self._log = log
        self._rows = rows
        self._dependencies = {
            task_id: [other for other in dependencies if not is_completed(rows.get(other))]
            for task_id, row in rows.items()
            if (dependencies := depends_on(row))
        }
        self._tasks_on_cycles = tasks_on_cycles(self._dependencies)

    async def with_blockers(self, task_summary: TaskSummary) -> TaskSummary:
        unfinished = [task_id for task_id in task_summary.depends_on if not is_completed(self._rows.get(task_id))]
        dependencies = [await _read_dependency(self._log, task_id) for task_id in unfinished]
        return with_dependencies(
            task_summary, tuple(self._with_cycle(task_summary.task_id, d) for d in dependencies if d is not None)
        )

    def _with_cycle(self, task_id: str, dependency: Dependency) -> Dependency:
        if not {task_id, dependency.task_id} <= self._tasks_on_cycles:
            return dependency
        cycle = find_cycle(task_id, (dependency.task_id,), self._dependencies)
        return dependency if cycle is None else dependency.model_copy(update={"circle": cycle})


def tasks_on_cycles(dependencies: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """Return the tasks on cycles, which two tasks can close at one moment, and tasks that wait for these."""
    sorter = TopologicalSorter(dependencies)
    with suppress(CycleError):  # it can then still order all tasks that wait for no cycle
        sorter.prepare()
    ordered: set[str] = set()
    while ready := sorter.get_ready():
        ordered.update(ready)
        sorter.done(*ready)
    return frozenset(dependencies) - ordered


def find_cycle(
    task_id: str, depends_on: Sequence[str], dependencies: Mapping[str, Sequence[str]]
) -> tuple[str, ...] | None:
    """Return the cycle that a task would close by waiting for `depends_on`; None if there is none."""
    came_from: dict[str, str] = {}
    pending = list(depends_on)
    came_from.update(dict.fromkeys(depends_on, task_id))
    while pending:
        current = pending.pop()
        if current == task_id:
            return _cycle_path(task_id, came_from)
        for dependency in dependencies.get(current, ()):
            if dependency not in came_from:
                came_from[dependency] = current
                pending.append(dependency)
    return None


def _cycle_path(task_id: str, came_from: Mapping[str, str]) -> tuple[str, ...]:
    path = [task_id]
    while (previous := came_from[path[-1]]) != task_id:
        path.append(previous)
    return (task_id, *reversed(path))


async def check_dependencies(log: TaskLog, task_id: str, task_ids: Sequence[str]) -> tuple[str, ...]:
    """Return the dependencies without duplicates. Raises UsageError for unknown ones, for cycles, or for too many."""
    dependencies = tuple(dict.fromkeys(check_task_id(dependency) for dependency in task_ids))
    if not dependencies:
        return ()
    if len(dependencies) > MAX_DEPENDENCIES:
        raise UsageError(
            f"task {task_id} may wait for {MAX_DEPENDENCIES} tasks, not {len(dependencies)}: let one task wait for"
            " some of them, and this one for that"
        )
    rows = by_id(await log.rows())
    unknown_ids = [dependency for dependency in dependencies if dependency not in rows and dependency != task_id]
    if unknown_ids:
        raise UsageError(
            f"task {task_id} cannot wait for {list_briefly(unknown_ids)}: it does not exist in {log.location}; "
            "create it first"
        )
    cycle = find_cycle(task_id, dependencies, {other_id: depends_on(row) for other_id, row in rows.items()})
    if cycle is not None:
        raise UsageError(
            f"task {task_id} cannot wait for {list_briefly(dependencies)}: that would be a cycle, {' -> '.join(cycle)};"
            f" leave one of these out"
        )
    return dependencies


async def _read_dependency(log: TaskLog, task_id: str) -> Dependency | None:
    try:
        return dependency_of((await log.load(task_id)).state)
    except NotFound:
        return Dependency(task_id=task_id, status="deleted")
    except StorageError as error:
        return Dependency(task_id=task_id, status="damaged", error=str(error))
