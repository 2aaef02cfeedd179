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
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import TypedDict

from pydantic import JsonValue

from perstack.core.answers import read_answer
from perstack.core.base import JsonObject
from perstack.core.by import By
from perstack.core.job import PauseReason
from perstack.core.task_events import (
    AnswerTask,
    ArchiveTask,
    CancelTask,
    CheckpointTask,
    CompleteTask,
    CreateTask,
    FailTask,
    PauseTask,
    ResumeTask,
    RetryTask,
    StartTask,
    StoredTaskEvent,
    TaskConfig,
    WaitingFor,
)
from perstack.core.task_words import (
    Config,
    FirstStatus,
    Json,
    Moment,
    State,
    TaskIds,
    Text,
    check_pause,
    error_of,
    message_of,
    reason_of,
    starts,
)
from perstack.core.tasks import (
    ALLOWED,
    TaskState,
    TaskSummary,
    asked_of,
    check_allowed,
    check_task_id,
    exists_already,
    outcome_of_failure,
    waits_for_tasks_alone,
)
from perstack.engine.audit import Auditing
from perstack.engine.checked import checked
from perstack.engine.clock import now_ms
from perstack.engine.task_dependencies import (
    check_dependencies,
    check_unneeded,
    delete_each,
    seen,
)
from perstack.engine.task_reader import TaskReader
from perstack.engine.who import this_user
from perstack.errors import Conflict, NotAllowed, NotFound, UsageError
from perstack.ports.storage import Storage
from perstack.ports.tasks import TaskMemory

_FOR_TASKS: PauseReason = "external_dependency"
"""The reason of a pause that is for other tasks, if nobody gives another."""
_ANSWERABLE = ("human_approval", "human_input", "external_dependency")


class _Told(TypedDict):
    input: JsonValue
    input_text: str
    by: By | None


_NOTHING = _Told(input=None, input_text="", by=None)


class ExecutionMemory(TaskReader, TaskMemory):
    """Tasks in a storage, beside its Jobs. What each method promises is in `perstack.ports.tasks`."""

    def __init__(self, storage: Storage, audit: Auditing | None = None) -> None:
        super().__init__(storage, audit)
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
        import os
        import warnings

        from perstack.config.load import load_usable
        from perstack.config.places import find_place
        from perstack.core.definitions import Project
        from perstack.engine.audit import audit_of
        from perstack.engine.plugins import load_plugins
        from perstack.engine.state import open_state

        place = find_place(workspace)
        project = Project() if place.config is None or storage is not None else load_usable(place.config).project
        loaded = load_plugins(plugins, os.environ if env is None else env)
        opened, notice = open_state(loaded, project, place, storage)
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

    # --- beginning ------------------------------------------------------------------------------------

    @checked
    async def create(
        self,
        task_id: str,
        *,
        name: Text | None = None,
        description: Text = "",
        agent_id: Text = "",
        state: State | None = None,
        checkpoint_data: State | None = None,
        config: Config | None = None,
        depends_on: TaskIds = (),
        status: FirstStatus | None = None,
        start: bool | None = None,
    ) -> TaskState:
        check_task_id(task_id)
        is_started = starts(start=start, status=status)
        waits_for = await check_dependencies(self.log, task_id, depends_on)
        now = now_ms()
        events: list[StoredTaskEvent] = [
            CreateTask(
                task_id=task_id,
                timestamp=now,
                name=name or task_id,
                description=description,
                agent_id=agent_id,
                state=state or {},
                config=config or TaskConfig(),
            )
        ]
        if checkpoint_data is not None:
            events.append(CheckpointTask(task_id=task_id, timestamp=now, data=checkpoint_data))
        if waits_for:
            events.append(PauseTask(task_id=task_id, timestamp=now, reason=_FOR_TASKS, depends_on=waits_for))
        elif is_started:
            events.append(StartTask(task_id=task_id, timestamp=now))
        try:
            return await seen(self.log, await self.log.create(events))
        except Conflict as conflict:
            task = await self.get(task_id)
            raise exists_already(task) from conflict

    @checked
    async def start(self, task_id: str, *, expected_version: int | None = None) -> TaskState:
        def decide(task: TaskState) -> Sequence[StoredTaskEvent]:
            check_allowed(task, "start")
            return [StartTask(task_id=task_id, timestamp=now_ms())]

        return await self.log.change(task_id, decide, expected_version)

    # --- working --------------------------------------------------------------------------------------------------

    @checked
    async def checkpoint(
        self,
        task_id: str,
        state: State | None = None,
        *,
        name: Text | None = None,
        checkpoint_data: State | None = None,
        data: State | None = None,
        expected_version: int | None = None,
    ) -> TaskState:
        if checkpoint_data is not None and data is not None:
            raise UsageError("checkpoint: `data` is an old name of `checkpoint_data`: give one of them")
        kept = data if checkpoint_data is None else checkpoint_data

        def decide(task: TaskState) -> Sequence[StoredTaskEvent]:
            check_allowed(task, "checkpoint")
            return [CheckpointTask(task_id=task_id, timestamp=now_ms(), name=name, state=state, data=kept)]

        return await self.log.change(task_id, decide, expected_version)

    @checked
    async def pause(
        self,
        task_id: str,
        reason: Text | None = None,
        message: Text | None = None,
        *,
        state: State | None = None,
        checkpoint_data: State | None = None,
        resume_at: Moment | None = None,
        waiting_for: WaitingFor | Text | None = None,
        depends_on: TaskIds = (),
        expected_version: int | None = None,
    ) -> TaskState:
        outside = WaitingFor(what=waiting_for) if isinstance(waiting_for, str) else waiting_for
        waits_for = await check_dependencies(self.log, task_id, depends_on)
        typed, words = reason_of(reason if reason is not None or not waits_for else _FOR_TASKS)
        check_pause(typed, resume_at, outside)
        is_external = typed == "external_dependency" and (outside is not None or not waits_for)
        token = f"{task_id}.{secrets.token_urlsafe(32)}" if is_external else None

        def decide(task: TaskState) -> Sequence[StoredTaskEvent]:
            check_allowed(task, "pause")
            now = now_ms()
            is_kept = state is not None or checkpoint_data is not None
            kept = CheckpointTask(task_id=task_id, timestamp=now, state=state, data=checkpoint_data)
            paused = PauseTask(
                task_id=task_id,
                timestamp=now,
                reason=typed,
                message=message_of(words, message),
                resume_at=resume_at,
                waiting_for=(outside or WaitingFor()) if is_external else None,
                depends_on=waits_for,
                token_hash=None if token is None else _hash(token),
            )
            return [kept, paused] if is_kept else [paused]

        paused = await seen(self.log, await self.log.change(task_id, decide, expected_version))
        return paused.model_copy(update={"token": token})

    @checked
    async def answer(
        self,
        task_id: str,
        value: Json = None,
        *,
        event_id: Text | None = None,
        expected_version: int | None = None,
    ) -> TaskState:
        def decide(task: TaskState) -> Sequence[StoredTaskEvent]:
            if event_id is not None and event_id in task.signals:
                return []
            if task.status == "paused" and task.answered:
                raise Conflict(f"task {task_id} has been answered already")
            check_allowed(task, "answer")
            if waits_for_tasks_alone(task):
                raise UsageError(
                    f"task {task_id} waits for no answer, but for {', '.join(task.depends_on)}: resume it to go on"
                    " without that"
                )
            if task.pause_reason not in _ANSWERABLE:
                raise UsageError(f"task {task_id} waits for no answer ({task.pause_reason}): resume it")
            answered = AnswerTask(task_id=task_id, timestamp=now_ms(), signal=event_id, **self._told(task, value))
            return [answered]

        return await self.log.change(task_id, decide, expected_version)

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

    @checked
    async def resume(
        self,
        task_id: str,
        *,
        checkpoint: Text | None = None,
        state: State | None = None,
        value: Json = None,
        expected_version: int | None = None,
    ) -> TaskState:
        back_to = None if checkpoint is None else await self.checkpoint_of(task_id, checkpoint)

        def decide(task: TaskState) -> Sequence[StoredTaskEvent]:
            check_allowed(task, "resume")
            before = back_to.state if back_to is not None else None
            resumed = ResumeTask(
                task_id=task_id,
                timestamp=now_ms(),
                checkpoint_id=back_to.id if back_to is not None else None,
                state=before if state is None else state,
                data=back_to.data if back_to is not None else None,
                **(_NOTHING if value is None else self._told(task, value)),
            )
            return [resumed]

        return await self.log.change(task_id, decide, expected_version)

    # --- ending ---------------------------------------------------------------------------------------------------

    @checked
    async def complete(
        self,
        task_id: str,
        result: Json = None,
        *,
        state: State | None = None,
        expected_version: int | None = None,
    ) -> TaskState:
        def decide(task: TaskState) -> Sequence[StoredTaskEvent]:
            check_allowed(task, "complete")
            return [CompleteTask(task_id=task_id, timestamp=now_ms(), result=result, state=state)]

        return await self.log.change(task_id, decide, expected_version)

    @checked
    async def fail(self, task_id: str, error: Text | State, *, expected_version: int | None = None) -> TaskState:
        words, details = error_of(error)

        def decide(task: TaskState) -> Sequence[StoredTaskEvent]:
            return [failure(task, words, details)]

        return await self.log.change(task_id, decide, expected_version)

    @checked
    async def retry(self, task_id: str, *, expected_version: int | None = None) -> TaskState:
        def decide(task: TaskState) -> Sequence[StoredTaskEvent]:
            check_allowed(task, "retry")
            if task.retry_count >= task.config.max_retries:
                raise NotAllowed(
                    f"task {task_id} was retried as often as it may be ({task.retry_count} times);"
                    " resume it to go on all the same",
                    tuple(one for one in ALLOWED[task.status] if one != "retry"),
                )
            return [RetryTask(task_id=task_id, timestamp=now_ms())]

        return await self.log.change(task_id, decide, expected_version)

    @checked
    async def cancel(
        self, task_id: str, message: Text | None = None, *, expected_version: int | None = None
    ) -> TaskState:
        def decide(task: TaskState) -> Sequence[StoredTaskEvent]:
            check_allowed(task, "cancel")
            return [CancelTask(task_id=task_id, timestamp=now_ms(), message=message)]

        return await self.log.change(task_id, decide, expected_version)

    @checked
    async def archive(self, task_id: str, *, expected_version: int | None = None) -> TaskState:
        def decide(task: TaskState) -> Sequence[StoredTaskEvent]:
            check_allowed(task, "archive")
            return [ArchiveTask(task_id=task_id, timestamp=now_ms())]

        return await self.log.change(task_id, decide, expected_version)

    @checked
    async def delete(self, task_id: str, *, expected_version: int | None = None) -> None:
        await check_unneeded(self.log, task_id)
        await self.log.delete(task_id, expected_version)

    def delete_each(self, tasks: Sequence[TaskSummary]) -> AsyncIterator[tuple[str, str | None]]:
        """Remove these, unless they have been written to since they were listed: the id of each, and why it is kept."""
        return delete_each(self.log, tasks)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _told(self, task: TaskState, value: JsonValue) -> _Told:
        """What an answer means, and who gave it. Raises UsageError, which names what is accepted."""
        reading = read_answer(asked_of(task), value)
        return _Told(input=reading.value, input_text=reading.words, by=self._by or this_user())


def failure(task: TaskState, error: str, details: JsonObject | None = None) -> FailTask:
    """The fact that something went wrong. What was not running is not tried again by itself."""
    check_allowed(task, "fail")
    outcome = outcome_of_failure(task) if task.status == "running" else "fail"
    return FailTask(task_id=task.task_id, timestamp=now_ms(), error=error, details=details, outcome=outcome)


def _hash(token: str) -> str:
    return sha256(token.encode()).hexdigest()
