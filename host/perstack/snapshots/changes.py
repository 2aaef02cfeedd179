"""Order the snapshots of a Job by time, and compute what each step, Run and Job changed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import pairwise

from perstack.core.base.chain import open_line
from perstack.core.base.ids import number_of_run
from perstack.core.files.line_diff import Effort
from perstack.core.runs.events import StoredEvent
from perstack.core.runs.events.files import FinishRewind, RecordSnapshot, StartRewind
from perstack.core.runs.events.tool_calls import CallDelegate
from perstack.dataclass import dataclass
from perstack.engine.log.run_log import RunLog, event_of
from perstack.errors import NotFound, StorageError
from perstack.ports.storage import RunRef
from perstack.snapshots.stored_trees import Trees
from perstack.snapshots.tree_diff import EFFORT_STEPS, Change, FileDiff, compared_bytes, file_diff
from perstack.snapshots.trees import Entry, File

# Changes of files between two trees of a Job, with lines where they can be compared.

_MAX_DIFF_BYTES = 512 << 20  # bytes of all files that one diff reads; files after that are named without lines
_MAX_INLINE_BYTES = 256 << 10  # bytes above which two files are compared in a thread


async def file_diffs(trees: Trees, changes: Sequence[Change]) -> tuple[FileDiff, ...]:
    """Return each change with its lines, or without if the content is no longer stored. Raises StorageError."""
    effort, remaining_bytes, diffs = Effort(EFFORT_STEPS), _MAX_DIFF_BYTES, list[FileDiff]()
    for change in changes:
        sizes = [compared_bytes(entry) for entry in (change.old, change.new)]
        size = sum(count or 0 for count in sizes)
        old = new = None
        if None not in sizes and size <= remaining_bytes and change.kind != "mode":
            remaining_bytes -= size
            old, new = await _read_content(trees, change.old), await _read_content(trees, change.new)
        if size > _MAX_INLINE_BYTES:
            diffs.append(await asyncio.to_thread(file_diff, change, old, new, effort))
        else:
            diffs.append(file_diff(change, old, new, effort))
    return tuple(diffs)


async def _read_content(trees: Trees, entry: Entry | None) -> bytes | None:
    if not isinstance(entry, File):
        return None
    try:
        return await trees.content(entry.digest)
    except NotFound:
        return None


_SNAPSHOT_EVENTS = (b'{"type":"recordSnapshot"', b'{"type":"startRewind"', b'{"type":"finishRewind"')
_RESULT_EVENT = b'{"type":"finishToolCall"'
_BEGIN_EVENTS = (b'{"type":"startRun"', b'{"type":"resumeRun"')
_DELEGATION_EVENT = b'{"type":"callDelegate"'


@dataclass(frozen=True, slots=True)
class SnapshotPoint:
    """The workspace's files at one event of a log."""

    run_id: str
    seq: int
    at: int  # milliseconds since 1970
    tree: str
    by: tuple[str, int] | None
    """Run and step that made the changes; None for changes outside the Job, before a Coordinator's Run began."""


@dataclass(frozen=True, slots=True)
class SnapshotDelta:
    """The changes between a snapshot and the one before it."""

    before: str
    point: SnapshotPoint


def snapshots_of(job_id: str, logs: Sequence[RunLog]) -> list[SnapshotPoint]:
    """Return all snapshots of a Job in order of time; of each log up to the first event that cannot be parsed."""
    callers = _callers_by_delegate(job_id, logs)
    points: list[SnapshotPoint] = []
    for log in logs:
        has_worked = has_snapshot = False
        for seq, line in enumerate(log.lines, 1):
            if line.startswith(_RESULT_EVENT):
                has_worked = True
            elif line.startswith(_BEGIN_EVENTS):
                has_snapshot = False
            elif line.startswith(_SNAPSHOT_EVENTS):
                event = _parse_event(job_id, log.run_id, seq, line)
                if not isinstance(event, RecordSnapshot | StartRewind | FinishRewind):
                    break
                # a second snapshot without a result between: calls were cut off, and their changes belong to the Run
                is_own = (has_worked or has_snapshot) and isinstance(event, RecordSnapshot)
                by = (log.run_id, event.step_number)
                if not is_own and not isinstance(event, StartRewind | FinishRewind):
                    # changes found when a delegate begins were made by its caller, in the step that called it
                    by, is_own = callers.get(log.run_id, by), log.run_id in callers
                if event.tree is not None:
                    points.append(SnapshotPoint(log.run_id, seq, event.timestamp, event.tree, by if is_own else None))
                has_worked, has_snapshot = False, True
    return sorted(points, key=lambda point: (point.at, number_of_run(point.run_id), point.seq))


def deltas_of(points: Sequence[SnapshotPoint]) -> list[SnapshotDelta]:
    """Return the changes that the Runs made, in order."""
    return [SnapshotDelta(before.tree, point) for before, point in pairwise(points) if point.by is not None]


async def changes_in(trees: Trees, deltas: Iterable[SnapshotDelta]) -> tuple[Change, ...]:
    """Return the combined changes of several deltas. Raises NotFound and StorageError."""
    from perstack.snapshots.tree_diff import combine_changes

    changes = [await trees.changes(delta.before, delta.point.tree) for delta in deltas]
    return combine_changes(changes)


def _callers_by_delegate(job_id: str, logs: Iterable[RunLog]) -> dict[str, tuple[str, int]]:
    callers: dict[str, tuple[str, int]] = {}
    for log in logs:
        for seq, line in enumerate(log.lines, 1):
            event = _parse_event(job_id, log.run_id, seq, line) if line.startswith(_DELEGATION_EVENT) else None
            if isinstance(event, CallDelegate):
                callers.update({delegate.run_id: (log.run_id, event.step_number) for delegate in event.delegates})
    return callers


def _parse_event(job_id: str, run_id: str, seq: int, line: bytes) -> StoredEvent | None:
    try:
        return event_of(RunRef(job_id, run_id), seq, open_line(line).payload)
    except (StorageError, ValueError):
        return None
