"""How a Job stands."""

from __future__ import annotations

from typing import Literal

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
"""Each status by what people type."""
