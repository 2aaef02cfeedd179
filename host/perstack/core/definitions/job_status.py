"""Statuses of Runs and Jobs, as stored and as people type them, and the lifecycle that all long work shares."""

from __future__ import annotations

from typing import Literal, assert_never

JobStatus = Literal[
    "running",
    "completed",
    "stoppedByInteractiveTool",
    "stoppedByMaxSteps",
    "stoppedByBudget",
    "stoppedByInterrupt",
    "stoppedByError",
    "queued",
]

RunStatus = Literal[
    "running",
    "completed",
    "stoppedByDelegate",
    "stoppedByInteractiveTool",
    "stoppedByMaxSteps",
    "stoppedByBudget",
    "stoppedByInterrupt",
    "stoppedByError",
    "queued",
]

ACTIVE: frozenset[RunStatus] = frozenset(("running", "stoppedByDelegate"))
"""Statuses of a Run that a driver is working on, itself or by driving the Run's delegates."""

TYPED_STATUS: dict[str, JobStatus] = {
    "running": "running",
    "completed": "completed",
    "waiting": "stoppedByInteractiveTool",
    "step-limit": "stoppedByMaxSteps",
    "budget": "stoppedByBudget",
    "interrupted": "stoppedByInterrupt",
    "failed": "stoppedByError",
    "queued": "queued",
}

Lifecycle = Literal["running", "paused", "completed", "failed"]

PauseReason = Literal[
    "human_approval", "human_input", "external_dependency", "scheduled_wait", "rate_limit", "checkpoint"
]


def lifecycle_of(status: JobStatus) -> Lifecycle:
    """Return the state that corresponds to a status, of the four that all long work shares."""
    match status:
        case "running":
            return "running"
        case "completed":
            return "completed"
        case "stoppedByError":
            return "failed"
        case "stoppedByInteractiveTool" | "stoppedByMaxSteps" | "stoppedByBudget" | "stoppedByInterrupt" | "queued":
            return "paused"
        case _:
            assert_never(status)


def pause_reason_of(
    status: JobStatus, *, waits_for_limit: bool = False, is_approval: bool = False
) -> PauseReason | None:
    """Return why a paused Job is paused; None if it is not."""
    if status == "stoppedByInteractiveTool" and is_approval:
        return "human_approval"
    if status == "stoppedByInterrupt" and waits_for_limit:
        return "rate_limit"
    if status == "stoppedByInteractiveTool":
        return "human_input"
    if status == "queued":
        return "scheduled_wait"
    return "checkpoint" if lifecycle_of(status) == "paused" else None
