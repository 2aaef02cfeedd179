"""What waits for a person, over all Jobs."""

from __future__ import annotations

from dataclasses import dataclass

from perstack.core.job import OpenQuestion
from perstack.engine.read import JobReader

_PAGE = 500


@dataclass(frozen=True, slots=True)
class InboxItem:
    """One open question."""

    job_id: str
    asking: OpenQuestion

    @property
    def id(self) -> str:
        """What `answer` takes: of two answers to one question the second is refused."""
        return self.asking.id


async def open_questions(reader: JobReader) -> tuple[InboxItem, ...]:
    """The oldest first."""
    found: list[InboxItem] = []
    after: str | None = None
    while True:
        page = await reader.jobs(limit=_PAGE, after=after)
        found += [InboxItem(job.id, job.asking) for job in page.jobs if job.asking is not None]
        after = page.next
        if after is None:
            return tuple(sorted(found, key=lambda item: (item.asking.asked_at, item.id)))
