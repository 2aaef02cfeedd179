"""Execution memory: tasks that agents pause, and that any later process resumes from the state that was saved.

    async with StoredTasks.open() as memory:
        task = await memory.create("refactor-2026", state={"done": []}, start=True)
        task = await memory.checkpoint(task.task_id, {"done": ["a.py"]})
        await memory.pause(task.task_id, "human_approval", "May I go on with b.py?")

Operations are commands (`tasks.operations`): a command decides events from the task's state, without I/O, and
`_carry_out` performs them. Only operations that read other data, such as other tasks or checkpoints, have a case
there. The events are appended at the version on which they were decided (`TaskLog.change`); after a conflict
the command decides again. The public methods come from `tasks.memory.TaskMemory`, which documents them.

A new operation needs a command in the operation table, and a case in `_carry_out` only if it needs more than the
task's state. Times are milliseconds since 1970.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import AsyncIterator, Sequence
from copy import copy
from dataclasses import replace
from hashlib import sha256
from types import TracebackType
from typing import Any, TypeVar, cast

from perstack.core.base.ids import By
from perstack.engine.context.audit_trail import NO_AUDIT, AuditTrail
from perstack.errors import Conflict, NotAllowed, NotFound, UsageError
from perstack.ports.storage import Storage
from perstack.python_api.checked_calls import checked
from perstack.support.storage import newest_first
from perstack.system.clock import SYSTEM, Clock
from perstack.system.user import this_user
from perstack.tasks.arguments import Json, Text
from perstack.tasks.events import StoredTaskEvent
from perstack.tasks.evolve import TaskChanges, checkpoints_in
from perstack.tasks.memory import TaskMemory
from perstack.tasks.operations import (
    ChangeCommand,
    CreateCommand,
    DecisionInput,
    DeleteCommand,
    GetCommand,
    ListCheckpointsCommand,
    ListCommand,
    PauseCommand,
    ResumeCommand,
    TaskCommand,
)
from perstack.tasks.state import TaskCheckpoint, TaskState, already_exists_error, check_task_id
from perstack.tasks.summaries import Row, TaskPage, TaskSummary, by_id, check_not_needed
from perstack.tasks.task_decisions import TaskSubject
from perstack.tasks.task_log import BlockerSearch, TaskLog, check_dependencies, with_blockers

_R = TypeVar("_R")

_ANY_AGE_MS = 1 << 53  # milliseconds after now in which no task was changed


class StoredTasks(TaskMemory):
    """The tasks in a storage, with all operations. `perstack.tasks.memory` documents the methods."""

    def __init__(self, storage: Storage, audit: AuditTrail = NO_AUDIT, clock: Clock = SYSTEM) -> None:
        """Use an open storage, which `close` closes."""
        self.log = TaskLog(storage, audit)
        self._storage = storage
        self._clock = clock
        self._by: By | None = None

    async def __aenter__(self) -> StoredTasks:
        """Return the memory."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the storage."""
        await self.close()

    async def close(self) -> None:
        """Close the storage."""
        await self._storage.close()

    def signed(self, by: By) -> StoredTasks:
        """Return a copy that records answers as given by `by` instead of the process's user."""
        signed = copy(self)
        signed._by = by
        return signed

    async def find(self, task_id: str) -> TaskState | None:
        """Return the task of this id; None if there is none."""
        try:
            return await self.get(task_id)
        except NotFound:
            return None

    async def resolve_id(self, typed: str) -> str:
        """Return the task id for a whole id, a unique prefix, or `@last`. Raises UsageError that lists what matches."""
        from perstack.engine.jobs.id_resolution import position_from_last, resolve_id, too_few_error

        position = position_from_last(typed)
        if position is None:
            return await resolve_id(self._storage, typed, ("task",))
        tasks = (await self.list(limit=position + 1)).tasks
        if len(tasks) <= position:
            raise too_few_error("task", len(tasks), self._storage)
        return tasks[position].task_id

    async def do(self, command: TaskCommand[_R]) -> _R:
        """Carry out an operation. Ordinary changes are defined in their command class."""
        return cast("_R", await self._carry_out(command))

    async def _carry_out(self, command: TaskCommand[Any]) -> object:
        match command:
            case ListCommand():
                return await self.page(command)
            case GetCommand():
                return await self.task(command.task_id)
            case ListCheckpointsCommand():
                return await self.checkpoints(command.task_id)
            case CreateCommand():
                return await self._create(command)
            case PauseCommand():
                return await self._pause(command)
            case ResumeCommand():
                checkpoint = command.checkpoint
                back_to = None if checkpoint is None else await self.checkpoint_of(command.task_id, checkpoint)
                return await self._change(command, replace(self._decision_input(), back_to=back_to))
            case ChangeCommand():
                return await self._change(command, self._decision_input())
            case DeleteCommand():
                check_not_needed(command.task_id, await self.log.rows())
                await self.log.delete(command.task_id, command.expected_version)
                return None
            case _:
                raise TypeError(f"{type(command).__name__} is not an operation on tasks")

    def _decision_input(self) -> DecisionInput:
        return DecisionInput(self._clock.now(), self._by or this_user())

    async def _create(self, command: CreateCommand) -> TaskState:
        check_task_id(command.task_id)
        command.check()
        dependencies = await check_dependencies(self.log, command.task_id, command.depends_on)
        events = command.decide(replace(self._decision_input(), depends_on=dependencies))
        try:
            return await with_blockers(self.log, await self.log.create(events))
        except Conflict as conflict:
            raise already_exists_error(await self.get(command.task_id)) from conflict

    async def _change(self, command: ChangeCommand, context: DecisionInput) -> TaskState:
        command.check(context)
        return await self.log.change(
            command.task_id,
            lambda task: command.decide(task, replace(context, now=self._clock.now())),
            command.expected_version,
        )

    async def _pause(self, command: PauseCommand) -> TaskState:
        dependencies = await check_dependencies(self.log, command.task_id, command.depends_on)
        context = replace(self._decision_input(), depends_on=dependencies)
        needs_token = command.needs_token(context)
        token = f"{command.task_id}.{secrets.token_urlsafe(32)}" if needs_token else None
        context = replace(context, token_hash=None if token is None else _hash(token))
        paused = await with_blockers(self.log, await self._change(command, context))
        return paused.model_copy(update=TaskChanges(token=token))

    # --- queries --------------------------------------------------------------------------------------------------

    async def task(self, task_id: str) -> TaskState:
        """Return the state of a task, with the tasks that block it. Raises NotFound and Damaged."""
        return await with_blockers(self.log, (await self.log.load(task_id)).state)

    async def subject_of(self, task_id: str) -> TaskSubject:
        """Return what decisions about a task's calls need: state, events and time. Raises NotFound and Damaged."""
        return TaskSubject(await self.task(task_id), await self._existing_events(task_id), self._clock.now())

    async def page(self, query: ListCommand) -> TaskPage:
        """Return the tasks that match all conditions, latest change first."""
        conditions = [
            (key, value)
            for key, value in (("status", query.status), ("pauseReason", query.reason), ("agentId", query.agent_id))
            if value is not None
        ]
        now = self._clock.now()
        latest = now - query.older_than if query.older_than is not None else now + _ANY_AGE_MS
        earliest = now - query.newer_than if query.newer_than is not None else -1

        def is_match(row: Row) -> bool:
            # A plain loop: `all` takes twice the time, and there may be thousands of rows.
            for key, value in conditions:
                if row.get(key) != value:
                    return False
            return (row.get("archivedAt") is not None) is query.archived and earliest < _changed_at(row) <= latest

        rows = by_id(await self.log.rows())
        matching = ((_changed_at(row), task_id) for task_id, row in rows.items() if is_match(row))
        page = newest_first(matching, query.limit, query.after)
        listing = BlockerSearch(self.log, rows)
        tasks = [await listing.with_blockers(await self.log.summary_of_row(rows[task_id])) for task_id in page.ids]
        return TaskPage(tasks=tuple(tasks), next=page.next)

    async def damaged_tasks(self) -> tuple[TaskSummary, ...]:
        """Return the tasks that are not archived and whose logs cannot be read, as far as listing has noticed."""
        rows = [row for row in await self.log.rows() if row.get("damaged") and row.get("archivedAt") is None]
        return tuple([await self.log.summary_of_row(row) for row in rows])

    @checked
    async def history(self, task_id: str) -> tuple[StoredTaskEvent, ...]:
        """Return all events of a task. Raises NotFound."""
        return tuple(await self._existing_events(task_id))

    async def checkpoints(self, task_id: str) -> tuple[TaskCheckpoint, ...]:
        """Return all checkpoints of a task, oldest first. Raises NotFound."""
        return checkpoints_in(task_id, await self._existing_events(task_id))

    async def checkpoint_of(self, task_id: str, id_or_name: str) -> TaskCheckpoint:
        """Return the latest checkpoint with this id or name. Raises NotFound."""
        checkpoints = await self.checkpoints(task_id)
        for task_checkpoint in reversed(checkpoints):
            if id_or_name in (task_checkpoint.id, task_checkpoint.name):
                return task_checkpoint
        ids = ", ".join(task_checkpoint.id for task_checkpoint in checkpoints[-5:]) or "none"
        raise NotFound(f"task {task_id} has no checkpoint {id_or_name}; its latest are: {ids}")

    async def _existing_events(self, task_id: str) -> Sequence[StoredTaskEvent]:
        events = await self.log.events(task_id)
        if not events:
            await self.task(task_id)  # raises NotFound
        return events

    # --- not in the table of operations ----------------------------------------------------------------------------

    @checked
    async def signal(self, token: Text, payload: Json = None, *, event_id: Text | None = None) -> TaskState:
        """Answer the task that waits for an external dependency, by the token that `pause` returned.

        Raises NotFound for an unknown token, and Conflict for a used one; a seen `event_id` changes nothing.
        """
        task_id, _, _ = token.partition(".")
        unknown_token = NotFound("no task waits for this token")
        try:
            task = await self.get(task_id)
        except UsageError as error:
            raise unknown_token from error
        if task.token_hash is None or not hmac.compare_digest(task.token_hash, _hash(token)):
            raise unknown_token
        if task.status != "paused" and event_id not in task.signals:
            raise Conflict(f"task {task_id} has been signalled already")
        return await self.answer(task_id, payload, event_id=event_id)

    async def delete_each(self, tasks: Sequence[TaskSummary]) -> AsyncIterator[tuple[str, str | None]]:
        """Delete tasks unless they changed since they were listed; yield each id, and the reason if it was kept."""
        deleted_ids = {task_summary.task_id for task_summary in tasks}
        remaining_rows = [row for row in await self.log.rows() if row.get("taskId") not in deleted_ids]
        for task_summary in tasks:
            try:
                if task_summary.damaged:
                    raise NotAllowed(f"task {task_summary.task_id} is damaged: repair it, or delete it by its name")
                check_not_needed(task_summary.task_id, remaining_rows)
                await self.log.delete(task_summary.task_id, task_summary.version)
            except (Conflict, NotAllowed, NotFound) as error:
                yield task_summary.task_id, str(error)
            else:
                yield task_summary.task_id, None


def _changed_at(row: Row) -> int:
    updated_at = row.get("updatedAt")
    return updated_at if isinstance(updated_at, int) else 0


def _hash(token: str) -> str:
    return sha256(token.encode()).hexdigest()
