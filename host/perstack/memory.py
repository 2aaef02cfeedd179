"""Execution memory as a Python API: tasks that are paused, and resumed by any later process.

    async with ExecutionMemory.open() as memory:
        await memory.create("report", state={"read": 0}, start=True)

`Host.tasks` is a Host's own. docs/tasks.md describes all of it.
"""

from __future__ import annotations

from perstack.errors import Conflict, NotAllowed, NotFound
from perstack.tasks.events import StoredTaskEvent, TaskConfig, WaitingFor
from perstack.tasks.execution_memory import ExecutionMemory
from perstack.tasks.state import Dependency, TaskCheckpoint, TaskState
from perstack.tasks.summaries import TaskPage, TaskSummary

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
