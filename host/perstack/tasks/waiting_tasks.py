"""Inbox entries of tasks that wait for a person or cannot be read."""

from __future__ import annotations

from perstack.next_steps import ResumeWithoutDependencies, TryAgain
from perstack.oversight.inbox import InboxItem, age_key
from perstack.support.storage import pages
from perstack.tasks.execution_memory import StoredTasks
from perstack.tasks.memory import TaskMemory
from perstack.tasks.state import TaskState, in_words
from perstack.tasks.summaries import TaskSummary

_PAGE = 500
_ASKING = ("human_approval", "human_input")


def asks_person(task: TaskState | TaskSummary) -> bool:
    """Return whether a question of the task waits for the answer of a person."""
    return task.status == "paused" and task.pause_reason in _ASKING and not task.answered


async def waiting_tasks(memory: TaskMemory) -> tuple[InboxItem, ...]:
    """Return open questions of tasks, and tasks that wait for a failed or deleted one; oldest first."""
    items: list[InboxItem] = []
    async for page in pages(lambda after: memory.list(status="paused", limit=_PAGE, after=after)):
        for task_summary in page.tasks:
            if asks_person(task_summary):
                items.append(_item_of_task(task_summary))
            elif any(blocker.is_stuck for blocker in task_summary.blocked_by):
                items.append(_stuck_item(task_summary))
    return tuple(sorted(items, key=age_key))


async def damaged_tasks(memory: StoredTasks) -> tuple[InboxItem, ...]:
    """Return tasks that cannot be read; a question may be open in them."""
    return tuple(
        InboxItem(
            task_summary.task_id,
            task_summary.agent_id,
            task_summary.error or "",
            task_summary.updated_at,
            False,
            task_id=task_summary.task_id,
            damaged=True,
        )
        for task_summary in await memory.damaged_tasks()
    )


def _item_of_task(task_summary: TaskSummary) -> InboxItem:
    text = task_summary.pause_message or task_summary.name
    is_approval = task_summary.pause_reason == "human_approval"
    return InboxItem(
        task_summary.task_id,
        task_summary.agent_id,
        text,
        task_summary.updated_at,
        is_approval,
        task_id=task_summary.task_id,
    )


def _stuck_item(task_summary: TaskSummary) -> InboxItem:
    blockers = [blocker for blocker in task_summary.blocked_by if blocker.is_stuck]
    retries = [TryAgain(blocker.task_id) for blocker in blockers if blocker.status == "failed" and not blocker.archived]
    return InboxItem(
        task_summary.task_id,
        task_summary.agent_id,
        in_words(blockers),
        task_summary.updated_at,
        is_approval=False,
        task_id=task_summary.task_id,
        next_steps=(*retries[:1], ResumeWithoutDependencies(task_summary.task_id)),
    )
