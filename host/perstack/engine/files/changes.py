"""The snapshots of a Job, in the order in which they were taken, and what each step, Run and Job did to files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from perstack.core.chain import open_line
from perstack.core.events import CallDelegate, FinishRewind, RecordSnapshot, StartRewind, StoredEvent
from perstack.core.ids import number_of_run
from perstack.core.snapshots.difference import Change
from perstack.dataclass import dataclass
from perstack.engine.logs.runs import event_of
from perstack.engine.read import RunLog
from perstack.engine.snapshots.trees import Trees
from perstack.errors import StorageError
from perstack.ports.storage import RunRef

_SNAPSHOTS = (b'{"type":"recordSnapshot"', b'{"type":"startRewind"', b'{"type":"finishRewind"')
_RESULT = b'{"type":"finishToolCall"'
_BEGUN = (b'{"type":"startRun"', b'{"type":"resumeRun"')
_CALLED = b'{"type":"callDelegate"'


@dataclass(frozen=True, slots=True)
class Shot:
    """The files as they were at one place of a log."""

    run_id: str
    seq: int
    at: int
    """Milliseconds since 1970."""
    tree: str
    by: tuple[str, int] | None
    """The Run and the step that did what is new in it; None: somebody else, before a Coordinator's Run began."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new in a snapshot, seen from the one before it."""

    before: str
    shot: Shot


def shots_of(job_id: str, logs: Sequence[RunLog]) -> list[Shot]:
    """All of a Job, in order of time. An event that does not read ends those of its log."""
    callers = _callers(job_id, logs)
    found: list[Shot] = []
    for log in logs:
        has_worked = has_snapshot = False
        for seq, line in enumerate(log.lines, 1):
            if line.startswith(_RESULT):
                has_worked = True
            elif line.startswith(_BEGUN):
                has_snapshot = False
            elif line.startswith(_SNAPSHOTS):
                event = _event(job_id, log.run_id, seq, line)
                if not isinstance(event, RecordSnapshot | StartRewind | FinishRewind):
                    break
                # of calls that were cut, and have no result, there is one besides that of the beginning
                is_own = (has_worked or has_snapshot) and isinstance(event, RecordSnapshot)
                by = (log.run_id, event.step_number)
                if not is_own and not isinstance(event, StartRewind | FinishRewind):
                    # what is new when a delegate begins, who called it did, in the same step
                    by, is_own = callers.get(log.run_id, by), log.run_id in callers
                if event.tree is not None:
                    found.append(Shot(log.run_id, seq, event.timestamp, event.tree, by if is_own else None))
                has_worked, has_snapshot = False, True
    return sorted(found, key=lambda shot: (shot.at, number_of_run(shot.run_id), shot.seq))


def deltas_of(shots: Sequence[Shot]) -> list[Delta]:
    """What the Runs did, one after the other."""
    return [Delta(before.tree, shot) for before, shot in pairwise(shots) if shot.by is not None]


async def changes_in(trees: Trees, deltas: Iterable[Delta]) -> tuple[Change, ...]:
    """What several of them come to together. Raises NotFound and StorageError."""
    from perstack.core.snapshots.file_diff import combined

    found = [await trees.changes(delta.before, delta.shot.tree) for delta in deltas]
    return combined(found)


def _callers(job_id: str, logs: Iterable[RunLog]) -> dict[str, tuple[str, int]]:
    """Of each delegate, the Run and the step that called it."""
    found: dict[str, tuple[str, int]] = {}
    for log in logs:
        for seq, line in enumerate(log.lines, 1):
            event = _event(job_id, log.run_id, seq, line) if line.startswith(_CALLED) else None
            if isinstance(event, CallDelegate):
                found.update({one.run_id: (log.run_id, event.step_number) for one in event.delegates})
    return found


def _event(job_id: str, run_id: str, seq: int, line: bytes) -> StoredEvent | None:
    try:
        return event_of(RunRef(job_id, run_id), seq, open_line(line).payload)
    except (StorageError, ValueError):
        return None
