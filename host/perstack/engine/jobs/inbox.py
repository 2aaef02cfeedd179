"""The inbox: everything that waits for a person, over all Jobs and tasks."""

from __future__ import annotations

from collections.abc import Iterator

from perstack.core.runs.questions import OpenQuestion
from perstack.dataclass import dataclass
from perstack.engine.jobs.reader import JobNeedingAttention, JobReader
from perstack.next_steps import Inspect, NextStep, ResumeWithoutDependencies, TryAgain
from perstack.next_steps import in_words as step_in_words
from perstack.support.storage import pages
from perstack.tasks.execution_memory import ExecutionMemory
from perstack.tasks.memory import TaskMemory
from perstack.tasks.state import in_words
from perstack.tasks.summaries import TaskSummary

_PAGE = 500
_ASKING = ("human_approval", "human_input")


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
        """The next steps in words; None without any."""
        return "; ".join(map(step_in_words, self.next_steps)) or None


async def waiting_jobs(reader: JobReader) -> tuple[InboxItem, ...]:
    """Return the open questions of Jobs, and Jobs that cannot be read and may have asked something, oldest first."""
    return tuple(sorted((item for job in await reader.needing_attention() for item in _of_job(job)), key=_age))


async def waiting_tasks(memory: TaskMemory) -> tuple[InboxItem, ...]:
    """Return the open questions of tasks, and tasks that wait for one which will not be completed; oldest first."""
    items: list[InboxItem] = []
    async for page in pages(lambda after: memory.list(status="paused", limit=_PAGE, after=after)):
        for task in page.tasks:
            if task.pause_reason in _ASKING and not task.answered:
                items.append(_of_task(task))
            elif any(blocker.is_stuck for blocker in task.blocked_by):
                items.append(_stuck_item(task))
    return tuple(sorted(items, key=_age))


async def damaged_tasks(memory: ExecutionMemory) -> tuple[InboxItem, ...]:
    """Return tasks that cannot be read and may have asked something."""
    return tuple(
        InboxItem(t.task_id, t.agent_id, t.error or "", t.updated_at, False, task_id=t.task_id, damaged=True)
        for t in await memory.damaged_tasks()
    )


def in_order(*lists: tuple[InboxItem, ...]) -> tuple[InboxItem, ...]:
    """Merge the lists, oldest first."""
    return tuple(sorted((item for items in lists for item in items), key=_age))


def _age(item: InboxItem) -> tuple[int, str]:
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


def _of_task(task: TaskSummary) -> InboxItem:
    text = task.pause_message or task.name
    is_approval = task.pause_reason == "human_approval"
    return InboxItem(task.task_id, task.agent_id, text, task.updated_at, is_approval, task_id=task.task_id)


def _stuck_item(task: TaskSummary) -> InboxItem:
    blockers = [blocker for blocker in task.blocked_by if blocker.is_stuck]
    retries = [TryAgain(blocker.task_id) for blocker in blockers if blocker.status == "failed" and not blocker.archived]
    return InboxItem(
        task.task_id,
        task.agent_id,
        in_words(blockers),
        task.updated_at,
        is_approval=False,
        task_id=task.task_id,
        next_steps=(*retries[:1], ResumeWithoutDependencies(task.task_id)),
    )
