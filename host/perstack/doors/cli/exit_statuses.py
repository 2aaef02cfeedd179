"""Exit statuses of the command line: one for each status of a Job, and the list of all with their meanings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perstack.doors.shared.signals import INTERRUPTED

if TYPE_CHECKING:
    from perstack.core.definitions.job_status import JobStatus
    from perstack.core.jobs.summary import JobSummary

EXIT_STATUS: dict[JobStatus, int] = {
    "completed": 0,
    "stoppedByError": 1,
    "stoppedByInteractiveTool": 3,
    "stoppedByMaxSteps": 4,
    "stoppedByBudget": 4,
    "stoppedByInterrupt": INTERRUPTED,
    "running": 1,
    "queued": 0,
}
TRY_LATER = 75
"""Status of a pause for a provider's rate limit. Source: EX_TEMPFAIL of sysexits.h."""

EXIT_CODES = {
    0: "completed",
    1: "failed",
    2: "wrong usage or definition",
    3: "waiting for a person",
    4: "a limit: steps, or the budget",
    75: "paused for a provider's rate limit",
    130: "interrupted",
}
"""Every exit status with its meaning, as the page of the command line shows it."""


def exit_status_of(summary: JobSummary) -> int:
    """Return the exit status of a command that drove the Job to its end or stop."""
    return TRY_LATER if summary.pause_reason == "rate_limit" else EXIT_STATUS[summary.status]
