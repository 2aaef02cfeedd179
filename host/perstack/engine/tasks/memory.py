"""Execution memory: tasks that agents pause, and any later process resumes from exactly there.

    async with ExecutionMemory.open() as memory:
        task = await memory.create("refactor-2026", state={"done": []}, start=True)
        task = await memory.checkpoint(task.task_id, {"done": ["a.py"]})
        await memory.pause(task.task_id, "human_approval", "May I go on with b.py?")

Times are milliseconds since 1970.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

from perstack.core.by import By
from perstack.core.tasks.evolve import Changes
from perstack.core.tasks.operations import (
    Change,
    Command,
    Create,
    Delete,
    Get,
    Given,
    List,
    ListCheckpoints,
    Pause,
    Resume,
)
from perstack.core.tasks.rows import check_unneeded
from perstack.core.tasks.state import TaskState, check_task_id
from perstack.core.tasks.summary import TaskSummary
from perstack.core.tasks.transitions import exists_already
from perstack.core.tasks.words import Json, Text
from perstack.engine.audit import Auditing
from perstack.engine.clock import SYSTEM
from perstack.engine.task_dependencies import (
    check_dependencies,
    delete_each,
    seen,
)
from perstack.engine.task_reader import TaskReader
from perstack.engine.who import this_user
from perstack.errors import Conflict, NotFound, UsageError
from perstack.ports.checked import checked
from perstack.ports.clock import Clock
from perstack.ports.storage import Storage
from perstack.ports.tasks import TaskMemory

_R = TypeVar("_R")


class ExecutionMemory(TaskReader, TaskMemory):
    """Tasks in a storage, beside its Jobs. What each method promises is in `perstack.ports.tasks`."""

    def __init__(self, storage: Storage, audit: Auditing | None = None, clock: Clock = SYSTEM) -> None:
        super().__init__(storage, audit, clock)
        self._storage = storage
        self._by: By | None = None

    @classmethod
    def open(
        cls,
        *,
        workspace: str | Path = ".",
        storage: str | None = None,
        env: Mapping[str, str] | None = None,
        plugins: Iterable[object] = (),
    ) -> ExecutionMemory:
        """On the storage given, or that of the perstack.toml found from the workspace upward, or `file:perstack`."""
        import warnings

        from perstack.config.load import load_usable
        from perstack.config.places import find_place
        from perstack.core.definitions import Project
        from perstack.engine.audit import audit_of
        from perstack.engine.plugins import load_plugins
        from perstack.engine.state import open_state, state_environment

        place = find_place(workspace)
        project = Project() if place.config is None or storage is not None else load_usable(place.config).project
        given = env if env is not None else state_environment(project, place, storage)
        loaded = load_plugins(plugins, given)
        opened, notice = open_state(loaded, project, place, storage, given)
        if notice is not None:
            warnings.warn(notice, stacklevel=2)
        return cls(opened, audit_of(project, opened, place, env))

    async def __aenter__(self) -> ExecutionMemory:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the storage."""
        await self._storage.close()

    def signed(self, by: By) -> ExecutionMemory:
        """The same tasks; answers given here are recorded as this one's, and else as this process's user's."""
        signed = copy(self)
        signed._by = by
        return signed

    async def find(self, typed: str) -> str:
        """The id that a person means by what was typed: whole, a beginning that only one task has, or `@last`.

        Raises UsageError that lists all that a beginning fits.
        """
        from perstack.engine.typed_ids import last_typed, not_so_many, whole_id

        last = last_typed(typed)
        if last is None:
            return await whole_id(self._storage, typed, ("task",))
        tasks = (await self.list(limit=last + 1)).tasks
        if len(tasks) <= last:
            raise not_so_many("task", len(tasks), self._storage)
        return tasks[last].task_id

    async def do(self, command: Command[_R]) -> _R:
        """Do an operation. What an ordinary change needs is in its class: only what looks elsewhere has a case here."""
        return cast("_R", await self._done(command))

    async def _done(self, command: Command[Any]) -> object:
        match command:
            case List():
                return await self.page(command)
            case Get():
                return await self.task(command.task_id)
            case ListCheckpoints():
                return await self.checkpoints(command.task_id)
            case Create():
                return await self._create(command)
            case Pause():
                return await self._pause(command)
            case Resume():
                wanted = command.checkpoint
                back_to = None if wanted is None else await self.checkpoint_of(command.task_id, wanted)
                return await self._change(command, replace(self._given(), back_to=back_to))
            case Change():
                return await self._change(command, self._given())
            case Delete():
                check_unneeded(command.task_id, await self.log.rows())
                await self.log.delete(command.task_id, command.expected_version)
                return None
            case _:
                raise TypeError(f"{type(command).__name__} is not an operation on tasks")

    def _given(self) -> Given:
        return Given(self._clock.now(), self._by or this_user())

    async def _create(self, command: Create) -> TaskState:
        check_task_id(command.task_id)
        command.check()
        waits_for = await check_dependencies(self.log, command.task_id, command.depends_on)
        events = command.decide(replace(self._given(), depends_on=waits_for))
        try:
            return await seen(self.log, await self.log.create(events))
        except Conflict as conflict:
            raise exists_already(await self.get(command.task_id)) from conflict

    async def _change(self, command: Change, given: Given) -> TaskState:
        command.check(given)
        return await self.log.change(
            command.task_id,
            lambda task: command.decide(task, replace(given, now=self._clock.now())),
            command.expected_version,
        )

    async def _pause(self, command: Pause) -> TaskState:
        waits_for = await check_dependencies(self.log, command.task_id, command.depends_on)
        given = replace(self._given(), depends_on=waits_for)
        needs_token = command.needs_token(given)
        token = f"{command.task_id}.{secrets.token_urlsafe(32)}" if needs_token else None
        given = replace(given, token_hash=None if token is None else _hash(token))
        paused = await seen(self.log, await self._change(command, given))
        return paused.model_copy(update=Changes(token=token))

    # --- beside the table of operations ---------------------------------------------------------------------------

    @checked
    async def signal(self, token: Text, payload: Json = None, *, event_id: Text | None = None) -> TaskState:
        """Answer the task that waits for an external dependency, by the token that `pause` returned.

        Raises NotFound if no task has this token, and Conflict if it was used already; an event whose `event_id` was
        seen changes nothing.
        """
        task_id, _, _ = token.partition(".")
        nobody = NotFound("no task waits for this token")
        try:
            task = await self.get(task_id)
        except UsageError as error:
            raise nobody from error
        if task.token_hash is None or not hmac.compare_digest(task.token_hash, _hash(token)):
            raise nobody
        if task.status != "paused" and event_id not in task.signals:
            raise Conflict(f"task {task_id} has been signalled already")
        return await self.answer(task_id, payload, event_id=event_id)

    def delete_each(self, tasks: Sequence[TaskSummary]) -> AsyncIterator[tuple[str, str | None]]:
        """Remove these, unless they have been written to since they were listed: the id of each, and why it is kept."""
        return delete_each(self.log, tasks)


def _hash(token: str) -> str:
    return sha256(token.encode()).hexdigest()
