"""When the workspace is recorded, as the state of a Run says it."""

from __future__ import annotations

from perstack.core.commands import Call
from perstack.core.events import RecordSnapshot
from perstack.core.runs.changes import Changes
from perstack.core.runs.state import Run, SnapshotDue


def due_on_resume(run: Run) -> SnapshotDue:
    """Whoever had the workspace while the Run stood still may have changed files, which is no work of the Run's."""
    return run.snapshot_due if run.start.snapshots is None or run.snapshot_due != "no" else "before"


def due_after(run: Run, call: Call) -> SnapshotDue:
    """Once a call has its result: only what is known to read, and what nobody works on, changes no file."""
    decided = call.decided
    may_change = decided.kind == "delegate" or (decided.kind == "tool" and decided.effect != "readOnly")
    return "after" if may_change and run.start.snapshots is not None else run.snapshot_due


def recorded(run: Run, event: RecordSnapshot) -> Changes:
    """One that could not be taken is not tried again before there is something new to record."""
    return Changes(snapshot=event.tree or run.snapshot, snapshot_due="no")
