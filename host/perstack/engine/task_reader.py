"""Tasks as they stand: everything about them that can be asked without changing one."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.core.tasks.events import StoredTaskEvent
from perstack.core.tasks.history import checkpoints_in
from perstack.core.tasks.operations import List
from perstack.core.tasks.rows import Row, by_id
from perstack.core.tasks.state import TaskCheckpoint, TaskState
from perstack.core.tasks.summary import TaskPage, TaskSummary
from perstack.engine.audit import Auditing
from perstack.engine.clock import SYSTEM
from perstack.engine.logs.tasks import TaskLog
from perstack.engine.task_dependencies import Listing, seen
from perstack.errors import NotFound
from perstack.ports.checked import checked
from perstack.ports.clock import Clock
from perstack.ports.paging import newest_first
from perstack.ports.storage import Storage

_EVER = 1 << 53


class TaskReader:
    """The tasks in a storage. What changes none of them."""

    def __init__(self, storage: Storage, audit: Auditing | None = None, clock: Clock = SYSTEM) -> None:
        self.log = TaskLog(storage, audit)
        self._clock = clock

    async def task(self, task_id: str) -> TaskState:
        """Where a task stands, with what holds it up. Raises NotFound, and Damaged."""
        return await seen(self.log, (await self.log.load(task_id)).state)

    async def page(self, asked: List) -> TaskPage:
        """Tasks that are all of what is asked, the one written to last first."""
        wanted = [
            (key, value)
            for key, value in (("status", asked.status), ("pauseReason", asked.reason), ("agentId", asked.agent_id))
            if value is not None
        ]
        now = self._clock.now()
        latest = now - asked.older_than if asked.older_than is not None else now + _EVER
        earliest = now - asked.newer_than if asked.newer_than is not None else -1

        def fits(row: Row) -> bool:
            for key, value in wanted:  # by hand: `all` takes twice the time, and there may be thousands
                if row.get(key) != value:
                    return False
            return (row.get("archivedAt") is not None) is asked.archived and earliest < _written(row) <= latest

        rows = by_id(await self.log.rows())
        fitting = ((_written(row), task_id) for task_id, row in rows.items() if fits(row))
        page = newest_first(fitting, asked.limit, asked.after)
        listing = Listing(self.log, rows)
        tasks = [await listing.seen(await self.log.of_row(rows[one])) for one in page.ids]
        return TaskPage(tasks=tuple(tasks), next=page.next)

    async def damaged(self) -> tuple[TaskSummary, ...]:
        """The tasks whose logs do not read, as far as lists have found that out, but for archived ones."""
        rows = [row for row in await self.log.rows() if row.get("damaged") and row.get("archivedAt") is None]
        return tuple([await self.log.of_row(row) for row in rows])

    @checked
    async def history(self, task_id: str) -> tuple[StoredTaskEvent, ...]:
        """Everything that happened to a task. Raises NotFound."""
        return tuple(await self._events(task_id))

    async def checkpoints(self, task_id: str) -> tuple[TaskCheckpoint, ...]:
        """All of a task, the oldest first. Raises NotFound."""
        return checkpoints_in(task_id, await self._events(task_id))

    async def checkpoint_of(self, task_id: str, wanted: str) -> TaskCheckpoint:
        """By its id, or the latest of that name."""
        found = await self.checkpoints(task_id)
        for one in reversed(found):
            if wanted in (one.id, one.name):
                return one
        ids = ", ".join(one.id for one in found[-5:]) or "none"
        raise NotFound(f"task {task_id} has no checkpoint {wanted}; its latest are: {ids}")

    async def _events(self, task_id: str) -> Sequence[StoredTaskEvent]:
        events = await self.log.events(task_id)
        if not events:
            await self.task(task_id)
        return events


def _written(row: Row) -> int:
    written = row.get("updatedAt")
    return written if isinstance(written, int) else 0
