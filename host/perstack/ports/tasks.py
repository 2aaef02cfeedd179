"""The task port: what a skill is given so that an Expert can keep tasks of its own."""

from __future__ import annotations

from typing import Protocol

from perstack.core.job import PauseReason
from perstack.core.task_events import WaitingFor
from perstack.core.task_words import Config, Count, FirstStatus, Json, Moment, PageSize, State, TaskIds, Text
from perstack.core.tasks import TaskCheckpoint, TaskPage, TaskState, TaskStatus


class TaskMemory(Protocol):
    """Tasks that are paused and resumed, by whichever process.

    Each method that changes a task returns it as it is then, and raises NotFound, NotAllowed if its status does not
    allow this, Conflict if it is of another version than `expected_version`, and UsageError for a wrong argument.
    Times are milliseconds; those of a day are since 1970. JSON values and texts may have 1 MiB each.
    """

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
        """A new task; with `start`, or the status `running`, it is running at once.

        With `checkpoint_data` it has a first checkpoint. One that depends on others is paused until all of them are
        completed, whatever else is said. Raises NotAllowed if the id exists, and UsageError if one that it depends on
        does not, or depends on it.
        """
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
        agent_id: Text | None = None,
        older_than: Count | None = None,
        newer_than: Count | None = None,
        archived: bool = False,
        limit: PageSize = 100,
        after: Text | None = None,
    ) -> TaskPage:
        """Tasks that are all of this, the one written to last first; `after` is the `next` of the page before.

        `older_than` and `newer_than`: written to last so many milliseconds ago, or longer, or less long.
        """
        ...

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
        """Keep how far it is. Without `state` the one before holds; `data` is an old name of `checkpoint_data`."""
        ...

    async def list_checkpoints(self, task_id: str) -> tuple[TaskCheckpoint, ...]:
        """All of them, the oldest first, with their states."""
        ...

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
        """Let it wait; with `state` or `checkpoint_data`, after a checkpoint.

        A `reason` that is no PauseReason is the message, and the reason is `checkpoint`. With `depends_on` it waits
        for other tasks to be completed as well: without a reason, for them alone.
        `scheduled_wait` needs `resume_at`, and `rate_limit` may have it. For `external_dependency` what is returned
        has the `token` that `signal` takes; it is not kept anywhere, and shown this once.
        """
        ...

    async def answer(
        self,
        task_id: str,
        value: Json = None,
        *,
        event_id: Text | None = None,
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
        checkpoint: Text | None = None,
        state: State | None = None,
        value: Json = None,
        expected_version: int | None = None,
    ) -> TaskState:
        """Let it go on from where it stands, or from a checkpoint, by id or name; none is lost by that.

        `state` takes the place of the state, and `value` that of an answer.
        """
        ...

    async def complete(
        self,
        task_id: str,
        result: Json = None,
        *,
        state: State | None = None,
        expected_version: int | None = None,
    ) -> TaskState:
        """It is done, for good."""
        ...

    async def fail(self, task_id: str, error: Text | State, *, expected_version: int | None = None) -> TaskState:
        """Something went wrong: it is failed, paused or retried, as its config says.

        Of an error that is an object, `message` is the task's error, and the whole its `error_details`.
        """
        ...

    async def retry(self, task_id: str, *, expected_version: int | None = None) -> TaskState:
        """Try a failed one again, as often as its config allows."""
        ...

    async def cancel(
        self, task_id: str, message: Text | None = None, *, expected_version: int | None = None
    ) -> TaskState:
        """Give it up: failed, with the error `cancelled`."""
        ...

    async def archive(self, task_id: str, *, expected_version: int | None = None) -> TaskState:
        """Leave it out of lists from now on."""
        ...

    async def delete(self, task_id: str, *, expected_version: int | None = None) -> None:
        """Remove it for good. Raises NotAllowed if another task waits for it."""
        ...
