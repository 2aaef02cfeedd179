"""What was done by whatever looks after tasks, Jobs, iterations and schedules."""

from __future__ import annotations

from perstack.core.iterations.state import SeriesState
from perstack.core.job import JobSummary
from perstack.core.schedules.decide import Did
from perstack.core.tasks.state import TaskState
from perstack.core.tasks.waking import Action
from perstack.dataclass import dataclass
from perstack.engine.groups import leaves
from perstack.engine.jobs import Jobs
from perstack.errors import NotFound, PerstackError


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledWork:
    """What was done about one task, about an occurrence of a schedule, or about a Job or iterations of neither."""

    did: Action | Did
    task_id: str | None = None
    task: TaskState | None = None
    """The task after that."""
    schedule: str | None = None
    occurrence: int | None = None
    """Of the schedule: the time that its cron line names, in milliseconds since 1970."""
    job_id: str | None = None
    job: JobSummary | None = None
    """The Job after that."""
    series_id: str | None = None
    series: SeriesState | None = None
    """The iterations after that."""
    question: str | None = None
    """What the Job of a task or an occurrence asks: it waits for a person."""
    error: str | None = None


async def job_if_any(jobs: Jobs, job_id: str) -> JobSummary | None:
    """Where a Job stands; None if it has no Run."""
    try:
        return await jobs.job(job_id)
    except NotFound:
        return None


def words_of(error: Exception) -> str:
    """The first thing that went wrong, in one line."""
    first = leaves(error)[0]
    return str(first) if isinstance(first, PerstackError) else f"{type(first).__name__}: {first}"
