"""Tasks in a storage: each is the one log of a Job in the space `tasks`, with an entry for lists.

The entry is emptied before the log is appended to, and filled again after. So whenever a writer dies in between, a list
has nothing of that task, and looks at its log. An entry has the place in the log that it tells of, and its hash: a log
that is shorter, or that has another hash there, was cut or written anew, and is damaged.
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
from perstack.core.verification import head_in, with_head
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
        had = floor(await self._storage.entry(task_id))
        if had and not await self._storage.read(_ref(task_id), limit=1):
            raise _shorter(task_id, 0, had)
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
                loaded = LoadedTask(after(None if loaded is None else loaded.state, event), head)
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
            await self._storage.put_entry(task_id, summary.version, with_head(summary.to_json(), loaded.head))
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
        records, end = seal(head, [event.to_json() for event in events])
        await self._storage.put_entry(task_id, head.seq + 1, b"", synced=True)
        await self._storage.append(_ref(task_id), head.seq, records)
        state = None if loaded is None else loaded.state
        for event in events:
            state = after(state, event)
        if state is None:
            raise ValueError("a task needs a first fact")
        await self._storage.put_entry(task_id, state.version, with_head(summary_of(state).to_json(), end))
        return state

    async def _facts(self, task_id: str) -> tuple[list[tuple[StoredTaskEvent, Head]], Damaged | None]:
        found = list[tuple[StoredTaskEvent, Head]]()
        lines, damage = await self._lines(check_task_id(task_id))
        for seq, line in enumerate(lines, start=1):
            sealed = open_line(line)
            try:
                found.append((parse_task_event(sealed.payload), Head(seq, sealed.hash)))
            except ValidationError:
                words = f"task {task_id}, event {seq}: no event that this version knows: a newer one has written it"
                return found, Damaged(words, readable=seq - 1)
        return found, damage

    async def _lines(self, task_id: str) -> tuple[list[bytes], Damaged | None]:
        """Its log as far as it can be read, and what is wrong with it, if anything is."""
        lines, damage = await self._compared(task_id)
        if damage is None:
            return lines, None
        return await self._compared(task_id)  # it may have been deleted and made anew between entry and log

    async def _compared(self, task_id: str) -> tuple[list[bytes], Damaged | None]:
        entry = await self._storage.entry(task_id)  # before the log, which may only grow meanwhile
        lines, damage = await readable(self._storage, _ref(task_id))
        return lines, damage or _against_entry(task_id, lines, entry)


def floor(entry: tuple[int, bytes] | None) -> int:
    """How many events a task had when its entry was put, at least. It is emptied for an event that is to come.

    One that does not read says nothing: it was lost.
    """
    if entry is None:
        return 0
    seq, text = entry
    if not text:
        return seq - 1
    return seq if _row(text) else 0


def _against_entry(task_id: str, lines: Sequence[bytes], entry: tuple[int, bytes] | None) -> Damaged | None:
    had = floor(entry)
    if len(lines) < had:
        return _shorter(task_id, len(lines), had)
    head = head_in(entry[1]) if entry is not None else None
    if head is None or head.seq > len(lines) or open_line(lines[head.seq - 1]).hash == head.hash:
        return None
    words = "its log was written anew: its hash there is not the one that its entry tells of; put it back from a copy"
    return Damaged(f"task {task_id}, event {head.seq}: {words}", readable=0)


def _shorter(task_id: str, found: int, had: int) -> Damaged:
    words = f"its log has {found} events, and its entry tells of {had}: put it back from a copy"
    return Damaged(f"task {task_id}: {words}", readable=found)


def check_version(task: TaskState, expected: int | None) -> None:
    """Raises Conflict if another version is expected."""
    if expected is not None and task.version != expected:
        raise Conflict(f"task {task.task_id} is of version {task.version}, not {expected}: look at it again first")


def _written_meanwhile(task_id: str, expected: int) -> str:
    return f"task {task_id} was written to by another process, so it is not of version {expected} any more"


def _ref(task_id: str) -> RunRef:
    return RunRef(task_id, run_id_of(task_id, 1))


def after(state: TaskState | None, event: StoredTaskEvent) -> TaskState:
    """The task after one event more. Raises ValueError if it cannot follow."""
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
