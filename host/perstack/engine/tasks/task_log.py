"""Tasks in a storage: each is the one log of a Job in the space `tasks`, with an entry for lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress

from pydantic import ValidationError
from pydantic_core import from_json

from perstack.core.owners import Owner
from perstack.core.tasks.events import StoredTaskEvent, parse_task_event
from perstack.core.tasks.evolve import evolve_task, runs_after
from perstack.core.tasks.rows import Row
from perstack.core.tasks.state import TaskState, check_task_id
from perstack.core.tasks.summary import TaskSummary, damaged_task, summary_of
from perstack.engine.audit import Auditing
from perstack.engine.logs.kept import Entry, log_of
from perstack.engine.logs.log import Appended, Loaded
from perstack.engine.logs.summarized import Summarized, SummarizedLog
from perstack.engine.spaces import TASK_SPACE
from perstack.errors import Conflict, Damaged, NotFound, StorageError, UsageError
from perstack.next_steps import Look
from perstack.ports.storage import Storage
from perstack.ports.uninterrupted import uninterrupted

_TRIES = 50
"""How often a change is decided anew because another process was quicker."""

_ENTRY = Entry(frozenset(("taskId", "name", "status", "version", "createdAt", "updatedAt")))


TASKS = Summarized[TaskState, StoredTaskEvent, TaskSummary](
    kind="task",
    space=TASK_SPACE,
    title="task ",
    missing="there is no task {of} in {location}",
    listed=Look("tasks"),
    check=check_task_id,
    parse=parse_task_event,
    after=evolve_task,
    summary=summary_of,
    damaged=damaged_task,
    jobs=lambda task: () if task.job_id is None else (task.job_id,),
    keeping=_ENTRY,
)


class TaskLog(SummarizedLog[TaskState, StoredTaskEvent, TaskSummary]):
    """Reads and writes tasks, and decides nothing."""

    def __init__(self, storage: Storage, audit: Auditing | None = None) -> None:
        """`audit` sends the heads of tasks to an anchor, if there is one: whenever one is changed and does not run."""
        super().__init__(storage, TASKS)
        self._audit = audit

    async def create(self, events: Sequence[StoredTaskEvent]) -> TaskState:
        """A new task from its first facts. Raises Conflict if there is one of that id."""
        task_id = events[0].task_id
        had = (await TASKS.keeping.read(self._space, task_id)).floor
        if had and not await self._space.read(log_of(task_id), limit=1):
            raise self.shorter(task_id, 0, had)
        with suppress(Conflict):  # a process that died before the first fact has left an empty one
            await self._space.create_job(task_id)
        return (await uninterrupted(self.append(task_id, None, events))).state

    async def change(
        self, task_id: str, decide: Callable[[TaskState], Sequence[StoredTaskEvent]], expected_version: int | None
    ) -> TaskState:
        """Append what is decided on the task as it stands; nothing if that is nothing.

        Raises NotFound, what `decide` raises, and Conflict if it is, or becomes, of another version than expected.
        """
        for _ in range(_TRIES):
            loaded = await self.load(task_id)
            _check_version(loaded.state, expected_version)
            events = decide(loaded.state)
            if not events:
                return loaded.state
            try:
                return (await uninterrupted(self.append(task_id, loaded, events))).state
            except Conflict as conflict:
                if expected_version is not None:
                    raise Conflict(_written_meanwhile(task_id, expected_version)) from conflict
        raise Conflict(f"others keep writing to task {task_id}: try again later")

    async def delete(self, task_id: str, expected_version: int | None) -> None:
        """Remove it. Raises NotFound, and Conflict if it is, or becomes, of another version than expected."""
        try:
            _check_version((await self.load(task_id)).state, expected_version)
        except Damaged:
            if expected_version is not None:
                raise
        expected = None if expected_version is None else (log_of(task_id), expected_version)
        try:
            async with self._removing(task_id):
                await uninterrupted(self._space.delete_job(task_id, expected=expected))
        except Conflict as conflict:
            if expected_version is not None:
                raise Conflict(_written_meanwhile(task_id, expected_version)) from conflict
            raise Conflict(f"task {task_id} is being deleted by another process") from conflict

    async def append(
        self, of: str, loaded: Loaded[TaskState] | None, events: Sequence[StoredTaskEvent]
    ) -> Appended[TaskState]:
        audit = None if self._audit is None or _runs_after(loaded, events) else self._audit
        if audit is not None:
            await audit.expect(Owner("task", of))
        appended = await super().append(of, loaded, events)
        if audit is not None:
            await audit.stopped(Owner("task", of), appended.head)
        return appended

    async def rows(self) -> list[Row]:
        """The summaries of all tasks, in no order. One that does not read is a row that says so."""
        entries = await self._space.entries()
        found = _parsed(entries.values())
        if len(found) < len(entries):
            found += await self._from_logs(entries.keys() - {str(row.get("taskId")) for row in found})
        return found

    async def of_row(self, row: Row) -> TaskSummary:
        """A row as it is shown: from the log, if the row is not what it should be. Raises NotFound."""
        try:
            return TaskSummary.model_validate(row)
        except ValidationError:
            return await self.summary(str(row["taskId"]))

    def _removing(self, task_id: str) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self._audit is None else self._audit.removing(Owner("task", task_id))

    async def _from_logs(self, task_ids: Iterable[str]) -> list[Row]:
        """The summaries of tasks whose entries were lost, or are being written."""
        found: list[Row] = []
        for task_id in task_ids:
            with suppress(NotFound):
                found.append(_row_of(await self.summary(task_id)))
        return found

    async def _shown(self, of: str, loaded: Loaded[TaskState]) -> TaskSummary:
        summary = await super()._shown(of, loaded)
        with suppress(StorageError):  # a list is whole without it
            await TASKS.keeping.put(self._space, of, summary, loaded.head)
        return summary


def _runs_after(loaded: Loaded[TaskState] | None, events: Sequence[StoredTaskEvent]) -> bool:
    try:
        return runs_after(None if loaded is None else loaded.state, events)
    except (ValueError, LookupError, UsageError):
        return True  # it is refused where it is appended


def _check_version(task: TaskState, expected: int | None) -> None:
    if expected is not None and task.version != expected:
        raise Conflict(f"task {task.task_id} is of version {task.version}, not {expected}: look at it again first")


def _written_meanwhile(task_id: str, expected: int) -> str:
    return f"task {task_id} was written to by another process, so it is not of version {expected} any more"


def _parsed(entries: Iterable[bytes]) -> list[Row]:
    """Those that are summaries. All at once, which is many times quicker; one by one if one is damaged."""
    whole = [entry for entry in entries if entry]
    try:
        rows: list[Row] = from_json(b"[" + b",".join(whole) + b"]")
    except ValueError:
        rows = []
    if len(rows) == len(whole) and all(map(_ENTRY.reads, rows)):
        return rows
    found: list[Row] = []
    for entry in whole:
        with suppress(ValidationError):
            found.append(_row_of(TaskSummary.model_validate_json(entry)))
    return found


def _row_of(summary: TaskSummary) -> Row:
    return summary.model_dump(mode="json", by_alias=True)
