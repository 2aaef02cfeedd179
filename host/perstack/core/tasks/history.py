"""What the facts of a task add up to over time."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.core.base import JsonObject
from perstack.core.ids import event_id_of
from perstack.core.tasks.events import CheckpointTask, CompleteTask, CreateTask, ResumeTask, StoredTaskEvent
from perstack.core.tasks.state import TaskCheckpoint


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
                    checkpoint_data=event.data,
                    data=event.data,
                )
            )
    return tuple(found)
