"""Execution memory as a Python API: tasks that are paused, and resumed by any later process.

    async with ExecutionMemory.open() as memory:
        await memory.create("report", state={"read": 0}, start=True)

`Host.tasks` is a Host's own. docs/tasks.md describes all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from perstack.config.project_place import find_place
from perstack.core.definitions.project import Project
from perstack.definition_files import load_usable
from perstack.engine.context.audit_trail import NO_AUDIT
from perstack.engine.plugins.registry import load_plugins
from perstack.errors import Conflict, NotAllowed, NotFound
from perstack.parts import describe_waiting_work
from perstack.state_guard.guarded_state import open_own_state
from perstack.tasks.events import StoredTaskEvent, TaskConfig, WaitingFor
from perstack.tasks.execution_memory import StoredTasks
from perstack.tasks.state import Dependency, TaskCheckpoint, TaskState
from perstack.tasks.summaries import TaskPage, TaskSummary
from perstack.trust.agreements import environment_of, state_environment

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


class ExecutionMemory(StoredTasks):
    """Tasks without a Host."""

    @classmethod
    def open(
        cls,
        *,
        workspace: str | Path = ".",
        storage: str | None = None,
        env: Mapping[str, str] | None = None,
        plugins: Iterable[object] = (),
    ) -> ExecutionMemory:
        """Open the tasks in a storage: the given one, the one of a perstack.toml found upward, or `file:perstack`."""
        place = find_place(workspace)
        project = Project() if place.config is None or storage is not None else load_usable(place.config).project
        environment = env if env is not None else state_environment(project, place, storage)
        registry = load_plugins(plugins, environment)
        state = open_own_state(registry, project, place, storage, environment, describe_waiting_work)
        if project.audit is None:
            return cls(state, NO_AUDIT)
        from perstack.audit.trail import AnchoredTrail

        variables = environment_of(project, place) if env is None else env
        return cls(state, AnchoredTrail(state, project, place.folder, variables))
