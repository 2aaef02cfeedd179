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
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import TypedDict

from pydantic import JsonValue, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from perstack.core.answers import read_answer
from perstack.core.base import JsonObject
from perstack.core.by import By
from perstack.core.ids import event_id_of
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
from perstack.core.tasks import (
    ALLOWED,
    MOST_STATE,
    TaskCheckpoint,
    TaskPage,
    TaskState,
    TaskStatus,
    TaskSummary,
    asked_of,
    check_allowed,
    check_task_id,
    outcome_of_failure,
)
from perstack.engine.clock import now_ms
from perstack.engine.task_log import Row, TaskLog
from perstack.engine.who import this_user
from perstack.errors import Conflict, NotAllowed, NotFound, UsageError
from perstack.ports.paging import newest_first
from perstack.ports.storage import Storage
from perstack.ports.tasks import TaskMemory

_EVER = 1 << 53
_TIMED = ("scheduled_wait", "rate_limit")
_ANSWERABLE = ("human_approval", "human_input", "external_dependency")


class _Told(TypedDict):
    input: JsonValue
    input_text: str
    by: By | None


_NOTHING = _Told(input=None, input_text="", by=None)


class ExecutionMemory(TaskMemory):
    """Tasks in a storage, beside its Jobs. What each method promises is in `perstack.ports.tasks`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._by: By | None = None
        self.log = TaskLog(storage)

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

        from perstack.config.load import load_project
        from perstack.config.places import find_place
        from perstack.core.definitions import Project
        from perstack.engine.plugins import load_plugins
        from perstack.engine.state import open_state

        place = find_place(workspace)
        project = Project() if place.config is None or storage is not None else load_project(place.config).project
        loaded = load_plugins(plugins, os.environ if env is None else env)
        opened, notice = open_state(loaded, project, place, storage)
        if notice is not None:
            warnings.warn(notice, stacklevel=2)
        return cls(opened)

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

    # --- beginning and looking ------------------------------------------------------------------------------------

    async def create(
        self,
        task_id: str,
        *,
        name: str | None = None,
        description: str = "",
        agent_id: str = "",
        state: JsonObject | None = None,
        config: TaskConfig | None = None,
        start: bool = False,
    ) -> TaskState:
        check_task_id(task_id)
        created = CreateTask(
            task_id=task_id,
            timestamp=now_ms(),
            name=name or task_id,
            description=description,
            agent_id=agent_id,
            state=_checked_state(task_id, state) or {},
            config=config or TaskConfig(),
        )
        started = [StartTask(task_id=task_id, timestamp=created.timestamp)] if start else []
        try:
            return await self.log.create([created, *started])
        except Conflict as conflict:
            task = await self.get(task_id)
            raise NotAllowed(_exists(task), ALLOWED[task.status]) from conflict

    async def start(self, task_id: str, *, expected_version: int | None = None) -> TaskState:
        def decide(task: TaskState) -> Sequence[StoredTaskEvent]:
            check_allowed(task, "start")
            return [StartTask(task_id=task_id, timestamp=now_ms())]

        return await self.log.change(task_id, decide, expected_version)

    async def get(self, task_id: str) -> TaskState:
        return (await self.log.load(task_id)).state

    async def list(
        self,
        *,
        status: TaskStatus | None = None,
        reason: PauseReason | None = None,
        agent_id: str | None = None,
        older_than: int | None = None,
        newer_than: int | None = None,
        archived: bool = False,
        limit: int = 100,
        after: str | None = None,
    ) -> TaskPage:
        wanted = [
            (key, value)
            for key, value in (("status", status), ("pauseReason", reason), ("agentId", agent_id))
            if value is not None
        ]
        now = now_ms()
        latest = now - older_than if older_than is not None else now + _EVER
        earliest = now - newer_than if newer_than is not None else -1

        def fits(row: Row) -> bool:
            for key, value in wanted:  # by hand: `all` takes twice the time, and there may be thousands
                if row.get(key) != value:
                    return False
            return (row.get("archivedAt") is not None) is archived and earliest < _written(row) <= latest

        rows = {str(row["taskId"]): row for row in await self.log.rows() if fits(row)}
        page = newest_first(((_written(row), task_id) for task_id, row in rows.items()), limit, after)
        return TaskPage(tasks=tuple([await self.log.summary(rows[one]) for one in page.ids]), next=page.next)

    async def damaged(self) -> tuple[TaskSummary, ...]:
        """The tasks whose logs do not read, as far as lists have found that out, but for archived ones."""
        rows = [row for row in await self.log.rows() if row.get("damaged") and row.get("archivedAt") is None]
        return tuple([await self.log.summary(row) for row in rows])

    async def history(self, task_id: str) -> tuple[StoredTaskEvent, ...]:
        """Everything that happened to a task. Raises NotFound."""
        return tuple(await self._events(task_id))

    async def list_checkpoints(self, task_id: str) -> tuple[TaskCheckpoint, ...]:
        return checkpoints_in(task_id, await self._events(task_id))

    # --- working --------------------------------------------------------------------------------------------------

    async def checkpoint(
        self,
        task_id: str,
        state: JsonObject | None = None,
        *,
        name: str | None = None,
        data: JsonObject | None = None,
        expected_version: int | None = None,
    ) -> TaskState:
        _checked_state(task_id, state)
        _checked_state(task_id, data, "checkpoint data")

        def decide(task: TaskState) -> Sequence[StoredTaskEvent]:
            check_allowed(task, "checkpoint")
            return [CheckpointTask(task_id=task_id, timestamp=now_ms(), name=name, state=state, data=data)]

        return await self.log.change(task_id, decide, expected_version)

    async def pause(
        self,
        task_id: str,
        reason: PauseReason,
        message: str | None = None,
        *,
        state: JsonObject | None = None,
        resume_at: int | None = None,
        waiting_for: WaitingFor | None = None,
        expected_version: int | None = None,
    ) -> TaskState:
        _check_pause(reason, resume_at, waiting_for)
        _checked_state(task_id, state)
        is_external = reason == "external_dependency"
        token = f"{task_id}.{secrets.token_urlsafe(32)}" if is_external else None

        def decide(task: TaskState) -> Sequence[StoredTaskEvent]:
            check_allowed(task, "pause")
            now = now_ms()
            kept = [] if state is None else [CheckpointTask(task_id=task_id, timestamp=now, state=state)]
            paused = PauseTask(
                task_id=task_id,
                timestamp=now,
                reason=reason,
                message=message,
                resume_at=resume_at,
                waiting_for=(waiting_for or WaitingFor()) if is_external else None,
                token_hash=None if token is None else _hash(token),
            )
            return [*kept, paused]

        paused = await self.log.change(task_id, decide, expected_version)
        return paused.model_copy(update={"token": token})

    async def answer(
        self,
        task_id: str,
        value: JsonValue = None,
        *,
        event_id: str | None = None,
        expected_version: int | None = None,
    ) -> TaskState:
        _checked(task_id, value, "answer")

        def decide(task: TaskState) -> Sequence[StoredTaskEvent]:
            if event_id is not None and event_id in task.signals:
                return []
            if task.status == "paused" and task.answered:
                raise Conflict(f"task {task_id} has been answered already")
            check_allowed(task, "answer")
            if task.pause_reason not in _ANSWERABLE:
                raise UsageError(f"task {task_id} waits for no answer ({task.pause_reason}): resume it")
            answered = AnswerTask(task_id=task_id, timestamp=now_ms(), signal=event_id, **self._told(task, value))
            return [answered]

        return await self.log.change(task_id, decide, expected_version)

    async def signal(self, token: str, payload: JsonValue = None, *, event_id: str | None = None) -> TaskState:
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

    async def resume(
        self,
        task_id: str,
        *,
        checkpoint: str | None = None,
        state: JsonObject | None = None,
        value: JsonValue = None,
        expected_version: int | None = None,
    ) -> TaskState:
        _checked_state(task_id, state)
        _checked(task_id, value, "answer")
        back_to = None if checkpoint is None else await self._checkpoint(task_id, checkpoint)

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

    async def complete(
        self,
        task_id: str,
        result: JsonValue = None,
        *,
        state: JsonObject | None = None,
        expected_version: int | None = None,
    ) -> TaskState:
        _checked_state(task_id, state)
        _checked(task_id, result, "result")

        def decide(task: TaskState) -> Sequence[StoredTaskEvent]:
            check_allowed(task, "complete")
            return [CompleteTask(task_id=task_id, timestamp=now_ms(), result=result, state=state)]

        return await self.log.change(task_id, decide, expected_version)

    async def fail(self, task_id: str, error: str, *, expected_version: int | None = None) -> TaskState:
        def decide(task: TaskState) -> Sequence[StoredTaskEvent]:
            return [failure(task, error)]

        return await self.log.change(task_id, decide, expected_version)

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

    async def cancel(
        self, task_id: str, message: str | None = None, *, expected_version: int | None = None
    ) -> TaskState:
        def decide(task: TaskState) -> Sequence[StoredTaskEvent]:
            check_allowed(task, "cancel")
            return [CancelTask(task_id=task_id, timestamp=now_ms(), message=message)]

        return await self.log.change(task_id, decide, expected_version)

    async def archive(self, task_id: str, *, expected_version: int | None = None) -> TaskState:
        def decide(task: TaskState) -> Sequence[StoredTaskEvent]:
            check_allowed(task, "archive")
            return [ArchiveTask(task_id=task_id, timestamp=now_ms())]

        return await self.log.change(task_id, decide, expected_version)

    async def delete(self, task_id: str, *, expected_version: int | None = None) -> None:
        await self.log.delete(task_id, expected_version)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _told(self, task: TaskState, value: JsonValue) -> _Told:
        """What an answer means, and who gave it. Raises UsageError, which names what is accepted."""
        reading = read_answer(asked_of(task), value)
        return _Told(input=reading.value, input_text=reading.words, by=self._by or this_user())

    async def _events(self, task_id: str) -> Sequence[StoredTaskEvent]:
        events = await self.log.events(task_id)
        if not events:
            await self.get(task_id)
        return events

    async def _checkpoint(self, task_id: str, wanted: str) -> TaskCheckpoint:
        """By its id, or the latest of that name."""
        found = await self.list_checkpoints(task_id)
        for one in reversed(found):
            if wanted in (one.id, one.name):
                return one
        ids = ", ".join(one.id for one in found[-5:]) or "none"
        raise NotFound(f"task {task_id} has no checkpoint {wanted}; its latest are: {ids}")


def checkpoints_in(task_id: str, events: Sequence[StoredTaskEvent]) -> tuple[TaskCheckpoint, ...]:
    """The checkpoints among the facts of a task, each with the whole state."""
    state: JsonObject = {}
    found: list[TaskCheckpoint] = []
    for version, event in enumerate(events, start=1):
        if isinstance(event, CreateTask | CheckpointTask | ResumeTask | CompleteTask) and event.state is not None:
            state = event.state
        if isinstance(event, CheckpointTask):
            found.append(
                TaskCheckpoint(
                    id=event_id_of(task_id, version),
                    name=event.name,
                    timestamp=event.timestamp,
                    version=version,
                    state=state,
                    data=event.data,
                )
            )
    return tuple(found)


def failure(task: TaskState, error: str) -> FailTask:
    """The fact that something went wrong. What was not running is not tried again by itself."""
    check_allowed(task, "fail")
    outcome = outcome_of_failure(task) if task.status == "running" else "fail"
    return FailTask(task_id=task.task_id, timestamp=now_ms(), error=error, outcome=outcome)


def _written(row: Row) -> int:
    written = row.get("updatedAt")
    return written if isinstance(written, int) else 0


def _exists(task: TaskState) -> str:
    offers = {
        "created": "start it",
        "running": "go on with it",
        "paused": f"go on with it by resuming it (perstack task resume {task.task_id})",
        "failed": f"go on with it by resuming it (perstack task resume {task.task_id})",
        "completed": "it is final",
    }
    return f"task {task.task_id} exists already, and is {task.status}: {offers[task.status]}, or choose another id"


def _check_pause(reason: PauseReason, resume_at: int | None, waiting_for: WaitingFor | None) -> None:
    if reason == "scheduled_wait" and resume_at is None:
        raise UsageError("a scheduled wait needs `resumeAt`: when the task is to go on, in milliseconds since 1970")
    if resume_at is not None and reason not in _TIMED:
        raise UsageError(f"`resumeAt` is for {' and '.join(_TIMED)}, not for {reason}")
    if waiting_for is not None and reason != "external_dependency":
        raise UsageError(f"`waitingFor` is for external_dependency, not for {reason}")


def _checked_state(task_id: str, state: JsonObject | None, what: str = "state") -> JsonObject | None:
    if state is not None and not isinstance(state, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"the {what} of task {task_id} must be a JSON object, not {type(state).__name__}")
    _checked(task_id, state, what)
    return state


def _checked(task_id: str, value: JsonValue, what: str) -> None:
    """Raises UsageError for what is no JSON, or too much of it."""
    try:
        size = len(to_json(value))
    except (PydanticSerializationError, ValidationError) as error:
        raise UsageError(f"the {what} of task {task_id} is no JSON: {str(error).splitlines()[0]}") from error
    if size > MOST_STATE:
        raise UsageError(
            f"the {what} of task {task_id} has {size:,} bytes, and may have {MOST_STATE:,}: keep big things in"
            f" files, and their paths in the {what}"
        )


def _hash(token: str) -> str:
    return sha256(token.encode()).hexdigest()
