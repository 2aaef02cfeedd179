"""Tasks in a storage: each is the one log of a Job in the space `tasks`, with an entry for lists.

The entry is emptied before the log is appended to, and filled again after. So whenever a writer dies in between, a list
has nothing of that task, and looks at its log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pydantic import ValidationError
from pydantic_core import from_json

from perstack.core.chain import EMPTY_LOG, Head, open_line, seal
from perstack.core.ids import run_id_of
from perstack.core.task_events import CreateTask, StoredTaskEvent, parse_task_event
from perstack.core.tasks import (
    TaskState,
    TaskSummary,
    begin_task,
    check_task_id,
    damaged_task,
    evolve_task,
    summary_of,
)
from perstack.engine.load import readable
from perstack.engine.session import uninterrupted
from perstack.errors import Conflict, Damaged, NotFound, StorageError
from perstack.ports.storage import RunRef, Storage

SPACE = "tasks"
_TRIES = 50
"""How often a change is decided anew because another process was quicker."""

Row = dict[str, object]
"""A summary as JSON has it."""

_KEYS = frozenset(("taskId", "name", "status", "version", "createdAt", "updatedAt"))
"""What every row has."""


@dataclass(frozen=True, slots=True)
class LoadedTask:
    """A task, and the end of its log."""

    state: TaskState
    head: Head


class TaskLog:
    """Reads and writes tasks, and decides nothing."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage.space(SPACE)
        self.location = storage.location

    async def create(self, events: Sequence[StoredTaskEvent]) -> TaskState:
        """A new task from its first facts. Raises Conflict if there is one of that id."""
        task_id = events[0].task_id
        with suppress(Conflict):  # a process that died before the first fact has left an empty one
            await self._storage.create_job(task_id)
        return await uninterrupted(self._append(task_id, None, events))

    async def change(
        self, task_id: str, decide: Callable[[TaskState], Sequence[StoredTaskEvent]], expected_version: int | None
    ) -> TaskState:
        """Append what is decided on the task as it stands; nothing if that is nothing.

        Raises NotFound, what `decide` raises, and Conflict if it is, or becomes, of another version than expected.
        """
        for _ in range(_TRIES):
            loaded = await self.load(task_id)
            check_version(loaded.state, expected_version)
            events = decide(loaded.state)
            if not events:
                return loaded.state
            try:
                return await uninterrupted(self._append(task_id, loaded, events))
            except Conflict as conflict:
                if expected_version is not None:
                    raise Conflict(_written_meanwhile(task_id, expected_version)) from conflict
        raise Conflict(f"task {task_id} is written to all the time by others; try again later")

    async def load(self, task_id: str) -> LoadedTask:
        """Fold its facts. Raises NotFound, and Damaged."""
        loaded, damage = await self._as_far_as_readable(task_id)
        if damage is not None:
            raise damage
        if loaded is None:
            raise NotFound(f"there is no task {task_id} in {self.location}; `perstack task list` shows what there is")
        return loaded

    async def _as_far_as_readable(self, task_id: str) -> tuple[LoadedTask | None, Damaged | None]:
        loaded: LoadedTask | None = None
        facts, damage = await self._facts(task_id)
        for event, head in facts:
            try:
                loaded = LoadedTask(_after(None if loaded is None else loaded.state, event), head)
            except ValueError as error:
                words = f"task {task_id}, event {head.seq}: it does not follow from what comes before it ({error})"
                return loaded, Damaged(words, readable=head.seq - 1)
        return loaded, damage

    async def events(self, task_id: str) -> list[StoredTaskEvent]:
        """Its facts, in order; no fact if there is no such task. Raises Damaged."""
        facts, damage = await self._facts(task_id)
        if damage is not None:
            raise damage
        return [event for event, _ in facts]

    async def rows(self) -> list[Row]:
        """The summaries of all tasks, in no order. One that does not read is a row that says so."""
        entries = await self._storage.entries()
        found = _parsed(entries.values())
        if len(found) < len(entries):
            found += await self._missing(entries.keys() - {str(row.get("taskId")) for row in found})
        return found

    async def summary(self, row: Row) -> TaskSummary:
        """A row as it is shown: from the log, if the row is not what it should be. Raises NotFound."""
        try:
            return TaskSummary.model_validate(row)
        except ValidationError:
            return await self._summary(str(row["taskId"]))

    async def _missing(self, task_ids: Iterable[str]) -> list[Row]:
        """The summaries of tasks whose entries were lost, or are being written."""
        found: list[Row] = []
        for task_id in task_ids:
            try:
                summary = await self._summary(task_id)
            except NotFound:
                continue
            found.append(summary.model_dump(mode="json", by_alias=True))
        return found

    async def _summary(self, task_id: str) -> TaskSummary:
        """From its log. Raises NotFound."""
        try:
            loaded, damage = await self._as_far_as_readable(task_id)
        except StorageError as error:
            return damaged_task(task_id, None, str(error))
        if damage is not None:
            return damaged_task(task_id, None if loaded is None else loaded.state, str(damage))
        if loaded is None:
            raise NotFound(f"there is no task {task_id}")
        summary = summary_of(loaded.state)
        with suppress(StorageError):  # a list is whole without it
            await self._storage.put_entry(task_id, summary.version, summary.to_json())
        return summary

    async def delete(self, task_id: str, expected_version: int | None) -> None:
        """Remove it. Raises NotFound, and Conflict if it is, or becomes, of another version than expected."""
        try:
            check_version((await self.load(task_id)).state, expected_version)
        except Damaged:
            if expected_version is not None:
                raise
        expected = None if expected_version is None else (_ref(task_id), expected_version)
        try:
            await uninterrupted(self._storage.delete_job(task_id, expected=expected))
        except Conflict as conflict:
            if expected_version is not None:
                raise Conflict(_written_meanwhile(task_id, expected_version)) from conflict
            raise Conflict(f"task {task_id} is being deleted by another process") from conflict

    async def _append(self, task_id: str, loaded: LoadedTask | None, events: Sequence[StoredTaskEvent]) -> TaskState:
        head = EMPTY_LOG if loaded is None else loaded.head
        records, _ = seal(head, [event.to_json() for event in events])
        await self._storage.put_entry(task_id, head.seq + 1, b"", synced=True)
        await self._storage.append(_ref(task_id), head.seq, records)
        state = None if loaded is None else loaded.state
        for event in events:
            state = _after(state, event)
        if state is None:
            raise ValueError("a task needs a first fact")
        await self._storage.put_entry(task_id, state.version, summary_of(state).to_json())
        return state

    async def _facts(self, task_id: str) -> tuple[list[tuple[StoredTaskEvent, Head]], Damaged | None]:
        found = list[tuple[StoredTaskEvent, Head]]()
        lines, damage = await readable(self._storage, _ref(check_task_id(task_id)))
        for seq, line in enumerate(lines, start=1):
            sealed = open_line(line)
            try:
                found.append((parse_task_event(sealed.payload), Head(seq, sealed.hash)))
            except ValidationError:
                words = f"task {task_id}, event {seq}: no event that this version knows: a newer one has written it"
                return found, Damaged(words, readable=seq - 1)
        return found, damage


def check_version(task: TaskState, expected: int | None) -> None:
    """Raises Conflict if another version is expected."""
    if expected is not None and task.version != expected:
        raise Conflict(f"task {task.task_id} is of version {task.version}, not {expected}: look at it again first")


def _written_meanwhile(task_id: str, expected: int) -> str:
    return f"task {task_id} was written to by another process, so it is not of version {expected} any more"


def _ref(task_id: str) -> RunRef:
    return RunRef(task_id, run_id_of(task_id, 1))


def _after(state: TaskState | None, event: StoredTaskEvent) -> TaskState:
    """Raises ValueError if it cannot follow."""
    if state is not None:
        return evolve_task(state, event)
    if isinstance(event, CreateTask):
        return begin_task(event)
    raise ValueError("the first is not createTask")


def _parsed(entries: Iterable[bytes]) -> list[Row]:
    """Those that are summaries. All at once, which is many times quicker; one by one if one is damaged."""
    whole = [entry for entry in entries if entry]
    try:
        rows: list[Row] = from_json(b"[" + b",".join(whole) + b"]")
    except ValueError:
        rows = []
    if len(rows) == len(whole) and all(type(row) is dict and row.keys() >= _KEYS for row in rows):
        return rows
    return [row for entry in whole for row in _row(entry)]


def _row(entry: bytes) -> list[Row]:
    try:
        return [TaskSummary.model_validate_json(entry).model_dump(mode="json", by_alias=True)]
    except ValidationError:
        return []
