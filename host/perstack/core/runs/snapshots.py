"""When the workspace is recorded, as the state of a Run says it."""

from __future__ import annotations

from perstack.core.commands import Call
from perstack.core.events import RecordSnapshot
from perstack.core.runs.changes import Changes
from perstack.core.runs.state import Phase, Run, SnapshotDue


def due_on_resume(run: Run) -> SnapshotDue:
    """Whoever had the workspace while the Run stood still may have changed files, which is no work of the Run's."""
    return run.snapshot_due if run.start.snapshots is None or run.snapshot_due != "no" else "before"


def due_after(run: Run, call: Call) -> SnapshotDue:
    """Once a call has its result: only what is known to read, and what nobody works on, changes no file."""
    return "after" if _may_change_files(call) and run.start.snapshots is not None else run.snapshot_due


def may_have_unrecorded(run: Run) -> bool:
    """Whether a Run that ends in the middle of its calls may leave files that no snapshot has."""
    if run.start.snapshots is None or run.status != "running" or run.phase is not Phase.CALLING:
        return False
    return run.snapshot_due != "no" or any(map(_may_change_files, run.open_calls))


def _may_change_files(call: Call) -> bool:
    decided = call.decided
    return decided.kind == "delegate" or (decided.kind == "tool" and decided.effect != "readOnly")


def recorded(run: Run, event: RecordSnapshot) -> Changes:
    """One that could not be taken is not tried again before there is something new to record."""
    return Changes(snapshot=event.tree or run.snapshot, snapshot_due="no")
