"""Where in a storage what is kept: Jobs in itself, tasks, series of iterations and schedules in a space each."""

from __future__ import annotations

from typing import assert_never

from perstack.core.owners import OwnerKind
from perstack.ports.storage import Storage

TASK_SPACE = "tasks"
SERIES_SPACE = "iterations"
SCHEDULE_SPACE = "schedules"


def space_of(storage: Storage, kind: OwnerKind) -> Storage:
    """Where those of a kind are."""
    match kind:
        case "job":
            return storage
        case "task":
            return storage.space(TASK_SPACE)
        case "iterations":
            return storage.space(SERIES_SPACE)
        case "schedule":
            return storage.space(SCHEDULE_SPACE)
    assert_never(kind)
