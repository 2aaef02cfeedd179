"""The inbox: everything that waits for a person, over all Jobs and tasks.

An item is derived from the logs at each listing, and nothing is stored: an answer, a resume or a deletion removes it. A
Job or task that cannot be read is an item too, because it may have asked something. A list of thousands of Jobs stays
fast because only Jobs whose job.json may ask something are read (`_is_at_rest`); that file is never trusted for the
question itself. Items of tasks come from `tasks.waiting_tasks`; a new source of questions is added in `Host.inbox`.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import JsonValue

from perstack.core.base.records import Record
from perstack.core.base.usage import cost_text
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.open_questions import OpenQuestion
from perstack.dataclass import dataclass
from perstack.engine.jobs.reader import JobReader
from perstack.next_steps import Inspect, NextStep
from perstack.next_steps import in_words as step_in_words
from perstack.ports.storage import Storage


@dataclass(frozen=True, slots=True)
class InboxItem:
    """An open question, or a Job or task that cannot be read."""

    id: str  # the id for `answer`; of two answers to one question the second is refused
    who: str  # the key of the Expert that asks, or the agent of a task
    text: str
    since: int  # milliseconds since 1970
    is_approval: bool
    job_id: str | None = None
    question: OpenQuestion | None = None  # the question of a Job; None for a task
    task_id: str | None = None
    damaged: bool = False  # True for a Job or a task that cannot be read, whose `text` says where the damage is
    next_steps: tuple[NextStep, ...] = ()  # alternatives for what to do if no answer helps
    cost: str = ""  # cost of the Job so far, as text; empty if nothing was used

    @property
    def next(self) -> str | None:
        """The next steps as text; None without any."""
        return "; ".join(map(step_in_words, self.next_steps)) or None


async def waiting_jobs(reader: JobReader) -> tuple[InboxItem, ...]:
    """Return the open questions of Jobs, and Jobs that cannot be read and may have asked something, oldest first.

    The logs of a Job with an intact summary that asks nothing are not read: `verify` finds their damage. A question is
    computed from the logs.
    """
    items = (
        item for summary in await reader.rows(await unsettled_jobs(reader.storage)) for item in items_of_job(summary)
    )
    return tuple(sorted(items, key=age_key))


async def unsettled_jobs(storage: Storage) -> list[str]:
    """Return the ids of the Jobs that may ask something, which only their logs say."""
    summaries = await storage.summaries()
    return [job_id for job_id, data in summaries.items() if not _is_at_rest(job_id, data)]


def merge_by_age(*lists: tuple[InboxItem, ...]) -> tuple[InboxItem, ...]:
    """Merge the lists, oldest first."""
    return tuple(sorted((item for items in lists for item in items), key=age_key))


def age_key(item: InboxItem) -> tuple[int, str]:
    return item.since, item.id


class _InboxSummary(Record):
    """The part of job.json that the inbox needs: parsing the rest of thousands of Jobs would take too long."""

    id: str
    status: str
    asking: JsonValue = None


def _is_at_rest(job_id: str, data: bytes) -> bool:
    """Return whether job.json says that the Job is at rest and asks nothing, so that its logs need not be read."""
    try:
        inbox_summary = _InboxSummary.model_validate_json(data)
    except ValueError:
        return False
    return inbox_summary.id == job_id and inbox_summary.status != "running" and inbox_summary.asking is None


def items_of_job(summary: JobSummary) -> Iterator[InboxItem]:
    """Yield the open question of a Job, or the Job itself if it cannot be read."""
    asking = summary.asking
    if summary.damaged:
        steps = (Inspect("damage", summary.id),)
        text, since = summary.error or "", summary.updated_at
        yield InboxItem(
            summary.id, summary.expert_key, text, since, False, job_id=summary.id, damaged=True, next_steps=steps
        )
    elif asking is not None:
        yield InboxItem(
            asking.id,
            asking.expert_key,
            asking.text,
            asking.asked_at,
            asking.approval,
            job_id=summary.id,
            question=asking,
            cost=cost_text(summary.usage, summary.unpriced_tokens),
        )
