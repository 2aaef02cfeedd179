"""The task port: what a skill is given so that an Expert can keep tasks of its own."""

from __future__ import annotations

from typing import Protocol

from pydantic import JsonValue

from perstack.core.base import JsonObject
from perstack.core.job import PauseReason
from perstack.core.task_events import TaskConfig, WaitingFor
from perstack.core.tasks import TaskCheckpoint, TaskPage, TaskState, TaskStatus


class TaskMemory(Protocol):
    """Tasks that are paused and resumed, by whichever process.

    Each method that changes a task returns it as it is then, and raises NotFound, NotAllowed if its status does not
    allow this, and Conflict if it is of another version than `expected_version`. Times are milliseconds; those of a
    day are since 1970. JSON values may have 1 MiB each.
    """

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
        """A new task; with `start` it is running at once. Raises NotAllowed if the id exists."""
        ...

    async def start(self, task_id: str, *, expected_version: int | None = None) -> TaskState:
        """Its agent begins."""
        ...

    async def get(self, task_id: str) -> TaskState:
        """Where it stands."""
        ...

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
        """Tasks that are all of this, the one written to last first; `after` is the `next` of the page before.

        `older_than` and `newer_than`: written to last so many milliseconds ago, or longer, or less long.
        """
        ...

    async def checkpoint(
        self,
        task_id: str,
        state: JsonObject | None = None,
        *,
        name: str | None = None,
        data: JsonObject | None = None,
        expected_version: int | None = None,
    ) -> TaskState:
        """Keep how far it is. Without `state` the one before holds."""
        ...

    async def list_checkpoints(self, task_id: str) -> tuple[TaskCheckpoint, ...]:
        """All of them, the oldest first, with their states."""
        ...

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
        """Let it wait; with `state`, after a checkpoint.

        `scheduled_wait` needs `resume_at`, and `rate_limit` may have it. For `external_dependency` what is returned
        has the `token` that `signal` takes; it is not kept anywhere, and shown this once.
        """
        ...

    async def answer(
        self,
        task_id: str,
        value: JsonValue = None,
        *,
        event_id: str | None = None,
        expected_version: int | None = None,
    ) -> TaskState:
        """Say that what it waits for has come. It is due then: `run-due`, or its agent, resumes it.

        An approval takes only a yes or a no, in words (with more beside them: `no: because …`), as true or false, or as
        an object whose `approved` is one: `perstack.core.answers` tells how it is read. Raises UsageError otherwise.
        An event whose `event_id` it had already changes nothing. Raises Conflict if it has another answer.
        """
        ...

    async def resume(
        self,
        task_id: str,
        *,
        checkpoint: str | None = None,
        state: JsonObject | None = None,
        value: JsonValue = None,
        expected_version: int | None = None,
    ) -> TaskState:
        """Let it go on from where it stands, or from a checkpoint, by id or name; none is lost by that.

        `state` takes the place of the state, and `value` that of an answer.
        """
        ...

    async def complete(
        self,
        task_id: str,
        result: JsonValue = None,
        *,
        state: JsonObject | None = None,
        expected_version: int | None = None,
    ) -> TaskState:
        """It is done, for good."""
        ...

    async def fail(self, task_id: str, error: str, *, expected_version: int | None = None) -> TaskState:
        """Something went wrong: it is failed, paused or retried, as its config says."""
        ...

    async def retry(self, task_id: str, *, expected_version: int | None = None) -> TaskState:
        """Try a failed one again, as often as its config allows."""
        ...

    async def cancel(
        self, task_id: str, message: str | None = None, *, expected_version: int | None = None
    ) -> TaskState:
        """Give it up: failed, with the error `cancelled`."""
        ...

    async def archive(self, task_id: str, *, expected_version: int | None = None) -> TaskState:
        """Leave it out of lists from now on."""
        ...

    async def delete(self, task_id: str, *, expected_version: int | None = None) -> None:
        """Remove it for good."""
        ...
