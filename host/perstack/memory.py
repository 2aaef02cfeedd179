"""Execution memory from Python: tasks that are paused, and resumed by whichever process comes next.

    async with ExecutionMemory.open() as memory:
        await memory.create("report", state={"read": 0}, start=True)

`Host.memory` is the one of a Host. docs/tasks.md tells the whole of it.
"""

from __future__ import annotations

from perstack.core.tasks.dependencies import Dependency
from perstack.core.tasks.events import StoredTaskEvent, TaskConfig, WaitingFor
from perstack.core.tasks.state import TaskCheckpoint, TaskState
from perstack.core.tasks.summary import TaskPage, TaskSummary
from perstack.engine.memory import ExecutionMemory
from perstack.errors import Conflict, NotAllowed, NotFound

__all__ = [
    "Conflict",
    "Dependency",
    "ExecutionMemory",
    "NotAllowed",
    "NotFound",
    "StoredTaskEvent",
    "TaskCheckpoint",
    "TaskConfig",
    "TaskPage",
    "TaskState",
    "TaskSummary",
    "WaitingFor",
]
