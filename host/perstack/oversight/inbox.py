"""The inbox: everything that waits for a person, over all Jobs and tasks."""

from __future__ import annotations

from collections.abc import Iterator

from perstack.core.runs.questions import OpenQuestion
from perstack.dataclass import dataclass
from perstack.engine.jobs.reader import JobNeedingAttention, JobReader
from perstack.next_steps import Inspect, NextStep
from perstack.next_steps import in_words as step_in_words


@dataclass(frozen=True, slots=True)
class InboxItem:
    """An open question, or a Job or task that cannot be read."""

    id: str  # the id for `answer`; of two answers to one question the second is refused
    who: str  # the key of the Expert that asks, or the agent of a task
    text: str
    since: int  # milliseconds since 1970
    is_approval: bool
    job_id: str | None = None
    asking: OpenQuestion | None = None  # the question of a Job; None for a task
    task_id: str | None = None
    damaged: bool = False  # True for a Job or a task that cannot be read, whose `text` says where the damage is
    next_steps: tuple[NextStep, ...] = ()  # alternatives for what to do if no answer helps
    cost: str = ""  # of the Job so far, as text; empty if nothing was used

    @property
    def next(self) -> str | None:
        """The next steps as text; None without any."""
        return "; ".join(map(step_in_words, self.next_steps)) or None


async def waiting_jobs(reader: JobReader) -> tuple[InboxItem, ...]:
    """Return the open questions of Jobs, and Jobs that cannot be read and may have asked something, oldest first."""
    return tuple(sorted((item for job in await reader.needing_attention() for item in _of_job(job)), key=age_of_item))


def in_order(*lists: tuple[InboxItem, ...]) -> tuple[InboxItem, ...]:
    """Merge the lists, oldest first."""
    return tuple(sorted((item for items in lists for item in items), key=age_of_item))


def age_of_item(item: InboxItem) -> tuple[int, str]:
    return item.since, item.id


def _of_job(job: JobNeedingAttention) -> Iterator[InboxItem]:
    job_id, asking, damaged = job.job_id, job.asking, job.damaged
    if asking is not None:
        yield InboxItem(
            asking.id,
            asking.expert_key,
            asking.text,
            asking.asked_at,
            asking.approval,
            job_id=job_id,
            asking=asking,
            cost=job.cost,
        )
    if damaged is not None:
        steps = (Inspect("damage", job_id),)
        expert_key, text, since = damaged.expert_key, damaged.error or "", damaged.updated_at
        yield InboxItem(job_id, expert_key, text, since, False, job_id=job_id, damaged=True, next_steps=steps)
