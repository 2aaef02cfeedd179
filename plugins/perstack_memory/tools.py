"""The tools. Each is one operation of `perstack.ports.tasks`, with what only a program should do left out."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, JsonValue

from perstack.core.base import JsonObject
from perstack.core.job import PauseReason
from perstack.core.task_words import Config, FirstStatus, State, TaskIds, Text
from perstack.core.tasks import TaskCheckpoint, TaskPage, TaskState, TaskStatus
from perstack.errors import SkillError
from perstack.ports.tasks import TaskMemory
from perstack.ports.toolkit import ToolContext, Toolkit

INSTRUCTIONS = """\
Keep a task for work that is longer than this conversation: whoever goes on with it is told its state, and nothing else.
Create it once, and look first whether it is there. Make a checkpoint after each part that is done, with a state that \
says what is done and what is left. Pause it if you must wait; complete it when everything is done."""

kit = Toolkit("@perstack/execution-memory", instructions=INSTRUCTIONS)

TaskId = Annotated[str, Field(description="the task's id: up to 128 of A-Z a-z 0-9 _ -, such as refactor-auth-2026-11")]
Version = Annotated[
    int | None, Field(description="the version that you know; if another has written since, nothing is done")
]


@kit.tool(name="createTask")
async def create_task(
    task_id: TaskId,
    name: str,
    context: ToolContext,
    description: str = "",
    state: JsonObject | None = None,
    checkpoint_data: JsonObject | None = None,
    config: Config | None = None,
    depends_on: TaskIds = (),
    status: FirstStatus = "running",
) -> TaskState:
    """Create a task and start it. An id that exists is refused: go on with that task.

    Args:
        name: what it is, in a few words
        description: what is to be done, for whoever goes on with it
        state: where it begins, as a JSON object
        checkpoint_data: kept as a first checkpoint
        config: how failures are treated
        depends_on: the ids of other tasks: it waits until all of them are completed
        status: created, if somebody else is to start it
    """
    agent = context.call.expert_key
    return await _memory(context).create(
        task_id,
        name=name,
        description=description,
        agent_id=agent,
        state=state,
        checkpoint_data=checkpoint_data,
        config=config,
        depends_on=depends_on,
        status=status,
    )


@kit.tool(name="startTask")
async def start_task(task_id: TaskId, context: ToolContext, expected_version: Version = None) -> TaskState:
    """Start a task that somebody else created."""
    return await _memory(context).start(task_id, expected_version=expected_version)


@kit.tool(name="getTask", effect="readOnly")
async def get_task(task_id: TaskId, context: ToolContext) -> TaskState:
    """Where a task stands, with its state."""
    return await _memory(context).get(task_id)


@kit.tool(name="listTasks", effect="readOnly")
async def list_tasks(
    context: ToolContext,
    status: TaskStatus | None = None,
    reason: PauseReason | None = None,
    agent_id: str | None = None,
    older_than: Annotated[int | None, Field(ge=0)] = None,
    after: str | None = None,
) -> TaskPage:
    """List tasks, the one written to last first, at most 50.

    Args:
        status: only those of this status
        reason: only those that are paused for this reason
        agent_id: only those of this agent
        older_than: only those not written to for so many milliseconds
        after: `next` of the page before
    """
    return await _memory(context).list(
        status=status, reason=reason, agent_id=agent_id, older_than=older_than, limit=50, after=after
    )


@kit.tool(name="checkpointTask")
async def checkpoint_task(
    task_id: TaskId,
    context: ToolContext,
    state: JsonObject | None = None,
    name: str | None = None,
    checkpoint_data: JsonObject | None = None,
    data: JsonObject | None = None,
    expected_version: Version = None,
) -> TaskState:
    """Keep how far a task is. Whoever resumes it begins there.

    Args:
        state: the whole state, which takes the place of the one before
        name: a name to come back to
        checkpoint_data: notes on this checkpoint
        data: an old name of checkpoint_data
    """
    return await _memory(context).checkpoint(
        task_id, state, name=name, checkpoint_data=checkpoint_data, data=data, expected_version=expected_version
    )


@kit.tool(name="listCheckpoints", effect="readOnly")
async def list_checkpoints(task_id: TaskId, context: ToolContext) -> tuple[TaskCheckpoint, ...]:
    """The checkpoints of a task, the oldest first, with their states."""
    return await _memory(context).list_checkpoints(task_id)


@kit.tool(name="pauseTask")
async def pause_task(
    task_id: TaskId,
    context: ToolContext,
    reason: PauseReason | Text | None = None,
    message: str | None = None,
    state: JsonObject | None = None,
    checkpoint_data: JsonObject | None = None,
    resume_at: int | None = None,
    waiting_for: str | None = None,
    depends_on: TaskIds = (),
    expected_version: Version = None,
) -> TaskState:
    """Let a task wait. End your work on it after that: it is resumed when what it waits for has come.

    Args:
        reason: what it waits for; other words are the message, and put the task aside
        message: what is asked, or waited for, in words for a person
        state: the whole state, kept as a checkpoint first
        checkpoint_data: notes on that checkpoint
        resume_at: for scheduled_wait and rate_limit: when to go on, in milliseconds since 1970
        waiting_for: for external_dependency: what has to come
        depends_on: the ids of other tasks: it waits until all of them are completed as well
    """
    return await _memory(context).pause(
        task_id,
        reason,
        message,
        state=state,
        checkpoint_data=checkpoint_data,
        resume_at=resume_at,
        waiting_for=waiting_for,
        depends_on=depends_on,
        expected_version=expected_version,
    )


@kit.tool(name="resumeTask")
async def resume_task(
    task_id: TaskId,
    context: ToolContext,
    checkpoint: str | None = None,
    state: JsonObject | None = None,
    expected_version: Version = None,
) -> TaskState:
    """Go on with a paused or failed task.

    Args:
        checkpoint: the id or name of an earlier checkpoint to go back to; later ones are kept
        state: the whole state, if it is to be another
    """
    return await _memory(context).resume(task_id, checkpoint=checkpoint, state=state, expected_version=expected_version)


@kit.tool(name="completeTask")
async def complete_task(
    task_id: TaskId, context: ToolContext, result: JsonValue = None, expected_version: Version = None
) -> TaskState:
    """Say that a task is done, for good.

    Args:
        result: what came of it
    """
    return await _memory(context).complete(task_id, result, expected_version=expected_version)


@kit.tool(name="failTask")
async def fail_task(
    task_id: TaskId, error: Text | State, context: ToolContext, expected_version: Version = None
) -> TaskState:
    """Say that something went wrong: the task is failed, paused or tried again, as its config says.

    Args:
        error: what went wrong, in words, or as an object with a message
    """
    return await _memory(context).fail(task_id, error, expected_version=expected_version)


@kit.tool(name="retryTask")
async def retry_task(task_id: TaskId, context: ToolContext, expected_version: Version = None) -> TaskState:
    """Try a failed task again from where it stood, as often as its config allows."""
    return await _memory(context).retry(task_id, expected_version=expected_version)


@kit.tool(name="cancelTask")
async def cancel_task(
    task_id: TaskId, context: ToolContext, message: str | None = None, expected_version: Version = None
) -> TaskState:
    """Give a task up.

    Args:
        message: why
    """
    return await _memory(context).cancel(task_id, message, expected_version=expected_version)


@kit.tool(name="archiveTask")
async def archive_task(task_id: TaskId, context: ToolContext, expected_version: Version = None) -> TaskState:
    """Leave a completed or failed task out of lists from now on."""
    return await _memory(context).archive(task_id, expected_version=expected_version)


@kit.tool(name="deleteTask")
async def delete_task(task_id: TaskId, context: ToolContext, expected_version: Version = None) -> str:
    """Remove a task for good, with its checkpoints."""
    await _memory(context).delete(task_id, expected_version=expected_version)
    return f"Deleted {task_id}."


def _memory(context: ToolContext) -> TaskMemory:
    if context.tasks is None:
        raise SkillError("there is no execution memory here")
    return context.tasks()
